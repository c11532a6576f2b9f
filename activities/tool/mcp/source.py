"""Tools of ``type: mcp``: a server lists them when a run begins, and using one asks that server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ....conversation.errors import InvalidManifest
from ....resources.base import JsonObject
from ....resources.catalog import Catalog
from ....resources.mcp_server import MCPServer
from ....resources.tool import Tool
from ...context.lookup import find
from ...context.value_resolver import ValueResolver
from ...process.secrets import SecretStore
from ..tool import CallableTool, ToolContext, ToolDefinition
from .endpoint import McpEndpoint, endpoint_of
from .pinned_tools import ListedTool, with_listed_tools

if TYPE_CHECKING:
    from .connection import McpConnections

# The library takes half a second to load, and few workers have MCP servers: it is imported where it is used.


class McpTools:
    """A ``ToolSource`` (ARK: queries, MCP tools)."""

    def __init__(self, secrets: SecretStore) -> None:
        self._private = secrets.allows_private_hosts
        self._redact = secrets.redact_partial
        self._opened: McpConnections | None = None

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The one tool of a manifest, which was completed when its run was pinned: no server is asked."""
        manifest, values = context.manifest, context.values
        server = _server_of(manifest, values) if manifest else None
        if manifest is None or server is None:
            raise InvalidManifest(f"the tool {context.name} has no MCPServer")
        hints = manifest.spec.annotations
        safe = bool(hints and (hints.read_only_hint or hints.idempotent_hint))

        async def use(arguments: JsonObject) -> str:
            from .content import result_text  # noqa: PLC0415
            from .operations import use_tool  # noqa: PLC0415
            from .request import McpRequest  # noqa: PLC0415

            request = McpRequest(
                self._connections(),
                self._endpoint(server, values),
                repeatable=context.repeatable or safe,
                begin_once=context.begin_once,
            )
            result = await request.send(use_tool(manifest.mcp_name, arguments, server.id), server.timeout)
            return result_text(result, self._redact)

        return [CallableTool(ToolDefinition(context.name, manifest.model_description, manifest.spec.input_schema), use)]

    async def pin(self, values: ValueResolver) -> Catalog:
        """The catalog with the tools that its MCPServers list now; raises ToolFailed if one can't be asked."""
        servers = [each for each in values.catalog.manifests if isinstance(each, MCPServer)]
        if not servers:
            return values.catalog
        tools = await asyncio.gather(*(self._list(each, values) for each in servers))
        listed = {server.id: each for server, each in zip(servers, tools, strict=True)}
        return await asyncio.to_thread(with_listed_tools, values.catalog, listed)

    async def _list(self, server: MCPServer, values: ValueResolver) -> list[ListedTool]:
        from .operations import list_tools  # noqa: PLC0415
        from .request import McpRequest  # noqa: PLC0415

        request = McpRequest(self._connections(), self._endpoint(server, values))
        return await request.send(list_tools, server.timeout)

    def _endpoint(self, server: MCPServer, values: ValueResolver) -> Callable[[bool], Awaitable[McpEndpoint]]:
        async def endpoint(anew: bool) -> McpEndpoint:
            current = await values.with_current_secrets() if anew else values
            return endpoint_of(server, current, private=self._private)

        return endpoint

    def _connections(self) -> "McpConnections":
        from .connection import McpConnections  # noqa: PLC0415

        self._opened = self._opened or McpConnections()
        return self._opened

    async def close(self) -> None:
        """Closes the connections, and ends the servers that are processes."""
        if self._opened:
            await self._opened.close()


def _server_of(tool: Tool, values: ValueResolver) -> MCPServer | None:
    reference = tool.mcp_server()
    server = find(values.catalog, reference) if reference else None
    return server if isinstance(server, MCPServer) else None
