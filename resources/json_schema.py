"""Is this a JSON Schema? What tools take, and what agents answer with."""

from typing import Annotated

from jsonschema import Draft202012Validator, SchemaError
from pydantic import AfterValidator

from resources.base import JsonObject


def _check_schema(schema: JsonObject) -> JsonObject:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"is not a JSON Schema: {error.json_path}: {error.message[:200]}") from None
    return schema


JsonSchema = Annotated[JsonObject, AfterValidator(_check_schema)]
"""A JSON Schema, draft 2020-12."""
