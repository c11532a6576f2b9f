"""Adds the tools that MCP servers list to the pinned catalog of a run."""

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ....contracts.errors import InvalidManifest, UnknownResource
from ....resources.agent import Agent
from ....resources.approval import strictest
from ....resources.base import API_VERSION, JsonObject, Ref, Reference
from ....resources.catalog import Resource
from ....resources.json_schema import JsonSchema, in_draft_2020_12
from ....resources.manifest import Manifest, Metadata
from ....resources.mcp_server import MCPServer
from ....resources.query import Query
from ....resources.run_catalog import RunCatalog
from ....resources.tool import Annotations, McpSpec, Tool, ToolSpec
from ...context.lookup import find, mcp_server_of
from ..tool import skipped_notice, tool_names, with_generated_tools

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


def with_listed_tools(
    catalog: RunCatalog, listed: Listed, redact: Callable[[str], str] = lambda text: text
) -> RunCatalog:
    """The catalog of a run with a Tool for every tool that its agents and its query use.

    Fields that the manifest of a Tool omits are filled in. A reference to several tools is replaced by these, and
    removed if its server is not among the ``listed``. Of tools that are left out for their schemas, the notices of the
    catalog say so, redacted. Raises UnknownResource for a tool that its server does not list.
    """
    pinning = _Pinning(catalog, listed)
    pinned = pinning.catalog()
    notices = [redact(skipped_notice(server, skipped)) for server, skipped in pinning.skipped.items()]
    return pinned.with_notices(notices) if notices else pinned


class _Pinning:
    def __init__(self, catalog: RunCatalog, listed: Listed) -> None:
        self._catalog = catalog
        self._wrong = {server: _wrong_schemas(server, tools) for server, tools in listed.items()}
        self._listed = {server: _by_name(server, tools, self._wrong[server]) for server, tools in listed.items()}
        self.skipped: dict[str, dict[str, str]] = {}
        """Why tools that references to several tools would have are left out, by server and tool."""
        self._generated_from: dict[str, str] = {}
        self._made: dict[str, tuple[str, ToolSpec]] = {}
        self._known: dict[str, Resource] = {manifest.id: manifest for manifest in catalog.manifests}

    def catalog(self) -> RunCatalog:
        for manifest in self._catalog.manifests:
            if isinstance(manifest, Agent):
                self._known[manifest.id] = with_generated_tools(
                    manifest, partial(self._generated_names, owner=manifest)
                )
            elif isinstance(manifest, Query):
                for target in self._catalog.targets(manifest):
                    self._generated_names(target, manifest)
            elif isinstance(manifest, Tool) and self._is_listed(manifest) and not _is_pattern(manifest):
                self._known[manifest.id] = self._completed(manifest)
        return self._catalog.with_manifests(self._known.values(), generated_from=self._generated_from)

    def _is_listed(self, tool: Tool) -> bool:
        server = mcp_server_of(tool, self._catalog)
        return server is not None and server.id in self._listed

    def _generated_names(self, reference: Reference, owner: Manifest) -> Sequence[str] | None:
        """Generates the Tools of a reference and returns their names; None if it refers to a single Tool's manifest."""
        resource = find(self._catalog, reference)
        server = mcp_server_of(resource, self._catalog) if isinstance(resource, Tool) else resource
        if isinstance(server, MCPServer) and server.id not in self._listed:
            return ()
        if isinstance(resource, MCPServer):
            tools = self._listed[resource.id]
            if reference.name != resource.name and reference.name not in tools:
                raise UnknownResource(f"{owner.id}: {resource.id} has no tool '{reference.name}'; {_known(tools)}")
            selected = tools if reference.name == resource.name else {reference.name: tools[reference.name]}
            if reference.name == resource.name:
                self._skip(resource, "*")
            return self._generate(selected, resource, owner.namespace)
        if not (isinstance(resource, Tool) and _is_pattern(resource)):
            return None
        server = self._server(resource)
        tools = self._listed[server.id]
        selected = {name: tool for name, tool in tools.items() if fnmatchcase(tool.name, resource.mcp_name)}
        self._skip(server, resource.mcp_name)
        if not selected:
            text = f"{resource.id}: no tool of {server.id} matches '{resource.mcp_name}'; {_known(tools)}"
            raise UnknownResource(text)
        return self._generate(selected, server, owner.namespace, resource)

    def _generate(
        self, tools: Mapping[str, ListedTool], server: MCPServer, namespace: str, pattern: Tool | None = None
    ) -> Sequence[str]:
        """Generates Tools, except for those with manifests, and returns the names.

        All get the approval rule of a ``pattern``, and those without manifests its other settings. Raises
        InvalidManifest for a name that two servers, or two Tools with different settings, would give.
        """
        for name, listed in tools.items():
            spec = _spec(server, listed, pattern)
            generated = Tool(
                api_version=API_VERSION,
                kind="Tool",  # set explicitly: unset fields are not stored
                metadata=Metadata(name=name, namespace=namespace, labels={SERVER_LABEL: server.name}),
                spec=spec,
            )
            maker = pattern if pattern and spec != _spec(server, listed) else server
            other, others_spec = self._made.setdefault(generated.id, (maker.id, spec))
            if spec != others_spec and self._catalog.by_id(generated.id) is None:
                raise InvalidManifest(
                    f"{maker.id} and {other} would both make the tool {name} of an agent, with different servers or "
                    "settings: rename a server, or give the agents Tools with exact names"
                )
            self._generated_from.setdefault(generated.id, maker.id)
            known = self._known.setdefault(generated.id, _described(generated, listed))
            if pattern and pattern.spec.approval and isinstance(known, Tool):
                self._known[generated.id] = known.with_approval(strictest(known.spec.approval, pattern.spec.approval))
        return [*tools]

    def _skip(self, server: MCPServer, pattern: str) -> None:
        for name, reason in self._wrong[server.id].items():
            if fnmatchcase(name, pattern):
                self.skipped.setdefault(server.id, {})[name] = reason

    def _completed(self, tool: Tool) -> Tool:
        tools = {listed.name: listed for listed in self._listed[self._server(tool).id].values()}
        if tool.mcp_name not in tools:
            raise UnknownResource(f"{tool.id}: its server has no tool '{tool.mcp_name}'; {_known(tools)}")
        return _described(tool, tools[tool.mcp_name])

    def _server(self, tool: Tool) -> MCPServer:
        reference = tool.mcp_server()
        server = find(self._catalog, reference) if reference else None
        assert isinstance(server, MCPServer), "a tool of type 'mcp' has a server"
        return server


def _spec(server: MCPServer, listed: ListedTool, pattern: Tool | None = None) -> ToolSpec:
    """The spec of a generated Tool, with the settings of the Tool whose pattern its name matches, but the approval."""
    mcp = McpSpec(mcp_server_ref=_ref(server), tool_name=listed.name)
    if pattern is None:
        return ToolSpec(type="mcp", mcp=mcp)
    return ToolSpec(
        type="mcp",
        mcp=mcp,
        parameters=pattern.spec.parameters,
        partial=pattern.spec.presets_for(listed.input_schema),
        untrusted_content=pattern.spec.untrusted_content,
        annotations=pattern.spec.annotations,
        retry_policy=pattern.spec.retry_policy,
    ).without_defaults


def _is_pattern(tool: Tool) -> bool:
    """Whether a Tool refers to all tools of its server that match its ``toolName``."""
    return tool.spec.type == "mcp" and "*" in tool.mcp_name


def _ref(server: MCPServer) -> Ref:
    return Ref(name=server.name, namespace=server.namespace)


def _described(tool: Tool, listed: ListedTool) -> Tool:
    """A Tool with the description, the schema and the hints of its server, unless it has its own."""
    hints = Annotations.model_validate(listed.annotations) if listed.annotations else None
    return tool.described(listed.description, listed.input_schema, hints)


def _by_name(server_id: str, tools: Sequence[ListedTool], wrong: Container[str]) -> dict[str, ListedTool]:
    """Tools by the names of their Tools, such as ``server-read-file``, without those with a wrong schema."""
    valid = [replace(tool, input_schema=_modern(tool)) for tool in tools if tool.name not in wrong]
    return dict(zip(tool_names(server_id.rpartition("/")[2], (tool.name for tool in valid)), valid, strict=True))


def _wrong_schemas(server_id: str, tools: Sequence[ListedTool]) -> dict[str, str]:
    """What is wrong with the schemas of tools, by the tool's name."""
    wrong = {}
    for tool in tools:
        try:
            _SCHEMA.validate_python(_modern(tool))
        except ValidationError as error:
            wrong[tool.name] = error.errors()[0]["msg"]
            log.warning("skipped the tool %s of %s: %s", tool.name, server_id, wrong[tool.name])
    return wrong


def _modern(tool: ListedTool) -> JsonObject:
    return in_draft_2020_12(tool.input_schema)


def _known(tools: Iterable[str]) -> str:
    return f"its tools: {', '.join(tools) or 'none'}"
