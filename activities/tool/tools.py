"""The table of tool types, and the tools that an agent or a query can use."""

from collections.abc import Callable
from dataclasses import replace

from ...conversation.errors import NotCarriedOut, UnknownResource
from ...resources import tool as resources
from ...resources.agent import Agent
from ...resources.agent_tool import AgentTool
from ...resources.approval import strictest
from ...resources.base import JsonObject, Reference
from ...resources.catalog import Catalog
from ..context.calls import Calls
from ..context.lookup import find
from ..context.value_resolver import ValueResolver
from ..journal.journal import Journal
from ..journal.token_store import TokenStore
from ..process.bounded_process import close_idle
from ..process.functions import FunctionRegistry
from ..process.secrets import SecretStore
from .asking import AskingTools
from .built_in import BuiltInTools
from .destructive import with_approvals
from .function import FunctionTools
from .http import HttpTools
from .mcp.source import McpTools
from .openapi import OpenApiTools
from .presets import with_presets
from .result_filters import ResultFilters
from .skills import skill_tools
from .tool import Answered, BeginOnce, CallableTool, ToolContext, ToolSource, no_guard

BUILT_IN = "built-in"
"""The type of the tools that need no manifest."""

SOURCES: dict[str, Callable[[SecretStore], ToolSource]] = {
    BUILT_IN: BuiltInTools,
    "builtin": BuiltInTools,
    "http": HttpTools,
    "openapi": OpenApiTools,
    "agent": AskingTools,
    "team": AskingTools,
}
"""The source of the tools of each type."""


class Tools:
    """The tools that a worker can use. ``approve_destructive``: those that say they destroy need a person's yes.

    Without a ``journal``, no token of an MCP server is refreshed.
    """

    def __init__(
        self,
        secrets: SecretStore,
        functions: FunctionRegistry,
        calls: Calls | None = None,
        journal: Journal | None = None,
        *,
        approve_destructive: bool = False,
    ) -> None:
        self._calls, self._approve_destructive = calls or Calls(), approve_destructive
        self._sources = {type_: make(secrets) for type_, make in SOURCES.items()}
        self._sources["mcp"] = McpTools(secrets, TokenStore(journal.database) if journal else None)
        self._sources["activity"] = FunctionTools(functions)
        self._filters = ResultFilters(secrets.redact_long)

    async def of_agent(
        self,
        agent: Agent,
        values: ValueResolver,
        begin_once: BeginOnce = no_guard,
        answered: Answered | None = None,
    ) -> list[CallableTool]:
        """An agent's tools, in the order of its manifest, and the one that reads its skills.

        A ``description`` in the agent's manifest replaces the tool's own (ARK: teams, manifests).
        """
        tools, values = [], values.used_by(agent)
        for given, reference in agent.tools():
            manifest = _find(values.catalog, reference) if reference else None
            repeatable = given.on_error == "retry"
            context = ToolContext(given.own_name, manifest, values, agent, repeatable, begin_once, answered)
            tool = _as_given(await self._discover(context), given)
            tool = with_presets(tool, given.partial, agent, agent, values)
            tools.append(self._filters.applied_to(tool, given.functions))
        return [*tools, *skill_tools(agent, values.catalog)]

    async def of_manifest(
        self, manifest: resources.Tool, values: ValueResolver, begin_once: BeginOnce, answered: Answered | None = None
    ) -> CallableTool:
        """The tool of a manifest, for a query that is put to it."""
        context = ToolContext(manifest.name, manifest, values, begin_once=begin_once, answered=answered)
        return await self._discover(context)

    async def pin(self, values: ValueResolver) -> Catalog:
        """The catalog of a run that begins, with what its tools need of their servers."""
        for source in self._sources.values():
            values = replace(values, catalog=await source.pin(values))
        return with_approvals(values.catalog) if self._approve_destructive else values.catalog

    async def _discover(self, context: ToolContext) -> CallableTool:
        manifest = context.manifest
        if manifest is None:
            return self._counted((await self._sources[BUILT_IN].discover(context))[0], context)
        if manifest.spec.type not in self._sources:
            raise NotCarriedOut(f"{manifest.id}: tools of type '{manifest.spec.type}' can't be used yet")
        (tool,) = await self._sources[manifest.spec.type].discover(context)
        tool = replace(tool, untrusted=manifest.is_untrusted, approval=strictest(manifest.spec.approval))
        tool = self._counted(tool, context)
        return with_presets(tool, manifest.spec.partial, manifest, context.agent, context.values)

    def _counted(self, tool: CallableTool, context: ToolContext) -> CallableTool:
        """A tool whose use is counted, and raises CircuitOpen while its circuit breaker, or its server's, is open."""
        manifest, values = context.manifest, context.values
        reference = manifest.mcp_server() if manifest else None
        server = values.catalog.find(reference) if reference else None

        async def use(arguments: JsonObject) -> str:
            async with self._calls.make("tool", manifest, values, context.name, server):
                return await tool.use(arguments)

        return replace(tool, use=use)

    async def close(self) -> None:
        """Closes the connections, and ends the processes that judge what nobody trusts."""
        for source in self._sources.values():
            await source.close()
        await close_idle()


def _as_given(tool: CallableTool, given: AgentTool) -> CallableTool:
    """A tool with the name, the description and the settings that its agent has for it."""
    described = given.description or tool.definition.description
    untrusted = tool.untrusted if given.untrusted_content is None else given.untrusted_content
    definition = replace(tool.definition, name=given.name, description=described)
    approval = strictest(tool.approval, given.approval)
    retries = given.on_error == "retry"
    return replace(tool, definition=definition, retries=retries, untrusted=untrusted, approval=approval)


def _find(catalog: Catalog, reference: Reference) -> resources.Tool:
    if isinstance(tool := find(catalog, reference), resources.Tool):
        return tool
    raise UnknownResource(f"{tool.id} is no tool")
