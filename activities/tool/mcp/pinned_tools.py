"""Puts the tools that MCP servers list into the catalog of a run, which keeps them to its end."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ....contracts.errors import UnknownResource
from ....resources.agent import Agent
from ....resources.approval import Approval, strictest
from ....resources.base import API_VERSION, JsonObject, Ref, Reference
from ....resources.catalog import Catalog, Resource
from ....resources.json_schema import JsonSchema
from ....resources.manifest import Manifest, Metadata
from ....resources.mcp_server import MCPServer
from ....resources.query import Query
from ....resources.tool import Annotations, McpSpec, Tool, ToolSpec
from ...context.lookup import find, mcp_server_of
from ..tool import tool_names, with_generated_tools

SERVER_LABEL = "mcp/server"
"""The label of the tools of an MCPServer; its value is the server's name (ARK: MCP tools)."""

log = logging.getLogger("baton")

_SCHEMA: TypeAdapter[JsonObject] = TypeAdapter(JsonSchema)


@dataclass(frozen=True)
class ListedTool:
    """A tool as its server lists it."""

    name: str
    description: str | None
    input_schema: JsonObject
    annotations: Mapping[str, Any] | None = None


Listed = Mapping[str, Sequence[ListedTool]]
"""The tools of servers, by the ids of the MCPServers."""


def with_listed_tools(catalog: Catalog, listed: Listed) -> Catalog:
    """The catalog of a run with a Tool for each tool that its agents and its query use.

    A Tool with a manifest gets what the manifest leaves out. A tool of an agent that stands for several is replaced by
    these, and left out where its server is not among the ``listed``. Raises UnknownResource for one that is not listed.
    """
    return _Pinning(catalog, listed).catalog()


class _Pinning:
    def __init__(self, catalog: Catalog, listed: Listed) -> None:
        self._catalog = catalog
        self._listed = {server: _by_name(server, tools) for server, tools in listed.items()}
        self._known: dict[str, Resource] = {manifest.id: manifest for manifest in catalog.manifests}

    def catalog(self) -> Catalog:
        for manifest in self._catalog.manifests:
            if isinstance(manifest, Agent):
                self._known[manifest.id] = with_generated_tools(manifest, partial(self._chosen, owner=manifest))
            elif isinstance(manifest, Query):
                for target in self._catalog.targets(manifest):
                    self._chosen(target, manifest)
            elif isinstance(manifest, Tool) and self._is_listed(manifest) and not _is_pattern(manifest):
                self._known[manifest.id] = self._completed(manifest)
        return self._catalog.with_manifests(self._known.values())

    def _is_listed(self, tool: Tool) -> bool:
        server = mcp_server_of(tool, self._catalog)
        return server is not None and server.id in self._listed

    def _chosen(self, reference: Reference, owner: Manifest) -> Sequence[str] | None:
        """The names of the Tools that a reference stands for, which are made; None where it names a manifest."""
        found = find(self._catalog, reference)
        server = mcp_server_of(found, self._catalog) if isinstance(found, Tool) else found
        if isinstance(server, MCPServer) and server.id not in self._listed:
            return ()
        if isinstance(found, MCPServer):
            tools = self._listed[found.id]
            if reference.name != found.name and reference.name not in tools:
                raise UnknownResource(f"{owner.id}: {found.id} has no tool '{reference.name}'; {_known(tools)}")
            chosen = tools if reference.name == found.name else {reference.name: tools[reference.name]}
            return self._make(chosen, found, owner.namespace)
        if not (isinstance(found, Tool) and _is_pattern(found)):
            return None
        server = self._server(found)
        tools = self._listed[server.id]
        chosen = {name: tool for name, tool in tools.items() if fnmatchcase(tool.name, found.mcp_name)}
        if not chosen:
            raise UnknownResource(f"{found.id}: no tool of {server.id} fits '{found.mcp_name}'; {_known(tools)}")
        return self._make(chosen, server, owner.namespace, found.spec.approval)

    def _make(
        self, tools: Mapping[str, ListedTool], server: MCPServer, namespace: str, approval: Approval | None = None
    ) -> Sequence[str]:
        """Makes a Tool of each, unless there is a manifest of its name; returns the names. All need the approval."""
        for name, listed in tools.items():
            made = Tool(
                api_version=API_VERSION,
                kind="Tool",  # what is stored leaves out what was not set
                metadata=Metadata(name=name, namespace=namespace, labels={SERVER_LABEL: server.name}),
                spec=ToolSpec(type="mcp", mcp=McpSpec(mcp_server_ref=_ref(server), tool_name=listed.name)),
            )
            known = self._known.setdefault(made.id, _described(made, listed))
            if approval and isinstance(known, Tool):
                self._known[made.id] = known.with_approval(strictest(known.spec.approval, approval))
        return [*tools]

    def _completed(self, tool: Tool) -> Tool:
        tools = {each.name: each for each in self._listed[self._server(tool).id].values()}
        if tool.mcp_name not in tools:
            raise UnknownResource(f"{tool.id}: its server has no tool '{tool.mcp_name}'; {_known(tools)}")
        return _described(tool, tools[tool.mcp_name])

    def _server(self, tool: Tool) -> MCPServer:
        reference = tool.mcp_server()
        server = find(self._catalog, reference) if reference else None
        assert isinstance(server, MCPServer), "a tool of type 'mcp' has a server"
        return server


def _is_pattern(tool: Tool) -> bool:
    """Whether a Tool stands for all tools of its server that fit its ``toolName``."""
    return tool.spec.type == "mcp" and "*" in tool.mcp_name


def _ref(server: MCPServer) -> Ref:
    return Ref(name=server.name, namespace=server.namespace)


def _described(tool: Tool, listed: ListedTool) -> Tool:
    """A Tool with the description, the schema and the hints of its server, where it has none of its own."""
    hints = Annotations.model_validate(listed.annotations) if listed.annotations else None
    return tool.described(listed.description, listed.input_schema, hints)


def _by_name(server_id: str, tools: Sequence[ListedTool]) -> dict[str, ListedTool]:
    """Tools by the names of their Tools, as in ``server-read-file``, without those that no model can be offered."""
    offered = [tool for tool in tools if _is_offered(tool, server_id)]
    return dict(zip(tool_names(server_id.rpartition("/")[2], (tool.name for tool in offered)), offered, strict=True))


def _is_offered(tool: ListedTool, server_id: str) -> bool:
    try:
        _SCHEMA.validate_python(tool.input_schema)
    except ValidationError as error:
        log.warning("left out the tool %s of %s: %s", tool.name, server_id, error.errors()[0]["msg"])
        return False
    return True


def _known(tools: Iterable[str]) -> str:
    return f"its tools: {', '.join(tools) or 'none'}"
