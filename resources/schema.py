"""The JSON Schema of manifests, for editors; it is generated from the models."""

import re
from collections.abc import Iterator

from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

from .base import API_VERSION, PREALPHA, JsonObject, Mark
from .parse import GROUP, IGNORED_KINDS, MANIFEST_KINDS
from .role import RBAC


def manifest_schema() -> JsonObject:
    """A JSON Schema (draft 2020-12) for one YAML document, which accepts everything that the loader accepts.

    Rules between fields, and between manifests, are only checked by the loader.
    """
    models = [(model, "validation") for model in MANIFEST_KINDS.values()]
    refs, definitions = models_json_schema(models, schema_generator=_ManifestSchemaGenerator)  # type: ignore[arg-type]
    kinds = {kind: refs[model, "validation"] for kind, model in MANIFEST_KINDS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Manifest",
        "description": "A manifest of Baton; other Kubernetes resources are ignored",
        "type": ["object", "null"],
        "properties": {
            "apiVersion": {"examples": [API_VERSION, PREALPHA, "v1", RBAC]},
            "kind": {"examples": [*MANIFEST_KINDS]},
        },
        # Not `oneOf`: with it, editors report a mistake for the whole document rather than at its place.
        "allOf": [*_rules(kinds)],
        **definitions,
    }


def _rules(kinds: dict[str, JsonObject]) -> Iterator[JsonObject]:
    """The rules for all kinds of Baton, for the items of a List, and for unknown kinds of ARK."""
    group = re.escape(GROUP)
    ours: JsonObject = {"pattern": f"^({group}|{re.escape(RBAC)}$|[^/]*$)"}
    items: JsonObject = {"items": {"items": {"$ref": "#"}}}
    known: JsonObject = {"kind": {"enum": [*kinds, "List", *IGNORED_KINDS]}}
    for kind, schema in kinds.items():
        yield _rule("kind", {"kind": {"const": kind}, "apiVersion": ours}, schema)
    yield _rule("kind", {"kind": {"const": "List"}}, {"properties": items})
    arks: JsonObject = {"apiVersion": {"type": "string", "pattern": f"^{group}"}}
    yield _rule("apiVersion", arks, {"required": ["kind"], "properties": known})


def _rule(required: str, properties: JsonObject, then: JsonObject) -> JsonObject:
    return {"if": {"type": "object", "required": [required], "properties": properties}, "then": then}


class SchemaGenerator(GenerateJsonSchema):
    """Adds field marks to descriptions, which name fields as JSON does; omits empty defaults and field titles."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonObject:
        result = super().model_schema(schema)
        result["description"] = result["description"].replace("``", "`")
        for name, field in schema["cls"].model_fields.items():
            result["description"] = result["description"].replace(f"`{name}`", f"`{field.alias or name}`")
            for mark in (mark for mark in field.metadata if isinstance(mark, Mark)):
                property_schema = result["properties"][field.alias or name]
                property_schema["description"] = (
                    f"{property_schema['description']} ({mark})" if "description" in property_schema else str(mark)
                )
        return result

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonObject:
        result = super().default_schema(schema)
        if result.get("default") in (None, [], {}):
            result.pop("default", None)
        return result

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


class _ManifestSchemaGenerator(SchemaGenerator):
    """Forbids unknown fields."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonObject:
        return {**super().model_schema(schema), "additionalProperties": False}
