"""Which way does each arrow take? Out on the right, in on the left, and never through a box.

To the next column it swings over the gap. Within a column it runs up or down the gap on the right. Any other runs down
the gap on the right, along below all columns, and up the gap on the left of its end.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .model import Box
from .strategies import Arrow

Point = tuple[float, float]
Span = tuple[float, float]

TRACK, LANE = 14, 16
"""From arrow to arrow where they run up and down a gap, and where they run along below the columns."""

FIRST, HEAD = 16, 10
"""How far from a column the first arrow runs up a gap, and how long a swing begins and ends level: room for heads."""


@dataclass(frozen=True)
class Rectangle:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True)
class ArrowPath:
    """An arrow's way from point to point; what is neither level nor upright is a swing."""

    arrow: Arrow
    points: tuple[Point, ...]
    label_at: Point


def count_vertical(box: Box) -> Counter[int]:
    """How many arrows run up or down each gap; gap 0 is on the left of all columns."""
    return Counter(gap for arrow in box.arrows for gap in _gaps(box, arrow))


def count_horizontal(box: Box) -> int:
    """How many arrows run along below the columns."""
    return sum(len(_gaps(box, arrow)) == 2 for arrow in box.arrows)


def _gaps(box: Box, arrow: Arrow) -> tuple[int, ...]:
    start, end = box.inside[arrow.start].column, box.inside[arrow.end].column
    return () if end == start + 1 else (start + 1,) if end == start else (start + 1, end)


def route_arrows(box: Box, spots: Sequence[Rectangle], across: Sequence[Span], low: float) -> list[ArrowPath]:
    """The ways of all arrows between boxes that stand at these spots, in columns that end at ``low``."""
    ports = _ports(box, spots)
    taken: Counter[int] = Counter()
    routes: list[ArrowPath] = []
    lane = low
    for index, arrow in _nearest_first(box, spots):
        start, end, gaps = spots[arrow.start], spots[arrow.end], _gaps(box, arrow)
        out = (_edge(box.inside[arrow.start], start, ports[index, "out"]), ports[index, "out"])
        beside = len(gaps) == 1
        to = (end.x + (end.width if beside else 0), ports[index, "in"])
        ups = [_track(gap, across, taken) for gap in gaps]
        if len(ups) == 2:
            lane += LANE
        middle = across[box.inside[arrow.start].column][1] + HEAD, across[box.inside[arrow.end].column][0] - HEAD
        routes.append(_route(arrow, out, to, ups or middle, lane, level=bool(ups)))
    return routes


def _nearest_first(box: Box, spots: Sequence[Rectangle]) -> list[tuple[int, Arrow]]:
    """The arrows in the order in which they take their tracks and lanes: a short one within a long one."""

    def distance(numbered: tuple[int, Arrow]) -> tuple[int, float]:
        start, end = numbered[1].start, numbered[1].end
        columns = abs(box.inside[start].column - box.inside[end].column)
        return columns, abs(spots[start].middle - spots[end].middle)

    return sorted(enumerate(box.arrows), key=distance)


def _edge(box: Box, spot: Rectangle, y: float) -> float:
    """Where the right side of a box is at a height: a selector is a diamond."""
    aside = abs(y - spot.middle) / (spot.height / 2) if box.shape == "selector" else 0
    return spot.x + spot.width * (1 - aside / 2)


def _track(gap: int, across: Sequence[Span], taken: Counter[int]) -> float:
    """Where the next arrow runs in a gap: on the right of a column, in gap 0 on the left of the first."""
    nth = taken[gap]
    taken[gap] += 1
    return across[gap - 1][1] + FIRST + nth * TRACK if gap else across[0][0] - FIRST - nth * TRACK


def _route(arrow: Arrow, out: Point, to: Point, ups: Sequence[float], lane: float, *, level: bool) -> ArrowPath:
    first, last = ups[0], ups[-1]
    around = level and len(ups) == 2
    below = ((first, lane), (last, lane)) if around else ()
    height = lane if around else (out[1] + to[1]) / 2
    return ArrowPath(arrow, (out, (first, out[1]), *below, (last, to[1]), to), ((first + last) / 2, height))


def _ports(box: Box, spots: Sequence[Rectangle]) -> dict[tuple[int, str], float]:
    """The height at which each arrow leaves and enters: spread over a side, so that they don't cross there."""
    sides: dict[tuple[int, str], list[tuple[float, int, str]]] = {}
    for index, arrow in enumerate(box.arrows):
        gaps = len(_gaps(box, arrow))
        for way, here, there in (("out", arrow.start, arrow.end), ("in", arrow.end, arrow.start)):
            side = "left" if way == "in" and gaps != 1 else "right"
            height = float("inf") if gaps == 2 else spots[there].middle
            sides.setdefault((here, side), []).append((height, index, way))
    ports: dict[tuple[int, str], float] = {}
    for (here, _), ends in sides.items():
        dot = box.inside[here].shape == "dot"
        for nth, (_, index, way) in enumerate(sorted(ends), 1):
            share = 0.5 if dot else nth / (len(ends) + 1)
            ports[index, way] = spots[here].y + spots[here].height * share
    return ports
