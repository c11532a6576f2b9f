"""Checks a value against a JSON Schema, and describes each error so that a model can correct it."""

from jsonschema import Draft202012Validator
from pydantic import JsonValue
from referencing import Registry

from ...resources.base import JsonObject

LONGEST = 300
"""Characters of one error."""


def schema_errors(value: JsonValue, schema: JsonObject) -> list[str]:
    """All errors, each with its JSON path. References to other schemas are never fetched."""
    validator = Draft202012Validator(schema, registry=Registry())
    return sorted(f"{error.json_path}: {_short(error.message)}" for error in validator.iter_errors(value))


def _short(text: str) -> str:
    """A long text without its middle: the value stands at the beginning, and what is wrong with it at the end."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
