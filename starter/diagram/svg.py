"""Renders a drawing as SVG: a file that stands alone, or an element of an HTML page that has the style sheet."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from .build import Box
from .layout import Drawing, DrawnEdge, DrawnNode, drawing_of

FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"


@dataclass(frozen=True)
class Color:
    """A color on a light and on a dark background. ``name`` is that of the custom property that replaces it."""

    name: str
    light: str
    dark: str

    @property
    def css(self) -> str:
        """The color in a style sheet."""
        return f"var(--graph-{self.name}, light-dark({self.light}, {self.dark}))"


TEXT = Color("text", "#24292f", "#e8eaed")
NOTE = Color("note", "#57606a", "#a9b1ba")
LINE = Color("line", "#57606a", "#98a1ab")
BACKGROUND = Color("background", "#ffffff", "#15181c")
LIT = Color("lit", "#0b6bcb", "#6cb6ff")
SURFACE = Color("surface", "#ffffff", "#22272e")

SHAPES = {
    "query": (Color("query", "#fff8e1", "#3a3117"), Color("query-line", "#b08800", "#d6ae3c")),
    "selector": (Color("selector", "#eaf2ff", "#1d2f4a"), Color("selector-line", "#4a78c0", "#7fa8e6")),
    "model": (Color("model", "#eefaf0", "#1b3323"), Color("model-line", "#4c9a5b", "#74bf84")),
    "tool": (Color("tool", "#f5efff", "#2e2646"), Color("tool-line", "#8a63d2", "#b294ea")),
    "human": (Color("human", "#fff1e5", "#3d2a18"), Color("human-line", "#bc6c25", "#e09a57")),
    "missing": (BACKGROUND, LINE),
    "dot": (LINE, LINE),
    "agent": (SURFACE, LINE),
}
"""The fill and the outline by shape, except for teams."""

TEAM_FILLS = (Color("team", "#f3f5f8", "#1b1f24"), Color("inner-team", "#e8ecf2", "#2a3038"))
"""The fills of teams, alternating with the nesting depth."""


def svg(page: Box) -> str:
    """The diagram as the text of an SVG file, which is deterministic. It is dark where the reader prefers that."""
    drawing = drawing_of(page)
    image = element_of(drawing)
    image.set("xmlns", "http://www.w3.org/2000/svg")
    image.set("font-family", FONT)
    SubElement(image, "style").text = f":root {{ color-scheme: light dark }}\n{style_sheet()}"
    background = SubElement(image, "rect", {"class": "background"}, width="100%", height="100%")
    background.set("fill", BACKGROUND.light)
    title, description, *shapes = image
    image[:] = [title, description, *shapes[-2:], *shapes[:-2]]
    indent(image)
    return tostring(image, encoding="unicode")


def element_of(
    drawing: Drawing, prefix: str = "graph", *, lit: Collection[str] = (), taken: Collection[str] = ()
) -> Element:
    """The drawing as an SVG element; ids in it begin with ``prefix``, which is unique on the page.

    Without the style sheet it has light colors. Nodes and edges have the classes and data that ``style_sheet`` and
    scripts select them by: ``data-resource``, ``data-speaker``, ``data-part``; ``data-start``, ``data-end``,
    ``data-edges``. The ids of nodes in ``lit`` are present speakers, and those of edges in ``taken`` were taken: they
    have these classes.
    """
    width, height = str(drawing.width), str(drawing.height)
    names = f"{prefix}-title {prefix}-description"
    image = Element("svg", {"class": "drawing", "aria-labelledby": names}, role="img", width=width, height=height)
    image.set("viewBox", f"0 0 {width} {height}")
    SubElement(image, "title", id=f"{prefix}-title").text = drawing.title
    SubElement(image, "desc", id=f"{prefix}-description").text = drawing.description
    for node in drawing.nodes:
        _draw_node(image, node, prefix, is_lit=node.id in lit)
    for edge in drawing.edges:
        _draw_edge(image, edge, prefix, is_taken=edge.id in taken)
    return image


def style_sheet() -> str:
    """The style sheet of drawings: colors are custom properties with a default for light and dark backgrounds.

    They are those of the element around the drawing, such as ``--graph-line``. Browsers that do not know
    ``light-dark`` show the light ones.
    """
    return "\n".join((*_TYPOGRAPHY, "@supports (color: light-dark(#000, #fff)) {", *_rules(), "}"))


_TYPOGRAPHY = (
    ".drawing text { font-size: 12px; text-anchor: middle }",
    ".drawing .title { font-size: 14px; font-weight: bold }",
    ".drawing .label { paint-order: stroke; stroke-width: 4px }",
    ".drawing .line { stroke-width: 1.4px; fill: none }",
)


def _rules() -> Iterator[str]:
    yield f".drawing .background {{ fill: {BACKGROUND.css} }}"
    yield f".drawing .title {{ fill: {TEXT.css} }}"
    yield f".drawing .note {{ fill: {NOTE.css} }}"
    for shape, (fill, line) in SHAPES.items():
        yield f".drawing .{shape} > .outline {{ fill: {fill.css}; stroke: {line.css} }}"
    for name, fill in zip(("team", "inner"), TEAM_FILLS, strict=True):
        yield f".drawing .{name} > .outline {{ fill: {fill.css}; stroke: {LINE.css} }}"
    yield f".drawing .line {{ stroke: {LINE.css} }}"
    yield f".drawing .head {{ fill: {LINE.css} }}"
    yield f".drawing .label {{ fill: {TEXT.css}; stroke: {BACKGROUND.css} }}"
    yield f".drawing .taken > .line {{ stroke: {LIT.css}; stroke-width: 2.2 }}"
    yield f".drawing .taken > .head {{ fill: {LIT.css} }}"
    yield f".drawing .lit > .outline {{ stroke: {LIT.css}; stroke-width: 3 }}"


def _draw_node(image: Element, node: DrawnNode, prefix: str, *, is_lit: bool) -> None:
    is_inner = node.shape == "team" and node.depth % 2 == 1
    group = SubElement(
        image, "g", {"class": f"node {node.shape}{' inner' if is_inner else ''}{' lit' if is_lit else ''}"}
    )
    group.set("id", f"{prefix}-{node.id}")
    for name, value in (("resource", node.resource), ("speaker", node.speaker), ("part", node.part)):
        if value is not None:
            group.set(f"data-{name}", value)
    if node.parent:
        group.set("data-parent", f"{prefix}-{node.parent}")
    fill, line = SHAPES.get(node.shape, (TEAM_FILLS[node.depth % 2], LINE))
    outline = SubElement(group, "path", {"class": "outline"}, d=node.outline, fill=fill.light, stroke=line.light)
    if node.shape == "missing":
        outline.set("stroke-dasharray", "5 4")
    for number, written in enumerate(node.lines):
        text = SubElement(group, "text", {"class": "note" if number else "title"}, x=str(written.x), y=str(written.y))
        text.set("text-anchor", "middle")
        text.set("font-size", "12" if number else "14")
        text.set("fill", NOTE.light if number else TEXT.light)
        if not number:
            text.set("font-weight", "bold")
        text.text = written.text


def _draw_edge(image: Element, edge: DrawnEdge, prefix: str, *, is_taken: bool) -> None:
    group = SubElement(image, "g", {"class": "edge taken" if is_taken else "edge"}, id=f"{prefix}-{edge.id}")
    group.set("data-start", f"{prefix}-{edge.start}")
    group.set("data-end", f"{prefix}-{edge.end}")
    if edge.edges:
        group.set("data-edges", " ".join(map(str, edge.edges)))
    line = SubElement(group, "path", {"class": "line"}, d=edge.path, fill="none", stroke=LINE.light)
    line.set("stroke-width", "1.4")
    if edge.dashed:
        line.set("stroke-dasharray", "3 4")
    SubElement(group, "path", {"class": "head"}, d=edge.heads, fill=LINE.light)
    if edge.label:
        x, y = str(edge.label.x), str(round(edge.label.y + 4, 1))
        label = SubElement(group, "text", {"class": "label"}, x=x, y=y, fill=TEXT.light, stroke=BACKGROUND.light)
        for name, value in (("font-size", "12"), ("text-anchor", "middle"), ("paint-order", "stroke")):
            label.set(name, value)
        label.set("stroke-width", "4")
        label.text = edge.label.text
