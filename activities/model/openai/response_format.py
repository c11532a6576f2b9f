"""The field ``response_format`` of OpenAI's API for a JSON Schema, strict where the API can enforce the schema."""

from typing import Any

from openai.types.shared_params import ResponseFormatJSONSchema

from ....resources.base import JsonObject

KEYWORDS = frozenset(
    {"type", "anyOf", "$ref", "$defs", "enum", "const", "title", "description", "pattern", "format"}
    | {"properties", "required", "additionalProperties", "items", "minItems", "maxItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
"""The keywords and formats of OpenAI's strict subset of JSON Schema."""


def response_format(schema: JsonObject) -> ResponseFormatJSONSchema:
    """The field of a request for a chat completion."""
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {**schema}, "strict": is_strict(schema)},
    }


def is_strict(schema: JsonObject) -> bool:
    """Whether a schema lies in the strict subset: an object without further properties, all of them required."""
    return schema.get("type") == "object" and _closed(schema)


def _closed(schema: Any) -> bool:
    if not isinstance(schema, dict) or not schema.keys() <= KEYWORDS or schema.get("format", "date") not in FORMATS:
        return False
    kinds, properties = schema.get("type", ()), schema.get("properties", {})
    closed = schema.get("additionalProperties") is False and {*schema.get("required", ())} == {*properties}
    if ("object" in kinds and not closed) or ("array" in kinds and "items" not in schema):
        return False
    below = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    below += [schema["items"]] if "items" in schema else []
    return not schema.keys().isdisjoint({"type", "anyOf", "$ref"}) and all(map(_closed, below))
