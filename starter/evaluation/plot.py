"""Draws the quality of variants against their cost, as a self-contained SVG image."""

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from .comparison import ComparedVariant, Estimate

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 20, 50
"""The margins of the plot, in pixels."""

COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7ea4", "#57606a")

LABEL_HEIGHT = 14


def plot(variants: Sequence[ComparedVariant]) -> str:
    """An SVG image with a point for each variant, and lines for the 95 % intervals of its quality and its cost.

    If the cost of a variant is not known, the horizontal axis has the tokens of all variants. A variant without a
    completed run is drawn at 0, which its label says. Variants without quality are left out.
    """
    has_costs = all(variant.cost for variant in variants if variant.quality and variant.tokens)
    label = "US dollars a run" if has_costs else "tokens a run"
    points: list[tuple[str, Estimate, Estimate]] = []
    for variant in variants:
        amount = variant.cost if has_costs else variant.tokens
        if variant.quality and amount:
            points.append((variant.name, amount, variant.quality))
        elif variant.quality:
            nothing = Estimate(mean=0, low=0, high=0, values=0)
            points.append((f"{variant.name} (no run has completed)", nothing, variant.quality))
    most = _nice(max((amount.high for _, amount, _ in points), default=1.0) or 1.0)
    svg = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
    svg.set("width", str(WIDTH))
    svg.set("height", str(HEIGHT))
    SubElement(svg, "title").text = f"Quality against {label}"
    SubElement(svg, "rect", width=str(WIDTH), height=str(HEIGHT), fill="white")
    _axes(svg, most, label)
    taken: list[tuple[float, float]] = []
    for index, (name, amount, quality) in enumerate(points):
        _point(svg, name, amount, quality, most, COLOURS[index % len(COLOURS)], taken)
    indent(svg)
    return tostring(svg, encoding="unicode")


def _x(amount: float, most: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * min(max(amount, 0.0), most) / most, 1)


def _y(quality: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(quality, 0.0), 1.0), 1)


def _nice(most: float) -> float:
    """The next number that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(most))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= most * 0.999)


def _axes(svg: Element, most: float, label: str) -> None:
    for step in range(6):
        y = _y(step / 5)
        _line(svg, LEFT, y, WIDTH - RIGHT, y, "#d0d7de")
        _text(svg, LEFT - 8, y + 4, f"{step / 5:.1f}", "end")
        x = _x(most * step / 5, most)
        _line(svg, x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 5, "#57606a")
        _text(svg, x, HEIGHT - BOTTOM + 18, f"{most * step / 5:.4g}", "middle")
    _line(svg, LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "#57606a")
    _text(svg, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, label, "middle")
    title = _text(svg, 16, (TOP + HEIGHT - BOTTOM) / 2, "quality", "middle")
    title.set("transform", f"rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2})")


def _point(
    svg: Element,
    name: str,
    amount: Estimate,
    quality: Estimate,
    most: float,
    colour: str,
    taken: list[tuple[float, float]],
) -> None:
    x, y = _x(amount.mean, most), _y(quality.mean)
    _line(svg, x, _y(quality.low), x, _y(quality.high), colour)
    _line(svg, _x(amount.low, most), y, _x(amount.high, most), y, colour)
    SubElement(svg, "circle", cx=str(x), cy=str(y), r="5", fill=colour)
    is_right = x > WIDTH * 0.7
    label_y = y - 8
    while any(abs(label_y - other_y) < LABEL_HEIGHT and abs(x - other_x) < WIDTH / 3 for other_x, other_y in taken):
        label_y += LABEL_HEIGHT
    taken.append((x, label_y))
    text = _text(svg, x - 8 if is_right else x + 8, label_y, name, "end" if is_right else "start")
    text.set("fill", colour)
    text.set("font-weight", "bold")


def _line(svg: Element, x1: float, y1: float, x2: float, y2: float, colour: str) -> None:
    SubElement(svg, "line", x1=str(x1), y1=str(y1), x2=str(x2), y2=str(y2), stroke=colour)


def _text(svg: Element, x: float, y: float, text: str, anchor: str) -> Element:
    element = SubElement(svg, "text", x=str(round(x, 1)), y=str(round(y, 1)))
    element.set("text-anchor", anchor)
    element.set("font-family", "sans-serif")
    element.set("font-size", "12")
    element.text = "".join(character for character in text if character >= " ")
    return element
