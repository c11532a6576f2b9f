"""The type `JsonSchema`: a checked JSON Schema, for the arguments of tools and the answers of agents."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, JsonValue

from .base import JsonObject

if TYPE_CHECKING:
    from referencing._core import Resolver

MAX_PARTS = 10_000
"""Objects and lists in one schema: checking them takes seconds."""


def _check_schema(schema: JsonObject) -> JsonObject:
    from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415  # slow to load, and few manifests need it
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    try:
        if _parts(schema) > MAX_PARTS:
            raise ValueError(f"has more than {MAX_PARTS:,} objects and lists")
        Draft202012Validator.check_schema(schema)
        own = resolver_of(schema)
        for ref in _refs(schema):
            own.lookup(ref)
    except SchemaError as error:
        raise ValueError(f"is not a JSON Schema: {error.json_path}: {error.message[:200]}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except Unresolvable as error:
        raise ValueError(f"refers to '{error.ref}', which it does not contain") from None
    return schema


def resolver_of(schema: JsonObject) -> "Resolver[JsonValue]":
    """What finds the references of a schema. It has read the schema once, else it would do so for each reference."""
    from referencing import Registry  # noqa: PLC0415
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    root = DRAFT202012.create_resource(schema)
    uri = root.id() or ""
    registry: Registry[JsonValue] = Registry[JsonValue]().with_resource(uri, root).crawl()
    return registry.resolver(uri)


def _parts(schema: JsonValue) -> int:
    """The objects and lists in a schema, itself included."""
    if not isinstance(schema, dict | list):
        return 0
    return 1 + sum(map(_parts, schema.values() if isinstance(schema, dict) else schema))


def _refs(schema: JsonValue) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (ref for key in ("$ref", "$dynamicRef") if isinstance(ref := schema.get(key), str))
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _refs(each)


JsonSchema = Annotated[JsonObject, AfterValidator(_check_schema)]
"""A JSON Schema, draft 2020-12, without references to other documents."""
