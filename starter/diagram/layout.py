"""Where does each box of a chart stand, and how large is it? Columns in boxes in boxes, with room for the arrows."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .edge_routing import LANE, TRACK, ArrowPath, Span, Rectangle, count_horizontal, route_arrows, count_vertical
from .model import Box

PAD, LINE, STACK = 14, 18, 22
"""Around what stands in a box, from line to line, and between boxes of one column."""

OUTER, INNER = 18, 64
"""The gaps beside and between columns, before arrows that run up a gap make it wider."""

TITLE, TEXT = 8.8, 7.1
"""The width of a character, generously, in the first line and in those below it."""

DOT = 14


@dataclass(frozen=True)
class PlacedBox:
    """A box with its place in the box around it. The arrows' points are in its own measure."""

    box: Box
    rectangle: Rectangle
    inside: tuple["PlacedBox", ...] = ()
    paths: tuple[ArrowPath, ...] = ()


def place(box: Box) -> PlacedBox:
    """The box and all in it, at the origin."""
    if not box.inside:
        return PlacedBox(box, Rectangle(0, 0, *_leaf(box)))
    children = [place(each) for each in box.inside]
    heights = _heights(children)
    across = _across(box, children)
    width = across[-1][1] + OUTER + TRACK * count_vertical(box)[len(across)]
    wide = max(width, _text_width(box.lines) + 2 * PAD)
    across = [(left + (wide - width) / 2, right + (wide - width) / 2) for left, right in across]
    top = PAD * 1.5 + LINE * len(box.lines)
    low = top + max(heights)
    standing = _standing(children, across, [top + (max(heights) - height) / 2 for height in heights])
    routes = route_arrows(box, [each.rectangle for each in standing], across, low)
    return PlacedBox(box, Rectangle(0, 0, wide, low + LANE * count_horizontal(box) + PAD), tuple(standing), tuple(routes))


def _leaf(box: Box) -> tuple[float, float]:
    if box.shape == "dot":
        return DOT, DOT
    width, height = _text_width(box.lines) + 2 * PAD, LINE * len(box.lines) + PAD
    if box.shape == "selector":
        return width * 1.5, height * 2
    return max(width, 110), height


def _text_width(lines: Sequence[str]) -> float:
    sizes = [TITLE] + [TEXT] * len(lines)
    return max((size * sum(map(_cells, line)) for size, line in zip(sizes, lines, strict=False)), default=0)


def _cells(character: str) -> float:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1.5 if character in "mwMW@%…—" else 1


def _columns(children: Sequence[PlacedBox]) -> list[list[PlacedBox]]:
    count = max(each.box.column for each in children) + 1
    return [[each for each in children if each.box.column == column] for column in range(count)]


def _across(box: Box, children: Sequence[PlacedBox]) -> list[Span]:
    """Where each column begins and ends."""
    spans: list[Span] = []
    x = 0.0
    for index, column in enumerate(_columns(children)):
        labels = [_text_width(["", arrow.label]) for arrow in box.arrows if box.inside[arrow.end].column == index]
        x += (INNER if index else OUTER) + TRACK * count_vertical(box)[index] + max(labels, default=0)
        spans.append((x, x + max(each.rectangle.width for each in column)))
        x = spans[-1][1]
    return spans


def _heights(children: Sequence[PlacedBox]) -> list[float]:
    return [sum(each.rectangle.height + STACK for each in column) - STACK for column in _columns(children)]


def _standing(children: Sequence[PlacedBox], across: Sequence[Span], tops: list[float]) -> list[PlacedBox]:
    """The children at their places, one below the other in the middle of their columns."""
    standing: list[PlacedBox] = []
    for each in children:
        column = each.box.column
        left, right = across[column]
        standing.append(replace(each, rectangle=replace(each.rectangle, x=(left + right - each.rectangle.width) / 2, y=tops[column])))
        tops[column] += each.rectangle.height + STACK
    return standing
