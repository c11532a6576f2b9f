"""How does each strategy look? Columns for the members, and arrows for who speaks after whom."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ...resources.strategies import SpeakingOrder
from ...resources.team import TeamSpec


@dataclass(frozen=True)
class Arrow:
    """From one box to another, by their places in the box around them; ``both`` ways, or ``maybe``, with a text."""

    start: int
    end: int
    two_way: bool = False
    dashed: bool = False
    label: str = ""


Helper = tuple[Literal["selector", "dot", "agent"], tuple[str, ...], int]
"""A box that is no member: its shape, lines and column. Helpers come after the members."""


@dataclass(frozen=True)
class Arrangement:
    """Where the members of a team stand, what stands beside them, the arrows, and the members that never speak."""

    columns: tuple[int, ...]
    arrows: tuple[Arrow, ...]
    helpers: tuple[Helper, ...] = ()
    unreachable: tuple[int, ...] = ()


def strategy_label(spec: TeamSpec) -> str:
    """The strategy and how long it may go on, such as ``round-robin · 3 rounds``."""
    words = [spec.strategy, *(["loops"] if spec.loops else [])]
    limit = spec.rounds if spec.is_panel else spec.max_turns
    if limit and (spec.loops or spec.rules.repeats):
        words.append(f"{limit} {spec.rules.turn_unit}{'s' if limit > 1 else ''}")
    return " · ".join(words)


def arrange(spec: TeamSpec, parts: Mapping[str, str]) -> Arrangement:
    """How a team's members stand and who speaks after whom; ``parts`` are the names of who has a part beside them."""
    return _panel(spec, parts) if spec.is_panel else _ARRANGED[spec.rules.order](spec)


def _panel(spec: TeamSpec, parts: Mapping[str, str]) -> Arrangement:
    """Rounds as a loop, which a referee closes or a moderator opens; then a judge and a synthesizer, as they are."""
    count, opens = len(spec.members), "moderator" in parts
    helpers: list[Helper] = []

    def stands(part: str, column: int) -> int:
        name = parts[part]
        helpers.append(("agent", (name,) if name == part else (name, part), column))
        return count + len(helpers) - 1

    if opens:
        last = stands("moderator", 0)
        columns: tuple[int, ...] = (1,) * count
        arrows = [Arrow(last, place, two_way=True) for place in range(count)]
    else:
        columns, last = tuple(range(count)), count - 1
        arrows = [Arrow(*pair) for pair in pairwise(range(count))]
    for part in ("referee", "judge", "synthesizer"):
        if part in parts:
            before, last = last, stands(part, 1 + max(*columns, *(column for *_, column in helpers), 0))
            arrows.append(Arrow(before, last))
        if part == "referee" and spec.rounds > 1 and not opens:
            arrows.append(Arrow(last, 0))
    return Arrangement(columns, tuple(arrows), tuple(helpers))


def _goes_round(spec: TeamSpec) -> bool:
    return spec.rules.repeats or spec.loops


def _in_order(spec: TeamSpec) -> Arrangement:
    places = range(len(spec.members))
    back = [Arrow(places[-1], 0)] if _goes_round(spec) else []
    return Arrangement(tuple(places), (*(Arrow(*pair) for pair in pairwise(places)), *back))


def _parallel(spec: TeamSpec) -> Arrangement:
    count = len(spec.members)
    forks = (Arrow(count, place) for place in range(count))
    joins = (Arrow(place, count + 1) for place in range(count))
    join: Helper = ("agent", (spec.aggregator.name, "aggregator"), 2) if spec.aggregator else ("dot", (), 2)
    return Arrangement((1,) * count, (*forks, *joins), helpers=(("dot", (), 0), join))


def _selector(spec: TeamSpec) -> Arrangement:
    """Without edges everybody is chosen and comes back; with edges anybody may begin, and then the edges tell."""
    count = len(spec.members)
    chooser = spec.selector and (spec.selector.agent or spec.selector.model)
    helper: Helper = ("selector", ("selector", *([chooser.name] if chooser else [])), 0)
    edges = _edges(spec)
    chosen = (Arrow(count, place, two_way=not edges, dashed=bool(edges)) for place in range(count))
    return Arrangement((1,) * count, (*chosen, *_merged(edges)), helpers=(helper,))


def _graph(spec: TeamSpec) -> Arrangement:
    """The first member begins. Columns count the turns until a member speaks; in the last are those who never do."""
    edges = _edges(spec)
    columns, reached = {0: 1}, [0]
    for place in reached:
        for edge in edges:
            if edge.start == place and edge.end not in columns:
                columns[edge.end] = columns[place] + 1
                reached.append(edge.end)
    count = len(spec.members)
    idle = tuple(place for place in range(count) if place not in columns)
    arrows = (Arrow(count, 0), *_merged(edges))
    last = max(columns.values()) + 1
    return Arrangement(tuple(columns.get(place, last) for place in range(count)), arrows, (("dot", (), 0),), idle)


def _edges(spec: TeamSpec) -> list[Arrow]:
    """The edges between members, with their conditions."""
    places = {member.address: index for index, member in enumerate(spec.members)}
    edges = spec.graph.edges if spec.graph else ()
    return [Arrow(places[edge.from_], places[edge.to], label=edge.when or "") for edge in edges]


def _merged(arrows: Iterable[Arrow]) -> list[Arrow]:
    """The arrows with each once, and one arrow for two that go there and back."""
    merged: dict[tuple[int, int, str], Arrow] = {}
    for arrow in arrows:
        back = (arrow.end, arrow.start, arrow.label)
        if back in merged and arrow.start != arrow.end:
            merged[back] = Arrow(arrow.end, arrow.start, two_way=True, label=arrow.label)
        else:
            merged.setdefault((arrow.start, arrow.end, arrow.label), arrow)
    return [*merged.values()]


_ARRANGED: dict[SpeakingOrder, Callable[[TeamSpec], Arrangement]] = {
    "in_order": _in_order,
    "at_once": _parallel,
    "selected": _selector,
    "by_edges": _graph,
}
