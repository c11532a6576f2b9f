"""Checks the arguments of a program's calls: a wrong one raises TypeError, which says what it is and must be."""

import inspect
from collections.abc import Mapping, Sequence
from typing import cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from ...resources.base import JsonObject, Path
from ...resources.problems import dotted_path


def check(value: object, kind: type | tuple[type, ...], argument: str, wanted: str) -> None:
    """Raises TypeError for a value that is not of that type."""
    if not isinstance(value, kind):
        raise TypeError(f"{argument} is {_shown(value)}, must be {wanted}")


def check_text(value: object, argument: str) -> None:
    """Raises TypeError for what is no text."""
    check(value, str, argument, "a text")


def check_mapping(value: object, argument: str) -> None:
    """Raises TypeError for what is neither a mapping nor None."""
    check(value, (Mapping, type(None)), argument, "a mapping, as in {'name': 'value'}")


def check_list(value: object, argument: str, kind: type | None = None, wanted: str = "a list") -> None:
    """Raises TypeError for what is no list or tuple, or has an element that is not of ``kind``."""
    check(value, (list, tuple), argument, wanted)
    for index, each in enumerate(cast(Sequence[object], value)):
        if kind:
            check(each, kind, f"{argument}[{index}]", "one of " + wanted.removeprefix("a list of "))


def as_json(given: Mapping[str, object]) -> JsonObject:
    """A manifest as JSON. Raises TypeError that names the field of a value that JSON can't hold."""
    try:
        return cast(JsonObject, to_jsonable_python(given, by_alias=True))
    except (PydanticSerializationError, ValueError):
        path, value = _odd_value(given)
        raise TypeError(f"{dotted_path(path)} is {_shown(value)}, which a manifest can't hold") from None


def _odd_value(value: object, path: Path = ()) -> tuple[Path, object]:
    """The first value in a value that JSON can't hold, with its path."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, each in inner:
        try:
            to_jsonable_python(each, by_alias=True)
        except (PydanticSerializationError, ValueError):
            return _odd_value(each, (*path, key if isinstance(key, int) else str(key)))
    return path, value


def _shown(value: object) -> str:
    if value is None:
        return "None"
    if inspect.iscoroutine(value):
        return f"the coroutine {value.__name__}, which is not awaited"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', '')}"
    numbers = dict.fromkeys((int, float), "a number")
    kinds = {str: "a text", bool: "True or False", dict: "a mapping", list: "a list", **numbers}
    return kinds.get(type(value), f"of the type {type(value).__name__}")
