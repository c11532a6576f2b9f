"""Rules for JSON Schemas beyond the standard's own: a schema that no value can be checked against is refused."""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from pydantic import JsonValue

from .base import JsonObject
from .json_schema import resolver_of

_REFS = ("$ref", "$dynamicRef")
_ONE = ("not", "if", "then", "else")
_SEVERAL = ("allOf", "anyOf", "oneOf")


def broken_schema_rules(schema: JsonObject) -> Iterator[str]:
    """What is wrong with a schema that the standard allows."""
    schemas = _Schemas(schema)
    if cycle := schemas.cycle():
        yield f"applies itself to the same value without end, by {cycle}: no value can be checked"
    if schemas.has("unevaluatedProperties") and schemas.has("patternProperties"):
        both = "unevaluatedProperties and patternProperties"
        yield f"has {both}, which can't be checked together: use additionalProperties"


class _Schemas:
    """A schema and all schemas in it."""

    def __init__(self, schema: JsonObject) -> None:
        from referencing.jsonschema import DRAFT202012  # noqa: PLC0415  # slow to load, and few manifests need it

        self._resolver = resolver_of(schema)
        self._known: dict[int, JsonObject] = {}
        waiting: list[JsonValue] = [schema]
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict) and id(each) not in self._known:
                self._known[id(each)] = each
                waiting.extend(self._applied(each))
                below = DRAFT202012.create_resource(each).subresources()
                waiting.extend(resource.contents for resource in below)

    def has(self, keyword: str) -> bool:
        """Whether any of the schemas uses a keyword."""
        return any(keyword in each for each in self._known.values())

    def cycle(self) -> str:
        """The references by which a schema applies itself to the value that it is applied to; empty if none does."""
        graph = {key: [id(each) for each in self._applied(schema)] for key, schema in self._known.items()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            within = [self._known[key] for key in error.args[1] if key in self._known]
            refs = dict.fromkeys(str(each[name]) for each in within for name in _REFS if name in each)
            return " and ".join(f"'{each}'" for each in refs)
        return ""

    def _applied(self, schema: JsonObject) -> list[JsonValue]:
        """The schemas that are applied to the same value as this one."""
        found = [self._resolver.lookup(ref).contents for name in _REFS if isinstance(ref := schema.get(name), str)]
        found += [schema[name] for name in _ONE if name in schema]
        for name in _SEVERAL:
            several = schema.get(name)
            found += several if isinstance(several, list) else []
        dependent = schema.get("dependentSchemas")
        return [*found, *(dependent.values() if isinstance(dependent, dict) else ())]
