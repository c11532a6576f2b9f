"""Computes the paths of the arrows of a diagram: they leave a box on the right, and never run through a box.

- To the next column: a curve over the gap between the columns.
- Within a column: up or down through the gap on its right.
- To any other column: down the gap on the right, along below all columns, and up the gap on the left of its end.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .model import Arrow, Box

Point = tuple[float, float]
Span = tuple[float, float]

VERTICAL_SPACING, HORIZONTAL_SPACING = 14, 16
"""The distance between two arrows that run through the same gap, and of two that run along below the columns."""

FIRST_DISTANCE, CURVE_MARGIN = 16, 10
"""The distance of the first arrow in a gap from the column, and the length of a curve's straight ends for the heads."""


@dataclass(frozen=True)
class Rectangle:
    """A rectangle, in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The y of its center."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class ArrowPath:
    """The points of an arrow's path. A step that is neither horizontal nor vertical is a curve."""

    arrow: Arrow
    points: tuple[Point, ...]
    label_at: Point


def count_vertical(box: Box) -> Counter[int]:
    """The number of arrows that run up or down each gap; gap 0 is on the left of all columns."""
    return Counter(gap for arrow in box.arrows for gap in _gaps(box, arrow))


def count_horizontal(box: Box) -> int:
    """The number of arrows that run along below the columns."""
    return sum(len(_gaps(box, arrow)) == 2 for arrow in box.arrows)


def _gaps(box: Box, arrow: Arrow) -> tuple[int, ...]:
    """The gaps that an arrow runs up or down: none to the next column, one within a column, else two."""
    start, end = box.inside[arrow.start].column, box.inside[arrow.end].column
    return () if end == start + 1 else (start + 1,) if end == start else (start + 1, end)


def route_arrows(box: Box, rectangles: Sequence[Rectangle], columns: Sequence[Span], bottom: float) -> list[ArrowPath]:
    """The paths of all arrows in a box: ``rectangles`` are its boxes, whose ``columns`` end at ``bottom``."""
    heights = _end_heights(box, rectangles)
    used: Counter[int] = Counter()
    paths: list[ArrowPath] = []
    below = bottom
    for index, arrow in _nearest_first(box, rectangles):
        start, end, gaps = rectangles[arrow.start], rectangles[arrow.end], _gaps(box, arrow)
        out = (_right_edge(box.inside[arrow.start], start, heights[index, "out"]), heights[index, "out"])
        to = (end.x + (end.width if len(gaps) == 1 else 0), heights[index, "in"])
        verticals = [_next_in_gap(gap, columns, used) for gap in gaps]
        below += HORIZONTAL_SPACING if len(gaps) == 2 else 0
        paths.append(_path(arrow, out, to, verticals, below) if verticals else _curve(box, arrow, out, to, columns))
    return paths


def _nearest_first(box: Box, rectangles: Sequence[Rectangle]) -> list[tuple[int, Arrow]]:
    """The arrows with their indexes, the shortest first, so that short ones run within long ones."""

    def distance(numbered: tuple[int, Arrow]) -> tuple[int, float]:
        start, end = numbered[1].start, numbered[1].end
        columns = abs(box.inside[start].column - box.inside[end].column)
        return columns, abs(rectangles[start].middle - rectangles[end].middle)

    return sorted(enumerate(box.arrows), key=distance)


def _right_edge(box: Box, rectangle: Rectangle, y: float) -> float:
    """The x of a box's right edge at a height; a selector is a diamond."""
    slope = abs(y - rectangle.middle) / (rectangle.height / 2) if box.shape == "selector" else 0
    return rectangle.x + rectangle.width * (1 - slope / 2)


def _next_in_gap(gap: int, columns: Sequence[Span], used: Counter[int]) -> float:
    """The x of the next arrow in a gap: on the right of a column, and for gap 0 on the left of the first."""
    nth = used[gap]
    used[gap] += 1
    if gap:
        return columns[gap - 1][1] + FIRST_DISTANCE + nth * VERTICAL_SPACING
    return columns[0][0] - FIRST_DISTANCE - nth * VERTICAL_SPACING


def _curve(box: Box, arrow: Arrow, out: Point, to: Point, columns: Sequence[Span]) -> ArrowPath:
    """The path to the next column: a curve with straight ends."""
    first = columns[box.inside[arrow.start].column][1] + CURVE_MARGIN
    last = columns[box.inside[arrow.end].column][0] - CURVE_MARGIN
    points = (out, (first, out[1]), (last, to[1]), to)
    return ArrowPath(arrow, points, ((first + last) / 2, (out[1] + to[1]) / 2))


def _path(arrow: Arrow, out: Point, to: Point, verticals: Sequence[float], below: float) -> ArrowPath:
    """The path through one gap or, along below the columns, through two."""
    first, last = verticals[0], verticals[-1]
    around = ((first, below), (last, below)) if len(verticals) == 2 else ()
    label_height = below if around else (out[1] + to[1]) / 2
    points = (out, (first, out[1]), *around, (last, to[1]), to)
    return ArrowPath(arrow, points, ((first + last) / 2, label_height))


def _end_heights(box: Box, rectangles: Sequence[Rectangle]) -> dict[tuple[int, str], float]:
    """The height at which each arrow leaves ("out") and enters ("in"), spread over a side so that they don't cross."""
    heights: dict[tuple[int, str], float] = {}
    for (index_of_box, _), ends in _ends_by_side(box, rectangles).items():
        rectangle = rectangles[index_of_box]
        is_dot = box.inside[index_of_box].shape == "dot"
        for nth, (_, index, end) in enumerate(sorted(ends), 1):
            share = 0.5 if is_dot else nth / (len(ends) + 1)
            heights[index, end] = rectangle.y + rectangle.height * share
    return heights


def _ends_by_side(box: Box, rectangles: Sequence[Rectangle]) -> dict[tuple[int, str], list[tuple[float, int, str]]]:
    """The ends of arrows at each side of each box, with the height of the other end, or infinity if it runs below."""
    sides: dict[tuple[int, str], list[tuple[float, int, str]]] = {}
    for index, arrow in enumerate(box.arrows):
        gaps = len(_gaps(box, arrow))
        for end, here, there in (("out", arrow.start, arrow.end), ("in", arrow.end, arrow.start)):
            side = "left" if end == "in" and gaps != 1 else "right"
            height = float("inf") if gaps == 2 else rectangles[there].middle
            sides.setdefault((here, side), []).append((height, index, end))
    return sides
