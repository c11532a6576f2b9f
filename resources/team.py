"""``kind: Team``: who takes part, and by which strategy they speak (seeds 000 and 001)."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from resources.agent import DEFAULT_MODEL
from resources.base import FieldError, Name, NameOrRef, Plain, Ref, Reference
from resources.condition import Condition
from resources.manifest import Manifest
from resources.strategy import Graph, NoProgress, Selector
from resources.window import ContextWindow

Strategy = Literal["sequential", "parallel", "round-robin", "selector", "graph"]

_BELONGS: dict[str, tuple[Strategy, ...]] = {
    "loops": ("sequential",),
    "selector": ("selector",),
    "graph": ("graph", "selector"),
    "aggregator": ("parallel",),
    "max_concurrency": ("parallel",),
    "on_member_error": ("parallel",),
    "no_progress": ("sequential", "round-robin", "selector", "graph"),
    "terminate_when": ("sequential", "round-robin", "selector", "graph"),
}

_KINDS = {"agent": ("Agent",), "team": ("Team",), None: ("Agent", "Team")}


class Member(Plain):
    """One member. Without ``type`` it is the agent of that name, else the team of that name."""

    name: Name = Field(description="the name of an agent or a team")
    type: Literal["agent", "team"] | None = Field(None, description="'agent' or 'team'")
    namespace: Name | None = None
    as_: Name | None = Field(None, alias="as", description="another name for it in this team")

    @property
    def address(self) -> str:
        """The name that it is known by in its team."""
        return self.as_ or self.name


class TeamSpec(Plain):
    """A team's ``spec``."""

    strategy: Strategy = Field(description="'sequential', 'parallel', 'round-robin', 'selector' or 'graph'")
    members: tuple[Member, ...] = Field(min_length=1, description="at least one member {name, type}")
    description: str | None = Field(None, description="a word for people, and for a selector above this team")
    max_turns: int | None = Field(None, ge=1, description="how many rounds of a round-robin, else turns, there may be")
    on_max_turns: Literal["fail", "complete"] = Field("fail", description="'fail', or 'complete' for a normal end")
    loops: bool = Field(False, description="whether a sequential team begins anew after its last member")
    selector: Selector | None = Field(None, description="how a selector chooses")
    graph: Graph | None = Field(None, description="the edges of a graph, or those that limit a selector")
    aggregator: NameOrRef | None = Field(None, description="the Agent that makes one answer of a parallel team's")
    max_concurrency: int | None = Field(None, ge=1, description="how many members of a parallel team speak at once")
    on_member_error: Literal["fail", "continue"] = Field("fail", description="'fail', or 'continue' with the others")
    no_progress: NoProgress | None = Field(None, description="when the team counts as one that gets nowhere")
    terminate_when: Condition | None = Field(None, description="a condition in CEL that ends the team after a turn")
    context_window: ContextWindow | None = Field(None, description="how much of the conversation its members read")

    @model_validator(mode="after")
    def _fits_its_strategy(self) -> Self:
        if self.strategy == "graph" and not self.graph:
            raise FieldError(("graph",), "is missing: the strategy 'graph' needs graph.edges")
        for name, strategies in _BELONGS.items():
            field = type(self).model_fields[name]
            if getattr(self, name) not in (None, False, field.default) and self.strategy not in strategies:
                alias, fits = field.alias or name, " or ".join(strategies)
                raise FieldError((alias,), f"has no use with the strategy '{self.strategy}', but with {fits}")
        self._check_addresses()
        return self

    def _check_addresses(self) -> None:
        addresses = [member.address for member in self.members]
        for index, address in enumerate(addresses):
            if self.strategy in ("graph", "selector") and address in addresses[:index]:
                raise FieldError(
                    ("members", index), f"'{address}' stands there twice: give one of them another name, as: NAME"
                )
        for path, text in self.graph.wrong(addresses, limits=self.strategy == "selector") if self.graph else ():
            raise FieldError(("graph", *path), text)


class Team(Manifest):
    """Members that answer a question together."""

    kind: Literal["Team"] = "Team"
    spec: TeamSpec = Field(description="the team's strategy and members")

    def references(self) -> Iterator[Reference]:
        yield from super().references()
        yield from self.members()
        if aggregator := self.aggregator():
            yield aggregator
        if self.spec.strategy == "selector":
            yield self.chooser()

    def aggregator(self) -> Reference | None:
        """The Agent that makes one answer of all."""
        ref = self.spec.aggregator
        return self._refer(("spec", "aggregator", "name"), ("Agent",), ref) if ref else None

    @property
    def may_go_on_for_ever(self) -> bool:
        """Whether its strategy alone would never end it."""
        spec = self.spec
        if spec.strategy == "selector":
            return not (spec.selector and spec.selector.enable_terminate_tool)
        if spec.strategy == "graph" and spec.graph:
            return spec.graph.has_cycle(spec.members[0].address)
        return spec.strategy == "round-robin" or spec.loops

    def chooser(self) -> Reference:
        """The Agent or Model that chooses who speaks next; a Model may be one of the environment's server."""
        selector = self.spec.selector or Selector()
        if selector.agent:
            return self._refer(("spec", "selector", "agent", "name"), ("Agent",), selector.agent)
        ref = selector.model or Ref(name=DEFAULT_MODEL)
        return self._refer(("spec", "selector", "model", "name"), ("Model",), ref, optional=True)

    def members(self) -> Iterator[Reference]:
        """Who speaks in this team, in the order written."""
        for index, member in enumerate(self.spec.members):
            ref = Ref(name=member.name, namespace=member.namespace)
            yield self._refer(("spec", "members", index, "name"), _KINDS[member.type], ref)
