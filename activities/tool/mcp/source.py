"""Tools of ``type: mcp``: a server lists them when a run begins, and using one asks that server."""

import asyncio
import importlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ....contracts.errors import InvalidManifest, ToolFailed
from ....journal.token_store import TokenStore
from ....resources.agent import Agent
from ....resources.base import JsonObject, Reference
from ....resources.catalog import Catalog
from ....resources.mcp_server import MCPServer
from ....resources.query import Query
from ....resources.tool import Tool
from ...context.lookup import mcp_server_of
from ...context.value_resolver import ValueResolver
from ...runtime.secrets import SecretStore
from ..tool import CallableTool, ToolContext, ToolDefinition
from .endpoint import McpEndpoint, endpoint_of
from .pinned_tools import ListedTool, with_listed_tools


def users_of(server: MCPServer, catalog: Catalog) -> Sequence[Agent | Query]:
    """The agents and queries that use a server, by their ids."""

    def is_used(reference: Reference) -> bool:
        found = catalog.find(reference)
        return (mcp_server_of(found, catalog) if isinstance(found, Tool) else found) is server

    found: list[Agent | Query] = []
    for each in catalog.manifests:
        used = [reference for _, reference in each.tools() if reference] if isinstance(each, Agent) else ()
        targets = catalog.targets(each) if isinstance(each, Query) else ()
        if isinstance(each, Agent | Query) and any(map(is_used, (*used, *targets))):
            found.append(each)
    return found


if TYPE_CHECKING:
    from .access_tokens import AccessTokens
    from .connection import McpConnections
    from .request import CurrentEndpoint

# The library takes half a second to load, and few workers have MCP servers: it is imported where it is used.


async def _load() -> None:
    """Loads the library of MCP in a thread, for the half second that it takes: only runs with such tools need it."""
    for module in ("connection", "access_tokens"):
        await asyncio.to_thread(importlib.import_module, f"{__package__}.{module}")


class McpTools:
    """A ``ToolSource`` (ARK: queries, MCP tools)."""

    def __init__(self, secrets: SecretStore, tokens: TokenStore | None = None) -> None:
        self._secrets = secrets
        self._store = tokens
        self._private = secrets.allows_private_hosts
        self._redact = secrets.redact_partial
        self._opened: McpConnections | None = None
        self._kept: AccessTokens | None = None

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The one tool of a manifest, which was completed when its run was pinned: no server is asked."""
        manifest = context.manifest
        values = context.values
        server = mcp_server_of(manifest, values.catalog) if manifest else None
        if manifest is None or server is None:
            raise InvalidManifest(f"the tool {context.name} has no MCPServer")
        hints = manifest.spec.annotations
        safe = bool(hints and (hints.read_only_hint or hints.idempotent_hint))

        async def use(arguments: JsonObject) -> str:
            await _load()
            from .input import Elicitation  # noqa: PLC0415
            from .request import McpRequest, result_text, use_tool  # noqa: PLC0415

            request = McpRequest(
                self._connections(),
                self._endpoint(server, values),
                repeatable=context.repeatable or safe,
                begin_once=context.begin_once,
            )
            name = manifest.mcp_name
            asks = Elicitation(f"{server.id}, tool {name},", context.answered) if server.spec.questions else None
            result = await request.send(use_tool(name, arguments, server.id, asks), server.call_timeout, asks)
            return result_text(result, self._redact)

        return [CallableTool(ToolDefinition(context.name, manifest.model_description, manifest.spec.input_schema), use)]

    async def pin(self, values: ValueResolver) -> Catalog:
        """The catalog with the tools that its MCPServers list now; raises ToolFailed if one can't be asked."""
        servers = [each for each in values.catalog.manifests if isinstance(each, MCPServer)]
        if not servers:
            return values.catalog
        found = await asyncio.gather(*(self._list_for_users(each, values) for each in servers))
        listed = {server.id: each for server, each in zip(servers, found, strict=True) if not isinstance(each, str)}
        catalog = await asyncio.to_thread(with_listed_tools, values.catalog, listed)
        notices = [notice for notice in found if isinstance(notice, str)]
        return catalog.with_notices(notices) if notices else catalog

    async def _list_for_users(self, server: MCPServer, values: ValueResolver) -> list[ListedTool] | str:
        """The tools of a server, with the headers of the first agent that uses it; or a notice that all go on without.

        Raises ToolFailed if it can't be asked, unless all that use it go on; it is final if one of them is to fail.
        """
        users = users_of(server, values.catalog)
        first = next((each for each in users if isinstance(each, Agent)), None)
        try:
            return await self._list(server, values.used_by(first))
        except ToolFailed as failed:
            wanted = {each.spec.on_tools_unavailable if isinstance(each, Agent) else None for each in users}
            if wanted == {"continue"}:
                names = ", ".join(each.name for each in users)
                return self._redact(f"{names}: without the tools of {server.id}: {failed.message}")
            raise ToolFailed(failed.message, retryable="fail" not in wanted and not failed.non_retryable) from None

    async def _list(self, server: MCPServer, values: ValueResolver) -> list[ListedTool]:
        await _load()
        from .request import McpRequest, list_tools  # noqa: PLC0415

        request = McpRequest(self._connections(), self._endpoint(server, values))
        return await request.send(list_tools, server.timeout)

    def _endpoint(self, server: MCPServer, values: ValueResolver) -> "CurrentEndpoint":
        used = ""

        async def endpoint(anew: bool, unauthorized: bool) -> McpEndpoint:
            nonlocal used
            current = await values.with_current_secrets() if anew else values
            found = endpoint_of(server, current, private=self._private)
            if not server.spec.authorization or found.is_authorized:
                return found
            used = await self._tokens().of(server, current, used if unauthorized else "")
            return found.with_token(used)

        return endpoint

    def _tokens(self) -> "AccessTokens":
        from .access_tokens import AccessTokens, TokenClient  # noqa: PLC0415

        if self._kept is None:
            remember = partial(self._secrets.remember, passing=True)
            self._kept = AccessTokens(self._store, TokenClient(self._redact), remember)
        return self._kept

    def _connections(self) -> "McpConnections":
        from .connection import McpConnections  # noqa: PLC0415

        self._opened = self._opened or McpConnections()
        return self._opened

    async def close(self) -> None:
        """Closes the connections, ends the servers that are processes, and waits for tokens that are refreshed."""
        if self._kept:
            await self._kept.close()
        if self._opened:
            await self._opened.close()
