"""Tools of ``type: mcp``: their server lists them when a run is pinned, and executes their calls."""

import asyncio
import importlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ....contracts.errors import InvalidManifest, NotCarriedOut, ToolFailed
from ....installation import missing_extra
from ....journal.leases import Lease
from ....journal.token_store import TokenStore
from ....observability.spans import call_span
from ....resources.agent import Agent
from ....resources.base import JsonObject, Reference
from ....resources.catalog import Catalog
from ....resources.mcp_server import MCPServer
from ....resources.query import Query
from ....resources.run_catalog import RunCatalog
from ....resources.tool import Tool
from ....temporal.threads import COMPUTING
from ...context.lookup import mcp_server_of
from ...context.value_resolver import ValueResolver
from ...runtime.secrets import SecretStore
from ..tool import CallableTool, ResultWithFiles, ToolContext, ToolDefinition
from .endpoint import McpEndpoint, endpoint_of
from .pinned_tools import ListedTool, with_listed_tools


def users_of(server: MCPServer, catalog: Catalog) -> Sequence[Agent | Query]:
    """The agents and queries that use a server."""

    def is_used(reference: Reference) -> bool:
        resource = catalog.find(reference)
        return (mcp_server_of(resource, catalog) if isinstance(resource, Tool) else resource) is server

    users: list[Agent | Query] = []
    for manifest in catalog.manifests:
        used = [reference for _, reference in manifest.tools() if reference] if isinstance(manifest, Agent) else ()
        targets = catalog.targets(manifest) if isinstance(manifest, Query) else ()
        if isinstance(manifest, Agent | Query) and any(map(is_used, (*used, *targets))):
            users.append(manifest)
    return users


if TYPE_CHECKING:
    from .access_tokens import AccessTokens
    from .connection import McpConnections
    from .request import CurrentEndpoint

# Loading the MCP library takes half a second, and few workers have MCP servers: it is imported when it is used.


async def _load(server: MCPServer) -> None:
    """Loads the MCP library in a thread, as that takes half a second. Raises NotCarriedOut if it is not installed."""
    if missing := missing_extra("mcp", "an MCPServer"):
        raise NotCarriedOut(f"{server.id}: {missing}")
    for module in ("connection", "access_tokens"):
        await COMPUTING.run(importlib.import_module, f"{__package__}.{module}")


class McpTools:
    """A ``ToolSource`` (ARK: queries, MCP tools)."""

    def __init__(
        self, secrets: SecretStore, tokens: TokenStore | None = None, max_connections: int | None = None
    ) -> None:
        self._secrets = secrets
        self._store = tokens
        self._max_connections = max_connections
        self._redact = secrets.redact_partial
        self._opened: McpConnections | None = None
        self._access_tokens: AccessTokens | None = None

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The single tool of a manifest, which was completed when the run was pinned, so this sends no request."""
        manifest = context.manifest
        values = context.values
        server = mcp_server_of(manifest, values.catalog) if manifest else None
        if manifest is None or server is None:
            raise InvalidManifest(f"the tool {context.name} has no MCPServer")
        hints = manifest.spec.annotations
        is_idempotent = bool(hints and (hints.read_only_hint or hints.idempotent_hint))

        async def use(arguments: JsonObject, lease: Lease) -> str | ResultWithFiles:
            await _load(server)
            from .input import Elicitation  # noqa: PLC0415
            from .request import McpRequest, result_files, result_text, use_tool  # noqa: PLC0415

            request = McpRequest(
                self._connections(),
                self._endpoint(server, values),
                repeatable=context.repeatable or is_idempotent,
                begin_once=partial(lease.send_once, context.name),
            )
            name = manifest.mcp_name
            asks = Elicitation(f"{server.id}, tool {name},", context.answered) if server.spec.questions else None
            result = await request.send(use_tool(name, arguments, server.id, asks), server.call_timeout, asks)
            text = result_text(result, self._redact)
            files = result_files(result)
            return ResultWithFiles(text, files) if files else text

        definition = ToolDefinition(context.name, manifest.model_description, manifest.spec.input_schema)
        return [CallableTool(definition, use, context.provenance)]

    async def pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog with the tools that its MCPServers list now. Raises ToolFailed if one of them fails."""
        servers = [manifest for manifest in values.catalog.manifests if isinstance(manifest, MCPServer)]
        if not servers:
            return values.catalog
        results = await asyncio.gather(*(self._list_for_users(server, values) for server in servers))
        listed = {
            server.id: result for server, result in zip(servers, results, strict=True) if not isinstance(result, str)
        }
        catalog = await COMPUTING.run(with_listed_tools, values.catalog, listed, self._redact)
        notices = [notice for notice in results if isinstance(notice, str)]
        return catalog.with_notices(notices) if notices else catalog

    async def _list_for_users(self, server: MCPServer, values: ValueResolver) -> list[ListedTool] | str:
        """The tools of a server, listed with the headers of the first agent that uses it; or a notice that it failed.

        Raises ToolFailed for a failure unless all users continue without the tools; it is final if one of them has to
        fail.
        """
        users = users_of(server, values.catalog)
        first = next((user for user in users if isinstance(user, Agent)), None)
        try:
            with call_span("list_tools", server.name, lambda: {"baton.mcp_server": server.id}, label=server.id):
                return await self._list(server, values.used_by(first))
        except ToolFailed as failed:
            policies = {user.spec.on_tools_unavailable if isinstance(user, Agent) else None for user in users}
            if policies == {"continue"}:
                names = ", ".join(user.name for user in users)
                return self._redact(f"{names}: without the tools of {server.id}: {failed.message}")
            raise ToolFailed(failed.message, retryable="fail" not in policies and not failed.non_retryable) from None

    async def _list(self, server: MCPServer, values: ValueResolver) -> list[ListedTool]:
        await _load(server)
        from .request import McpRequest, list_tools  # noqa: PLC0415

        request = McpRequest(self._connections(), self._endpoint(server, values))
        return await request.send(list_tools, server.timeout)

    def _endpoint(self, server: MCPServer, values: ValueResolver) -> "CurrentEndpoint":
        token = ""

        async def endpoint(reread: bool, unauthorized: bool) -> McpEndpoint:
            nonlocal token
            current = await values.with_current_secrets() if reread else values
            current_endpoint = endpoint_of(server, current)
            if not server.spec.authorization or current_endpoint.is_authorized:
                return current_endpoint
            token = await self._tokens().of(server, current, token if unauthorized else "")
            return current_endpoint.with_token(token)

        return endpoint

    def _tokens(self) -> "AccessTokens":
        from .access_tokens import AccessTokens, TokenClient  # noqa: PLC0415

        if self._access_tokens is None:
            self._access_tokens = AccessTokens(self._store, TokenClient(self._redact), self._secrets.remember)
        return self._access_tokens

    def _connections(self) -> "McpConnections":
        from .connection import MAX_CONNECTIONS, McpConnections  # noqa: PLC0415

        self._opened = self._opened or McpConnections(most=self._max_connections or MAX_CONNECTIONS)
        return self._opened

    async def close(self) -> None:
        """Closes the connections, stops server processes, and waits for running token refreshes."""
        if self._access_tokens:
            await self._access_tokens.close()
        if self._opened:
            await self._opened.close()
