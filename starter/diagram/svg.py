"""Draws a diagram as an SVG image that needs no other files."""

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from .edge_routing import ArrowPath, Point, Rectangle
from .layout import LINE_HEIGHT, PADDING, PlacedBox, place
from .model import Box

FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
TEXT, LINE, BACKGROUND = "#24292f", "#57606a", "#ffffff"
COLOURS = {
    "query": ("#fff8e1", "#b08800"),
    "selector": ("#eaf2ff", "#4a78c0"),
    "model": ("#eefaf0", "#4c9a5b"),
    "tool": ("#f5efff", "#8a63d2"),
    "human": ("#fff1e5", "#bc6c25"),
    "missing": (BACKGROUND, LINE),
    "dot": (LINE, LINE),
    "agent": (BACKGROUND, LINE),
}
"""The fill and the outline of each shape but teams."""

TEAM_FILLS = ("#f3f5f8", "#e8ecf2")
"""The fills of teams, in turn for teams within teams."""

CORNER_RADIUS = 7


def svg(page: Box) -> str:
    """The diagram as an image; equal diagrams give equal text."""
    root = place(page)
    width, height = (f"{round(size)}" for size in (root.rectangle.width, root.rectangle.height))
    image = Element("svg", xmlns="http://www.w3.org/2000/svg", width=width, height=height)
    image.set("viewBox", f"0 0 {width} {height}")
    image.set("font-family", FONT)
    _define_arrow_head(image)
    SubElement(image, "rect", width="100%", height="100%", fill=BACKGROUND)
    _draw_inside(image, root, 0)
    indent(image)
    return tostring(image, encoding="unicode")


def _define_arrow_head(image: Element) -> None:
    head = SubElement(SubElement(image, "defs"), "marker", id="head", viewBox="0 0 10 10", refX="9.5", refY="5")
    for name, value in (("markerWidth", "7"), ("markerHeight", "7"), ("orient", "auto-start-reverse")):
        head.set(name, value)
    SubElement(head, "path", d="M0 0L10 5L0 10z", fill=LINE)


def _draw_inside(parent: Element, around: PlacedBox, depth: int) -> None:
    for each in around.inside:
        _draw_box(parent, each, depth)
    for path in around.paths:
        _draw_arrow(parent, path)


def _draw_box(parent: Element, each: PlacedBox, depth: int) -> None:
    box, rectangle = each.box, each.rectangle
    group = SubElement(parent, "g", transform=f"translate({rectangle.x:.1f} {rectangle.y:.1f})")
    fill, stroke = COLOURS.get(box.shape, (TEAM_FILLS[depth % 2], LINE))
    outline = _outline(group, box.shape, rectangle)
    for name, value in (("fill", fill), ("stroke", stroke)):
        outline.set(name, value)
    if box.shape == "missing":
        outline.set("stroke-dasharray", "5 4")
    top = PADDING / 2 if box.inside else (rectangle.height - LINE_HEIGHT * len(box.lines)) / 2
    _write(group, box.lines, rectangle.width / 2, top)
    _draw_inside(group, each, depth + 1)


def _outline(group: Element, shape: str, rectangle: Rectangle) -> Element:
    wide, high = f"{rectangle.width:.1f}", f"{rectangle.height:.1f}"
    if shape == "selector":
        x, y = rectangle.width / 2, rectangle.height / 2
        return SubElement(group, "path", d=f"M0 {y:.1f}L{x:.1f} 0L{wide} {y:.1f}L{x:.1f} {high}z")
    corner = {"dot": rectangle.height / 2, "query": rectangle.height / 2, "tool": 0}.get(shape, CORNER_RADIUS)
    return SubElement(group, "rect", width=wide, height=high, rx=f"{min(corner, 20):.1f}")


def _write(group: Element, lines: Iterable[str], x: float, top: float) -> None:
    for number, line in enumerate(lines):
        text = SubElement(group, "text", x=f"{x:.1f}", y=f"{top + LINE_HEIGHT * (number + 0.72):.1f}")
        text.set("text-anchor", "middle")
        text.set("font-size", "12" if number else "14")
        text.set("fill", LINE if number else TEXT)
        if not number:
            text.set("font-weight", "bold")
        text.text = line


def _draw_arrow(parent: Element, path: ArrowPath) -> None:
    line = SubElement(parent, "path", d=_path(path.points), fill="none", stroke=LINE)
    line.set("stroke-width", "1.4")
    line.set("marker-end", "url(#head)")
    if path.arrow.two_way:
        line.set("marker-start", "url(#head)")
    if path.arrow.dashed:
        line.set("stroke-dasharray", "3 4")
    if path.arrow.label:
        x, y = path.label_at
        label = SubElement(parent, "text", x=f"{x:.1f}", y=f"{y + 4:.1f}", fill=TEXT, stroke=BACKGROUND)
        label.text = path.arrow.label
        for name, value in (("font-size", "12"), ("text-anchor", "middle"), ("paint-order", "stroke")):
            label.set(name, value)
        label.set("stroke-width", "4")


def _path(points: tuple[Point, ...]) -> str:
    """Lines with round corners; a step that is neither horizontal nor vertical is a curve."""
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
    """The point near ``here``, on the way to ``there``, where a round corner begins or ends."""
    far = max(abs(there[0] - here[0]), abs(there[1] - here[1]), 1)
    share = min(CORNER_RADIUS, far / 2) / far
    return here[0] + (there[0] - here[0]) * share, here[1] + (there[1] - here[1]) * share


def _at(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"
