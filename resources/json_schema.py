"""The type `JsonSchema`: a checked JSON Schema, for the arguments of tools and the answers of agents."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, JsonValue

from .base import JsonObject


def _check_schema(schema: JsonObject) -> JsonObject:
    from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415  # slow to load, and few manifests need it
    from referencing import Registry, Resource  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    try:
        Draft202012Validator.check_schema(schema)
        own = Registry().resolver_with_root(Resource.from_contents(schema, default_specification=DRAFT202012))
        for ref in _refs(schema):
            own.lookup(ref)
    except SchemaError as error:
        raise ValueError(f"is not a JSON Schema: {error.json_path}: {error.message[:200]}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except Unresolvable as error:
        raise ValueError(f"refers to '{error.ref}', which it does not contain") from None
    return schema


def _refs(schema: JsonValue) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (ref for key in ("$ref", "$dynamicRef") if isinstance(ref := schema.get(key), str))
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _refs(each)


JsonSchema = Annotated[JsonObject, AfterValidator(_check_schema)]
"""A JSON Schema, draft 2020-12, without references to other documents."""
