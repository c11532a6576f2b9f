"""Builds the diagram of manifests: the targets of queries, and the speaking order in teams."""

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Literal

from ...resources.agent import Agent
from ...resources.base import Reference
from ...resources.catalog import Catalog, Resource
from ...resources.member import Member
from ...resources.model import Model
from ...resources.panel import FunctionRef
from ...resources.query import Query
from ...resources.strategies import SpeakingOrder
from ...resources.team import Edge, Team, TeamSpec
from ..text import escape_control_characters

MAX_TITLE = 60
"""The length at which a title is truncated, in characters."""

MAX_LINE = 36
"""The length at which the lines below a title are wrapped, in characters."""

_NOT_IN_XML = re.compile("[\ufffe\uffff]")


def title_of(resource: Resource | Reference, namespace: str) -> str:
    """The name of a resource, with its namespace if it is not ``namespace``."""
    return resource.name if resource.namespace == namespace else f"{resource.namespace}/{resource.name}"


def shorten(text: str, length: int) -> str:
    """The text on one line, truncated to ``length`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[: length - 1].rstrip()}…"


def box_lines(title: str, *notes: str) -> tuple[str, ...]:
    """A title, and wrapped notes, without control characters."""
    wrapped = (textwrap.wrap(note, MAX_LINE, break_on_hyphens=False) for note in notes)
    lines = (shorten(title, MAX_TITLE), *chain.from_iterable(wrapped))
    return tuple(_NOT_IN_XML.sub("\ufffd", escape_control_characters(line)).replace("\xa0", " ") for line in lines)


Shape = Literal["page", "query", "team", "agent", "human", "model", "tool", "missing", "selector", "dot"]


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes, by their indexes in the enclosing box.

    ``edges`` are the indexes of the edges of the team's manifest that it stands for.
    """

    start: int
    end: int
    two_way: bool = False
    dashed: bool = False
    label: str = ""
    edges: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Box:
    """A resource or another shape, with its lines of text.

    The boxes ``inside`` are arranged in columns, from left to right by their ``column``; ``arrows`` connect them.

    What events name it by: ``resource`` is the id of its manifest, as in ``Agent/default/critic``. ``speaker`` is the
    name of a member in the team around it, and ``part`` the role of a speaker that is not a member, such as
    ``referee``.
    """

    shape: Shape
    lines: tuple[str, ...] = ()
    column: int = 0
    inside: tuple["Box", ...] = ()
    arrows: tuple[Arrow, ...] = ()
    resource: str | None = field(default=None, compare=False)
    speaker: str | None = field(default=None, compare=False)
    part: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Arrangement:
    """The layout of a team: the columns of its members, and the arrows between them.

    ``helpers`` are boxes that are not members; their indexes follow those of the members. ``unreachable`` are the
    indexes of members that never speak.
    """

    columns: tuple[int, ...]
    arrows: tuple[Arrow, ...] = ()
    helpers: tuple[Box, ...] = ()
    unreachable: tuple[int, ...] = ()


def arrange_panel(spec: TeamSpec, role_holders: Mapping[str, str]) -> Arrangement:
    """The members in a row or, with a moderator, next to it; then referee, judge and synthesizer, if any."""
    count = len(spec.members)
    members = _moderated(count) if "moderator" in role_holders else _in_row(count)
    helpers = [_role_box("moderator", role_holders)] if "moderator" in role_holders else []
    arrows, last = [*members.arrows], count if helpers else count - 1
    column = max(members.columns)
    for role in ("referee", "judge", "synthesizer"):
        if role in role_holders:
            column += 1
            helpers.append(_role_box(role, role_holders, column))
            before, last = last, count + len(helpers) - 1
            arrows.append(Arrow(before, last))
        if role == "referee" and spec.rounds > 1 and "moderator" not in role_holders:
            arrows.append(Arrow(last, 0))
    return Arrangement(members.columns, tuple(arrows), tuple(helpers))


def _moderated(count: int) -> Arrangement:
    """The members next to the moderator, which is the first helper."""
    return Arrangement((1,) * count, tuple(Arrow(count, index, two_way=True) for index in range(count)))


def _in_row(count: int) -> Arrangement:
    return Arrangement(tuple(range(count)), tuple(Arrow(*pair) for pair in pairwise(range(count))))


def _role_box(role: str, role_holders: Mapping[str, str], column: int = 0) -> Box:
    """The box of the holder of a role: its name, and the role unless it is the name."""
    name = role_holders[role]
    return Box("agent", (name,) if name == role else (name, role), column, part=role)


def strategy_label(spec: TeamSpec) -> str:
    """The strategy and its limit, such as ``round-robin · 3 rounds``."""
    words = [spec.strategy, *(["loops"] if spec.loops else [])]
    limit = spec.rounds if spec.is_panel else spec.max_turns
    if limit and (spec.loops or spec.rules.repeats):
        words.append(f"{limit} {spec.rules.turn_unit}{'s' if limit > 1 else ''}")
    return " · ".join(words)


def arrange(spec: TeamSpec, role_holders: Mapping[str, str]) -> Arrangement:
    """The arrangement of a team; ``role_holders`` are the names of its other speakers, by role."""
    if spec.is_panel:
        return arrange_panel(spec, role_holders)
    return _ARRANGE.get(spec.rules.order, _as_list)(spec)


def _as_list(spec: TeamSpec) -> Arrangement:
    """The members in a column, for a speaking order without its own arrangement."""
    return Arrangement((0,) * len(spec.members))


def _in_order(spec: TeamSpec) -> Arrangement:
    """The members in a row, with an arrow back to the first if they speak again."""
    indexes = range(len(spec.members))
    back = [Arrow(indexes[-1], 0)] if spec.rules.repeats or spec.loops else []
    return Arrangement(tuple(indexes), (*(Arrow(*pair) for pair in pairwise(indexes)), *back))


def _at_once(spec: TeamSpec) -> Arrangement:
    """The members in a column, between the start and the aggregator or the end."""
    count = len(spec.members)
    start, end = Box("dot", column=0), Box("dot", column=2)
    if spec.aggregator:
        end = Box("agent", (spec.aggregator.name, "aggregator"), 2, speaker=spec.aggregator.name, part="aggregator")
    arrows = (Arrow(count, index) for index in range(count)), (Arrow(index, count + 1) for index in range(count))
    return Arrangement((1,) * count, (*arrows[0], *arrows[1]), (start, end))


def _selected(spec: TeamSpec) -> Arrangement:
    """The members in a column, next to the selector. With edges it can select any first speaker, then follows them."""
    count = len(spec.members)
    selected_by = spec.selector and (spec.selector.agent or spec.selector.model)
    name = selected_by.name if selected_by else spec.selector and spec.selector.function
    selector = Box("selector", ("selector", *([name] if name else [])), part="selector")
    edges = _edges(spec)
    selections = (Arrow(count, index, two_way=not edges, dashed=bool(edges)) for index in range(count))
    return Arrangement((1,) * count, (*selections, *_merge(edges)), (selector,))


def _handed_off(spec: TeamSpec) -> Arrangement:
    """The first member in the first column, the others in the next; an arrow for each possible transfer."""
    count = len(spec.members)
    transfers = [Arrow(start, end) for start in range(count) for end in spec.handoff_tools(start).values()]
    columns = (1, *(2 for _ in range(count - 1)))
    return Arrangement(columns, (Arrow(count, 0), *_merge(transfers)), (Box("dot"),))


def _by_edges(spec: TeamSpec) -> Arrangement:
    """The first member in the first column; the others by the number of turns before them; unreachable ones last."""
    edges = _edges(spec)
    columns, reached = {0: 1}, [0]
    for index in reached:
        for edge in edges:
            if edge.start == index and edge.end not in columns:
                columns[edge.end] = columns[index] + 1
                reached.append(edge.end)
    indexes = range(len(spec.members))
    last = max(columns.values()) + 1
    return Arrangement(
        columns=tuple(columns.get(index, last) for index in indexes),
        arrows=(Arrow(len(indexes), 0), *_merge(edges)),
        helpers=(Box("dot"),),
        unreachable=tuple(index for index in indexes if index not in columns),
    )


def _edges(spec: TeamSpec) -> list[Arrow]:
    """The edges between members, with their conditions."""
    indexes = {member.name_in_team: index for index, member in enumerate(spec.members)}
    edges = spec.graph.edges if spec.graph else ()
    return [
        Arrow(indexes[edge.from_], indexes[edge.to], label=_label(edge), edges=(number,))
        for number, edge in enumerate(edges)
    ]


def _label(edge: Edge) -> str:
    """The condition of an edge, on one line."""
    when = edge.when.function if isinstance(edge.when, FunctionRef) else edge.when or ""
    return box_lines(when)[0]


def _merge(arrows: Iterable[Arrow]) -> list[Arrow]:
    """The arrows without duplicates; a pair of opposite arrows becomes a two-way arrow."""
    merged: dict[tuple[int, int, str], Arrow] = {}
    for arrow in arrows:
        there = (arrow.start, arrow.end, arrow.label)
        back = (arrow.end, arrow.start, arrow.label)
        if back in merged and arrow.start != arrow.end:
            merged[back] = replace(merged[back], two_way=True, edges=(*merged[back].edges, *arrow.edges))
        elif there in merged:
            merged[there] = replace(merged[there], edges=(*merged[there].edges, *arrow.edges))
        else:
            merged[there] = arrow
    return [*merged.values()]


_ARRANGE: dict[SpeakingOrder, Callable[[TeamSpec], Arrangement]] = {
    "in_order": _in_order,
    "at_once": _at_once,
    "selected": _selected,
    "by_edges": _by_edges,
    "handed_off": _handed_off,
}
"""The arrangements by speaking order; a new strategy with one of these orders needs no change here."""


MAX_INPUT = 110
"""The length at which a query's input is truncated, in characters."""

MAX_DEPTH = 30
"""The maximum nesting depth of teams that is drawn."""

MISSING = "not in the files"


def build_diagram(
    catalog: Catalog, shown: Sequence[Resource], namespace: str = "default", missing: str = MISSING
) -> Box:
    """A page with the queries and their targets, without duplicates, and the other resources in a column.

    ``missing`` is said of a resource that is not in the catalog.
    """
    builder = _BoxBuilder(catalog, missing)
    queries = [manifest for manifest in shown if isinstance(manifest, Query)]
    boxes = [builder.query(query, namespace) for query in queries]
    indexes: dict[str, int] = {}
    arrows: list[Arrow] = []
    for index, query in enumerate(queries):
        for reference in catalog.targets(query):
            if (target := indexes.setdefault(str(reference), len(boxes))) == len(boxes):
                boxes.append(replace(builder.referenced(reference, namespace), column=1))
            arrows.append(Arrow(index, target))
    resources = [manifest for manifest in shown if not isinstance(manifest, Query)]
    boxes.extend(builder.resource(manifest, title_of(manifest, namespace)) for manifest in resources)
    return Box("page", inside=tuple(boxes), arrows=tuple(dict.fromkeys(arrows)))


def outermost_teams(catalog: Catalog) -> list[Team]:
    """The teams that are no member of another team."""
    teams = [manifest for manifest in catalog.manifests if isinstance(manifest, Team)]
    members = {member.id for team in teams for reference in team.members() if (member := catalog.find(reference))}
    return [team for team in teams if team.id not in members]


@dataclass
class _BoxBuilder:
    """Builds the boxes of one diagram. A team has its members inside only at its first occurrence."""

    catalog: Catalog
    missing: str
    drawn: set[str] = field(default_factory=set)

    def query(self, query: Query, namespace: str) -> Box:
        """The box of a query, with its input."""
        lines = box_lines(title_of(query, namespace), shorten(query.spec.text, MAX_INPUT))
        return Box("query", lines, resource=query.id)

    def referenced(self, reference: Reference, namespace: str, depth: int = 0) -> Box:
        """The box of a referenced resource."""
        title = title_of(reference, namespace)
        manifest = self.catalog.find(reference)
        return self.resource(manifest, title, depth) if manifest else Box("missing", box_lines(title, self.missing))

    def resource(self, resource: Resource, title: str, depth: int = 0) -> Box:
        """The box of a resource."""
        return replace(self._box(resource, title, depth), resource=resource.id)

    def _box(self, resource: Resource, title: str, depth: int) -> Box:
        match resource:
            case Team():
                return self._team(resource, title, depth)
            case Agent():
                ends = ["can end the team"] if depth and resource.can_terminate else []
                return Box("agent", box_lines(title, *self._model_and_tools(resource), *ends))
            case Model():
                parts = ("model", resource.spec.server, resource.spec.model.value)
                return Box("model", box_lines(title, " · ".join(part for part in parts if part)))
            case _:
                return Box("tool", box_lines(title, resource.kind.lower()))

    def _team(self, team: Team, title: str, depth: int) -> Box:
        lines = box_lines(title, strategy_label(team.spec))
        if team.id in self.drawn or depth > MAX_DEPTH:
            note = "drawn elsewhere" if team.id in self.drawn else "its members are nested too deeply to be drawn"
            return Box("team", (*lines, note))
        self.drawn.add(team.id)
        names = {role: reference.name if reference else role for role, reference in team.role_holders()}
        arrangement = arrange(team.spec, names)
        members = [
            replace(self._member(team, member, reference, depth), column=column)
            for column, member, reference in zip(arrangement.columns, team.spec.members, team.members(), strict=True)
        ]
        for index in arrangement.unreachable:
            members[index] = replace(members[index], lines=(*members[index].lines, "is never reached"))
        return Box("team", lines, inside=(*members, *arrangement.helpers), arrows=arrangement.arrows)

    def _member(self, team: Team, member: Member, reference: Reference, depth: int) -> Box:
        """The box of a member, with its name in the team and its stance, if any."""
        box = self._speaker(team, member, reference, depth)
        lines = (f"{member.as_} = {box.lines[0]}", *box.lines[1:]) if member.as_ else box.lines
        return replace(box, lines=(*lines, *box_lines("", member.stance or "")[1:]), speaker=member.name_in_team)

    def _speaker(self, team: Team, member: Member, reference: Reference, depth: int) -> Box:
        """The box of an agent or a team or, in a panel, of a function or a default member."""
        if reference.kinds and (self.catalog.find(reference) or not reference.optional):
            return self.referenced(reference, team.namespace, depth + 1)
        if member.is_human:
            return Box("human", box_lines(member.name, member.role or "a person"))
        if member.type == "activity":
            return Box("tool", box_lines(member.name, "function"))
        return Box("agent", box_lines(member.name, member.role or ""))

    def _model_and_tools(self, agent: Agent) -> list[str]:
        """The model or executor and the tools of an agent, on one line if they fit."""
        if agent.is_remote:
            executor = agent.executor()
            by = f"executed by {self._name(executor.name, executor)}" if executor else f"at {agent.a2a_address}"
        else:
            model = agent.model_reference()
            by = self._name(model.name, model)
        tools = [self._name(tool.name, reference) for tool, reference in agent.tools()]
        parts = [part for part in (by, ", ".join(tools)) if part]
        return [line] if len(line := " · ".join(parts)) <= MAX_LINE else parts

    def _name(self, name: str, reference: Reference | None) -> str:
        """A name, with a note if its manifest is missing; no-break spaces keep the note on one line."""
        known = reference is None or reference.optional or self.catalog.find(reference)
        return name if known else f"{name} ({self.missing})".replace(" ", "\xa0")
