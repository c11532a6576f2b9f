"""Resources defined in Python: ``baton.Manifest``, ``Model``, ``Agent``, ``Skill``, ``Query`` and ``Schedule``."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from pydantic import JsonValue

from ...resources.agent import A2A_NAME
from ...resources.model_settings import ProviderName, ReasoningEffort
from ...resources.query import TARGETS
from ...resources.schedule import OverlapPolicy
from ...resources.skill_folder import read_skill
from .content import RunInput, input_fields
from .definitions import (
    Answer_co,
    Dependencies,
    OutputModel,
    ResourceDefinition,
    SchemaInput,
    ToolInput,
    ValueInput,
    camel_case,
    check,
    check_list,
    check_mapping,
    check_text,
    reject_unknown,
    schema_of,
    spec_fields,
    with_options_in_signature,
)


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

    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    stop: Sequence[str] | None
    seed: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    reasoning_effort: ReasoningEffort | None


class ModelDefinition(ResourceDefinition[str]):
    """A language model. With a literal API key, the run is executed in this process, the only one that has the key.

    ``connection`` has further fields of the provider's connection, such as ``{"region": "us-east-1"}``; ``timeout`` is
    the time limit of one answer, such as ``10m``; ``retry_policy`` is that of a manifest, such
    as ``{"maximumAttempts": 3}``; ``pricing`` is the price per million tokens,
    ``{"input": …, "output": …}``.
    """

    @with_options_in_signature
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


class ServerOptions(TypedDict, total=False):
    """Further fields of a server, like the manifest's fields with the same names in camelCase; None omits a field.

    ``headers`` are those of each request, by their names. ``timeout`` is a duration such as ``"5m"``;
    ``circuit_breaker`` such as ``{"failures": 3, "open_for": "1m"}``.
    """

    headers: Mapping[str, ValueInput] | None
    description: str | None
    timeout: str | None
    circuit_breaker: Mapping[str, Any] | None
    labels: Mapping[str, str] | None
    annotations: Mapping[str, str] | None
    namespace: str | None


class RemoteAgentOptions(ServerOptions, total=False):
    """Further fields of a server of agents; ``idempotent``: it executes a repeated request only once."""

    idempotent: bool | None


class _ServerDefinition(ResourceDefinition[object]):
    """A server, with the fields that all servers have."""

    def __init__(self, kind: str, name: str, spec: Mapping[str, object], options: Mapping[str, Any]) -> None:
        fields = {key: value for key, value in options.items() if key not in ("labels", "annotations", "namespace")}
        super().__init__(
            kind,
            name,
            spec_fields({**fields, **spec, "headers": named_values(options.get("headers"), "headers")}),
            namespace=options.get("namespace") or "default",
            labels=options.get("labels"),
            annotations=options.get("annotations"),
        )


def named_values(values: Mapping[str, ValueInput] | None, argument: str) -> list[dict[str, Any]] | None:
    """Headers or environment variables as in a manifest, ``{name, value}``."""
    check_mapping(values, argument)
    return [{"name": name, "value": _value(value)} for name, value in (values or {}).items()] or None


class A2AServerDefinition(_ServerDefinition):
    """A server that speaks the Agent2Agent protocol; ``baton.Agent("booking", a2a_server=server)`` is its agent.

    ``questions``: people answer what it asks during a call; ``{}`` for all defaults.
    """

    @with_options_in_signature
    def __init__(
        self,
        name: str,
        *,
        address: ValueInput,
        questions: Mapping[str, Any] | None = None,
        **options: Unpack[RemoteAgentOptions],
    ) -> None:
        reject_unknown(RemoteAgentOptions, options, "A2AServer")
        super().__init__("A2AServer", name, {"address": _value(address), "questions": questions}, options)


class ExecutionEngineDefinition(_ServerDefinition):
    """A service that executes agents, which name it as their ``execution_engine``.

    ``type`` is the type of the engine, such as ``"langchain"``. With ``send_keys`` it receives the keys and headers of
    the agent's model.
    """

    @with_options_in_signature
    def __init__(
        self,
        name: str,
        *,
        address: ValueInput,
        type: str,  # noqa: A002  # the manifest's name of the field
        send_keys: bool = False,
        **options: Unpack[RemoteAgentOptions],
    ) -> None:
        reject_unknown(RemoteAgentOptions, options, "ExecutionEngine")
        spec = {"address": _value(address), "type": type, "send_keys": send_keys or None}
        super().__init__("ExecutionEngine", name, spec, options)


class MCPServerDefinition(_ServerDefinition):
    """A server that speaks the Model Context Protocol: an ``address``, or a ``command`` with ``args``, over stdio.

    As one of an agent's ``tools`` it stands for all its tools. A run with a ``command`` is executed in this process,
    which starts the command: workers start only those of their own files.
    """

    @with_options_in_signature
    def __init__(
        self,
        name: str,
        *,
        address: ValueInput | None = None,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, ValueInput] | None = None,
        transport: Literal["http", "sse"] | None = None,
        authorization: Mapping[str, Any] | None = None,
        tool_call_timeout: str | None = None,
        questions: Mapping[str, Any] | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        reject_unknown(ServerOptions, options, "MCPServer")
        check_list(args, "args", str, "a list of strings")
        spec = {
            "address": _value(address),
            "command": command,
            "args": [*args] or None,
            "env": named_values(env, "env"),
            "transport": transport,
            "authorization": authorization,
            "tool_call_timeout": tool_call_timeout,
            "questions": questions,
        }
        super().__init__("MCPServer", name, spec, options)

    def as_tool(self) -> ResourceDefinition[Any]:
        """All its tools: what the server stands for among the ``tools`` of an agent."""
        return self.tool()

    def tool(self, tool: str = "*", *, name: str | None = None, **spec: Any) -> ResourceDefinition[object]:
        """One of its tools, or with ``*`` in its name all that match, for an agent's ``tools``.

        ``name`` is that of the Tool, by default the server's with the tool's; ``spec`` has further fields of a Tool,
        such as ``approval={}``.
        """
        check_text(tool, "tool")
        dependencies = Dependencies(self.namespace)
        reference = dependencies.reference(self)
        short = re.sub(r"[^a-z0-9]+", "-", tool.lower()).strip("-")
        return ResourceDefinition(
            "Tool",
            name or (f"{self.name}-{short}" if short else self.name),
            spec_fields({**spec, "type": "mcp", "mcp": {"mcpServerRef": reference, "toolName": tool}}),
            namespace=self.namespace,
            dependencies=dependencies,
        )


class AgentOptions(SettingsOptions, total=False):
    """Further fields of an agent, like the manifest's fields with the same names in camelCase; None omits a field."""

    model: str | ModelDefinition | None
    tools: Sequence[ToolInput] | None
    a2a_server: A2AServerDefinition | None
    execution_engine: str | ExecutionEngineDefinition | None
    skills: Sequence[str | SkillDefinition] | None
    parameters: Mapping[str, ValueInput] | None
    description: str | None
    max_iterations: int | None
    context_window: Mapping[str, int] | None
    parallel_tool_calls: bool | None
    budget: Mapping[str, Any] | None
    overrides: Sequence[Mapping[str, Any]] | None
    on_tools_unavailable: Literal["continue", "fail"] | None
    labels: Mapping[str, str] | None
    annotations: Mapping[str, str] | None
    namespace: str | None


class AgentDefinition(ResourceDefinition[Answer_co]):
    """An agent: a system prompt for a model, with tools; or an agent of an ``a2a_server`` or an ``execution_engine``.

    The ``value`` of its results is a text; with an ``output_schema`` it is an instance of that pydantic model, or JSON
    that matches the schema.
    """

    @overload
    def __init__(
        self: "AgentDefinition[str]",
        name: str,
        *,
        prompt: str | None = None,
        output_schema: None = None,
        **options: Unpack[AgentOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: "AgentDefinition[OutputModel]",
        name: str,
        *,
        prompt: str | None = None,
        output_schema: type[OutputModel],
        **options: Unpack[AgentOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: "AgentDefinition[JsonValue]",
        name: str,
        *,
        prompt: str | None = None,
        output_schema: Mapping[str, Any],
        **options: Unpack[AgentOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: "AgentDefinition[Any]",
        name: str,
        *,
        prompt: str | None = None,
        output_schema: SchemaInput | None = None,
        **options: Unpack[AgentOptions],
    ) -> None: ...

    @with_options_in_signature
    def __init__(
        self,
        name: str,
        *,
        prompt: str | None = None,
        output_schema: SchemaInput | None = None,
        **options: Unpack[AgentOptions],
    ) -> None:
        reject_unknown(AgentOptions, options, "Agent")
        model = options.pop("model", None)
        tools = options.pop("tools", None) or ()
        skills = options.pop("skills", None) or ()
        parameters = options.pop("parameters", None)
        namespace = options.pop("namespace", None) or "default"
        labels = options.pop("labels", None)
        annotations = options.pop("annotations", None)
        a2a_server = options.pop("a2a_server", None)
        engine = options.pop("execution_engine", None)
        check_list(tools, "tools", expected="a list of tools")
        check_list(skills, "skills", expected="a list of names and Skills")
        dependencies = Dependencies(namespace)
        schema, output_model = schema_of(output_schema)
        if a2a_server:
            dependencies.definitions.append(a2a_server)
            annotations = {A2A_NAME[0]: a2a_server.name, **(annotations or {})}
        spec = {
            "prompt": prompt,
            "execution_engine": {"name": engine} if isinstance(engine, str) else dependencies.reference(engine),
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
            labels=labels,
            annotations=annotations,
            dependencies=dependencies,
            output_model=output_model,
        )


class QueryDefinition(ResourceDefinition[Any]):
    """A question to agents, teams, models and tools, which become inline manifests of its run.

    A target can also be the name of a resource that workers know: ``"team/NAME"``.
    """

    def __init__(
        self,
        name: str,
        input: RunInput,  # noqa: A002  # the manifest's name of the field
        *,
        targets: Sequence[ResourceDefinition | str],
        parameters: Mapping[str, ValueInput] | None = None,
        timeout: str | None = None,
        budget: Mapping[str, Any] | None = None,
        conversation: str | None = None,
        notify: Sequence[Mapping[str, Any]] | None = None,
        namespace: str = "default",
    ) -> None:
        check_mapping(budget, "budget")
        check_list(notify or (), "notify", expected="a list of webhooks such as {'url': 'https://…'}")
        what = "a list of agents, teams, models, Manifests, or names such as 'team/NAME'"
        check_list(targets, "targets", (ResourceDefinition, str), what)
        definitions = [target for target in targets if isinstance(target, ResourceDefinition)]
        dependencies = Dependencies()
        dependencies.definitions.extend(definitions)
        dependencies.names_workers = len(definitions) < len(targets)
        spec = {
            "targets": [_target(target) for target in targets],
            "parameters": _parameters(parameters),
            "timeout": timeout,
            "conversation_id": conversation,
            "budget": budget,
            "notify": notify,
        }
        super().__init__(
            "Query",
            name,
            {**input_fields(input), **spec_fields(spec)},  # OpenAI's names of parts have underscores
            namespace=namespace,
            dependencies=dependencies,
            output_model=definitions[0].output_model if len(targets) == len(definitions) == 1 else None,
        )


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

    time_zone: str | None
    overlap_policy: OverlapPolicy | None
    catchup_window: str | None
    jitter: str | None
    pause_on_failure: bool | None
    paused: bool | None
    note: str | None


class ScheduleDefinition(ResourceDefinition):
    """When to start a ``Query``: ``schedule`` is a cron expression, or ``@every 10m``."""

    @with_options_in_signature
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
