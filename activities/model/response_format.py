"""How is OpenAI's API told of a JSON Schema? As ``response_format``, strictly where it can hold a model to it."""

from typing import Any

from openai.types.shared_params import ResponseFormatJSONSchema

from ...resources.base import JsonObject

WORDS = frozenset(
    {"type", "anyOf", "$ref", "$defs", "enum", "const", "title", "description", "pattern", "format"}
    | {"properties", "required", "additionalProperties", "items", "minItems", "maxItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
"""What OpenAI's strict subset of JSON Schema knows."""


def response_format(schema: JsonObject) -> ResponseFormatJSONSchema:
    """The form of an answer, as a request for a chat completion names it."""
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {**schema}, "strict": strictly(schema)},
    }


def strictly(schema: JsonObject) -> bool:
    """Whether a schema lies in the strict subset: an object, where nothing is left open and nothing may be left out."""
    return schema.get("type") == "object" and _closed(schema)


def _closed(schema: Any) -> bool:
    if not isinstance(schema, dict) or not schema.keys() <= WORDS or schema.get("format", "date") not in FORMATS:
        return False
    kinds, properties = schema.get("type", ()), schema.get("properties", {})
    closed = schema.get("additionalProperties") is False and {*schema.get("required", ())} == {*properties}
    if ("object" in kinds and not closed) or ("array" in kinds and "items" not in schema):
        return False
    below = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    below += [schema["items"]] if "items" in schema else []
    return not schema.keys().isdisjoint({"type", "anyOf", "$ref"}) and all(map(_closed, below))
