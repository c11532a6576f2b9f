"""``kind: Team``: the members of a team and its strategy (ARK: teams, ARK: team strategies)."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from .agent import DEFAULT_MODEL
from .base import FieldError, JsonModel, JsonObject, NameOrRef, Path, Ref, Reference, Text
from .budget import Budget
from .conditions import check_condition
from .manifest import ContextWindow, Manifest
from .member import KINDS, Member, Speaker
from .panel import EdgeCondition, PanelFields, tool_references
from .strategies import (
    PANEL_STRATEGIES,
    STRATEGIES,
    AppliesTo,
    PanelRole,
    Strategy,
    StrategyRules,
    default_rounds,
    except_for,
    listed,
    only_for,
)
from .template import check_names

PROMPT_NAMES = ("Roles", "Participants", "History")
"""The placeholder names in a selector's prompt (ARK: team strategies, template variables)."""


def _check_prompt(text: str) -> str:
    check_names(text, PROMPT_NAMES)
    return text


class SelectorSpec(JsonModel):
    """How the strategy ``selector`` chooses the next speaker."""

    model: NameOrRef | None = Field(None, description="the Model that chooses; by default the Model 'default'")
    agent: NameOrRef | None = Field(None, description="the Agent that chooses, instead of a model")
    function: Text | None = Field(
        None,
        description="the registered function that chooses, instead of a model: it returns a name, or nothing to end",
    )
    parameters: JsonObject = Field({}, description="arguments of the function, by name")
    selector_prompt: Annotated[str, AfterValidator(_check_prompt)] | None = Field(
        None, min_length=1, description="its prompt, with {{.Roles}}, {{.Participants}} and {{.History}}"
    )
    style: Literal["tool", "text"] = Field("tool", description="'tool' for a forced tool call, or 'text'")
    on_no_choice: Literal["ask", "first"] = Field(
        "ask",
        description="'ask' once more if the answer names no candidate, or let the 'first' member speak, as ARK does",
    )
    enable_terminate_tool: bool = Field(False, description="whether the selector can end the team")
    terminate_prompt: str | None = Field(None, min_length=1, description="when it should end the team")

    @model_validator(mode="after")
    def _one_model_or_agent(self) -> Self:
        if self.model and self.agent:
            raise FieldError(("agent",), "can't be combined with model: keep one of them")
        if self.function and (others := self.model_fields_set - {"function", "parameters"}):
            alias = type(self).model_fields[min(others)].alias or min(others)
            raise FieldError((alias,), "can't be combined with function, which is asked instead of a model: remove it")
        if self.parameters and not self.function:
            raise FieldError(("parameters",), "is only for a function that chooses")
        return self


class Edge(JsonModel):
    """An edge: one member may speak after another."""

    from_: str = Field(alias="from", description="the member that spoke last")
    to: str = Field(description="the member that speaks next")
    when: EdgeCondition | None = Field(
        None, description="a condition in CEL, or {function: NAME}; edges are tried in order"
    )


class GraphSpec(JsonModel):
    """The edges of the strategy ``graph``, or those that restrict a selector."""

    edges: tuple[Edge, ...] = Field(min_length=1, description="at least one edge {from, to}")

    def problems(self, names: list[str], *, limits: bool) -> Iterator[tuple[Path, str]]:
        """The errors of the edges between these members. With ``limits`` the edges restrict a selector's choice."""
        closed: dict[str, bool] = {}
        for index, edge in enumerate(self.edges):
            path: Path = ("edges", index)
            for end, name in (("from", edge.from_), ("to", edge.to)):
                if name not in names:
                    yield (*path, end), f"'{name}' is not a member"
            if limits and edge.when:
                yield (*path, "when"), "can't be used with a selector, which decides itself: remove it"
            elif edge.from_ in closed and not limits:
                text = f"member '{edge.from_}' has more than one outgoing edge"
                yield path, text if not edge.when else f"{text}, and an earlier edge has no 'when'"
            if not edge.when:
                closed[edge.from_] = True

    def has_cycle(self, start: str) -> bool:
        """Whether a path along the edges, from ``start``, reaches a member twice."""
        path = [start]
        branches = [self._after(start)]
        seen = {start}
        while branches:
            step = next(branches[-1], None)
            if step is None:
                path.pop()
                branches.pop()
            elif step in path:
                return True
            elif step not in seen:
                seen.add(step)
                path.append(step)
                branches.append(self._after(step))
        return False

    def _after(self, name: str) -> Iterator[str]:
        return (edge.to for edge in self.edges if edge.from_ == name)


class NoProgress(JsonModel):
    """When a team makes no progress: its members repeat themselves."""

    window: int = Field(4, ge=2, description="how many turns in a row may repeat earlier messages of their speakers")
    action: Literal["stop", "warn"] = Field("stop", description="'stop' ends the team, 'warn' only logs a warning")


PARALLEL = only_for("parallel")

MAX_TOOL_NAME = 64
"""Characters of the name of a tool, the limit of most model APIs."""

DEFAULT_MAX_TURNS = 100
"""The turn limit of a team that nothing else limits."""


class TeamSpec(PanelFields):
    """A team's ``spec``."""

    strategy: Strategy = Field(description=listed())
    members: tuple[Member, ...] = Field(min_length=1, description="a roster of at least 1 entry {name, type}")
    description: str | None = Field(None, description="a description for people, and for the selector of a team above")
    max_turns: Annotated[int | None, except_for("debate")] = Field(
        None, ge=1, description="the maximum number of turns; of rounds with round-robin"
    )
    on_max_turns: Literal["fail", "complete"] = Field(
        "fail", description="what to do at maxTurns: 'fail', or 'complete' for a normal end"
    )
    loops: Annotated[bool, only_for("sequential")] = Field(
        False, description="whether a sequential team starts again after its last member"
    )
    selector: Annotated[SelectorSpec | None, only_for("selector")] = Field(
        None, description="how the selector chooses the next speaker"
    )
    graph: Annotated[GraphSpec | None, only_for("graph", "selector")] = Field(
        None, description="the edges of a graph, or those that limit a selector"
    )
    aggregator: Annotated[NameOrRef | None, PARALLEL] = Field(
        None, description="the Agent that combines the answers of a parallel team"
    )
    max_concurrency: Annotated[int | None, PARALLEL] = Field(
        None, ge=1, description="how many members of a parallel team run at the same time"
    )
    on_member_error: Annotated[Literal["fail", "continue"], PARALLEL] = Field(
        "fail", description="what to do if a member fails: 'fail', or 'continue' with the others"
    )
    no_progress: Annotated[NoProgress | None, except_for("parallel", "debate")] = Field(
        None, description="when a team that makes no progress is stopped"
    )
    context_window: ContextWindow | None = Field(None, description="how much of the conversation the members read")
    budget: Budget | None = Field(None, description="limits for everything below it in one run")

    @model_validator(mode="after")
    def _fits_its_strategy(self) -> Self:
        if self.rules.order == "by_edges" and not self.graph:
            raise FieldError(("graph",), f"is missing: the strategy '{self.strategy}' needs graph.edges")
        for name, field in type(self).model_fields.items():
            strategies = _strategies_of(name)
            if getattr(self, name) not in (None, False, field.default) and self.strategy not in strategies:
                alias, fits = field.alias or name, " or ".join(strategies)
                raise FieldError((alias,), f"can't be used with the strategy '{self.strategy}', only with {fits}")
        self._check_names()
        problems = self._panel_problems() if self.is_panel else self._problems_outside_panels()
        for path, text in problems:
            raise FieldError(path, text)
        return self

    @property
    def rules(self) -> StrategyRules:
        """The rules of its strategy."""
        return STRATEGIES[self.strategy]

    @property
    def is_panel(self) -> bool:
        """Whether it is a panel: members speak in rounds about a goal, with a final result (round-robin pattern)."""
        panel = self.rules.panel
        fields = any(getattr(self, name) != type(self).model_fields[name].default for name in _PANEL_FIELDS)
        has_panel_members = any(member.role or member.makes_panel for member in self.members)
        return panel is not None and (panel.always or fields or has_panel_members)

    @property
    def has_cycle(self) -> bool:
        """Whether a cycle of the graph is reachable from the first member."""
        return bool(self.graph and self.graph.has_cycle(self.members[0].name_in_team))

    @property
    def is_endless(self) -> bool:
        """Whether its strategy alone might never end it."""
        return self.rules.is_endless(self)

    def handoff_tools(self, index: int) -> dict[str, int]:
        """The indexes of the members to which a member can transfer the conversation, by the names of its tools."""
        names = [member.name_in_team for member in self.members]
        if self.rules.order != "handed_off" or self.members[index].is_human:
            return {}
        handoffs = self.members[index].handoffs
        receivers = names if handoffs is None else handoffs
        return {handoff_tool(name): names.index(name) for name in receivers if name != names[index]}

    @property
    def default_max_turns(self) -> int:
        """The limit of a team that nothing else limits, in the unit of ``maxTurns``: turns, or rounds."""
        if self.rules.turn_unit == "round":
            return max(1, DEFAULT_MAX_TURNS // len(self.members))
        return DEFAULT_MAX_TURNS

    @property
    def rounds(self) -> int:
        """The maximum number of rounds of a panel or a debate."""
        return self.max_rounds or default_rounds(self.strategy)

    def _panel_problems(self) -> Iterator[tuple[Path, str]]:
        for name in ("max_turns", "no_progress"):
            if getattr(self, name) is not None:
                alias = type(self).model_fields[name].alias or name
                yield (alias,), "can't be combined with the fields of a panel, which is limited by maxRounds: remove it"
        yield from self.problems(self.members, stances=bool(self.rules.panel and self.rules.panel.stances))

    def _problems_outside_panels(self) -> Iterator[tuple[Path, str]]:
        for index, member in enumerate(self.members):
            for name in ("role", "stance"):
                if getattr(member, name):
                    text = f"can't be used with the strategy '{self.strategy}', only in a panel"
                    yield ("members", index, name), text
            if member.only_in_panels:
                text = "is only for panels and debates: members of other teams are agents, teams, people and functions"
                yield ("members", index, "type"), text
        try:
            if isinstance(self.terminate_when, str):
                check_condition(self.terminate_when)
        except ValueError as error:
            yield ("terminateWhen",), str(error)

    def _check_names(self) -> None:
        names = [member.name_in_team for member in self.members]
        for index, member in enumerate(self.members):
            for path, text in self._handoff_problems(member, names):
                raise FieldError(("members", index, *path), text)
        for index, name in enumerate(names):
            if self.rules.finds_members_by_name and name in names[:index]:
                raise FieldError(("members", index), f"'{name}' appears twice: give one of them another name, as: NAME")
        for path, text in self.graph.problems(names, limits=self.rules.order == "selected") if self.graph else ():
            raise FieldError(("graph", *path), text)

    def _handoff_problems(self, member: Member, names: list[str]) -> Iterator[tuple[Path, str]]:
        if member.handoffs is None:
            return
        if self.rules.order != "handed_off":
            yield ("handoffs",), f"can't be used with the strategy '{self.strategy}', only with handoff"
        if member.type not in (None, "agent"):
            yield ("handoffs",), "is only for agents: members of other types can receive the conversation"
        for position, name in enumerate(member.handoffs):
            if name not in names:
                yield ("handoffs", position), f"'{name}' is not a member"
            if name == member.name_in_team:
                yield ("handoffs", position), "is the member itself"


def handoff_tool(name: str) -> str:
    """The name of the tool that transfers the conversation to the member ``name``.

    A longer name ends in a hash: model APIs accept at most 64 characters.
    """
    tool = f"transfer_to_{name.replace('.', '_')}"
    return (
        tool if len(tool) <= MAX_TOOL_NAME else f"{tool[: MAX_TOOL_NAME - 9]}_{sha256(name.encode()).hexdigest()[:8]}"
    )


def _strategies_of(name: str) -> tuple[Strategy, ...]:
    """The strategies that use a field: those of its mark; without a mark all, or all that can be panels."""
    marks = [mark for mark in TeamSpec.model_fields[name].metadata if isinstance(mark, AppliesTo)]
    return marks[0].strategies if marks else PANEL_STRATEGIES if name in PanelFields.model_fields else (*STRATEGIES,)


_PANEL_FIELDS = [name for name in PanelFields.model_fields if {*_strategies_of(name)} <= {*PANEL_STRATEGIES}]
"""The fields that make a team a panel."""


class Team(Manifest):
    """Members that answer a question together."""

    kind: Literal["Team"] = "Team"
    spec: TeamSpec = Field(description="the team's strategy and members")

    def _references(self) -> Iterator[Reference]:
        yield from super()._references()
        yield from self.members()
        yield from (reference for _, reference in self.role_holders() if reference)
        if self.spec.rules.order == "selected" and not (self.spec.selector and self.spec.selector.function):
            yield self.selector_reference()
        if self.spec.is_panel:
            yield self.default_model()
            yield from tool_references(self, self.spec.tools)
            for index, ref in enumerate(self.spec.uses):
                yield self._refer(("spec", "uses", index, "name"), ("Capability",), ref)

    def role_holders(self) -> Iterator[tuple[str, Reference | None]]:
        """Speakers besides the members, by field name; None for a default agent or a function."""
        if ref := self.spec.aggregator:
            yield "aggregator", self._refer(("spec", "aggregator", "name"), ("Agent",), ref)
        if self.spec.is_panel and (panel := self.spec.rules.panel):
            for role in get_args(PanelRole):
                speaker = getattr(self.spec, role)
                if isinstance(speaker, Speaker):
                    yield role, self._speaks(speaker, ("spec", role, "name"))
                elif speaker or (speaker is None and role in panel.default_roles):
                    yield role, None

    def selector_reference(self) -> Reference:
        """The selector: an Agent or a Model. The Model is optional: the environment variables may name a server."""
        selector = self.spec.selector or SelectorSpec()
        if selector.agent:
            return self._refer(("spec", "selector", "agent", "name"), ("Agent",), selector.agent)
        ref = selector.model or Ref(name=DEFAULT_MODEL)
        return self._refer(("spec", "selector", "model", "name"), ("Model",), ref, optional=True)

    def default_model(self) -> Reference:
        """The Model of the default members. It is optional: the environment variables may name a server."""
        ref = self.spec.model or Ref(name=DEFAULT_MODEL)
        return self._refer(("spec", "model", "name"), ("Model",), ref, optional=True)

    def members(self) -> Iterator[Reference]:
        """The members in order. In a panel, a member without a manifest is a default member."""
        for index, member in enumerate(self.spec.members):
            path = ("spec", "members", index, "name")
            yield self._speaks(member, path, optional=self.spec.is_panel and member.type is None)

    def _speaks(self, speaker: Speaker, path: Path, *, optional: bool = False) -> Reference:
        kinds = speaker.kinds if isinstance(speaker, Member) else KINDS[speaker.type]
        ref = Ref(name=speaker.name, namespace=speaker.namespace)
        return self._refer(path, kinds, ref, optional=optional or not kinds)
