"""``kind: Team``: who takes part, and by which strategy they speak (seeds 000 and 001)."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from .agent import DEFAULT_MODEL
from .base import FieldError, NameOrRef, Path, Ref, Reference
from .capability import tool_references
from .condition import check
from .manifest import Manifest
from .member import KINDS, Member, Speaker
from .panel import PanelFields
from .strategy import Graph, NoProgress, Selector
from .window import ContextWindow

Strategy = Literal["sequential", "parallel", "round-robin", "selector", "graph", "debate"]

_BELONGS: dict[str, tuple[Strategy, ...]] = {
    "loops": ("sequential",),
    "selector": ("selector",),
    "graph": ("graph", "selector"),
    "aggregator": ("parallel",),
    "max_concurrency": ("parallel",),
    "on_member_error": ("parallel",),
    "no_progress": ("sequential", "round-robin", "selector", "graph"),
    "terminate_when": ("sequential", "round-robin", "selector", "graph", "debate"),
    "max_turns": ("sequential", "parallel", "round-robin", "selector", "graph"),
    "referee": ("round-robin",),
    "moderator": ("debate",),
    "judge": ("debate",),
    "anonymize_transcript": ("debate",),
    "shuffle_for_judge": ("debate",),
}
_PANEL = frozenset(PanelFields.model_fields) - {"terminate_when"}
_BELONGS |= {name: ("round-robin", "debate") for name in _PANEL if name not in _BELONGS}

DEFAULT_ROUNDS = {"round-robin": 5, "debate": 2}

ALWAYS = {"round-robin": ("synthesizer",), "debate": ("judge", "synthesizer")}
"""The parts that are there where nothing is said of them."""

PARTS = ("referee", "moderator", "judge", "synthesizer")
"""Who may have a part in a panel or a debate beside its members."""


class TeamSpec(PanelFields):
    """A team's ``spec``."""

    strategy: Strategy = Field(description="'sequential', 'parallel', 'round-robin', 'selector', 'graph' or 'debate'")
    members: tuple[Member, ...] = Field(min_length=1, description="a roster of at least 1 entry {name, type}")
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
        own = self._wrong_panel() if self.is_panel else self._wrong_without_rounds()
        for path, text in own:
            raise FieldError(path, text)
        return self

    @property
    def is_panel(self) -> bool:
        """Whether its members speak in rounds on a goal, with a deliverable at the end (seed 002)."""
        fields = any(getattr(self, name) != type(self).model_fields[name].default for name in _PANEL)
        own = any(member.role or member.type == "activity" for member in self.members)
        return self.strategy == "debate" or (self.strategy == "round-robin" and (fields or own))

    @property
    def rounds(self) -> int:
        """How many rounds a panel or a debate has at most."""
        return self.max_rounds or DEFAULT_ROUNDS[self.strategy]

    def _wrong_panel(self) -> Iterator[tuple[Path, str]]:
        for name in ("max_turns", "no_progress"):
            if getattr(self, name) is not None:
                alias = type(self).model_fields[name].alias or name
                yield (alias,), "stands beside the fields of a panel, which is bounded by maxRounds: take it out"
        yield from self.wrong(self.members, debate=self.strategy == "debate")

    def _wrong_without_rounds(self) -> Iterator[tuple[Path, str]]:
        for index, member in enumerate(self.members):
            for name in ("role", "stance"):
                if getattr(member, name):
                    yield ("members", index, name), f"has no use with the strategy '{self.strategy}', but with a panel"
            if member.type == "activity":
                yield ("members", index, "type"), "is for panels and debates: elsewhere, members are agents and teams"
        try:
            if isinstance(self.terminate_when, str):
                check(self.terminate_when)
        except ValueError as error:
            yield ("terminateWhen",), str(error)

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
        yield from (reference for _, reference in self.appointed() if reference)
        if self.spec.strategy == "selector":
            yield self.chooser()
        if self.spec.is_panel:
            yield self.default_model()
            yield from tool_references(self, self.spec.tools)
            for index, ref in enumerate(self.spec.uses):
                yield self._refer(("spec", "uses", index, "name"), ("Capability",), ref)

    def appointed(self) -> Iterator[tuple[str, Reference | None]]:
        """Who has a part beside the members, by its field; without a reference it is the default one, or a function."""
        if ref := self.spec.aggregator:
            yield "aggregator", self._refer(("spec", "aggregator", "name"), ("Agent",), ref)
        for part in PARTS if self.spec.is_panel else ():
            speaker = getattr(self.spec, part)
            if isinstance(speaker, Speaker):
                yield part, self._speaks(speaker, ("spec", part, "name"))
            elif speaker or (speaker is None and part in ALWAYS[self.spec.strategy]):
                yield part, None

    @property
    def may_go_on_for_ever(self) -> bool:
        """Whether its strategy alone would never end it."""
        spec = self.spec
        if spec.strategy == "selector":
            return not (spec.selector and spec.selector.enable_terminate_tool)
        if spec.strategy == "graph" and spec.graph:
            return spec.graph.has_cycle(spec.members[0].address)
        return (spec.strategy == "round-robin" and not spec.is_panel) or spec.loops

    def chooser(self) -> Reference:
        """The Agent or Model that chooses who speaks next; a Model may be one of the environment's server."""
        selector = self.spec.selector or Selector()
        if selector.agent:
            return self._refer(("spec", "selector", "agent", "name"), ("Agent",), selector.agent)
        ref = selector.model or Ref(name=DEFAULT_MODEL)
        return self._refer(("spec", "selector", "model", "name"), ("Model",), ref, optional=True)

    def default_model(self) -> Reference:
        """The Model of a panel's default members; it may be one of the environment's server."""
        ref = self.spec.model or Ref(name=DEFAULT_MODEL)
        return self._refer(("spec", "model", "name"), ("Model",), ref, optional=True)

    def members(self) -> Iterator[Reference]:
        """Who speaks in this team, in the order written; in a panel, what leads to nothing is a default member."""
        for index, member in enumerate(self.spec.members):
            path = ("spec", "members", index, "name")
            yield self._speaks(member, path, optional=self.spec.is_panel and member.type is None)

    def _speaks(self, speaker: Speaker, path: Path, *, optional: bool = False) -> Reference:
        kinds = speaker.kinds if isinstance(speaker, Member) else KINDS[speaker.type]
        ref = Ref(name=speaker.name, namespace=speaker.namespace)
        return self._refer(path, kinds, ref, optional=optional or not kinds)
