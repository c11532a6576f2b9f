"""The table of tool types, and the tools that an agent or a query can use."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from pydantic import JsonValue

from ...contracts.errors import FilterFailed, InvalidManifest, NotCarriedOut, UnknownResource
from ...contracts.text import parse_json
from ...journal.journal import Journal
from ...journal.token_store import TokenStore
from ...resources import tool as resources
from ...resources.agent import Agent, AgentTool
from ...resources.approval import Approval, strictest
from ...resources.base import JsonObject, Reference
from ...resources.catalog import Catalog, Resource
from ...resources.template import fill
from ...resources.tool import Tool
from ...resources.values import QUERY, Function, Parameter, PresetArguments
from ..context.calls import Calls
from ..context.lookup import find
from ..context.output_schema import schema_errors
from ..context.value_resolver import ValueResolver
from ..runtime.bounded_process import BoundedFunction, LimitExceeded, close_idle
from ..runtime.functions import FunctionRegistry
from ..runtime.secrets import SecretStore
from .built_in import AskingTools, BuiltInTools, skill_tools
from .function import FunctionTools
from .http import HttpTools
from .mcp.source import McpTools
from .openapi import OpenApiTools
from .tool import Answered, BeginOnce, CallableTool, ToolContext, ToolSource, no_guard

Resolve = Callable[[Parameter], str | None]
"""From a preset argument to its text; None where an optional value is missing."""


def with_presets(
    tool: CallableTool, presets: PresetArguments | None, owner: Tool | Agent, agent: Agent | None, values: ValueResolver
) -> CallableTool:
    """The tool without its preset arguments, which ``owner`` names and which win over what a model sends.

    Their values are resolved when the tool is used, and are never stored.
    """
    if presets is None or not presets.parameters:
        return tool
    names = {each.name for each in presets.parameters}
    full = tool.definition.parameters
    use = tool.use
    resolve = _resolver(owner, agent, values)

    async def use_with_presets(arguments: JsonObject) -> str:
        given = {name: each for name, each in arguments.items() if name not in names}
        for preset in presets.parameters:
            if (text := resolve(preset)) is not None:
                given[preset.name] = _typed(text, _properties(full).get(preset.name))
        if wrong := [each for each in await schema_errors(given, full) if _is_about(each, names)]:
            raise InvalidManifest(f"{owner.id}: the preset arguments of {tool.definition.name} don't fit: {wrong[0]}")
        return await use(given)

    definition = replace(tool.definition, parameters=_without(full, names))
    return replace(tool, definition=definition, use=use_with_presets)


def _resolver(owner: Tool | Agent, agent: Agent | None, values: ValueResolver) -> Resolve:
    """A literal is a template of the parameters of the tool, the agent and the query; other values are none."""
    query = values.query()
    value = values.parameter_lookup(owner, *(each for each in (agent, query) if each))

    def named(name: str) -> str:
        return (
            values.parameter_lookup(query)(name.removeprefix(QUERY))
            if query and name.startswith(QUERY)
            else value(name)
        )

    return lambda preset: fill(preset.value, named) if preset.value else values.resolve(preset, owner)


def _without(schema: JsonObject, names: set[str]) -> JsonObject:
    properties: JsonObject = {name: each for name, each in _properties(schema).items() if name not in names}
    required = schema.get("required")
    left: JsonObject = {**schema, "properties": properties}
    if isinstance(required, list):
        left["required"] = [name for name in required if name not in names]
    return left


def _properties(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _typed(text: str, schema: JsonValue) -> JsonValue:
    """A text as its argument: a number, an object and the like where the schema wants no text."""
    types = schema.get("type", "string") if isinstance(schema, dict) else "string"
    if "string" in (types if isinstance(types, list) else [types]):
        return text
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return value


def _is_about(error: str, names: set[str]) -> bool:
    """Whether an error lies in one of the preset arguments: the others were checked before, with their defaults."""
    return any(error.startswith((f"$.{name}:", f"$.{name}.", f"$.{name}[")) for name in names)


def with_approvals(catalog: Catalog) -> Catalog:
    """The catalog in which Tools with ``destructiveHint`` require approval, unless they have a rule of their own.

    It is pinned so: child runs ask as well, whatever their workers' settings are.
    """
    manifests = [_with_approval(manifest) for manifest in catalog.manifests]
    if manifests == [*catalog.manifests]:
        return catalog
    return catalog.with_manifests(manifests)


def _with_approval(manifest: Resource) -> Resource:
    if not (isinstance(manifest, Tool) and manifest.spec.approval is None):
        return manifest
    hints = manifest.spec.annotations
    if not (hints and hints.destructive_hint):
        return manifest
    return manifest.with_approval(Approval(required=True))


_apply = BoundedFunction(f"{__package__}.jq_filter:apply_filters")


class ResultFilters:
    """Applies filters. ``redact`` removes secrets before, of which a filter could leave a part."""

    def __init__(self, redact: Callable[[str], Awaitable[str]]) -> None:
        self._redact = redact

    def applied_to(self, tool: CallableTool, functions: Sequence[Function]) -> CallableTool:
        """The tool with filtered results. Raises FilterFailed where a filter fails: the tool was used then."""
        if not functions:
            return tool
        filters = [each.value for each in functions]

        async def filtered(answer: str) -> str:
            try:
                return str(await _apply.call({"text": await self._redact(answer), "filters": [*filters]}))
            except (ValueError, LimitExceeded) as error:
                raise FilterFailed(
                    f"{tool.definition.name} has answered, but its functions can't be applied: {error}"
                ) from None

        return replace(tool, finish=filtered)


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
    """The tools that a worker can use. ``approve_destructive``: those with a ``destructiveHint`` require approval.

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
        self._calls = calls or Calls()
        self._approve_destructive = approve_destructive
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
        tools = []
        values = values.used_by(agent)
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
            return self._metered((await self._sources[BUILT_IN].discover(context))[0], context)
        if manifest.spec.type not in self._sources:
            raise NotCarriedOut(f"{manifest.id}: tools of type '{manifest.spec.type}' can't be used yet")
        (tool,) = await self._sources[manifest.spec.type].discover(context)
        tool = replace(tool, untrusted=manifest.is_untrusted, approval=strictest(manifest.spec.approval))
        tool = self._metered(tool, context)
        return with_presets(tool, manifest.spec.partial, manifest, context.agent, context.values)

    def _metered(self, tool: CallableTool, context: ToolContext) -> CallableTool:
        """A tool whose use is metered, and raises CircuitOpen while its circuit breaker, or its server's, is open.

        Its span begins earlier, with the check of the arguments: wrong ones must not reach a half-open circuit, where
        they would count as a probe that went well.
        """
        manifest = context.manifest
        values = context.values
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
