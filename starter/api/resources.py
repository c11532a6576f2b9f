"""Definitions in Python: ``baton.Manifest``, ``baton.Model``, ``baton.Agent``, ``baton.Query``, ``baton.Skill``."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from pydantic import BaseModel, JsonValue
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ...resources.base import API_VERSION, JsonObject
from ...resources.base import Path as JsonPath
from ...resources.documents import Document
from ...resources.functions import Function, description, input_schema, name_of
from ...resources.loader import Loaded, load_documents
from ...resources.model import ProviderName
from ...resources.problems import OTHER_NAMES, dotted_path
from ...resources.query import TARGETS
from ...resources.skill_folder import read_skill


def check(value: object, kind: type | tuple[type, ...], argument: str, wanted: str) -> None:
    """Raises TypeError for a value that is not of that type."""
    if not isinstance(value, kind):
        raise TypeError(f"{argument} is {_shown(value)}, must be {wanted}")


def check_text(value: object, argument: str) -> None:
    """Raises TypeError for what is no text."""
    check(value, str, argument, "a text")


def check_mapping(value: object, argument: str) -> None:
    """Raises TypeError for what is neither a mapping nor None."""
    check(value, (Mapping, type(None)), argument, "a mapping, as in {'name': 'value'}")


def check_list(value: object, argument: str, kind: type | None = None, wanted: str = "a list") -> None:
    """Raises TypeError for what is no list or tuple, or has an element that is not of ``kind``."""
    check(value, (list, tuple), argument, wanted)
    for index, each in enumerate(cast(Sequence[object], value)):
        if kind:
            check(each, kind, f"{argument}[{index}]", "one of " + wanted.removeprefix("a list of "))


def as_json(given: Mapping[str, object]) -> JsonObject:
    """A manifest as JSON. Raises TypeError that names the field of a value that JSON can't hold."""
    try:
        return cast(JsonObject, to_jsonable_python(given, by_alias=True))
    except (PydanticSerializationError, ValueError):
        path, value = _odd_value(given)
        raise TypeError(f"{dotted_path(path)} is {_shown(value)}, which a manifest can't hold") from None


def _odd_value(value: object, path: JsonPath = ()) -> tuple[JsonPath, object]:
    """The first value in a value that JSON can't hold, with its path."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, each in inner:
        try:
            to_jsonable_python(each, by_alias=True)
        except (PydanticSerializationError, ValueError):
            return _odd_value(each, (*path, key if isinstance(key, int) else str(key)))
    return path, value


def _shown(value: object) -> str:
    if value is None:
        return "None"
    if inspect.iscoroutine(value):
        return f"the coroutine {value.__name__}, which is not awaited"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', '')}"
    numbers = dict.fromkeys((int, float), "a number")
    kinds = {str: "a text", bool: "True or False", dict: "a mapping", list: "a list", **numbers}
    return kinds.get(type(value), f"of the type {type(value).__name__}")


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
        check(spec, Mapping, "spec", "a mapping, as in a manifest")
        metadata = {"name": name, "namespace": namespace}
        given = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        self.kind, self.name, self.namespace, self.output_model = kind, name, namespace, output_model
        self.manifest = as_json(given)
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
        _, instead = OTHER_NAMES.get(to_camel(unknown[0]), ("", ""))
        hint = f"; {instead}" if instead else ""
        raise TypeError(f"{what}() got an unexpected keyword argument '{unknown[0]}'{hint}")


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


ValueInput = str | Mapping[str, Any]
"""A text, or its source, as in ``{"value_from": {"secret_key_ref": {"name": …, "key": …}}}``."""

ToolInput = str | Mapping[str, Any] | ResourceDefinition | Function
"""The name of a built-in tool, an entry of ``tools`` as in a manifest, a ``Manifest`` of the kind Tool, a function."""

SchemaInput = Mapping[str, Any] | type[BaseModel]
"""A JSON Schema, or a pydantic model, into which the answer is read."""


class ModelDefinition(ResourceDefinition):
    """A language model. A literal API key stays in this process, which then executes the run itself.

    ``connection`` are more fields of its provider's connection, such as ``{"region": "us-east-1"}``; ``timeout`` is how
    long one answer may take, such as ``10m``; ``pricing`` what a million tokens cost, ``{"input": …, "output": …}``.
    """

    def __init__(
        self,
        name: str,
        *,
        model: ValueInput,
        provider: ProviderName = "openai",
        base_url: ValueInput | None = None,
        api_key: ValueInput | None = None,
        properties: Mapping[str, ValueInput] | None = None,
        connection: Mapping[str, ValueInput | int] | None = None,
        timeout: str | None = None,
        pricing: Mapping[str, float] | None = None,
        fallback: "str | ModelDefinition | None" = None,
        namespace: str = "default",
    ) -> None:
        check(provider, str, "provider", "'openai', 'azure' or 'gemini'")
        check_mapping(properties, "properties")
        dependencies = Dependencies()
        fields = spec_fields({"base_url": _value(base_url), "api_key": _value(api_key), **(connection or {})})
        if properties:
            fields["properties"] = {key: _value(value) for key, value in properties.items()}
        spec = {"type": "completions", "provider": provider, "model": _value(model), "config": {provider: fields}}
        check_mapping(pricing, "pricing")
        spec.update(spec_fields({"timeout": timeout or None, "pricing": pricing}))
        if isinstance(fallback, str):
            spec["fallback"] = {"name": fallback}
        elif fallback:
            spec["fallback"] = dependencies.reference(fallback)
        super().__init__("Model", name, spec, namespace=namespace, dependencies=dependencies)


class SkillDefinition(ResourceDefinition):
    """A skill: a folder with a SKILL.md, as it is now. Raises ValueError for a folder that is none."""

    def __init__(self, folder: str | Path, *, namespace: str = "default") -> None:
        check(folder, (str, Path), "folder", "the path of a folder")
        name, spec = read_skill(Path(folder))
        super().__init__("Skill", name, spec.model_dump(exclude_unset=True), namespace=namespace)


class AgentDefinition(ResourceDefinition):
    """An agent: a system prompt for a model, with tools."""

    def __init__(
        self,
        name: str,
        *,
        prompt: str,
        model: str | ModelDefinition | None = None,
        tools: Sequence[ToolInput] = (),
        skills: Sequence[str | SkillDefinition] = (),
        parameters: Mapping[str, ValueInput] | None = None,
        output_schema: SchemaInput | None = None,
        namespace: str = "default",
        **more: Unpack["AgentOptions"],
    ) -> None:
        check_list(tools, "tools", wanted="a list of tools")
        check_list(skills, "skills", wanted="a list of names and Skills")
        dependencies = Dependencies(namespace)
        schema, output_model = schema_of(output_schema)
        values = _parameters(parameters)
        reject_unknown(AgentOptions, more, "Agent")
        spec = {
            "prompt": prompt,
            "model": {"name": model} if isinstance(model, str) else None,
            "model_ref": dependencies.reference(model) if isinstance(model, ModelDefinition) else None,
            "tools": [dependencies.tool(tool) for tool in tools] or None,
            "skills": [dependencies.reference(skill) for skill in skills] or None,
            "parameters": values or None,
            "output_schema": schema,
        }
        super().__init__(
            "Agent",
            name,
            spec_fields({**spec, **more}),
            namespace=namespace,
            dependencies=dependencies,
            output_model=output_model,
        )


class AgentOptions(TypedDict, total=False):
    """More fields of an agent, each as the manifest's field of that name in camelCase."""

    description: str
    max_iterations: int
    context_window: Mapping[str, int]
    parallel_tool_calls: bool
    budget: Mapping[str, Any]


class QueryDefinition(ResourceDefinition):
    """A question to agents, teams, models and tools, which a run of it brings along."""

    def __init__(
        self,
        name: str,
        input: str,  # noqa: A002  # the manifest's name of the field
        *,
        targets: Sequence[ResourceDefinition],
        parameters: Mapping[str, ValueInput] | None = None,
        timeout: str | None = None,
        budget: Mapping[str, Any] | None = None,
        conversation: str | None = None,
        namespace: str = "default",
    ) -> None:
        check_mapping(budget, "budget")
        check_list(targets, "targets", ResourceDefinition, "a list of agents, teams, models or Manifests")
        dependencies = Dependencies()
        dependencies.definitions.extend(targets)
        entries = [{"type": TARGETS.get(each.kind, each.kind.lower()), "name": each.name} for each in targets]
        values = _parameters(parameters)
        asked = {"input": input, "targets": entries, "parameters": values or None}
        spec = {**asked, "timeout": timeout, "conversation_id": conversation}
        output_model = targets[0].output_model if len(targets) == 1 else None
        super().__init__(
            "Query",
            name,
            spec_fields({**spec, "budget": budget}),
            namespace=namespace,
            dependencies=dependencies,
            output_model=output_model,
        )


def _parameters(given: Mapping[str, ValueInput] | None) -> list[dict[str, Any]]:
    check_mapping(given, "parameters")
    for name, value in (given or {}).items():
        check(value, (str, Mapping), f"parameters['{name}']", "a text or {'value_from': …}")
    return [{"name": name, **_value(value)} for name, value in (given or {}).items()]


def _value(given: ValueInput | None) -> Any:
    """A value as in a manifest."""
    return {"value": given} if isinstance(given, str) else camel_case(given)
