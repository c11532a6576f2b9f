"""Arranges the members of a team by the speaking order of its strategy."""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from ...resources.strategies import SpeakingOrder
from ...resources.team import TeamSpec
from .model import Arrangement, Arrow, Box
from .panels import arrange_panel


def strategy_label(spec: TeamSpec) -> str:
    """The strategy and its limit, such as ``round-robin · 3 rounds``."""
    words = [spec.strategy, *(["loops"] if spec.loops else [])]
    limit = spec.rounds if spec.is_panel else spec.max_turns
    if limit and (spec.loops or spec.rules.repeats):
        words.append(f"{limit} {spec.rules.turn_unit}{'s' if limit > 1 else ''}")
    return " · ".join(words)


def arrange(spec: TeamSpec, role_holders: Mapping[str, str]) -> Arrangement:
    """The arrangement of a team; ``role_holders`` are the names of its other speakers, by their role."""
    if spec.is_panel:
        return arrange_panel(spec, role_holders)
    return _ARRANGE.get(spec.rules.order, _as_list)(spec)


def _as_list(spec: TeamSpec) -> Arrangement:
    """One below the other: for a speaking order that has no drawing of its own."""
    return Arrangement((0,) * len(spec.members))


def _in_order(spec: TeamSpec) -> Arrangement:
    """In a row; with an arrow back to the first if they speak again."""
    indexes = range(len(spec.members))
    back = [Arrow(indexes[-1], 0)] if spec.rules.repeats or spec.loops else []
    return Arrangement(tuple(indexes), (*(Arrow(*pair) for pair in pairwise(indexes)), *back))


def _at_once(spec: TeamSpec) -> Arrangement:
    """One below the other, between the start and the aggregator or the end."""
    count = len(spec.members)
    start, end = Box("dot", column=0), Box("dot", column=2)
    if spec.aggregator:
        end = Box("agent", (spec.aggregator.name, "aggregator"), 2)
    arrows = (Arrow(count, index) for index in range(count)), (Arrow(index, count + 1) for index in range(count))
    return Arrangement((1,) * count, (*arrows[0], *arrows[1]), (start, end))


def _selected(spec: TeamSpec) -> Arrangement:
    """One below the other, next to the selector. With edges it can select any member first, then as they lead."""
    count = len(spec.members)
    chooser = spec.selector and (spec.selector.agent or spec.selector.model)
    selector = Box("selector", ("selector", *([chooser.name] if chooser else [])))
    edges = _edges(spec)
    selections = (Arrow(count, index, two_way=not edges, dashed=bool(edges)) for index in range(count))
    return Arrangement((1,) * count, (*selections, *_merge(edges)), (selector,))


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
    return [Arrow(indexes[edge.from_], indexes[edge.to], label=edge.when or "") for edge in edges]


def _merge(arrows: Iterable[Arrow]) -> list[Arrow]:
    """The arrows without duplicates; two that lead there and back become one."""
    merged: dict[tuple[int, int, str], Arrow] = {}
    for arrow in arrows:
        back = (arrow.end, arrow.start, arrow.label)
        if back in merged and arrow.start != arrow.end:
            merged[back] = Arrow(arrow.end, arrow.start, two_way=True, label=arrow.label)
        else:
            merged.setdefault((arrow.start, arrow.end, arrow.label), arrow)
    return [*merged.values()]


_ARRANGE: dict[SpeakingOrder, Callable[[TeamSpec], Arrangement]] = {
    "in_order": _in_order,
    "at_once": _at_once,
    "selected": _selected,
    "by_edges": _by_edges,
}
"""The drawing of each speaking order; a new strategy that has one of these needs no change here."""
