"""``kind: Tool``: a tool for the model of an agent (ARK: queries, tool execution)."""

import json
import re
from collections.abc import Collection, Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from .agent import BUILT_INS
from .approval import Approval
from .base import (
    FieldError,
    JsonModel,
    JsonObject,
    Name,
    NameOrRef,
    Path,
    Pattern,
    Ref,
    Reference,
    Text,
    parse_duration,
)
from .json_schema import JsonSchema
from .manifest import CircuitBreaker, Manifest
from .retry_policy import RetryPolicy
from .strategies import OWN_WORKFLOWS
from .template import names_in, with_places_as
from .values import Headers, Parameter, PresetArguments, TextOrValue, ValueSource, check_url

DELEGATE_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "What is asked, with all that is needed to answer it."}},
    "required": ["input"],
}
"""The default schema of a tool of type 'agent' or 'team' (ARK: agents as tools)."""


class Annotations(JsonModel):
    """Hints about a tool, with the names of MCP."""

    title: str | None = Field(None, description="a name for people")
    read_only_hint: bool | None = Field(None, description="true if it changes nothing: calls may be repeated")
    destructive_hint: bool | None = Field(None, description="whether it may delete or overwrite something")
    idempotent_hint: bool | None = Field(None, description="true if a repeated call has no further effect")
    open_world_hint: bool | None = Field(None, description="whether it reaches systems outside of its server")


class McpSpec(JsonModel):
    """A tool of an MCP server."""

    mcp_server_ref: Ref | None = Field(None, description="the MCPServer")
    tool_name: str | None = Field(None, description="the tool's name on that server")


class NameRef(JsonModel):
    """The name of an agent or a team, in the namespace of the tool."""

    name: Name = Field(description="its name")


class FunctionName(JsonModel):
    """The name of a function: a Python function registered with the worker, or a tool of an MCP server."""

    name: Text = Field(description="its name")


def _as_function(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


TextOrFunction = Annotated[FunctionName, BeforeValidator(_as_function, json_schema_input_type=Text | FunctionName)]
"""The name of a function; in a manifest also a plain text, as ARK writes it."""


Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

_SPELLED = Pattern(r"0*[1-9][0-9]{0,6}[smh]?", "is not a timeout: write '30s', '5m' or '30' for seconds")
ARGUMENT = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
"""An argument of the tool call, in a URL from which ``{{parameter}}`` placeholders were removed."""


def arguments_in(template: str) -> list[str]:
    """The arguments ``{argument}`` in a URL; a ``{{parameter}}`` is not one."""
    return ARGUMENT.findall(with_places_as("", template))


def timeout_seconds(timeout: str) -> float:
    """The seconds of a timeout, which is a duration or a number of seconds; raises ValueError."""
    return parse_duration(f"{timeout}s" if timeout.isdecimal() else timeout).total_seconds()


def _check_timeout(text: str) -> str:
    timeout_seconds(_SPELLED.check(text))
    return text


Timeout = Annotated[str, _SPELLED, AfterValidator(_check_timeout)]


def _check_template(text: str) -> str:
    names_in(text)
    return text


def _check_address(text: str) -> str:
    begun = with_places_as("http://x", text, count=1) if _check_template(text).startswith("{{") else text
    check_url(ARGUMENT.sub("x", with_places_as("x", begun)))
    return text


class HttpSpec(JsonModel):
    """An HTTP request.

    ``{name}`` in the URL is an argument of the tool call, ``{{name}}`` a parameter, ``{{input.name}}`` in the body an
    argument. A parameter at the start of the URL is the base address.
    """

    url: Annotated[str, AfterValidator(_check_address)] = Field(description="the address, with http:// or https://")
    method: Method = Field("GET", description="the request's method")
    headers: Headers = Field((), description="headers of the request")
    timeout: Timeout = Field("30s", description="how long a response may take, such as '30s'")
    body: Annotated[str, AfterValidator(_check_template)] | None = Field(None, description="the body's template")
    body_parameters: tuple[Parameter, ...] = Field((), description="values for the body's template")

    @property
    def seconds(self) -> float:
        """The timeout in seconds."""
        return timeout_seconds(self.timeout)


def _check_url(text: str) -> str:
    check_url(text)
    return text


Url = Annotated[str, AfterValidator(_check_url)]
"""An HTTP address."""


class OpenApiSpec(JsonModel):
    """An OpenAPI document, 3.0 or 3.1. All of its operations with an ``operationId`` become tools."""

    url: Url | None = Field(None, description="the document's address")
    document: TextOrValue | None = Field(None, description="the document itself, as text, or {valueFrom: …}")
    base_url: Url | None = Field(None, description="the address of the operations, if it is not the document's server")
    operations: tuple[Text, ...] = Field(("*",), description="the operationIds that are tools; * matches any text")
    headers: Headers = Field((), description="headers of each request, also of that for the document")
    timeout: Timeout = Field("30s", description="how long a response may take, such as '30s'")

    @property
    def seconds(self) -> float:
        """The timeout in seconds."""
        return timeout_seconds(self.timeout)

    @model_validator(mode="after")
    def _one_document(self) -> Self:
        if (self.url is None) == (self.document is None):
            raise FieldError(("url",), "needs either url or document")
        return self


OWN_ACTIVITIES = frozenset(
    {
        "admit_run",
        "append",
        "ask_model",
        "ask_person",
        "audit",
        "brief",
        "cancel_agent",
        "check_arguments",
        "check_identity",
        "check_reply",
        "conclude",
        "delegate",
        "evaluate",
        "execute_agent",
        "expire",
        "grant",
        "last_failures",
        "notify",
        "perform",
        "pin",
        "read_failed_run",
        "read_fork",
        "recall",
        "release_run",
        "remember",
        "review",
        "select",
        "use_tool",
    }
)
"""Baton's own activity types, which no tool may call."""


TemporalName = Annotated[Text, Field(min_length=1, max_length=250)]
"""The name of an activity type or a task queue, which has at most 1,000 bytes in Temporal."""


class ApplicationSpec(JsonModel):
    """What a run calls in an application, as any workflow does, on a worker in any language.

    It gets the arguments of the tool call as one JSON object, or as the positional ``arguments``.
    """

    type: TemporalName = Field(description="its type in Temporal")
    task_queue: TemporalName | None = Field(
        None, description="the task queue of the workers that execute it; by default that of the run"
    )
    arguments: tuple[Text, ...] | None = Field(
        None, description="the properties of inputSchema that are its positional arguments, instead of one JSON object"
    )

    @field_validator("task_queue")
    @classmethod
    def _is_not_reserved(cls, value: str | None) -> str | None:
        if value and value.startswith("/_sys/"):
            raise ValueError("begins with '/_sys/', which Temporal reserves for itself")
        return value

    @field_validator("arguments")
    @classmethod
    def _distinct(cls, arguments: tuple[str, ...] | None) -> tuple[str, ...] | None:
        names = arguments or ()
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"'{twice}' appears twice")
        return arguments


class ActivitySpec(ApplicationSpec):
    """An activity of an application."""

    heartbeat_timeout: Timeout | None = Field(
        None, description="the longest time between two heartbeats; by default it needs to send none"
    )
    schedule_to_start_timeout: Timeout = Field(
        "5m", description="how long it may wait for a worker of its task queue before the call fails"
    )

    @field_validator("type")
    @classmethod
    def _is_foreign(cls, value: str) -> str:
        if value in OWN_ACTIVITIES:
            raise ValueError(f"'{value}' is an activity of Baton: a tool calls activities of an application")
        return value


IdReusePolicy = Literal["AllowDuplicate", "AllowDuplicateFailedOnly", "RejectDuplicate"]


class WorkflowSpec(ApplicationSpec):
    """A workflow of an application, which the run starts as a child workflow. Its id is that of the call."""

    id_reuse_policy: IdReusePolicy = Field(
        "AllowDuplicate",
        description="whether it is started again for a call that a reset run repeats: 'AllowDuplicate', "
        "'AllowDuplicateFailedOnly' or 'RejectDuplicate'",
    )

    @field_validator("type")
    @classmethod
    def _is_foreign(cls, value: str) -> str:
        if value in OWN_WORKFLOWS:
            raise ValueError(f"'{value}' is a workflow of Baton: a tool of type 'agent' or 'team' starts it")
        return value


ToolType = Literal["http", "mcp", "agent", "team", "function", "activity", "workflow", "openapi", "built-in", "builtin"]

ARGUMENTS = "input."
"""The prefix of a tool call's arguments in the templates of a tool."""

PLURALS = {"activity": "activities", "workflow": "workflows"}
"""What tools of these types call in an application."""

BUILT_IN_TYPES: tuple[ToolType, ...] = ("built-in", "builtin")

_NEEDS = {
    "http": "{url}",
    "mcp": "{mcpServerRef, toolName}",
    "openapi": "{url}",
    "agent": "{name}",
    "team": "{name}",
    "function": "{name}",
    "activity": "{type}",
    "workflow": "{type}",
}
_BELONGS: dict[str, tuple[ToolType, ...]] = {
    "http": ("http",),
    "circuit_breaker": ("http",),
    "mcp": ("mcp",),
    "mcp_server": ("mcp",),
    "function": ("function", "mcp"),
    "agent": ("agent",),
    "team": ("team",),
    "activity": ("activity",),
    "workflow": ("workflow",),
    "timeout": ("activity", "workflow", "function"),
    "openapi": ("openapi",),
    "builtin": ("builtin",),
}
"""The types of tools that use a field."""


class ToolSpec(JsonModel):
    """The ``spec`` of a Tool."""

    type: ToolType = Field(
        description="'http', 'mcp', 'agent', 'team', 'function', 'activity', 'workflow', 'openapi' or 'built-in'"
    )
    description: str | None = Field(None, description="a description for the model")
    input_schema: JsonSchema = Field(
        {"type": "object", "properties": {}}, description="a JSON Schema of the tool's arguments"
    )
    parameters: tuple[Parameter, ...] = Field((), description="values for the request's templates")
    partial: PresetArguments | None = Field(
        None, description="{parameters} of arguments that the model does not choose"
    )
    untrusted_content: bool = Field(True, description="whether its result is marked as untrusted for the model")
    annotations: Annotations | None = Field(None, description="hints about its effects, as in MCP")
    approval: Approval | None = Field(None, description="which of its calls require human approval")
    http: HttpSpec | None = Field(None, description="the request of a tool of type 'http'")
    mcp: McpSpec | None = Field(None, description="the server and tool of a tool of type 'mcp'")
    mcp_server: NameOrRef | None = Field(None, description="the MCPServer, if mcp is not set")
    function: TextOrFunction | None = Field(
        None, description="{name} of the Python function of a tool of type 'function'; the tool's name on mcpServer"
    )
    agent: NameRef | None = Field(None, description="{name} of the Agent that a tool of type 'agent' calls")
    team: NameRef | None = Field(None, description="{name} of the Team that a tool of type 'team' calls")
    activity: ActivitySpec | None = Field(
        None,
        description="{type, taskQueue, arguments} of an application's activity that a tool of type 'activity' calls",
    )
    workflow: WorkflowSpec | None = Field(
        None,
        description="{type, taskQueue, arguments} of an application's workflow that a tool of type 'workflow' starts",
    )
    timeout: Timeout | None = Field(
        None,
        description="how long one attempt of a tool of type 'activity' or 'function' may take, such as '30s', by "
        "default 5 minutes; "
        "or how long a workflow may take in all, by default without a limit",
    )
    builtin: NameRef | None = Field(None, description="{name} of the built-in tool, which is the name of the Tool")
    circuit_breaker: CircuitBreaker | None = Field(
        None,
        description="{failures, window, openFor, onOpen}: opens a circuit breaker if a server fails often; for 'http'",
    )
    openapi: OpenApiSpec | None = Field(None, description="the document of a tool of type 'openapi'")
    retry_policy: RetryPolicy | None = Field(
        None, description="how often a call is attempted: {maximumAttempts, initialInterval, maximumInterval}"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.type == "mcp" and not self.mcp and (self.mcp_server or self.function):
            if not (self.mcp_server and self.function):
                raise FieldError(("function" if self.mcp_server else "mcpServer",), "is missing")
        elif self.type not in BUILT_IN_TYPES and getattr(self, self.type) is None:
            raise FieldError((self.type,), f"is missing: a tool of type '{self.type}' needs {_NEEDS[self.type]}")
        for name, types in _BELONGS.items():
            if getattr(self, name) is not None and self.type not in types:
                alias = type(self).model_fields[name].alias or name
                raise FieldError((alias,), f"can't be used for a tool of type '{self.type}': remove it")
        if self.retry_policy and self.type in ("agent", "team", *BUILT_IN_TYPES):
            raise FieldError(("retryPolicy",), f"can't be used for a tool of type '{self.type}': remove it")
        if self.http:
            self._check_request(self.http)
        if self.mcp:
            self._check_mcp(self.mcp)
        if self.application and self.application.arguments is not None:
            self._check_arguments(self.application.arguments)
        return self

    def presets_for(self, schema: JsonObject) -> PresetArguments | None:
        """The preset arguments that a generated tool with this schema has."""
        if self.partial is None:
            return None
        properties = schema.get("properties")
        names = properties if isinstance(properties, dict) else ()
        presets = tuple(preset for preset in self.partial.parameters if preset.name in names)
        return PresetArguments(parameters=presets) if presets else None

    @property
    def application(self) -> ApplicationSpec | None:
        """The activity or the workflow of an application that the tool calls; None for other types."""
        return self.activity or self.workflow

    @property
    def seconds(self) -> float | None:
        """The timeout of one attempt in seconds; None for the default."""
        return timeout_seconds(self.timeout) if self.timeout else None

    def _check_arguments(self, arguments: tuple[str, ...]) -> None:
        properties = self.input_schema.get("properties")
        known = [*properties] if isinstance(properties, dict) else []
        for index, name in enumerate(arguments):
            if name not in known:
                wrong = f"'{name}' is not a property of inputSchema; its properties: {', '.join(known) or 'none'}"
                raise FieldError((self.type, "arguments", index), wrong)
        if missing := [name for name in known if name not in arguments]:
            wrong = f"'{missing[0]}' of inputSchema is missing: the {self.type} would not get it"
            raise FieldError((self.type, "arguments"), wrong)

    def _check_mcp(self, mcp: McpSpec) -> None:
        if not (mcp.mcp_server_ref and mcp.tool_name):
            raise FieldError(("mcp", "toolName" if mcp.mcp_server_ref else "mcpServerRef"), "is missing")
        if self.mcp_server or self.function:
            raise FieldError(
                ("mcpServer" if self.mcp_server else "function",), "can't be combined with mcp: keep one of them"
            )

    def _check_request(self, http: HttpSpec) -> None:
        if http.body is not None and http.method in ("GET", "HEAD"):
            raise FieldError(("http", "body"), f"can't be used with {http.method}: remove it, or set another method")
        known = self.input_schema.get("properties")
        for name in arguments_in(http.url) if "input_schema" in self.model_fields_set else ():
            if name not in (known if isinstance(known, dict) else ()):
                listed = ", ".join(known) if isinstance(known, dict) and known else "none"
                wrong = f"'{{{name}}}' is not a property of inputSchema; its properties: {listed}"
                raise FieldError(("http", "url"), wrong)


def argument_for_text(schema: JsonObject, presets: Collection[str] = ()) -> str:
    """The argument that a text is for which is no JSON object: ``input``, as in ARK, if the schema has it or none.

    Otherwise it is the only argument, or the only required one; ``presets`` are not chosen by a text. Raises ValueError
    if it could be any of several.
    """
    properties = schema.get("properties")
    needed = schema.get("required")
    names = [name for name in (properties if isinstance(properties, dict) else ()) if name not in presets]
    required = [name for name in names if isinstance(needed, list) and name in needed]
    if "input" in names or not names:
        return "input"
    if len(names) > 1 and len(required) != 1:
        example = json.dumps(dict.fromkeys(required or names, "…"), ensure_ascii=False)
        raise ValueError(f"is a text, and the tool has the arguments {', '.join(names)}: write JSON, as in {example}")
    return (required or names)[0]


class Tool(Manifest):
    """An HTTP request, a tool of an MCP server, a function, an activity, a workflow, an agent or a team as a tool."""

    kind: Literal["Tool"] = "Tool"
    spec: ToolSpec = Field(description="what the tool does")

    @model_validator(mode="after")
    def _is_built_in(self) -> Self:
        if self.spec.type in BUILT_IN_TYPES and self.name not in BUILT_INS:
            raise FieldError(("metadata", "name"), f"is not a built-in tool; one of {', '.join(BUILT_INS)}")
        if self.spec.builtin and self.spec.builtin.name != self.name:
            raise FieldError(("spec", "builtin", "name"), f"must be '{self.name}', the name of the Tool itself")
        return self

    @property
    def address(self) -> ValueSource | None:
        """The URL of its request, a template, or of its OpenAPI document; None if it has none."""
        url = self.spec.http.url if self.spec.http else self.spec.openapi and self.spec.openapi.url
        return ValueSource(value=url) if url else None

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The tool's own parameters."""
        return (*self.spec.parameters, *(self.spec.http.body_parameters if self.spec.http else ()))

    @property
    def input_schema(self) -> JsonObject:
        """The JSON Schema of its arguments. Without one in the manifest, the arguments in a URL are required texts."""
        if "input_schema" in self.spec.model_fields_set:
            return self.spec.input_schema
        if self.asks:
            return DELEGATE_SCHEMA
        if in_url := self.arguments_without_schema:
            properties: JsonObject = {name: {"type": "string"} for name in in_url}
            return {"type": "object", "properties": properties, "required": [*in_url]}
        return self.spec.input_schema

    @property
    def arguments_without_schema(self) -> tuple[str, ...]:
        """The arguments in the URL of a tool that has no ``inputSchema``."""
        if self.spec.http is None or "input_schema" in self.spec.model_fields_set:
            return ()
        return tuple(dict.fromkeys(arguments_in(self.spec.http.url)))

    def described(self, description: str | None, input_schema: JsonObject, annotations: Annotations | None) -> "Tool":
        """The tool with its server's description, schema and annotations, unless its manifest has them."""
        spec = self.spec
        missing: dict[str, object] = {}
        if not (spec.description or "description" in self.metadata.annotations):
            missing["description"] = description
        if "input_schema" not in spec.model_fields_set:
            missing["input_schema"] = input_schema
        if spec.annotations is None and annotations:
            missing["annotations"] = annotations
        return self.model_copy(update={"spec": spec.model_copy(update=missing)})

    def with_approval(self, approval: Approval | None) -> "Tool":
        """The tool with another approval rule."""
        return self.model_copy(update={"spec": self.spec.model_copy(update={"approval": approval})})

    @property
    def asks(self) -> Reference | None:
        """The agent or the team that the tool delegates to; None for other types."""
        for name, ref in (("agent", self.spec.agent), ("team", self.spec.team)):
            if ref:
                return Reference(("spec", name, "name"), (name.capitalize(),), self.namespace, ref.name)
        return None

    @property
    def is_untrusted(self) -> bool:
        """Whether its results are marked as untrusted, unlike those of agents, teams and built-in tools."""
        return self.spec.untrusted_content and not self.asks and self.spec.type not in BUILT_IN_TYPES

    def _references(self) -> Iterator[Reference]:
        yield from super()._references()
        if server := self.mcp_server():
            yield server
        if self.asks:
            yield self.asks

    def mcp_server(self) -> Reference | None:
        """The MCPServer of a tool of type 'mcp'."""
        if self.spec.mcp and self.spec.mcp.mcp_server_ref:
            return self._refer(("spec", "mcp", "mcpServerRef", "name"), ("MCPServer",), self.spec.mcp.mcp_server_ref)
        if self.spec.mcp_server:
            return self._refer(("spec", "mcpServer", "name"), ("MCPServer",), self.spec.mcp_server)
        return None

    @property
    def mcp_name(self) -> str:
        """The name of a tool of type 'mcp' on its server, or a pattern with ``*``."""
        return (self.spec.mcp and self.spec.mcp.tool_name) or (self.spec.function and self.spec.function.name) or ""

    def templates(self) -> Iterator[tuple[Path, str]]:
        """The templates of the request, with their paths."""
        if http := self.spec.http:
            yield ("spec", "http", "url"), http.url
            for index, header in enumerate(http.headers):
                yield ("spec", "http", "headers", index, "value"), header.value.value or ""
            yield ("spec", "http", "body"), http.body or ""

    @property
    def own_description(self) -> str | None:
        """The description in its manifest."""
        return self.spec.description or self.metadata.annotations.get("description")

    @property
    def model_description(self) -> str:
        """The description for models, unless an agent has its own."""
        if self.asks and not self.own_description:
            return f"Asks the {self.asks.kinds[0].lower()} {self.asks.name}."
        default = f"HTTP request to {self.spec.http.url}" if self.spec.http else f"Custom tool: {self.name}"
        return self.own_description or default
