"""The output formats of lists: tables, JSON, YAML, names, and kubectl's JSONPath templates."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ..errors import UsageError
from .terminal import dump, print_line, print_result, print_rows

if TYPE_CHECKING:
    from pydantic import JsonValue

TABLES = ("text", "wide")
JSONPATH = "jsonpath="


def _check(output: str) -> str:
    if output.startswith(JSONPATH):
        _parse(output.removeprefix(JSONPATH))
    elif output not in (*TABLES, "json", "yaml", "name"):
        raise typer.BadParameter(f"'{output}' is not one of text, wide, json, yaml, name, jsonpath=TEMPLATE")
    return output


ListOutput = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        callback=_check,
        metavar="FORMAT",
        help="The output format: text, wide, json, yaml, name or jsonpath=TEMPLATE.",
    ),
]


class ListedItem(NamedTuple):
    """An item of a list: the cells of its row, its value as JSON, and its name for ``-o name``."""

    cells: Sequence[str]
    value: "JsonValue"
    name: str


def print_items(
    columns: Sequence[str], items: Sequence[ListedItem], output: str, none: str, value: "JsonValue"
) -> None:
    """Prints items in a format. ``value`` are all of them as JSON, ``none`` is the text of a table without rows."""
    if output in TABLES:
        print_rows(columns, [(item.cells, item.value) for item in items], output, none)
    elif output == "name":
        for item in items:
            print_line(item.name)
    elif output.startswith(JSONPATH):
        print_result(fill_template(output.removeprefix(JSONPATH), value))
    else:
        print_result(dump(value, output))


def fill_template(template: str, value: "JsonValue") -> str:
    """A JSONPath template such as ``{.items[*].metadata.name}``, filled in.

    It may have paths of fields (``.name``, ``['name']``), indexes (``[0]``, ``[-1]``) and ``[*]``, texts (``{"\\n"}``)
    and ``{range PATH}…{end}``, as in kubectl. Several values are separated by spaces; a missing one is empty.
    """
    return "".join(_filled(iter(_parse(template)), [value]))


_PIECE = re.compile(r"\{((?:[^{}\"']|\"[^\"]*\"|'[^']*')*)\}")
_STEP = re.compile(r"\.(?P<name>[\w-]+)|\['(?P<quoted>[^']+)'\]|\[(?P<index>-?\d+)\]|\[\*\]|\.\*")


class _Piece(NamedTuple):
    """A part of a template: ``text``, ``path``, ``range`` or ``end``."""

    kind: str
    text: str = ""
    steps: tuple[str | int | None, ...] = ()
    """The steps of a path: a name, an index, or None for all."""


def _parse(template: str) -> list[_Piece]:
    pieces: list[_Piece] = []
    last = 0
    for found in _PIECE.finditer(template):
        pieces += _text(template[last : found.start()])
        pieces.append(_expression(found[1].strip()))
        last = found.end()
    pieces += _text(template[last:])
    depth = 0
    for piece in pieces:
        depth += {"range": 1, "end": -1}.get(piece.kind, 0)
        if depth < 0:
            break
    if depth:
        raise typer.BadParameter("each {range …} of a JSONPath template needs an {end}")
    return pieces


def _text(text: str) -> list[_Piece]:
    if "{" in text or "}" in text:
        raise typer.BadParameter(f"the JSONPath template has an unpaired brace: {text}")
    return [_Piece("text", text)] if text else []


def _expression(text: str) -> _Piece:
    if text == "end":
        return _Piece("end")
    if text[:1] == text[-1:] == '"':
        try:
            return _Piece("text", json.loads(text))
        except ValueError:
            raise typer.BadParameter(f"the JSONPath template has an invalid text: {text}") from None
    kind = "range" if text.startswith("range ") else "path"
    path = text.removeprefix("range ").strip().removeprefix("$").removeprefix("@")
    steps: list[str | int | None] = []
    position = 0
    while path not in ("", ".") and position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise typer.BadParameter(f"the JSONPath template has an unsupported path: {{{text}}}")
        name = step["name"] or step["quoted"]
        index = step["index"]
        steps.append(name or (int(index) if index else None))
        position = step.end()
    return _Piece(kind, steps=tuple(steps))


def _filled(pieces: Iterator[_Piece], values: "Sequence[JsonValue]") -> Iterator[str]:
    """The texts of the pieces up to an ``end``, once for each value."""
    block: list[_Piece] = []
    depth = 0
    for piece in pieces:
        depth += {"range": 1, "end": -1}.get(piece.kind, 0)
        if depth < 0:
            break
        block.append(piece)
    for value in values:
        remaining = iter(block)
        for piece in remaining:
            if piece.kind == "text":
                yield piece.text
            elif piece.kind == "range":
                yield from _filled(remaining, [*_found(piece.steps, value)])
            else:
                yield " ".join(_shown(found) for found in _found(piece.steps, value))


def _found(steps: Sequence[str | int | None], value: "JsonValue") -> "Iterator[JsonValue]":
    if not steps:
        yield value
        return
    step, *remaining = steps
    below: list[JsonValue] = []
    if step is None:
        below = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    elif isinstance(step, int):
        below = [value[step]] if isinstance(value, list) and -len(value) <= step < len(value) else []
    elif isinstance(value, dict) and step in value:
        below = [value[step]]
    for each in below:
        yield from _found(remaining, each)


def _shown(value: "JsonValue") -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse_selector(text: str) -> dict[str, str | None]:
    """The labels that ``-l`` requires, from ``key=value,key``; None stands for any value. Raises UsageError."""
    labels: dict[str, str | None] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not key.strip():
            raise UsageError(f"-l {text}: write labels as KEY=VALUE, or KEY for any value, with commas between them")
        labels[key.strip()] = value.removeprefix("=").strip() if equals else None
    return labels
