"""The table of tool types, and the tools that an agent or a query can use."""

from collections.abc import Callable
from dataclasses import replace

from ...conversation.errors import NotCarriedOut, UnknownResource
from ...resources import tool as resources
from ...resources.agent import Agent
from ...resources.base import Reference
from ...resources.catalog import Catalog
from ..context.lookup import find
from ..context.value_resolver import ValueResolver
from ..process.secrets import SecretStore
from .built_in import BuiltInTools
from .http import HttpTools
from .mcp.source import McpTools
from .tool import BeginOnce, CallableTool, ToolContext, ToolSource, no_guard

BUILT_IN = "built-in"
"""The type of the tools that need no manifest."""

SOURCES: dict[str, Callable[[SecretStore], ToolSource]] = {
    BUILT_IN: BuiltInTools,
    "builtin": BuiltInTools,
    "http": HttpTools,
    "mcp": McpTools,
}
"""The source of the tools of each type."""


class Tools:
    """The tools that a worker can use."""

    def __init__(self, secrets: SecretStore) -> None:
        self._sources = {type_: make(secrets) for type_, make in SOURCES.items()}

    async def of_agent(
        self, agent: Agent, values: ValueResolver, begin_once: BeginOnce = no_guard
    ) -> list[CallableTool]:
        """An agent's tools, in the order of its manifest.

        A ``description`` in the agent's manifest replaces the tool's own (ARK: teams, manifests).
        """
        tools = []
        for given, reference in agent.tools():
            manifest = _find(values.catalog, reference) if reference else None
            repeatable = given.on_error == "retry"
            for tool in await self._discover(ToolContext(given.name, manifest, values, agent, repeatable, begin_once)):
                definition = replace(tool.definition, description=given.description or tool.definition.description)
                tools.append(replace(tool, definition=definition, retries=repeatable))
        return tools

    async def of_manifest(self, manifest: resources.Tool, values: ValueResolver, begin_once: BeginOnce) -> CallableTool:
        """The tool of a manifest, for a query that is put to it."""
        return (await self._discover(ToolContext(manifest.name, manifest, values, begin_once=begin_once)))[0]

    async def pin(self, values: ValueResolver) -> Catalog:
        """The catalog of a run that begins, with what its tools need of their servers."""
        for source in self._sources.values():
            values = replace(values, catalog=await source.pin(values))
        return values.catalog

    async def _discover(self, context: ToolContext) -> list[CallableTool]:
        type_ = context.manifest.spec.type if context.manifest else BUILT_IN
        if context.manifest and type_ not in self._sources:
            raise NotCarriedOut(f"{context.manifest.id}: tools of type '{type_}' can't be used yet")
        return await self._sources[type_].discover(context)

    async def close(self) -> None:
        """Closes the connections."""
        for source in self._sources.values():
            await source.close()


def _find(catalog: Catalog, reference: Reference) -> resources.Tool:
    if isinstance(tool := find(catalog, reference), resources.Tool):
        return tool
    raise UnknownResource(f"{tool.id} is no tool")
