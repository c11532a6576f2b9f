"""Says whether a JSON Schema is one that model servers can enforce while the model writes."""

from typing import Any


def has_open_objects(schema: Any) -> bool:
    """Whether an object may have properties that the schema does not name: no server can enforce such a schema."""
    if isinstance(schema, list):
        return any(map(has_open_objects, schema))
    if not isinstance(schema, dict):
        return False
    unnamed = schema.get("type") == "object" and not schema.get("properties")
    return unnamed or bool(schema.get("additionalProperties")) or any(map(has_open_objects, schema.values()))
