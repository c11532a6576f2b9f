"""Errors of manifests, with file, line, resource, field, the problem, and what is expected."""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .base import SHAPE, FieldError, Path

MAX_LINES = 100
MAX_PROBLEM_TEXT = 1_000

_EXPECTED = {
    "string": "text (put it in quotes)",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "model": "a mapping",
    "dict": "a mapping",
}

_LIMITS = {
    "greater_than_equal": ("ge", "is {1}, must be {0} or more"),
    "greater_than": ("gt", "is {1}, must be more than {0}"),
    "less_than_equal": ("le", "is {1}, must be {0} or less"),
    "less_than": ("lt", "is {1}, must be less than {0}"),
    "string_too_long": ("max_length", "is longer than {0} characters"),
    "too_long": ("max_length", "has more than {0} entries"),
}
"""Exceeded limits: the key of the limit in pydantic's error, and the error text."""

_SHAPES = {"single": "text", "mapping": "a mapping", "list": "a list"}


@dataclass(frozen=True)
class Problem:
    """An error; its text is ``file:line: Kind/namespace/name: field: what is wrong; what is expected``."""

    file: str
    line: int
    resource: str
    field: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        parts = (place, self.resource, self.field, self.text)
        return ": ".join(printable(part) for part in parts if part)


class ManifestError(Exception):
    """Invalid manifests, with all their errors."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self) -> Iterator[str]:
        """A line per error; after a hundred only the number of the remaining ones."""
        yield from map(str, self.problems[:MAX_LINES])
        if len(self.problems) > MAX_LINES:
            yield f"… and {len(self.problems) - MAX_LINES} more"


def printable(text: str) -> str:
    """A text from a file, safe to print on one line of a terminal: truncated, with control characters escaped."""
    short = text if len(text) <= MAX_PROBLEM_TEXT else f"{text[:MAX_PROBLEM_TEXT]}…"
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in short)


def dotted_path(path: Path) -> str:
    """``("spec", "members", 0, "name")`` as ``spec.members[0].name``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


OTHER_NAMES = {
    "roster": ("members", "write members"),
    "debaters": ("members", "write members"),
    "block": ("stance", "write type and name: an agent, a team or an activity"),
    "accessorKey": ("contributions", "write contributions: {key: NAME}"),
    "collectionId": ("audit", "write audit"),
    "cron": ("schedule", "write schedule"),
    "suspend": ("paused", "write paused"),
    "jobTemplate": ("queryTemplate", "write queryTemplate: {spec: …}"),
    "startingDeadlineSeconds": ("catchupWindow", "write catchupWindow, a duration such as '10m'"),
    "concurrencyPolicy": ("overlapPolicy", "write overlapPolicy: AllowAll for Allow, Skip for Forbid, or CancelOther"),
    "TerminateOther": ("CancelOther", "write 'CancelOther': a terminated run can't store its messages"),
    "Forbid": ("Skip", "write 'Skip'"),
    "Allow": ("AllowAll", "write 'AllowAll'"),
    "Replace": ("CancelOther", "write 'CancelOther'"),
}
"""Names in the round-robin pattern, CronJobs or Temporal, with Baton's name for them and a hint."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint with the most similar known word, ignoring case, or with all known words."""
    words = sorted(known)
    field, instead = OTHER_NAMES.get(word, ("", ""))
    if field in words:
        return instead
    by_lower_case = {word.lower(): word for word in words}
    if near := difflib.get_close_matches(word[:MAX_PROBLEM_TEXT].lower(), by_lower_case, n=1):
        return f"did you mean '{by_lower_case[near[0]]}'?"
    return f"known: {', '.join(words)}" if words else "no values are known here"


def explain_errors(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Path, str]]:
    """The errors in a pydantic ValidationError, as paths and texts."""
    located = [(_path(detail), detail) for detail in error.errors(include_url=False)]
    outer = {path[:length] for path, _ in located for length in range(len(path))}
    for path, detail in located:
        if not (path in outer and detail["type"] == "too_short"):  # pydantic doesn't count invalid entries
            yield path, _sentence(detail, path, model)


def _path(detail: ErrorDetails) -> Path:
    path = tuple(step for step in detail["loc"] if not str(step).startswith(("function-", SHAPE)))
    error = detail.get("ctx", {}).get("error")
    return (*path, *error.path) if isinstance(error, FieldError) else path


def _sentence(detail: ErrorDetails, path: Path, model: type[BaseModel]) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _unknown_field(path, model)
    if kind == "missing":
        return f"is missing{_described(model, path)}"
    if kind in ("string_too_short", "too_short"):
        return f"is empty{_described(model, path)}"
    if kind == "literal_error":
        return _unknown_word(detail)
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind in _LIMITS:
        limit, text = _LIMITS[kind]
        bound = detail["ctx"][limit]
        return text.format(f"{bound:g}" if isinstance(bound, float) else bound, detail["input"])
    if kind == "union_tag_invalid":
        shapes = re.findall(f"{SHAPE}([a-z]+)", detail["ctx"]["expected_tags"])
        return f"is {_kind_of(detail['input'])}, must be {' or '.join(_SHAPES[shape] for shape in shapes)}"
    if kind.endswith("_type"):
        expected = _EXPECTED.get(kind.removesuffix("_type"), kind.removesuffix("_type"))
        return f"is {_kind_of(detail['input'])}, must be {expected}{_described(model, path)}"
    message = detail["msg"].removeprefix("Input ")
    return message[0].lower() + message[1:]


def _unknown_field(path: Path, model: type[BaseModel]) -> str:
    """The error text for a field that a model does not have."""
    owner = _model_at(model, path[:-1])
    if path[:-1] == () and str(path[-1]) in _fields(_model_at(model, ("spec",))):
        return "is a field of 'spec': indent it below that line"
    if not (owner and owner.model_fields):
        return "is not a field here"
    return f"is not a field of {owner.__name__.removesuffix('Spec')}; {did_you_mean(str(path[-1]), _fields(owner))}"


def _unknown_word(detail: ErrorDetails) -> str:
    """The error text for a value that is none of a field's literals."""
    known = [word.strip("'") for word in detail["ctx"]["expected"].replace(" or ", ", ").split(", ")]
    value = detail["input"]
    if not isinstance(value, str | int | float):
        return f"is {_kind_of(value)}, must be {' or '.join(known)}"
    return f"'{printable(str(value))}' is unknown; {did_you_mean(str(value), known)}"


def _described(model: type[BaseModel], path: Path) -> str:
    owner = _model_at(model, path[:-1])
    for name, field in owner.model_fields.items() if owner else ():
        if path and path[-1] in (name, field.alias) and field.description:
            return f"; it must be {field.description}"
    return ""


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model class at ``path`` in ``model``."""
    current: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, int) or current is None:
            continue
        fields = [field for name, field in current.model_fields.items() if step in (name, field.alias)]
        current = _model_in(fields[0].annotation) if fields else None
    return current


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)


def _fields(model: type[BaseModel] | None) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def _kind_of(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text", dict: "a mapping", list: "a list"}
    return "empty" if value is None else kinds.get(type(value), type(value).__name__)
