"""``kind: MCPServer``: a server of tools with the Model Context Protocol (ARK: queries, MCP tools)."""

from typing import Literal

from pydantic import Field

from .base import JsonModel
from .duration import Duration
from .manifest import Manifest
from .values import Address, Headers


class MCPServerSpec(JsonModel):
    """The ``spec`` of an MCPServer."""

    address: Address = Field(description="the server's address, as {value: ADDRESS}")
    transport: Literal["http", "sse"] = Field("http", description="'http' for streamable HTTP, or 'sse'")
    headers: Headers = Field((), description="headers of each request")
    timeout: Duration = Field("30s", description="how long an answer may take, such as '30s'")
    poll_interval: Duration | None = Field(None, description="how often its tools are listed again")
    description: str | None = Field(None, description="a description for people")


class MCPServer(Manifest):
    """A server whose tools agents can use."""

    kind: Literal["MCPServer"] = "MCPServer"
    spec: MCPServerSpec = Field(description="the address and the transport of the server")
