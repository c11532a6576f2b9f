"""Resource definitions in Python: manifests as a file would hold them, with the resources and functions they need."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from pydantic import BaseModel, JsonValue
from pydantic.alias_generators import to_camel
from pydantic_core import to_jsonable_python

from ...resources.base import API_VERSION, JsonObject
from ...resources.documents import Document
from ...resources.function_signature import description, input_schema
from ...resources.functions import Function, name_of
from ...resources.loader import Loaded, load_documents

FREE_KEYS = ("output_schema", "outputSchema", "session", "parameters", "properties", "labels", "data")
"""Fields whose keys the program chooses; they are not changed to camelCase."""


class ResourceDefinition:
    """A manifest of any kind: ``Manifest("Tool", "weather", {...})``, with a ``spec`` as a file has it.

    A run of it brings its ``dependencies`` along. ``output_model`` is the pydantic model into which its answer is read.
    Raises ManifestError with everything that is wrong with it, as for a manifest in a file.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, object],
        *,
        namespace: str = "default",
        dependencies: "Dependencies | None" = None,
        output_model: type[BaseModel] | None = None,
    ) -> None:
        metadata = {"name": name, "namespace": namespace}
        given = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        self.kind, self.name, self.namespace, self.output_model = kind, name, namespace, output_model
        self.manifest = cast(JsonObject, to_jsonable_python(given, by_alias=True))
        self.dependencies = dependencies or Dependencies()
        load_definitions([self])

    def with_dependencies(self) -> Iterator["ResourceDefinition"]:
        """The definition, and all that it depends on."""
        yield self
        for each in self.dependencies.definitions:
            yield from each.with_dependencies()

    def functions(self) -> tuple[Function, ...]:
        """The functions that it and its dependencies use."""
        return unique_functions(
            function for each in self.with_dependencies() for function in each.dependencies.functions
        )


class Dependencies:
    """The definitions and functions in a program's arguments; in the manifest, references by name replace them."""

    def __init__(self, namespace: str = "default") -> None:
        self._namespace = namespace
        self.definitions: list[ResourceDefinition] = []
        self.functions: list[Function] = []

    def function(self, given: Function) -> str:
        """Adds a function; its name."""
        self.functions.append(given)
        return name_of(given)

    def speaker(self, given: object) -> object:
        """A speaker as ``{name, type}``, from a definition or a function; a name, true and false are kept."""
        if isinstance(given, ResourceDefinition):
            self.definitions.append(given)
            return {"name": given.name, "namespace": given.namespace, "type": given.kind.lower()}
        return {"name": self.function(given), "type": "activity"} if callable(given) else camel_case(given)

    def text_or_function(self, given: object) -> object:
        """A text, or a function by name: ``f``, or ``{"function": f, "parameters": {...}}``."""
        if callable(given):
            return {"function": self.function(given)}
        if isinstance(given, Mapping) and callable(inner := given.get("function")):
            return {**given, "function": self.function(inner)}
        return given

    def reference(self, given: object) -> object:
        """A resource as ``{name, namespace}``."""
        if isinstance(given, ResourceDefinition):
            self.definitions.append(given)
            return {"name": given.name, "namespace": given.namespace}
        return camel_case(given)

    def tool(self, given: object) -> object:
        """A tool, as ``{name}``; of a function a Tool is made, with what its signature and its docstring say."""
        if callable(given):
            given = self._tool_of(given)
        if isinstance(given, ResourceDefinition):
            self.definitions.append(given)
            return {"name": given.name, "type": "custom"}
        return {"name": given} if isinstance(given, str) else camel_case(given)

    def _tool_of(self, function: Function) -> ResourceDefinition:
        name = self.function(function)
        spec: dict[str, object] = {
            "type": "activity",
            "activity": {"name": name},
            "inputSchema": input_schema(function),
        }
        if about := description(function):
            spec["description"] = about
        return ResourceDefinition("Tool", name, spec, namespace=self._namespace)


def camel_case(given: object) -> object:
    """A value with its keys in camelCase, as in a manifest."""
    if isinstance(given, Mapping):
        return {
            to_camel(key): value if key in FREE_KEYS and isinstance(value, Mapping) else camel_case(value)
            for key, value in given.items()
        }
    return [camel_case(one) for one in given] if isinstance(given, list | tuple) else given


def spec_fields(given: Mapping[str, object]) -> dict[str, object]:
    """The fields of a spec, without those that are None."""
    return cast(dict[str, object], camel_case({key: value for key, value in given.items() if value is not None}))


def schema_of(given: object) -> tuple[object, type[BaseModel] | None]:
    """A JSON Schema, and the pydantic model it was made of, if any."""
    if isinstance(given, type) and issubclass(given, BaseModel):
        return given.model_json_schema(), given
    return given, None


def reject_unknown(options: type, given: Mapping[str, Any], what: str) -> None:
    """Raises TypeError for an unknown option, as Python does for an unknown argument."""
    if unknown := sorted(given.keys() - options.__annotations__.keys()):
        raise TypeError(f"{what}() got an unexpected keyword argument '{unknown[0]}'")


def load_definitions(given: Iterable[ResourceDefinition]) -> Loaded:
    """Loads definitions and their dependencies, each once, as the loader reads a file; raises ManifestError."""
    documents: list[JsonValue] = []
    for each in (inner for one in given for inner in one.with_dependencies()):
        if each.manifest not in documents:
            documents.append(each.manifest)
    return load_documents(Document("", data, {}) for data in documents)


def unique_functions(functions: Iterable[Function]) -> tuple[Function, ...]:
    """Functions, each once; raises ValueError for two of the same name."""
    known: dict[str, Function] = {}
    for one in functions:
        if known.setdefault(name_of(one), one) is not one:
            raise ValueError(f"two functions have the name '{name_of(one)}': rename one with @baton.function('…')")
    return tuple(known.values())
