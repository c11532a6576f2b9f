"""Resources defined in Python: ``baton.Manifest``, ``Model``, ``Agent``, ``Skill``, ``Query`` and ``Schedule``."""

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from pydantic import BaseModel, JsonValue, SecretStr
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ...resources.base import API_VERSION, JsonObject
from ...resources.base import Path as JsonPath
from ...resources.catalog import Catalog
from ...resources.documents import Document
from ...resources.functions import Function, description, input_schema, name_of, parameters_of, tool_options
from ...resources.loader import Loaded, load_documents, load_files
from ...resources.manifest import Metadata
from ...resources.model_settings import ProviderName, ReasoningEffort
from ...resources.problems import OTHER_NAMES, dotted_path
from ...resources.query import TARGETS
from ...resources.schedule import OverlapPolicy
from ...resources.secret import Secret
from ...resources.skill_folder import read_skill
from ...resources.values import sources


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
        return cast(JsonObject, to_jsonable_python(value, by_alias=True))
    except (PydanticSerializationError, ValueError):
        path, wrong = _first_without_json(value)
        raise TypeError(f"{dotted_path(path)} is {_described(wrong)}, which a manifest can't contain") from None


def _first_without_json(value: object, path: JsonPath = ()) -> tuple[JsonPath, object]:
    """The first nested value that JSON can't represent, with its path."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        try:
            to_jsonable_python(item, by_alias=True)
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


class ResourceDefinition:
    """A manifest of any kind: ``Manifest("Tool", "weather", {...})``, with a ``spec`` as in a file.

    A run of it has its ``dependencies`` as inline manifests. ``output_model`` is the pydantic model into which its
    answer is parsed. Raises ManifestError with all errors, as for a manifest in a file.
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
        self.kind = kind
        self.name = name
        self.namespace = namespace
        self.output_model = output_model
        self.names_targets = False
        """Whether it is a query whose targets include names of resources that workers know."""
        self.manifest = as_json({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
        self.dependencies = dependencies or Dependencies()
        load_definitions([self])  # reports mistakes where they were made

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


ACTIVITY = "__temporal_activity_definition"
"""The attribute of functions with ``@activity.defn``, which has the activity type as its ``name``."""


WORKFLOW = "__temporal_workflow_definition"
"""The attribute of classes with ``@workflow.defn``."""


class Dependencies:
    """Collects the definitions and functions in a constructor's arguments, which the manifest references by name."""

    def __init__(self, namespace: str = "default") -> None:
        self._namespace = namespace
        self.definitions: list[ResourceDefinition] = []
        self.functions: list[Function] = []

    def function(self, function: Function) -> str:
        """Adds a function and returns its name. Raises TypeError for a class, whose call would only make an object."""
        if isinstance(function, type):
            raise TypeError(f"the class {function.__name__} is no function")
        self.functions.append(function)
        return name_of(function)

    def reference(self, resource: object) -> object:
        """A resource as ``{name, namespace}``; a name is returned unchanged."""
        if isinstance(resource, ResourceDefinition):
            self.definitions.append(resource)
            return {"name": resource.name, "namespace": resource.namespace}
        return camel_case(resource)

    def speaker(self, speaker: object) -> object:
        """A speaker as ``{name, type}``, from a definition or a function; names and booleans are returned unchanged."""
        if isinstance(speaker, ResourceDefinition):
            self.definitions.append(speaker)
            return {"name": speaker.name, "namespace": speaker.namespace, "type": speaker.kind.lower()}
        if callable(speaker):
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
        name = self.function(function)
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
            raise TypeError(f"the class {workflow.__name__} is no tool: it needs @workflow.defn, with a name")
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
        return ResourceDefinition("Tool", name or name_of(function), shaped, namespace=self._namespace)


def schema_of(schema: object) -> tuple[object, type[BaseModel] | None]:
    """A JSON Schema, and the pydantic model it was made from, if any."""
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return schema.model_json_schema(), schema
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


def _value(value: ValueInput | float | None) -> Any:
    """A value as in a manifest: ``{value: TEXT}``, ``{valueFrom: …}``, or a number."""
    return {"value": value} if isinstance(value, str) else camel_case(value)


def _parameters(parameters: Mapping[str, ValueInput] | None) -> list[dict[str, Any]] | None:
    check_mapping(parameters, "parameters")
    if not parameters:
        return None
    for name, value in parameters.items():
        check(value, (str, Mapping), f"parameters['{name}']", "a string or {'value_from': …}")
    return [{"name": name, **_value(value)} for name, value in parameters.items()]


class SettingsOptions(TypedDict, total=False):
    """Settings of model calls, for an agent and for a model: those of the agent take precedence."""

    temperature: float
    top_p: float
    max_tokens: int
    stop: Sequence[str]
    seed: int
    frequency_penalty: float
    presence_penalty: float
    reasoning_effort: ReasoningEffort


class ModelDefinition(ResourceDefinition):
    """A language model. With a literal API key, the run is executed in this process, the only one that has the key.

    ``connection`` has further fields of the provider's connection, such as ``{"region": "us-east-1"}``; ``timeout`` is
    the time limit of one answer, such as ``10m``; ``retry_policy`` is that of a manifest, such
    as ``{"maximumAttempts": 3}``; ``pricing`` is the price per million tokens,
    ``{"input": …, "output": …}``.
    """

    def __init__(
        self,
        name: str,
        *,
        model: ValueInput,
        provider: ProviderName = "openai",
        base_url: ValueInput | None = None,
        api_key: ValueInput | None = None,
        properties: Mapping[str, ValueInput | float | bool] | None = None,
        connection: Mapping[str, ValueInput | int] | None = None,
        timeout: str | None = None,
        pricing: Mapping[str, float] | None = None,
        retry_policy: Mapping[str, Any] | None = None,
        fallback: "str | ModelDefinition | None" = None,
        namespace: str = "default",
        **settings: Unpack[SettingsOptions],
    ) -> None:
        reject_unknown(SettingsOptions, settings, "Model")
        check(provider, str, "provider", "the name of a provider")
        check_mapping(properties, "properties")
        check_mapping(pricing, "pricing")
        check_mapping(retry_policy, "retry_policy")
        dependencies = Dependencies()
        config = spec_fields({"base_url": _value(base_url), "api_key": _value(api_key), **(connection or {})})
        if properties:
            config["properties"] = {key: _value(value) for key, value in properties.items()}
        spec = spec_fields(
            {
                "type": "completions",
                "provider": provider,
                "model": _value(model),
                "timeout": timeout or None,
                "pricing": pricing,
                "retryPolicy": retry_policy,
                "fallback": {"name": fallback} if isinstance(fallback, str) else dependencies.reference(fallback),
                **settings,
            }
        )
        spec["config"] = {provider: config}
        super().__init__("Model", name, spec, namespace=namespace, dependencies=dependencies)


class SkillDefinition(ResourceDefinition):
    """A skill: a folder with a SKILL.md, which is read immediately. Raises ValueError for any other folder."""

    def __init__(self, folder: str | Path, *, namespace: str = "default") -> None:
        check(folder, (str, Path), "folder", "the path of a folder")
        name, spec = read_skill(Path(folder))
        super().__init__("Skill", name, spec.model_dump(exclude_unset=True), namespace=namespace)


class AgentOptions(SettingsOptions, total=False):
    """Further fields of an agent, like the manifest's fields with the same names in camelCase."""

    description: str
    max_iterations: int
    context_window: Mapping[str, int]
    parallel_tool_calls: bool
    budget: Mapping[str, Any]


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
        **options: Unpack[AgentOptions],
    ) -> None:
        reject_unknown(AgentOptions, options, "Agent")
        check_list(tools, "tools", expected="a list of tools")
        check_list(skills, "skills", expected="a list of names and Skills")
        dependencies = Dependencies(namespace)
        schema, output_model = schema_of(output_schema)
        spec = {
            "prompt": prompt,
            "model": {"name": model} if isinstance(model, str) else None,
            "model_ref": dependencies.reference(model) if isinstance(model, ModelDefinition) else None,
            "tools": [dependencies.tool(tool) for tool in tools] or None,
            "skills": [dependencies.reference(skill) for skill in skills] or None,
            "parameters": _parameters(parameters),
            "output_schema": schema,
            **options,
        }
        super().__init__(
            "Agent",
            name,
            spec_fields(spec),
            namespace=namespace,
            dependencies=dependencies,
            output_model=output_model,
        )


class QueryDefinition(ResourceDefinition):
    """A question to agents, teams, models and tools, which become inline manifests of its run.

    A target can also be the name of a resource that workers know: ``"team/NAME"``.
    """

    def __init__(
        self,
        name: str,
        input: str,  # noqa: A002  # the manifest's name of the field
        *,
        targets: Sequence[ResourceDefinition | str],
        parameters: Mapping[str, ValueInput] | None = None,
        timeout: str | None = None,
        budget: Mapping[str, Any] | None = None,
        conversation: str | None = None,
        namespace: str = "default",
    ) -> None:
        check_mapping(budget, "budget")
        what = "a list of agents, teams, models, Manifests, or names such as 'team/NAME'"
        check_list(targets, "targets", (ResourceDefinition, str), what)
        definitions = [target for target in targets if isinstance(target, ResourceDefinition)]
        dependencies = Dependencies()
        dependencies.definitions.extend(definitions)
        spec = {
            "input": input,
            "targets": [_target(target) for target in targets],
            "parameters": _parameters(parameters),
            "timeout": timeout,
            "conversation_id": conversation,
            "budget": budget,
        }
        super().__init__(
            "Query",
            name,
            spec_fields(spec),
            namespace=namespace,
            dependencies=dependencies,
            output_model=definitions[0].output_model if len(targets) == len(definitions) == 1 else None,
        )
        self.names_targets = len(definitions) < len(targets)


def _target(target: ResourceDefinition | str) -> dict[str, str]:
    """The entry of ``targets`` in a manifest."""
    if isinstance(target, ResourceDefinition):
        return {"type": TARGETS.get(target.kind, target.kind.lower()), "name": target.name}
    kind, slash, name = target.partition("/")
    if not (slash and name and kind in TARGETS.values()):
        raise TypeError(f"target is '{target}', must be a name such as 'team/NAME' or 'agent/NAME'")
    return {"type": kind, "name": name}


class ScheduleOptions(TypedDict, total=False):
    """Further fields of a schedule, like the manifest's fields with the same names in camelCase."""

    time_zone: str
    overlap_policy: OverlapPolicy
    catchup_window: str
    jitter: str
    pause_on_failure: bool
    paused: bool
    note: str


class ScheduleDefinition(ResourceDefinition):
    """When to start a ``Query``: ``schedule`` is a cron expression, or ``@every 10m``."""

    def __init__(
        self,
        name: str,
        query: QueryDefinition,
        *,
        schedule: str,
        namespace: str = "default",
        **options: Unpack[ScheduleOptions],
    ) -> None:
        reject_unknown(ScheduleOptions, options, "Schedule")
        check(query, QueryDefinition, "query", "a Query")
        dependencies = Dependencies()
        spec = {"schedule": schedule, "query": dependencies.reference(query), **options}
        super().__init__("Schedule", name, spec_fields(spec), namespace=namespace, dependencies=dependencies)
