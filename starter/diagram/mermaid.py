"""Renders a diagram as a Mermaid flowchart, with teams as subgraphs."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from .build import Arrow, Box

_SHAPES = {
    "query": '(["{}"])',
    "model": '[("{}")]',
    "tool": '[["{}"]]',
    "human": '(["{}"])',
    "selector": '{{"{}"}}',
    "dot": '(("{}"))',
}
_STYLES = {
    "missing": "stroke-dasharray: 5 4",
    "dot": "fill:#57606a,stroke:#57606a",
    "query": "fill:#fff8e1,stroke:#b08800,color:#24292f",
    "selector": "fill:#eaf2ff,stroke:#4a78c0,color:#24292f",
}

_SPECIAL = re.compile(r"[^\w ·…()/,-]")
"""Characters that may be special in Mermaid, HTML or Markdown."""


def mermaid(page: Box) -> str:
    """The diagram as text, which is deterministic."""
    ids: defaultdict[str, list[str]] = defaultdict(list)
    numbers = count(1)

    def write_box(box: Box, name: str, indent: str) -> Iterator[str]:
        ids[box.shape].append(name)
        if box.inside:
            yield f'{indent}subgraph {name}["{_text((" · ".join(box.lines),))}"]'
            yield f"{indent}  direction LR"
            yield from write_contents(box, f"{indent}  ")
            yield f"{indent}end"
        else:
            yield indent + name + _SHAPES.get(box.shape, '["{}"]').format(_text(box.lines))

    def write_contents(box: Box, indent: str) -> Iterator[str]:
        names = [f"n{next(numbers)}" for _ in box.inside]
        for name, inner in zip(names, box.inside, strict=True):
            yield from write_box(inner, name, indent)
        yield from (f"{indent}{_arrow(arrow, names)}" for arrow in box.arrows)

    return "\n".join(("flowchart LR", *write_contents(page, "  "), *_style_lines(ids)))


def _style_lines(ids: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The styles of the shapes in the diagram; ``ids`` are the ids of the boxes, by shape."""
    for shape in (shape for shape in _STYLES if shape in ids):
        yield f"  classDef {shape} {_STYLES[shape]}"
        yield f"  class {','.join(ids[shape])} {shape}"


def _arrow(arrow: Arrow, names: list[str]) -> str:
    line = f"{'<' if arrow.two_way else ''}{'-.->' if arrow.dashed else '-->'}"
    label = f'|"{_text((arrow.label,))}"|' if arrow.label else ""
    return f"{names[arrow.start]} {line}{label} {names[arrow.end]}"


def _text(lines: tuple[str, ...]) -> str:
    return "<br/>".join(_SPECIAL.sub(lambda match: f"#{ord(match[0])};", line) for line in lines) or " "
