"""The layout of a diagram: where its boxes are, and how its arrows run, as a ``Drawing`` that any renderer draws."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from ...resources.base import JsonModel
from .build import Arrow, Box, Shape

# Routes of arrows:
# - To the next column: a curve over the gap between the columns.
# - Within a column: up or down through the gap on its right.
# - To any other column: down the gap on the right, below all columns, and up the gap on the left of the target.

Point = tuple[float, float]
Span = tuple[float, float]

VERTICAL_SPACING, HORIZONTAL_SPACING = 14, 16
"""The distance between two arrows in the same gap, and between two arrows below the columns."""

FIRST_DISTANCE, CURVE_MARGIN = 16, 10
"""The distance of the first arrow in a gap from the column, and the length of a curve's straight ends."""


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
    """The number of vertical arrows per gap; gap 0 is on the left of all columns."""
    return Counter(gap for arrow in box.arrows for gap in _gaps(box, arrow))


def count_horizontal(box: Box) -> int:
    """The number of arrows below the columns."""
    return sum(len(_gaps(box, arrow)) == 2 for arrow in box.arrows)


def _gaps(box: Box, arrow: Arrow) -> tuple[int, ...]:
    """The gaps through which an arrow runs: none to the next column, one within a column, otherwise two."""
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
        paths.append(_svg_path(arrow, out, to, verticals, below) if verticals else _curve(box, arrow, out, to, columns))
    return paths


def _nearest_first(box: Box, rectangles: Sequence[Rectangle]) -> list[tuple[int, Arrow]]:
    """The arrows with their indexes, shortest first, so that short ones run inside long ones."""

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


def _svg_path(arrow: Arrow, out: Point, to: Point, verticals: Sequence[float], below: float) -> ArrowPath:
    """The path through one gap, or through two gaps and below the columns."""
    first, last = verticals[0], verticals[-1]
    around = ((first, below), (last, below)) if len(verticals) == 2 else ()
    label_height = below if around else (out[1] + to[1]) / 2
    points = (out, (first, out[1]), *around, (last, to[1]), to)
    return ArrowPath(arrow, points, ((first + last) / 2, label_height))


def _end_heights(box: Box, rectangles: Sequence[Rectangle]) -> dict[tuple[int, str], float]:
    """The heights at which arrows leave ("out") and enter ("in") boxes, spread over a side so that they don't cross."""
    heights: dict[tuple[int, str], float] = {}
    for (index_of_box, _), ends in _ends_by_side(box, rectangles).items():
        rectangle = rectangles[index_of_box]
        is_dot = box.inside[index_of_box].shape == "dot"
        for nth, (_, index, end) in enumerate(sorted(ends), 1):
            share = 0.5 if is_dot else nth / (len(ends) + 1)
            heights[index, end] = rectangle.y + rectangle.height * share
    return heights


def _ends_by_side(box: Box, rectangles: Sequence[Rectangle]) -> dict[tuple[int, str], list[tuple[float, int, str]]]:
    """The ends of arrows by box and side, with the height of the other end, or infinity if the arrow runs below."""
    sides: dict[tuple[int, str], list[tuple[float, int, str]]] = {}
    for index, arrow in enumerate(box.arrows):
        gaps = len(_gaps(box, arrow))
        for end, here, there in (("out", arrow.start, arrow.end), ("in", arrow.end, arrow.start)):
            side = "left" if end == "in" and gaps != 1 else "right"
            height = float("inf") if gaps == 2 else rectangles[there].middle
            sides.setdefault((here, side), []).append((height, index, end))
    return sides


PADDING, LINE_HEIGHT, BOX_SPACING = 14, 18, 22
"""The space within a box around its text, the height of a line, and the space between two boxes in a column."""

OUTER_GAP, COLUMN_GAP = 18, 64
"""The gaps at both sides and between the columns; arrows in a gap make it wider."""

TITLE_CHARACTER, TEXT_CHARACTER = 8.8, 7.1
"""The width of a character in the first line and in the other lines, rounded up."""

MIN_WIDTH = 110
DOT_SIZE = 14


@dataclass(frozen=True)
class PlacedBox:
    """A box with its position in the enclosing box; the paths of its arrows are in its own coordinates."""

    box: Box
    rectangle: Rectangle
    inside: tuple["PlacedBox", ...] = ()
    paths: tuple[ArrowPath, ...] = ()


def place(box: Box) -> PlacedBox:
    """The layout of the box and its contents, at the origin."""
    if not box.inside:
        return PlacedBox(box, Rectangle(0, 0, *_leaf_size(box)))
    children = [place(inner) for inner in box.inside]
    columns, width = _centered(box, _column_spans(box, children))
    top = PADDING * 1.5 + LINE_HEIGHT * len(box.lines)
    heights = _column_heights(children)
    bottom = top + max(heights)
    placed = _place_in_columns(children, columns, [top + (max(heights) - height) / 2 for height in heights])
    paths = route_arrows(box, [child.rectangle for child in placed], columns, bottom)
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
    """The relative width of a character; most have 1."""
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1.5 if character in "mwMW@%…—" else 1


def _by_column(children: Sequence[PlacedBox]) -> list[list[PlacedBox]]:
    count = max(child.box.column for child in children) + 1
    return [[child for child in children if child.box.column == column] for column in range(count)]


def _column_spans(box: Box, children: Sequence[PlacedBox]) -> list[Span]:
    """The left and right ends of all columns, with space before them for arrows and their labels."""
    spans: list[Span] = []
    x = 0.0
    for index, column in enumerate(_by_column(children)):
        labels = [_text_width(["", arrow.label]) for arrow in box.arrows if box.inside[arrow.end].column == index]
        gap = COLUMN_GAP if index else OUTER_GAP
        x += gap + VERTICAL_SPACING * count_vertical(box)[index] + max(labels, default=0)
        spans.append((x, x + max(child.rectangle.width for child in column)))
        x = spans[-1][1]
    return spans


def _centered(box: Box, spans: Sequence[Span]) -> tuple[list[Span], float]:
    """The centered columns, and the width of the box, which has space for its lines of text."""
    content = spans[-1][1] + OUTER_GAP + VERTICAL_SPACING * count_vertical(box)[len(spans)]
    width = max(content, _text_width(box.lines) + 2 * PADDING)
    shift = (width - content) / 2
    return [(left + shift, right + shift) for left, right in spans], width


def _column_heights(children: Sequence[PlacedBox]) -> list[float]:
    return [
        sum(child.rectangle.height + BOX_SPACING for child in column) - BOX_SPACING for column in _by_column(children)
    ]


def _place_in_columns(children: Sequence[PlacedBox], columns: Sequence[Span], tops: list[float]) -> list[PlacedBox]:
    """The children with their positions, stacked and centered in their columns."""
    placed: list[PlacedBox] = []
    for child in children:
        column, size = child.box.column, child.rectangle
        left, right = columns[column]
        rectangle = replace(size, x=(left + right - size.width) / 2, y=tops[column])
        placed.append(replace(child, rectangle=rectangle))
        tops[column] += size.height + BOX_SPACING
    return placed


class DrawnLine(JsonModel):
    """A line of text, centered at ``x``, with its baseline at ``y``."""

    text: str
    x: float
    y: float


class DrawnNode(JsonModel):
    """A box: the ``outline`` is the data of an SVG path, and the first of the ``lines`` is the title.

    ``parent`` is the id of the box around it, at the depth ``depth``, which is 0 for the outermost boxes. ``resource``,
    ``speaker`` and ``part`` are what events name it by, as in ``Box``: within the box of a team, each ``speaker`` is
    one of its members, and each ``part`` another speaker.
    """

    id: str
    parent: str | None = None
    depth: int
    shape: Shape
    resource: str | None = None
    speaker: str | None = None
    part: str | None = None
    x: float
    y: float
    width: float
    height: float
    outline: str
    lines: list[DrawnLine]


class DrawnEdge(JsonModel):
    """An arrow between two nodes, by their ids: ``path`` and ``heads`` are the data of SVG paths.

    ``edges`` are the indexes of the edges of the team's manifest that it stands for.
    """

    id: str
    start: str
    end: str
    two_way: bool = False
    dashed: bool = False
    edges: list[int] = []
    path: str
    heads: str
    label: DrawnLine | None = None


class Drawing(JsonModel):
    """A diagram with the places of everything in it, in pixels; what is drawn later is above what is drawn earlier.

    ``title`` and ``description`` say the same in words, for those who don't see it.
    """

    title: str
    description: str
    width: int
    height: int
    nodes: list[DrawnNode]
    edges: list[DrawnEdge]


def drawing_of(page: Box) -> Drawing:
    """The drawing of a diagram, which is deterministic."""
    root = place(page)
    collector = _Collector()
    collector.add_contents(root, 0, 0, 0, None)
    return Drawing(
        title=", ".join(title_of_box(box) for box in page.inside if box.lines),
        description=" ".join(_sentences(page)),
        width=round(root.rectangle.width),
        height=round(root.rectangle.height),
        nodes=collector.nodes,
        edges=collector.edges,
    )


def title_of_box(box: Box) -> str:
    """The title of a box."""
    return box.lines[0] if box.lines else {"dot": "the start"}.get(box.shape, "")


def _sentences(box: Box) -> Iterator[str]:
    """What is in a box, and what leads to what, as sentences."""
    for inner in box.inside:
        if inner.lines:
            notes = f" ({'; '.join(inner.lines[1:])})" if inner.lines[1:] else ""
            members = [title_of_box(each) for each in inner.inside if each.lines]
            yield f"{inner.lines[0]}{notes}{': ' if members else '.'}{', '.join(members)}{'.' if members else ''}"
    for arrow in box.arrows:
        start, end = box.inside[arrow.start], box.inside[arrow.end]
        label = f", if {arrow.label}" if arrow.label else ""
        back = " and back" if arrow.two_way else ""
        ends = "the end" if end.shape == "dot" else title_of_box(end)
        yield f"From {title_of_box(start)} to {ends}{back}{label}."
    for inner in box.inside:
        yield from _sentences(inner)


@dataclass
class _Collector:
    """Collects the nodes and edges of a layout, with their places on the page."""

    nodes: list[DrawnNode] = field(default_factory=list)
    edges: list[DrawnEdge] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def add_contents(self, around: PlacedBox, x: float, y: float, depth: int, parent: str | None) -> None:
        """Adds what is in a box whose left upper corner is at ``x`` and ``y``."""
        ids = [f"n{next(self.numbers)}" for _ in around.inside]
        for node_id, child in zip(ids, around.inside, strict=True):
            self._add_node(node_id, child, x, y, depth, parent)
        for path in around.paths:
            label = None
            if path.arrow.label:
                label = DrawnLine(text=path.arrow.label, x=_round(x + path.label_at[0]), y=_round(y + path.label_at[1]))
            points = [(x + point[0], y + point[1]) for point in path.points]
            ends = [(points[-2], points[-1]), *([(points[1], points[0])] if path.arrow.two_way else [])]
            self.edges.append(
                DrawnEdge(
                    id=f"e{len(self.edges) + 1}",
                    start=ids[path.arrow.start],
                    end=ids[path.arrow.end],
                    two_way=path.arrow.two_way,
                    dashed=path.arrow.dashed,
                    edges=[*path.arrow.edges],
                    path=_path(points),
                    heads="".join(_head(*end) for end in ends),
                    label=label,
                )
            )

    def _add_node(self, node_id: str, placed: PlacedBox, x: float, y: float, depth: int, parent: str | None) -> None:
        box = placed.box
        size = placed.rectangle
        left = x + size.x
        up = y + size.y
        first = up + (PADDING / 2 if box.inside else (size.height - LINE_HEIGHT * len(box.lines)) / 2)
        self.nodes.append(
            DrawnNode(
                id=node_id,
                parent=parent,
                depth=depth,
                shape=box.shape,
                resource=box.resource,
                speaker=box.speaker,
                part=box.part,
                x=_round(left),
                y=_round(up),
                width=_round(size.width),
                height=_round(size.height),
                outline=_outline(box.shape, left, up, size.width, size.height),
                lines=[
                    DrawnLine(text=line, x=_round(left + size.width / 2), y=_round(first + LINE_HEIGHT * (n + 0.72)))
                    for n, line in enumerate(box.lines)
                ],
            )
        )
        self.add_contents(placed, left, up, depth + 1, node_id)


CORNER_RADIUS = 7
HEAD_LENGTH, HEAD_WIDTH = 10, 7
"""The size of the head of an arrow."""


def _round(number: float) -> float:
    return round(number, 1)


def _outline(shape: Shape, x: float, y: float, width: float, height: float) -> str:
    """The path around a box: a diamond for a selector, otherwise a rectangle with or without rounded corners."""
    right = x + width
    bottom = y + height
    if shape == "selector":
        middle = (x + width / 2, y + height / 2)
        corners = ((x, middle[1]), (middle[0], y), (right, middle[1]), (middle[0], bottom))
        return f"M{'L'.join(map(_at, corners))}Z"
    radius = min({"dot": height / 2, "query": height / 2, "tool": 0}.get(shape, CORNER_RADIUS), 20, width / 2)
    if not radius:
        return f"M{_at((x, y))}L{_at((right, y))}L{_at((right, bottom))}L{_at((x, bottom))}Z"
    arc = f"A{radius:.1f} {radius:.1f} 0 0 1 "
    return (
        f"M{_at((x + radius, y))}L{_at((right - radius, y))}{arc}{_at((right, y + radius))}"
        f"L{_at((right, bottom - radius))}{arc}{_at((right - radius, bottom))}"
        f"L{_at((x + radius, bottom))}{arc}{_at((x, bottom - radius))}"
        f"L{_at((x, y + radius))}{arc}{_at((x + radius, y))}Z"
    )


def _head(before: Point, tip: Point) -> str:
    """The head of an arrow whose last step, from ``before`` to the ``tip``, is horizontal."""
    back = tip[0] - HEAD_LENGTH if before[0] < tip[0] else tip[0] + HEAD_LENGTH
    half = HEAD_WIDTH / 2
    return f"M{_at((back, tip[1] - half))}L{_at(tip)}L{_at((back, tip[1] + half))}Z"


def _path(points: Sequence[Point]) -> str:
    """Lines with rounded corners; a step that is neither horizontal nor vertical is a curve."""
    steps = [f"M{_at(points[0])}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        if _straight(before, here) and _straight(here, after):
            steps.append(f"L{_at(_near(here, before))}Q{_at(here)} {_at(_near(here, after))}")
        else:
            steps.append(_step(before, here))
    return "".join((*steps, _step(points[-2], points[-1])))


def _step(start: Point, end: Point) -> str:
    half = (start[0] + end[0]) / 2
    return f"L{_at(end)}" if _straight(start, end) else f"C{_at((half, start[1]))} {_at((half, end[1]))} {_at(end)}"


def _straight(start: Point, end: Point) -> bool:
    return start[0] == end[0] or start[1] == end[1]


def _near(here: Point, there: Point) -> Point:
    """The point near ``here``, towards ``there``, where a rounded corner begins or ends."""
    far = max(abs(there[0] - here[0]), abs(there[1] - here[1]), 1)
    share = min(CORNER_RADIUS, far / 2) / far
    return here[0] + (there[0] - here[0]) * share, here[1] + (there[1] - here[1]) * share


def _at(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"
