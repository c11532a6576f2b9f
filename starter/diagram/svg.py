"""How is a chart drawn as a picture? An SVG that any browser shows, without fonts or files of its own."""

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from .edge_routing import Point, ArrowPath, Rectangle
from .layout import LINE, PAD, PlacedBox, place
from .model import Box

FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
INK, SOFT, PAPER = "#24292f", "#57606a", "#ffffff"
FILLS = {
    "query": ("#fff8e1", "#b08800"),
    "selector": ("#eaf2ff", "#4a78c0"),
    "model": ("#eefaf0", "#4c9a5b"),
    "tool": ("#f5efff", "#8a63d2"),
    "missing": (PAPER, SOFT),
    "dot": (SOFT, SOFT),
    "agent": (PAPER, SOFT),
}
GROUNDS = ("#f3f5f8", "#e8ecf2")
"""Teams in teams take turns with these."""

ROUND = 7


def svg(page: Box) -> str:
    """The chart as a picture; the same chart gives the same text."""
    root = place(page)
    width, height = (f"{round(size)}" for size in (root.rectangle.width, root.rectangle.height))
    picture = Element("svg", xmlns="http://www.w3.org/2000/svg", width=width, height=height)
    picture.set("viewBox", f"0 0 {width} {height}")
    picture.set("font-family", FONT)
    head = SubElement(SubElement(picture, "defs"), "marker", id="head", viewBox="0 0 10 10", refX="9.5", refY="5")
    for name, value in (("markerWidth", "7"), ("markerHeight", "7"), ("orient", "auto-start-reverse")):
        head.set(name, value)
    SubElement(head, "path", d="M0 0L10 5L0 10z", fill=SOFT)
    SubElement(picture, "rect", width="100%", height="100%", fill=PAPER)
    _fill(picture, root, 0)
    indent(picture)
    return tostring(picture, encoding="unicode")


def _fill(parent: Element, around: PlacedBox, depth: int) -> None:
    for each in around.inside:
        _draw(parent, each, depth)
    for route in around.paths:
        _arrow(parent, route)


def _draw(parent: Element, each: PlacedBox, depth: int) -> None:
    box, spot = each.box, each.rectangle
    group = SubElement(parent, "g", transform=f"translate({spot.x:.1f} {spot.y:.1f})")
    fill, stroke = FILLS.get(box.shape, (GROUNDS[depth % 2], SOFT))
    outline = _outline(group, box.shape, spot)
    for name, value in (("fill", fill), ("stroke", stroke)):
        outline.set(name, value)
    if box.shape == "missing":
        outline.set("stroke-dasharray", "5 4")
    _write(group, box.lines, spot.width / 2, PAD / 2 if box.inside else (spot.height - LINE * len(box.lines)) / 2)
    _fill(group, each, depth + 1)


def _outline(group: Element, shape: str, spot: Rectangle) -> Element:
    wide, high = f"{spot.width:.1f}", f"{spot.height:.1f}"
    if shape == "selector":
        x, y = spot.width / 2, spot.height / 2
        return SubElement(group, "path", d=f"M0 {y:.1f}L{x:.1f} 0L{wide} {y:.1f}L{x:.1f} {high}z")
    corner = {"dot": spot.height / 2, "query": spot.height / 2, "tool": 0}.get(shape, ROUND)
    return SubElement(group, "rect", width=wide, height=high, rx=f"{min(corner, 20):.1f}")


def _write(group: Element, lines: Iterable[str], x: float, top: float) -> None:
    for number, line in enumerate(lines):
        text = SubElement(group, "text", x=f"{x:.1f}", y=f"{top + LINE * (number + 0.72):.1f}")
        text.set("text-anchor", "middle")
        text.set("font-size", "12" if number else "14")
        text.set("fill", SOFT if number else INK)
        if not number:
            text.set("font-weight", "bold")
        text.text = line


def _arrow(parent: Element, route: ArrowPath) -> None:
    line = SubElement(parent, "path", d=_path(route.points), fill="none", stroke=SOFT)
    line.set("stroke-width", "1.4")
    line.set("marker-end", "url(#head)")
    if route.arrow.two_way:
        line.set("marker-start", "url(#head)")
    if route.arrow.dashed:
        line.set("stroke-dasharray", "3 4")
    if route.arrow.label:
        x, y = route.label_at
        label = SubElement(parent, "text", x=f"{x:.1f}", y=f"{y + 4:.1f}", fill=INK, stroke=PAPER)
        label.text = route.arrow.label
        for name, value in (("font-size", "12"), ("text-anchor", "middle"), ("paint-order", "stroke")):
            label.set(name, value)
        label.set("stroke-width", "4")


def _path(points: tuple[Point, ...]) -> str:
    """Lines with round corners, and a swing where a part is neither level nor upright."""
    steps = [f"M{_at(points[0])}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        if _straight(before, here) and _straight(here, after):
            steps.append(f"L{_at(_towards(here, before))}Q{_at(here)} {_at(_towards(here, after))}")
        else:
            steps.append(_step(before, here))
    return "".join((*steps, _step(points[-2], points[-1])))


def _step(start: Point, end: Point) -> str:
    half = (start[0] + end[0]) / 2
    return f"L{_at(end)}" if _straight(start, end) else f"C{_at((half, start[1]))} {_at((half, end[1]))} {_at(end)}"


def _straight(start: Point, end: Point) -> bool:
    return start[0] == end[0] or start[1] == end[1]


def _towards(here: Point, there: Point) -> Point:
    """The point on the way there where a round corner begins or ends."""
    far = max(abs(there[0] - here[0]), abs(there[1] - here[1]), 1)
    share = min(ROUND, far / 2) / far
    return here[0] + (there[0] - here[0]) * share, here[1] + (there[1] - here[1]) * share


def _at(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"
