"""Writes the tables of fields into docs/reference.md, from the models of the manifests and their descriptions.

A table stands between ``<!-- fields: CLASS -->`` and ``<!-- end -->``. ``<!-- fields: CLASS without BASE -->`` leaves
out the inherited fields of a base class. A field that is an object gets a row for each of its own fields, unless the
page has a table of that class: then its type is a link to that table.
"""

import inspect
import json
import re
import types
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from baton.resources.base import Deprecated, JsonModel, NoEffect, NotSupportedYet, Pattern, Ref
from baton.resources.parse import MANIFEST_KINDS
from baton.resources.strategies import AppliesTo
from baton.resources.values import Header, ValueSource
from baton.starter.history.events import BaseEvent, Event
from tests.harness.processes import ROOT

PAGE = ROOT / "docs" / "reference.md"

MARKER = re.compile(r"<!-- fields: (\w+)(?: without (\w+))? -->\n.*?<!-- end -->", re.DOTALL)

COMMON = {"api_version", "kind", "metadata", "status"}
"""The fields of all manifests, which the page explains once."""

LEAVES: dict[type[JsonModel], str] = {Ref: "reference", Header: "header"}
"""The models that need no rows for their fields, with their names."""

SCALARS: dict[object, str] = {str: "text", int: "integer", float: "number", bool: "boolean"}


def classes() -> dict[str, type[JsonModel]]:
    """All models that manifests are made of, by name, with their base classes."""
    models: dict[str, type[JsonModel]] = {}

    def add(model: type[JsonModel]) -> None:
        if model.__name__ not in models:
            models.update({base.__name__: base for base in model.__mro__ if issubclass(base, JsonModel)})
            for field in model.model_fields.values():
                for nested in models_in(field.annotation):
                    add(nested)

    for kind in MANIFEST_KINDS.values():
        add(kind)
    return models


def models_in(annotation: object) -> Iterator[type[JsonModel]]:
    """The models that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, JsonModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


class Tables:
    """The tables of a page, with the anchors of the headings below which they stand."""

    def __init__(self, page: str) -> None:
        self._classes = classes()
        self._anchors: dict[str, str] = {}
        heading = ""
        for line in page.splitlines():
            if line.startswith("#"):
                heading = re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
            elif marker := re.match(r"<!-- fields: (\w+)", line):
                self._anchors[marker[1]] = heading

    def table(self, name: str, base: str | None) -> str:
        """The table of a class, without the fields of a base class."""
        left_out = self._classes[base].model_fields.keys() if base else set[str]()
        fields = {key: field for key, field in self._classes[name].model_fields.items() if key not in left_out}
        rows = ["| field | type | default | meaning |", "|---|---|---|---|", *self._rows(fields, "")]
        return "\n".join(rows)

    def _rows(self, fields: dict[str, FieldInfo], prefix: str) -> Iterator[str]:
        for key, field in fields.items():
            if not prefix and key in COMMON:
                continue
            name = f"{prefix}{field.alias or key}"
            meaning = meaning_of(field)
            if not meaning:
                continue  # what a Kubernetes API server adds
            yield f"| `{name}` | {self._type(field)} | {default_of(field)} | {meaning} |"
            nested, is_list = nested_in(field.annotation)
            if nested and nested.__name__ not in self._anchors:
                yield from self._rows(nested.model_fields, f"{name}{'[]' if is_list else ''}.")

    def _type(self, field: FieldInfo) -> str:
        if any(isinstance(mark, Pattern) and "duration" in mark.wrong for mark in field.metadata):
            return "duration"
        return self._type_name(field.annotation)

    def _type_name(self, annotation: Any) -> str:
        arguments = [argument for argument in get_args(annotation) if argument is not types.NoneType]
        match get_origin(annotation):
            case origin if origin is Annotated:
                is_duration = any(isinstance(mark, Pattern) and "duration" in mark.wrong for mark in arguments[1:])
                return "duration" if is_duration else self._type_name(arguments[0])
            case origin if origin is Literal:
                return ", ".join(f"`{value}`" for value in arguments)
            case origin if origin is Union or origin is types.UnionType:
                return " or ".join(dict.fromkeys(self._type_name(argument) for argument in arguments))
            case origin if origin is tuple:
                return f"list of {self._type_name(arguments[0])}"
            case origin if origin is dict:
                return "map"
        if isinstance(annotation, type) and issubclass(annotation, ValueSource):
            return "[value](#values-and-templates)"
        if isinstance(annotation, type) and issubclass(annotation, JsonModel):
            anchor = self._anchors.get(annotation.__name__)
            return f"[object](#{anchor})" if anchor else LEAVES.get(annotation, "object")
        return SCALARS.get(annotation, "any")


def nested_in(annotation: Any) -> tuple[type[JsonModel] | None, bool]:
    """The one model whose fields a field has, and whether it is a list of them; None for references and values."""
    models = {*models_in(annotation)}
    if len(models) != 1 or SCALARS.keys() & {*scalars_in(annotation)}:
        return None, False
    (model,) = models
    if model in LEAVES or issubclass(model, ValueSource):
        return None, False
    return model, "tuple" in str(annotation)


def scalars_in(annotation: Any) -> Iterator[object]:
    """The scalar types that stand in an annotation beside its models."""
    if annotation in SCALARS:
        yield annotation
    for argument in get_args(annotation):
        if not isinstance(argument, FieldInfo) and get_origin(annotation) is not Literal:
            yield from scalars_in(argument)


def default_of(field: FieldInfo) -> str:
    """The default of a field, as a manifest says it."""
    if field.is_required():
        return "*required*"
    if field.default in (None, "", (), {}) or isinstance(field.default, JsonModel):
        return ""
    return f"`{field.default}`" if isinstance(field.default, str) else f"`{json.dumps(field.default)}`"


def meaning_of(field: FieldInfo) -> str:
    """The description of a field with its marks; empty for a field without either."""
    parts = [field.description] if field.description else []
    for mark in field.metadata:
        if isinstance(mark, AppliesTo):
            parts.append(f"only with {', '.join(f'`{name}`' for name in mark.strategies)}")
        elif isinstance(mark, NoEffect | NotSupportedYet | Deprecated):
            parts.append(str(mark))
    text = "; ".join(parts)
    quoted = re.sub(r"(?<![\w`])'([^'`]+)'(?!\w)", r"`\1`", text)
    return re.sub(r"(?<!`)(\{[^`]+?\}+)(?!`)", r"`\1`", quoted).replace("|", "\\|")


def generated(page: str) -> str:
    """The page with up-to-date tables."""
    tables = Tables(page)

    def replace(marker: re.Match[str]) -> str:
        opening = marker[0].partition("\n")[0]
        return f"{opening}\n\n{tables.table(marker[1], marker[2])}\n\n<!-- end -->"

    return MARKER.sub(replace, page)


EVENT_PAGE = ROOT / "docs" / "events.md"

EVENT_MARKER = re.compile(r"<!-- events -->\n.*<!-- end -->", re.DOTALL)


def with_events(page: str) -> str:
    """The page with up-to-date descriptions of all types of events, from their classes."""
    union = get_args(get_args(Event)[0])
    sections = "\n\n".join(map(event_section, union))
    return EVENT_MARKER.sub(lambda _: f"<!-- events -->\n\n{sections}\n\n<!-- end -->", page)


def event_section(event: type[BaseEvent]) -> str:
    """The description of a type of events, with its fields as they are named in JSON and in Python."""
    tables = Tables("")
    description = inspect.cleandoc(event.__doc__ or "").replace("``", "`")
    lines = [f"## {event.model_fields['type'].default}", "", f"`baton.{event.__name__}`. {description}"]
    fields = {key: field for key, field in event.model_fields.items() if key not in {"type", *BaseEvent.model_fields}}
    if fields:
        lines += ["", "| field | in Python | type |", "|---|---|---|"]
    for key, field in fields.items():
        optional = "" if field.is_required() else ", optional"
        kind = "time" if datetime in {field.annotation, *get_args(field.annotation)} else tables._type(field)
        lines.append(f"| `{field.alias or key}` | `{key}` | {kind}{optional} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))
    EVENT_PAGE.write_text(with_events(EVENT_PAGE.read_text()))
