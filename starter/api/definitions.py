"""What all definitions of resources in Python share: arguments, manifests, dependencies, secrets and files."""

import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, cast, get_args, get_type_hints

from pydantic import BaseModel, JsonValue, SecretStr
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypeVar

from ...resources.base import API_VERSION, PREALPHA, JsonObject
from ...resources.base import Path as JsonPath
from ...resources.catalog import Catalog, Resource
from ...resources.documents import Document
from ...resources.functions import (
    Function,
    check_callable,
    check_resource_name,
    description,
    input_schema,
    name_of,
    parameters_of,
    tool_options,
)
from ...resources.loader import Loaded, load_documents, load_files
from ...resources.manifest import Metadata
from ...resources.problems import OTHER_NAMES, dotted_path
from ...resources.query import TARGETS
from ...resources.secret import Secret
from ...resources.skill import Skill
from ...resources.values import sources

Value_co = TypeVar("Value_co", covariant=True, default=object)
"""The type of ``value`` in the result of a run."""

Answer_co = TypeVar("Answer_co", covariant=True, default=str)
"""The same for an agent: a text, unless it has an output schema."""

OutputModel = TypeVar("OutputModel", bound=BaseModel)

Callable_ = TypeVar("Callable_", bound=Callable[..., object])


def with_options_in_signature(function: Callable_) -> Callable_:
    """Shows each option of ``**options: Unpack[Options]`` as a keyword argument in help() and in editors.

    Type checkers know them from the annotation. None stands for an option that is omitted.
    """
    signature = inspect.signature(function)
    *others, options = signature.parameters.values()
    fields = get_type_hints(get_args(options.annotation)[0])
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in fields.items()
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*others, *shown])
    return function


def check(value: object, kind: type | tuple[type, ...], argument: str, expected: str) -> None:
    """Raises TypeError for a value that is not of that type."""
    if not isinstance(value, kind):
        raise TypeError(f"{argument} is {_described(value)}, must be {expected}")


def check_text(value: object, argument: str) -> None:
    """Raises TypeError for a value that is not a string."""
    check(value, str, argument, "a string")


def check_mapping(value: object, argument: str) -> None:
    """Raises TypeError for a value that is neither a mapping nor None."""
    check(value, (Mapping, type(None)), argument, "a mapping, as in {'name': 'value'}")


def check_list(
    value: object, argument: str, kind: type | tuple[type, ...] | None = None, expected: str = "a list"
) -> None:
    """Raises TypeError for a value that is not a list or tuple, or has an element that is not a ``kind``."""
    check(value, (list, tuple), argument, expected)
    if kind:
        for index, item in enumerate(cast(Sequence[object], value)):
            check(item, kind, f"{argument}[{index}]", "one of " + expected.removeprefix("a list of "))


def reject_unknown(options: type, arguments: Mapping[str, Any], constructor: str) -> None:
    """Raises TypeError for an unknown option, as Python does for an unexpected keyword argument."""
    unknown = sorted(arguments.keys() - options.__annotations__.keys())
    if unknown:
        _, instead = OTHER_NAMES.get(to_camel(unknown[0]), ("", ""))
        hint = f"; {instead}" if instead else ""
        raise TypeError(f"{constructor}() got an unexpected keyword argument '{unknown[0]}'{hint}")


def as_json(value: Mapping[str, object]) -> JsonObject:
    """A mapping as JSON. Raises TypeError, naming the field, for a value that JSON can't represent."""
    try:
        return cast(JsonObject, _jsonable(value))
    except (PydanticSerializationError, ValueError):
        path, wrong = _first_without_json(value)
        raise TypeError(f"{dotted_path(path)} is {_described(wrong)}, which a manifest can't contain") from None


def _jsonable(value: object) -> object:
    """A value as JSON. Raises PydanticSerializationError and ValueError, also for numbers that JSON has not."""
    converted: object = to_jsonable_python(value, by_alias=True)
    json.dumps(converted, allow_nan=False)
    return converted


def _first_without_json(value: object, path: JsonPath = ()) -> tuple[JsonPath, object]:
    """The first nested value that JSON can't represent, with its path."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        try:
            _jsonable(item)
        except (PydanticSerializationError, ValueError):
            return _first_without_json(item, (*path, key if isinstance(key, int) else str(key)))
    return path, value


_TYPE_NAMES = {
    type(None): "None",
    str: "a string",
    bool: "True or False",
    int: "a number",
    float: "a number",
    dict: "a mapping",
    list: "a list",
}


def _described(value: object) -> str:
    """The description of a wrong argument for an error message."""
    if inspect.iscoroutine(value):
        return f"the coroutine {value.__name__}, which was not awaited"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', '')}"
    return _TYPE_NAMES.get(type(value), f"of the type {type(value).__name__}")


FREE_KEYS = ("output_schema", "outputSchema", "session", "parameters", "properties", "labels", "data")
"""Fields whose keys are chosen by the program, and are not converted to camelCase."""


def camel_case(value: object) -> object:
    """A value with its keys in camelCase, as in a manifest."""
    if isinstance(value, Mapping):
        return {
            to_camel(key): item if key in FREE_KEYS and isinstance(item, Mapping) else camel_case(item)
            for key, item in value.items()
        }
    return [camel_case(item) for item in value] if isinstance(value, list | tuple) else value


def spec_fields(options: Mapping[str, object]) -> dict[str, object]:
    """The fields of a spec, from options in snake_case; options that are None are omitted."""
    return cast(dict[str, object], camel_case({key: value for key, value in options.items() if value is not None}))


class ResourceDefinition(Generic[Value_co]):
    """A manifest of any kind: ``Manifest("Tool", "weather", {...})``, with a ``spec`` as in a file.

    A run of it has its ``dependencies`` as inline manifests. ``output_model`` is the pydantic model into which its
    answer is parsed: the type of ``value`` in its results. Raises ManifestError with all errors, as for a manifest in a
    file.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, object],
        *,
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        dependencies: "Dependencies | None" = None,
        output_model: type[BaseModel] | None = None,
    ) -> None:
        check(spec, Mapping, "spec", "a mapping, as in a manifest")
        check_mapping(labels, "labels")
        check_mapping(annotations, "annotations")
        metadata: dict[str, object] = {"name": name, "namespace": namespace}
        metadata.update({key: value for key, value in {"labels": labels, "annotations": annotations}.items() if value})
        self.kind = kind
        self.name = name
        self.namespace = namespace
        self.output_model = output_model
        api_version = PREALPHA if kind in PREALPHA_KINDS else API_VERSION
        self.manifest = as_json({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})
        self.dependencies = dependencies or Dependencies()
        self._report_mistakes()

    def _report_mistakes(self) -> None:
        """Raises ManifestError where the mistakes were made."""
        load_definitions([self])

    @classmethod
    def loaded(
        cls, manifest: JsonObject, needed: "Sequence[ResourceDefinition[Any]]" = ()
    ) -> "ResourceDefinition[Any]":
        """The definition of a manifest that was loaded from a file, with the ``needed`` ones."""
        metadata = Metadata.model_validate(manifest["metadata"])
        definition = ResourceDefinition[Any].__new__(ResourceDefinition)
        definition.kind = str(manifest["kind"])
        definition.name = metadata.name
        definition.namespace = metadata.namespace
        definition.output_model = None
        definition.manifest = manifest
        definition.dependencies = Dependencies()
        definition.dependencies.definitions.extend(needed)
        return definition

    @property
    def names_workers(self) -> bool:
        """Whether it, or a definition that it depends on, names resources that workers know, as ``"team/NAME"``."""
        return any(definition.dependencies.names_workers for definition in self.with_dependencies())

    def __repr__(self) -> str:
        return f"{self.kind}('{self.name}')"

    def as_tool(self) -> "ResourceDefinition[Any]":
        """What stands for it among the ``tools`` of an agent: itself, unless its kind has tools of its own."""
        return self

    def with_dependencies(self) -> Iterator["ResourceDefinition"]:
        """The definition, and all definitions that it depends on."""
        yield self
        for definition in self.dependencies.definitions:
            yield from definition.with_dependencies()

    def functions(self) -> tuple[Function, ...]:
        """The functions that it and its dependencies use."""
        return unique_functions(
            function for definition in self.with_dependencies() for function in definition.dependencies.functions
        )


PREALPHA_KINDS = ("A2AServer", "ExecutionEngine")
"""The kinds of manifest that ARK has in its pre-alpha version only."""

ACTIVITY = "__temporal_activity_definition"
"""The attribute of functions with ``@activity.defn``, which has the activity type as its ``name``."""


WORKFLOW = "__temporal_workflow_definition"
"""The attribute of classes with ``@workflow.defn``."""


class Dependencies:
    """Collects the definitions and functions in a constructor's arguments, which the manifest references by name."""

    def __init__(self, namespace: str = "default") -> None:
        self._namespace = namespace
        self.definitions: list[ResourceDefinition[object]] = []
        self.functions: list[Function] = []
        self.names_workers = False
        """Whether the manifest refers to resources that workers know, by names such as ``"team/NAME"``."""

    def function(self, function: Function, *, takes_value: bool = True) -> str:
        """Adds a function and returns its name. Raises TypeError for what a run can't call.

        One that ``takes_value`` is called with what was said, or with a briefing; a tool is called with its arguments.
        """
        check_callable(function, takes_value=takes_value)
        self.functions.append(function)
        return name_of(function)

    def reference(self, resource: object) -> object:
        """A resource as ``{name, namespace}``; a name is returned unchanged."""
        if isinstance(resource, ResourceDefinition):
            self.definitions.append(resource)
            return {"name": resource.name, "namespace": resource.namespace}
        if isinstance(resource, str) and (name := self._name_of_workers(resource)):
            return name[1]
        return camel_case(resource)

    def _name_of_workers(self, text: str) -> tuple[str, str] | None:
        """The kind and the name in a text such as ``"team/NAME"``: workers know that resource."""
        kind, slash, name = text.partition("/")
        if not (slash and name and kind in TARGETS.values()):
            return None
        self.names_workers = True
        return kind, name

    def speaker(self, speaker: object) -> object:
        """A speaker as ``{name, type}``, from a definition, a function, or a name that workers know: ``"team/NAME"``.

        Other names and booleans are returned unchanged.
        """
        if isinstance(speaker, str) and (known := self._name_of_workers(speaker)):
            return {"type": known[0], "name": known[1]}
        if isinstance(speaker, ResourceDefinition):
            self.definitions.append(speaker)
            return {"name": speaker.name, "namespace": speaker.namespace, "type": speaker.kind.lower()}
        if callable(speaker):
            check_resource_name(speaker)
            return {"name": self.function(speaker), "type": "activity"}
        return camel_case(speaker)

    def text_or_function(self, value: object) -> object:
        """A text, or a function by name: ``f``, or ``{"function": f, "parameters": {...}}``."""
        if callable(value):
            return {"function": self.function(value)}
        if isinstance(value, Mapping) and callable(function := value.get("function")):
            return {**value, "function": self.function(function)}
        return value

    def tool(self, tool: object) -> object:
        """A tool as ``{name, type}``. A function becomes a Tool, described by its signature and docstring.

        One with ``@activity.defn`` is called as an activity, and a class with ``@workflow.defn`` as a workflow, by the
        workers of the application that have it. An agent or a team becomes a Tool that asks it.
        """
        on_error: str | None = None
        if isinstance(tool, ResourceDefinition):
            tool = tool.as_tool()
        if isinstance(tool, ResourceDefinition) and tool.kind in ("Agent", "Team"):
            tool = self._delegating_tool(tool)
        elif isinstance(tool, type):
            tool = self._workflow_tool(tool)
        elif callable(tool):
            on_error = tool_options(tool).on_error
            tool = self._activity_tool(tool) if hasattr(tool, ACTIVITY) else self._function_tool(tool)
        if isinstance(tool, ResourceDefinition):
            self.definitions.append(tool)
            return {"name": tool.name, "type": "custom", **({"onError": on_error} if on_error else {})}
        return {"name": tool} if isinstance(tool, str) else camel_case(tool)

    def _function_tool(self, function: Function) -> ResourceDefinition:
        name = self.function(function, takes_value=False)
        return self._described_tool(function, {"type": "function", "function": {"name": name}})

    def _activity_tool(self, function: Function) -> ResourceDefinition:
        kind = getattr(function, ACTIVITY).name
        if kind is None:
            raise TypeError(f"the activity {function.__name__} is dynamic: a tool needs one with a name")
        arguments = [*parameters_of(function)]
        return self._described_tool(function, {"type": "activity", "activity": {"type": kind, "arguments": arguments}})

    def _workflow_tool(self, workflow: type) -> ResourceDefinition:
        definition = workflow.__dict__.get(WORKFLOW)
        if definition is None or definition.name is None:
            raise TypeError(f"the class {workflow.__name__} is not a tool: it needs @workflow.defn, with a name")
        run = definition.run_fn
        name = name_of(workflow)
        spec = {"type": definition.name, "arguments": [*parameters_of(run)]}
        about = description(run) or inspect.getdoc(workflow)
        return self._described_tool(run, {"type": "workflow", "workflow": spec, "description": about}, name)

    def _delegating_tool(self, target: ResourceDefinition) -> ResourceDefinition:
        """The Tool by which an agent asks another agent, or a team."""
        kind = target.kind.lower()
        spec: dict[str, object] = {"type": kind, kind: {"name": target.name}}
        asked = target.manifest["spec"]
        if isinstance(asked, dict) and asked.get("description"):
            spec["description"] = asked["description"]
        if target.namespace != self._namespace:
            raise TypeError(f"{target.name} is in the namespace {target.namespace}, and the tool in {self._namespace}")
        dependencies = Dependencies(self._namespace)
        dependencies.definitions.append(target)
        return ResourceDefinition("Tool", target.name, spec, namespace=self._namespace, dependencies=dependencies)

    def _described_tool(
        self, function: Function, spec: dict[str, object], name: str | None = None
    ) -> ResourceDefinition:
        options = tool_options(function)
        spec["inputSchema"] = input_schema(function)
        if about := description(function):
            spec["description"] = about
        if options.approval is not None:
            spec["approval"] = (
                {"required": options.approval} if isinstance(options.approval, bool) else options.approval
            )
        if options.timeout:
            spec["timeout"] = options.timeout
        given = {key: value for key, value in spec.items() if value is not None}
        shaped = {key: value if key == "inputSchema" else camel_case(value) for key, value in given.items()}
        if name is None:
            check_resource_name(function)
        return ResourceDefinition("Tool", name or name_of(function), shaped, namespace=self._namespace)


def schema_of(schema: object) -> tuple[object, type[BaseModel] | None]:
    """A JSON Schema, and the pydantic model it was made from, if any. Raises TypeError for anything else."""
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return schema.model_json_schema(), schema
    if schema is not None and not isinstance(schema, Mapping):
        raise TypeError(f"output_schema is {_described(schema)}, must be a pydantic model or a JSON Schema")
    return schema, None


def load_definitions(definitions: Iterable[ResourceDefinition]) -> Loaded:
    """Loads definitions and their dependencies without duplicates, as from a file; raises ManifestError."""
    documents: list[JsonValue] = []
    for definition in definitions:
        for dependency in definition.with_dependencies():
            if dependency.manifest not in documents:
                documents.append(dependency.manifest)
    loaded = load_documents(Document("", data, {}) for data in documents)
    for secret in _environment_secrets(loaded.catalog):
        loaded.secrets.add(secret)
    return loaded


ENVIRONMENT_SECRET = "inline.environment"
"""The name of the Secret with the environment variables that a program's manifests use as secrets."""


class EnvironmentSecret:
    """Secrets that only this process reads: ``Secret.env("KEY")`` is a value source, such as a model's ``api_key``.

    A run that needs one is executed in this process, on every connection. The value is never part of a history.
    """

    @staticmethod
    def env(variable: str) -> Mapping[str, Any]:
        """The value of an environment variable of this process, as a value source of a manifest.

        Raises ValueError if the variable is not set, or empty.
        """
        check_text(variable, "variable")
        _variable(variable)
        return {"valueFrom": {"secretKeyRef": {"name": ENVIRONMENT_SECRET, "key": variable}}}


def _variable(name: str) -> SecretStr:
    value = os.environ.get(name)
    if not value:
        raise ValueError(f"the environment of this process has no variable '{name}'")
    return SecretStr(value)


def _environment_secrets(catalog: Catalog) -> Iterator[Secret]:
    """A Secret for each namespace whose manifests use environment variables, with their current values."""
    variables: dict[str, dict[str, SecretStr]] = {}
    for manifest in catalog.manifests:
        for _, source in sources(manifest):
            ref = source.value_from.secret_key_ref if source.value_from else None
            if ref and ref.name == ENVIRONMENT_SECRET:
                variables.setdefault(manifest.namespace, {})[ref.key] = _variable(ref.key)
    for namespace, values in variables.items():
        metadata = Metadata(name=ENVIRONMENT_SECRET, namespace=namespace)
        yield Secret(api_version="v1", metadata=metadata, string_data=values)


Source = str | Path | ResourceDefinition
"""A file or a folder of manifests, or a definition in Python."""


def load_sources(sources: Sequence[Source], *, recursive: bool = False) -> tuple[Loaded, tuple[Function, ...]]:
    """Loads files, folders and definitions together, with the functions of the definitions; raises ManifestError."""
    definitions = [source for source in sources if isinstance(source, ResourceDefinition)]
    documents = [
        Document("", dependency.manifest, {})
        for definition in definitions
        for dependency in definition.with_dependencies()
    ]
    unique = [document for index, document in enumerate(documents) if document not in documents[:index]]
    paths = [Path(source) for source in sources if not isinstance(source, ResourceDefinition)]
    functions = unique_functions(function for definition in definitions for function in definition.functions())
    return load_files(paths, others=unique, recursive=recursive), functions


class Manifests(Mapping[str, ResourceDefinition[Any]]):
    """The manifests of files, by names such as ``"team/review"``; ``"team/NAMESPACE/review"`` outside of ``default``.

    Each is a definition with all that it needs from the files: a target of a run, or a member of a team in Python.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._secrets = [
            ResourceDefinition.loaded(document.data)
            for name, document in loaded.places.items()
            if name.startswith("Secret/") and isinstance(document.data, dict)
        ]
        self._manifests = {_short_name(manifest): manifest for manifest in loaded.catalog.manifests}

    def __repr__(self) -> str:
        return f"Manifests({', '.join(self._manifests)})"

    @property
    def catalog(self) -> Catalog:
        """The manifests, with lookup by kind, namespace and name."""
        return self._loaded.catalog

    @property
    def loaded(self) -> Loaded:
        """The manifests with the files of their Secrets."""
        return self._loaded

    def __getitem__(self, name: str) -> ResourceDefinition[Any]:
        manifest = self._manifests.get(name)
        if manifest is None:
            raise KeyError(f"the files have no '{name}'; they have: {', '.join(self._manifests) or 'nothing'}")
        needed, _ = self._loaded.catalog.needed_by(manifest)
        others = [self._definition(other) for other in needed.manifests if other.id != manifest.id]
        return self._definition(manifest, [*others, *self._secrets])

    def __iter__(self) -> Iterator[str]:
        return iter(self._manifests)

    def __len__(self) -> int:
        return len(self._manifests)

    def _definition(
        self, manifest: Resource, needed: Sequence[ResourceDefinition[Any]] = ()
    ) -> ResourceDefinition[Any]:
        document = self._loaded.places[manifest.id]
        data = cast(JsonObject, document.data)
        if isinstance(manifest, Skill):  # its folder was read, relative to the file
            data = {**data, "spec": manifest.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)}
        return ResourceDefinition.loaded(data, needed)


def _short_name(manifest: Resource) -> str:
    place = "" if manifest.namespace == "default" else f"{manifest.namespace}/"
    return f"{manifest.kind.lower()}/{place}{manifest.name}"


def load(*paths: str | Path, recursive: bool = False) -> Manifests:
    """Loads files and folders of manifests, with ``recursive`` including subfolders: ``baton.load("team.yaml")``.

    Raises ManifestError with all errors of all files, and FileNotFoundError.
    """
    for path in paths:
        check(path, (str, Path), "path", "the path of a file or folder")
    return Manifests(load_files([Path(path) for path in paths], recursive=recursive))


def unique_functions(functions: Iterable[Function]) -> tuple[Function, ...]:
    """Functions without duplicates; raises ValueError for two with the same name."""
    by_name: dict[str, Function] = {}
    for function in functions:
        name = name_of(function)
        known = by_name.setdefault(name, function)
        if known is not function and known != function:  # a bound method is another object each time
            raise ValueError(f"two functions have the name '{name}': rename one with @baton.function('…')")
    return tuple(by_name.values())


ValueInput = str | Mapping[str, Any]
"""A text or a value source: ``Secret.env("KEY")``, ``{"value_from": {"secret_key_ref": {"name": …, "key": …}}}``."""

ToolInput = str | Mapping[str, Any] | ResourceDefinition | Function
"""The name of a built-in tool, an entry of ``tools`` as in a manifest, a ``Manifest`` of kind Tool, a function, or an
activity of an application."""

SchemaInput = Mapping[str, Any] | type[BaseModel]
"""A JSON Schema, or a pydantic model into which the answer is parsed."""
