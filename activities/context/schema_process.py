"""Validates a value against a JSON Schema: in a bounded process, or in the worker if that is quick.

References to other schemas are never fetched. Patterns are matched by `regex`, which supports classes like ``\\p{L}``.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import regex
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.protocols import Validator
from pydantic import JsonValue
from referencing import Registry

LONGEST = 300
"""Characters of one error."""

MAX_ERRORS = 50
"""Errors that are reported."""

Errors = Iterator[ValidationError]
Keyword = Callable[[Validator, Any, Any, Any], Errors | None]
"""jsonschema's function for a keyword: validator, the keyword's value, the value to validate, the schema."""


def errors_of(request: JsonValue) -> list[str]:
    """The validation errors with their JSON paths; ``request`` is ``[value, schema]``."""
    assert isinstance(request, list)
    value, schema = request
    errors = _Validator(schema, registry=Registry()).iter_errors(value)
    try:
        return sorted({f"{error.json_path}: {_short(error.message)}" for error in islice(errors, MAX_ERRORS)})
    except regex.error as error:
        return [f"$: can't be validated: a pattern in its schema is not a regular expression: {error}"]
    except RecursionError:
        return ["$: is nested too deeply"]
    except MemoryError:
        raise
    except Exception as error:  # jsonschema's, for unexpected values such as very large numbers
        return [f"$: can't be validated: {_short(str(error) or type(error).__name__)}"]


def _short(text: str) -> str:
    """A long text without its middle: it begins with the value and ends with the reason."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"


def _pattern(validator: Validator, pattern: str, value: Any, _schema: Any) -> Errors:
    if validator.is_type(value, "string") and not regex.search(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], value: Any, _schema: Any) -> Errors:
    for pattern, schema in patterns.items() if validator.is_type(value, "object") else ():
        for name, part in value.items():
            if regex.search(pattern, name):
                yield from validator.descend(part, schema, path=name, schema_path=pattern)


def _additional_properties(validator: Validator, additional: Any, value: Any, schema: Any) -> Errors | None:
    """jsonschema's own check, for the properties that match no pattern: it would match patterns with `re`."""
    patterns = schema.get("patternProperties", ())
    if patterns and validator.is_type(value, "object"):
        value = {name: part for name, part in value.items() if not any(regex.search(p, name) for p in patterns)}
    other_keywords = {key: keyword for key, keyword in schema.items() if key != "patternProperties"}
    return _KEYWORDS["additionalProperties"](validator, additional, value, other_keywords)


_KEYWORDS: Mapping[str, Keyword] = Draft202012Validator.VALIDATORS
_OWN: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
}
_Validator = validators.extend(Draft202012Validator, _OWN)  # type: ignore[no-untyped-call]  # the stubs lack its types
