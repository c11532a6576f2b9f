"""Checks a value against a JSON Schema, and describes each error so that a model can correct it.

Schemas come from manifests, and values from models. Both may be made so that checking takes for ever, so it runs in a
thread, and gives up after ``SECONDS`` of processor time.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from itertools import islice
from typing import Any

import regex
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.protocols import Validator
from pydantic import JsonValue
from referencing import Registry

from ...resources.base import JsonObject

LONGEST = 300
"""Characters of one error."""

MAX_ERRORS = 50
"""Errors that are described."""

SECONDS = 1.0
"""Processor time of one check."""

Errors = Iterator[ValidationError]
Keyword = Callable[[Validator, Any, Any, Any], Errors | None]
"""The function of the library for a keyword: validator, the keyword's value, the value to check, the schema."""

_THREADS = ThreadPoolExecutor(2, "schema")

_end: ContextVar[float] = ContextVar("end")
"""The processor time of the thread at which the check gives up."""


async def schema_errors(value: JsonValue, schema: JsonObject) -> list[str]:
    """The errors, each with its JSON path. References to other schemas are never fetched."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _errors, value, schema)


def _errors(value: JsonValue, schema: JsonObject) -> list[str]:
    _end.set(time.thread_time() + SECONDS)
    errors = _Validator(schema, registry=Registry()).iter_errors(value)
    try:
        return sorted({f"{error.json_path}: {_short(error.message)}" for error in islice(errors, MAX_ERRORS)})
    except TimeoutError:
        return [f"$: can't be checked within {SECONDS:g} s: the schema is too complex for it"]
    except regex.error as error:
        return [f"$: can't be checked: a pattern in its schema is not a regular expression: {error}"]
    except RecursionError:
        return ["$: is nested too deeply"]


def _short(text: str) -> str:
    """A long text without its middle: the value stands at the beginning, and what is wrong with it at the end."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"


def _in_time(check: Keyword) -> Keyword:
    """The same check, which raises TimeoutError instead of beginning too late."""

    def checked(validator: Validator, keyword: Any, value: Any, schema: Any) -> Errors | None:
        if time.thread_time() > _end.get():
            raise TimeoutError
        return check(validator, keyword, value, schema)

    return checked


def _matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text; raises TimeoutError."""
    return regex.search(pattern, text, timeout=SECONDS) is not None


def _pattern(validator: Validator, pattern: str, value: Any, _schema: Any) -> Errors:
    if validator.is_type(value, "string") and not _matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], value: Any, _schema: Any) -> Errors:
    for pattern, schema in patterns.items() if validator.is_type(value, "object") else ():
        for name, each in value.items():
            if _matches(pattern, name):
                yield from validator.descend(each, schema, path=name, schema_path=pattern)


def _additional_properties(validator: Validator, additional: Any, value: Any, schema: Any) -> Errors | None:
    """The library's own check, of the properties that no pattern names: it matches patterns without a limit."""
    patterns = schema.get("patternProperties", ())
    if patterns and validator.is_type(value, "object"):
        value = {name: each for name, each in value.items() if not any(_matches(p, name) for p in patterns)}
    rest = {key: each for key, each in schema.items() if key != "patternProperties"}
    return _KEYWORDS["additionalProperties"](validator, additional, value, rest)


_KEYWORDS: Mapping[str, Keyword] = Draft202012Validator.VALIDATORS
_OWN: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
}
_Validator = validators.extend(  # type: ignore[no-untyped-call]  # the stubs have no types for it
    Draft202012Validator, {name: _in_time(check) for name, check in {**_KEYWORDS, **_OWN}.items()}
)
