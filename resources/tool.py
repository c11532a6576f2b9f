"""``kind: Tool``: a tool for the model of an agent (ARK: queries, tool execution)."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from .agent import BUILT_INS
from .base import FieldError, JsonModel, Name, NameOrRef, NotSupportedYet, Path, Pattern, Ref, Reference, Text
from .json_schema import JsonSchema
from .manifest import Manifest
from .template import names_in
from .values import Headers, Parameter, check_url

ToolType = Literal["http", "mcp", "agent", "team", "built-in", "builtin"]

BUILT_IN_TYPES: tuple[ToolType, ...] = ("built-in", "builtin")

_NEEDS = {"http": "{url}", "mcp": "{mcpServerRef, toolName}", "agent": "{name}", "team": "{name}"}
_BELONGS = {"http": "http", "mcp": "mcp", "mcp_server": "mcp", "function": "mcp", "agent": "agent", "team": "team"}
"""The type of tool for which each field is."""

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

Timeout = Annotated[str, Pattern(r"0*[1-9][0-9]{0,6}[smh]?", "is not a timeout: write '30s', '5m' or '30' for seconds")]
ARGUMENT = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
"""An argument of the tool call, in a URL without its ``{{parameter}}`` placeholders."""

_PARAMETER = re.compile(r"\{\{.*?\}\}")


def arguments_in(template: str) -> list[str]:
    """The arguments ``{argument}`` in a URL; a ``{{parameter}}`` is not one."""
    return ARGUMENT.findall(_PARAMETER.sub("", template))


def _check_template(text: str) -> str:
    names_in(text)
    return text


def _check_address(text: str) -> str:
    begun = _PARAMETER.sub("http://x", text, count=1) if _check_template(text).startswith("{{") else text
    check_url(ARGUMENT.sub("x", _PARAMETER.sub("x", begun)))
    return text


class Annotations(JsonModel):
    """Hints about a tool, with the names of MCP."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


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
        number = self.timeout.rstrip("smh")
        return int(number) * {"m": 60, "h": 3600}.get(self.timeout[len(number) :], 1)


class McpSpec(JsonModel):
    """A tool of an MCP server."""

    mcp_server_ref: Ref | None = Field(None, description="the MCPServer")
    tool_name: str | None = Field(
        None, description="the tool's name on that server; with * it stands for all tools that fit, as in 'read_*'"
    )


class NameRef(JsonModel):
    """The name of an agent or a team, in the namespace of the tool."""

    name: Name = Field(description="its name")


class ToolSpec(JsonModel):
    """The ``spec`` of a Tool."""

    type: Annotated[ToolType, NotSupportedYet(frozenset({"agent", "team"}))] = Field(
        description="'http', 'mcp', 'agent', 'team' or 'built-in'"
    )
    description: str | None = Field(None, description="a description for the model")
    input_schema: JsonSchema = Field(
        {"type": "object", "properties": {}}, description="a JSON Schema of the tool's arguments"
    )
    parameters: tuple[Parameter, ...] = Field((), description="values for the request's templates")
    annotations: Annotations | None = None
    http: HttpSpec | None = Field(None, description="the request of a tool of type 'http'")
    mcp: McpSpec | None = Field(None, description="the server and tool of a tool of type 'mcp'")
    mcp_server: NameOrRef | None = Field(None, description="the MCPServer, where there is no mcp")
    function: Text | None = Field(None, description="the tool's name on mcpServer")
    agent: NameRef | None = Field(None, description="{name} of the Agent that a tool of type 'agent' asks")
    team: NameRef | None = Field(None, description="{name} of the Team that a tool of type 'team' asks")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.type == "mcp" and not self.mcp and (self.mcp_server or self.function):
            if not (self.mcp_server and self.function):
                raise FieldError(("function" if self.mcp_server else "mcpServer",), "is missing")
        elif self.type not in BUILT_IN_TYPES and getattr(self, self.type) is None:
            raise FieldError((self.type,), f"is missing: a tool of type '{self.type}' needs {_NEEDS[self.type]}")
        for name, kind in _BELONGS.items():
            if getattr(self, name) is not None and kind != self.type:
                alias = type(self).model_fields[name].alias or name
                raise FieldError((alias,), f"can't be used for a tool of type '{self.type}': remove it")
        if self.http:
            self._check_request(self.http)
        if self.mcp:
            self._check_mcp(self.mcp)
        return self

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
        for name in arguments_in(http.url):
            if name not in (known if isinstance(known, dict) else ()):
                listed = ", ".join(known) if isinstance(known, dict) and known else "none"
                wrong = f"'{{{name}}}' is not a property of inputSchema; its properties: {listed}"
                raise FieldError(("http", "url"), wrong)


class Tool(Manifest):
    """An HTTP request, a tool of an MCP server, or an agent or a team as a tool."""

    kind: Literal["Tool"] = "Tool"
    spec: ToolSpec = Field(description="what the tool does")

    @model_validator(mode="after")
    def _is_built_in(self) -> Self:
        if self.spec.type in BUILT_IN_TYPES and self.name not in BUILT_INS:
            raise FieldError(("metadata", "name"), f"is not a built-in tool; one of {', '.join(BUILT_INS)}")
        return self

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The tool's own parameters."""
        return (*self.spec.parameters, *(self.spec.http.body_parameters if self.spec.http else ()))

    def references(self) -> Iterator[Reference]:
        yield from super().references()
        if server := self.mcp_server():
            yield server
        for name, behind in (("agent", self.spec.agent), ("team", self.spec.team)):
            if behind:
                yield Reference(("spec", name, "name"), (name.capitalize(),), self.namespace, behind.name)

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
        return (self.spec.mcp and self.spec.mcp.tool_name) or self.spec.function or ""

    def templates(self) -> Iterator[tuple[Path, str]]:
        """The templates of the request, each with its path."""
        if http := self.spec.http:
            yield ("spec", "http", "url"), http.url
            for index, header in enumerate(http.headers):
                yield ("spec", "http", "headers", index, "value"), header.value.value or ""
            yield ("spec", "http", "body"), http.body or ""

    @property
    def model_description(self) -> str:
        """The description for models, unless an agent has its own."""
        given = self.spec.description or self.metadata.annotations.get("description")
        return given or (f"HTTP request to {self.spec.http.url}" if self.spec.http else f"Custom tool: {self.name}")
