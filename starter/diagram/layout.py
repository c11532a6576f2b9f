"""Computes the place and the size of each box of a diagram, in pixels, with space for the arrows."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .edge_routing import (
    HORIZONTAL_SPACING,
    VERTICAL_SPACING,
    ArrowPath,
    Rectangle,
    Span,
    count_horizontal,
    count_vertical,
    route_arrows,
)
from .model import Box

PADDING, LINE_HEIGHT, BOX_SPACING = 14, 18, 22
"""The space within a box around its text, the height of a line, and the space between two boxes in a column."""

OUTER_GAP, COLUMN_GAP = 18, 64
"""The gaps between the columns and at both sides; arrows that run through a gap make it wider."""

TITLE_CHARACTER, TEXT_CHARACTER = 8.8, 7.1
"""The width of a character in the first line and in the other lines, rounded up."""

MIN_WIDTH = 110
DOT_SIZE = 14


@dataclass(frozen=True)
class PlacedBox:
    """A box with its place in the box around it; the paths of the arrows are in its own coordinates."""

    box: Box
    rectangle: Rectangle
    inside: tuple["PlacedBox", ...] = ()
    paths: tuple[ArrowPath, ...] = ()


def place(box: Box) -> PlacedBox:
    """The box with everything in it, at the origin."""
    if not box.inside:
        return PlacedBox(box, Rectangle(0, 0, *_leaf_size(box)))
    children = [place(each) for each in box.inside]
    columns, width = _centered(box, _column_spans(box, children))
    top = PADDING * 1.5 + LINE_HEIGHT * len(box.lines)
    heights = _column_heights(children)
    bottom = top + max(heights)
    placed = _place_in_columns(children, columns, [top + (max(heights) - height) / 2 for height in heights])
    paths = route_arrows(box, [each.rectangle for each in placed], columns, bottom)
    height = bottom + HORIZONTAL_SPACING * count_horizontal(box) + PADDING
    return PlacedBox(box, Rectangle(0, 0, width, height), tuple(placed), tuple(paths))


def _leaf_size(box: Box) -> tuple[float, float]:
    """The width and the height of a box without boxes inside."""
    if box.shape == "dot":
        return DOT_SIZE, DOT_SIZE
    width, height = _text_width(box.lines) + 2 * PADDING, LINE_HEIGHT * len(box.lines) + PADDING
    if box.shape == "selector":
        return width * 1.5, height * 2
    return max(width, MIN_WIDTH), height


def _text_width(lines: Sequence[str]) -> float:
    sizes = [TITLE_CHARACTER] + [TEXT_CHARACTER] * len(lines)
    return max((size * sum(map(_character_width, line)) for size, line in zip(sizes, lines, strict=False)), default=0)


def _character_width(character: str) -> float:
    """The width of a character, where that of most is 1."""
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1.5 if character in "mwMW@%…—" else 1


def _by_column(children: Sequence[PlacedBox]) -> list[list[PlacedBox]]:
    count = max(each.box.column for each in children) + 1
    return [[each for each in children if each.box.column == column] for column in range(count)]


def _column_spans(box: Box, children: Sequence[PlacedBox]) -> list[Span]:
    """The left and the right end of each column, with space before it for arrows and their labels."""
    spans: list[Span] = []
    x = 0.0
    for index, column in enumerate(_by_column(children)):
        labels = [_text_width(["", arrow.label]) for arrow in box.arrows if box.inside[arrow.end].column == index]
        gap = COLUMN_GAP if index else OUTER_GAP
        x += gap + VERTICAL_SPACING * count_vertical(box)[index] + max(labels, default=0)
        spans.append((x, x + max(each.rectangle.width for each in column)))
        x = spans[-1][1]
    return spans


def _centered(box: Box, spans: Sequence[Span]) -> tuple[list[Span], float]:
    """The columns in the middle of the box, and the width of the box, which has space for its lines of text."""
    content = spans[-1][1] + OUTER_GAP + VERTICAL_SPACING * count_vertical(box)[len(spans)]
    width = max(content, _text_width(box.lines) + 2 * PADDING)
    shift = (width - content) / 2
    return [(left + shift, right + shift) for left, right in spans], width


def _column_heights(children: Sequence[PlacedBox]) -> list[float]:
    return [
        sum(each.rectangle.height + BOX_SPACING for each in column) - BOX_SPACING for column in _by_column(children)
    ]


def _place_in_columns(children: Sequence[PlacedBox], columns: Sequence[Span], tops: list[float]) -> list[PlacedBox]:
    """The children at their places: one below the other, each in the middle of its column."""
    placed: list[PlacedBox] = []
    for each in children:
        column, size = each.box.column, each.rectangle
        left, right = columns[column]
        rectangle = replace(size, x=(left + right - size.width) / 2, y=tops[column])
        placed.append(replace(each, rectangle=rectangle))
        tops[column] += size.height + BOX_SPACING
    return placed
