"""The type `JsonSchema`: a validated JSON Schema, for the arguments of tools and the answers of agents."""

import json
from collections.abc import Callable, Iterator
from functools import lru_cache, partial, wraps
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import AfterValidator, JsonValue

from ..installation import is_installed
from .base import JsonObject

if TYPE_CHECKING:
    from referencing._core import Resolver

MAX_PARTS = 10_000
"""Objects and lists in one schema: validating so many takes seconds."""


MAX_REMEMBERED = 10_000
"""Characters of a schema up to which a check is remembered."""

T = TypeVar("T")


def _remembered(check: Callable[[JsonObject], T]) -> Callable[[JsonObject], T]:
    """A check that is not repeated for an equal schema: each run brings the schemas of its functions again.

    What it raises is not remembered.
    """

    @lru_cache(500)
    def check_text(text: str) -> T:
        return check(json.loads(text))

    @wraps(check)
    def check_once(schema: JsonObject) -> T:
        text = json.dumps(schema)
        return check_text(text) if len(text) <= MAX_REMEMBERED else check(schema)

    return check_once


def _check_schema(schema: JsonObject) -> JsonObject:
    try:
        _check_standard(schema)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    return schema


@_remembered
def _check_standard(schema: JsonObject) -> None:
    """Raises ValueError for what is not a JSON Schema, and RecursionError."""
    if not is_installed("jsonschema"):  # in a client: the worker checks it
        return
    from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415  # slow to load, and few manifests need it
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    try:
        if _parts(schema) > MAX_PARTS:
            raise ValueError(f"has more than {MAX_PARTS:,} objects and lists")
        Draft202012Validator.check_schema(schema)
        resolver = resolver_of(schema)
        for ref in _refs(schema):
            resolver.lookup(ref)
    except SchemaError as error:
        raise ValueError(f"is not a JSON Schema: {error.json_path}: {error.message[:200]}") from None
    except Unresolvable as error:
        raise ValueError(f"refers to '{error.ref}', which it does not contain") from None


def resolver_of(schema: JsonObject) -> "Resolver[JsonValue]":
    """The resolver of a schema's references, with a crawled registry, so that lookups don't crawl the schema again."""
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
    for subschema in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _refs(subschema)


JsonSchema = Annotated[JsonObject, AfterValidator(_check_schema)]
"""A JSON Schema, draft 2020-12, without references to other documents."""


_REFS = ("$ref", "$dynamicRef")
_ONE = ("not", "if", "then", "else")
_SEVERAL = ("allOf", "anyOf", "oneOf")


def in_draft_2020_12(schema: JsonObject, *, in_openapi_3_0: bool = False, is_sent: bool = False) -> JsonObject:
    """A schema of an older draft with today's keywords: tuples, and exclusive bounds that are true or false.

    ``in_openapi_3_0``, ``nullable`` is one, too. Of what ``is_sent``, properties that are ``readOnly`` are not
    required. One that is nested too deeply is returned as it is: checks refuse it.
    """
    try:
        converted = _converted(schema, in_openapi_3_0=in_openapi_3_0, is_sent=is_sent)
    except RecursionError:
        return schema
    return converted if isinstance(converted, dict) else schema


_OF_SCHEMA = ("additionalItems", "additionalProperties", "contains", "items", "propertyNames", *_ONE)
_OF_LIST = (*_SEVERAL, "prefixItems", "items")
_OF_MAP = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


def _converted(schema: JsonValue, *, in_openapi_3_0: bool, is_sent: bool) -> JsonValue:
    if not isinstance(schema, dict):
        return schema
    convert = partial(_converted, in_openapi_3_0=in_openapi_3_0, is_sent=is_sent)
    new: JsonObject = {}
    for name, part in schema.items():
        if isinstance(part, dict) and name in _OF_MAP:
            new[name] = {key: convert(subschema) for key, subschema in part.items()}
        elif isinstance(part, list) and name in _OF_LIST:
            new[name] = [convert(subschema) for subschema in part]
        else:
            new[name] = convert(part) if name in _OF_SCHEMA else part
    _rename(new)
    properties = new.get("properties")
    required = new.get("required")
    if is_sent and isinstance(properties, dict) and isinstance(required, list):
        new["required"] = [name for name in required if not _is_read_only(properties.get(str(name)))]
    return _with_null(new) if in_openapi_3_0 and new.pop("nullable", None) is True else new


def _rename(schema: JsonObject) -> None:
    """Gives the keywords of older drafts the names that they have today."""
    for exclusive, bound in _BOUNDS:
        is_exclusive = schema.get(exclusive)
        if isinstance(is_exclusive, bool):
            del schema[exclusive]
            if is_exclusive and bound in schema:
                schema[exclusive] = schema.pop(bound)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")


def _is_read_only(schema: JsonValue) -> bool:
    return isinstance(schema, dict) and schema.get("readOnly") is True


def _with_null(schema: JsonObject) -> JsonObject:
    """A schema that null fits as well."""
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


@_remembered
def broken_schema_rules(schema: JsonObject) -> tuple[str, ...]:
    """The problems of a schema that the standard permits, but that can't be used."""
    return tuple(_broken_rules(schema)) if is_installed("jsonschema") else ()


def _broken_rules(schema: JsonObject) -> Iterator[str]:
    schemas = _Schemas(schema)
    if cycle := schemas.cycle():
        yield f"applies itself to the same value endlessly, by {cycle}: no value can be checked"
    if schemas.has("unevaluatedProperties") and schemas.has("patternProperties"):
        keywords = "unevaluatedProperties and patternProperties"
        yield f"has {keywords}, which can't be checked together: use additionalProperties"


class _Schemas:
    """A schema and all schemas in it."""

    def __init__(self, schema: JsonObject) -> None:
        from referencing.jsonschema import DRAFT202012  # noqa: PLC0415  # slow to load, and few manifests need it

        self._resolver = resolver_of(schema)
        self._known: dict[int, JsonObject] = {}
        waiting: list[JsonValue] = [schema]
        while waiting:
            subschema = waiting.pop()
            if isinstance(subschema, dict) and id(subschema) not in self._known:
                self._known[id(subschema)] = subschema
                waiting.extend(self._applied(subschema))
                below = DRAFT202012.create_resource(subschema).subresources()
                waiting.extend(resource.contents for resource in below)

    def has(self, keyword: str) -> bool:
        """Whether any of the schemas uses a keyword."""
        return any(keyword in schema for schema in self._known.values())

    def cycle(self) -> str:
        """The references by which a schema recursively applies to the same value; empty if none does."""
        graph = {key: [id(applied) for applied in self._applied(schema)] for key, schema in self._known.items()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            within = [self._known[key] for key in error.args[1] if key in self._known]
            refs = dict.fromkeys(str(schema[name]) for schema in within for name in _REFS if name in schema)
            return " and ".join(f"'{ref}'" for ref in refs)
        return ""

    def _applied(self, schema: JsonObject) -> list[JsonValue]:
        """The schemas that are applied to the same value as this one."""
        applied = [self._resolver.lookup(ref).contents for name in _REFS if isinstance(ref := schema.get(name), str)]
        applied += [schema[name] for name in _ONE if name in schema]
        for name in _SEVERAL:
            several = schema.get(name)
            applied += several if isinstance(several, list) else []
        dependent = schema.get("dependentSchemas")
        return [*applied, *(dependent.values() if isinstance(dependent, dict) else ())]
