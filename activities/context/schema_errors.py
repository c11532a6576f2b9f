"""Checks a value against a JSON Schema, for a model to correct it: at once where that is quick, else in a process.

Schemas come from manifests and servers, and values from models: both may be made so that checking takes for ever.
"""

from pydantic import JsonValue

from ...resources.base import JsonObject
from ..process.bounded_process import BoundedFunction, LimitExceeded
from .schema_process import errors_of

SECONDS = 1.0
"""The time of one check in a process."""

QUICK_PAIRS = 10_000
"""Values in the schema times values in what is checked, up to which a check takes less than 20 ms."""

QUICK_LENGTH = 20_000
"""Characters of the texts in them."""

UNBOUNDED = frozenset(
    {"$ref", "$dynamicRef", "pattern", "patternProperties", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"}
)
"""Keywords without which each part of a schema is applied to each part of a value once at most."""

_check = BoundedFunction(f"{__package__}.schema_process:errors_of", seconds=SECONDS)


async def schema_errors(value: JsonValue, schema: JsonObject) -> list[str]:
    """The errors, each with its JSON path. References to other schemas are never fetched."""
    if _is_quick(value, schema):
        return errors_of([value, schema])
    try:
        found = await _check.call([value, schema])
    except LimitExceeded as exceeded:
        return [f"$: can't be checked against its schema: {exceeded}"]
    except ValueError:
        return ["$: is nested too deeply"]
    return [str(each) for each in found] if isinstance(found, list) else []


def _is_quick(value: JsonValue, schema: JsonObject) -> bool:
    values, texts, _ = _size(value)
    schemas, words, keywords = _size(schema)
    return values * schemas <= QUICK_PAIRS and texts + words <= QUICK_LENGTH and not keywords & UNBOUNDED


def _size(value: JsonValue) -> tuple[int, int, set[str]]:
    """How many values there are in one, the characters of all texts, and the names of all properties.

    Counting ends where there are too many.
    """
    waiting, count, length = [value], 0, 0
    names: set[str] = set()
    while waiting and count <= QUICK_PAIRS and length <= QUICK_LENGTH:
        each = waiting.pop()
        count += 1
        if isinstance(each, str):
            length += len(each)
        elif isinstance(each, dict):
            names.update(each)
            length += sum(map(len, each))
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return count, length, names
