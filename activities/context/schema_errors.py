"""Does a value fit a JSON Schema? What is wrong with it, in words that a model can mend it by."""

from jsonschema import Draft202012Validator
from pydantic import JsonValue
from referencing import Registry

from ...resources.base import JsonObject

LONGEST = 300


def misfits(value: JsonValue, schema: JsonObject) -> list[str]:
    """Everything that is wrong, each with its place; nothing is fetched to find it."""
    validator = Draft202012Validator(schema, registry=Registry())
    return sorted(f"{error.json_path}: {_short(error.message)}" for error in validator.iter_errors(value))


def _short(text: str) -> str:
    """A text without its middle if it is long: the value comes first, and what is wrong with it last."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
