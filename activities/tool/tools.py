"""The table of tool types, and the tools that an agent or a query can use."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from pydantic import JsonValue

from ...contracts.errors import FilterFailed, InvalidManifest, NotCarriedOut, UnknownResource
from ...contracts.plan import MemberPlace
from ...contracts.text import parse_json
from ...journal.journal import Journal
from ...journal.leases import Lease
from ...journal.token_store import TokenStore
from ...resources import tool as resources
from ...resources.agent import Agent, AgentTool
from ...resources.approval import Approval, strictest
from ...resources.base import JsonObject, Reference
from ...resources.catalog import Catalog, Resource
from ...resources.run_catalog import RunCatalog
from ...resources.template import fill
from ...resources.tool import BUILT_IN_TYPES, Tool
from ...resources.values import QUERY, Function, Parameter, PresetArguments
from ...temporal.bounded_process import BoundedFunction, EvaluationFailed
from ..context.calls import Calls
from ..context.lookup import find
from ..context.output_schema import schema_errors
from ..context.value_resolver import ValueResolver
from ..runtime.functions import FunctionRegistry
from ..runtime.secrets import SecretStore
from .application import ApplicationTools
from .built_in import BuiltInTools, DelegatingTools, handoff_tools, skill_tools
from .client import client_tools
from .function import FunctionTools
from .http import HttpTools
from .mcp.source import McpTools
from .openapi import OpenApiTools
from .tool import Answered, CallableTool, ResultWithFiles, ToolContext, ToolSource

Resolve = Callable[[Parameter], str | None]
"""From a preset argument to its text; None if an optional value is missing."""


def with_presets(
    tool: CallableTool, presets: PresetArguments | None, owner: Tool | Agent, agent: Agent | None, values: ValueResolver
) -> CallableTool:
    """The tool with the preset arguments of ``owner``: they are hidden from the model, and override its arguments.

    Their values are resolved when the tool is called, and are never stored.
    """
    if presets is None or not presets.parameters:
        return tool
    names = {preset.name for preset in presets.parameters}
    full = tool.definition.parameters
    use = tool.use
    if not tool.server.is_of_manifest:
        values = values.sending_to(values.destination_at("", tool.server))  # the host differs between calls
    resolve = _resolver(owner, agent, values)

    async def use_with_presets(arguments: JsonObject, lease: Lease) -> str | ResultWithFiles:
        complete = {name: argument for name, argument in arguments.items() if name not in names}
        resolved = ((preset.name, resolve(preset)) for preset in presets.parameters)
        texts = {name: text for name, text in resolved if text is not None}
        complete |= {name: _typed(text, _properties(full).get(name)) for name, text in texts.items()}
        wrong = [error for error in await schema_errors(complete, full) if _is_about(error, names)]
        if wrong:  # the type is in another part of the schema, as in ``anyOf`` or at a ``$ref``
            complete |= {
                name: _parsed(text) for name, text in texts.items() if any(_is_about(error, {name}) for error in wrong)
            }
            wrong = [error for error in await schema_errors(complete, full) if _is_about(error, names)]
        if wrong:
            raise InvalidManifest(
                f"{owner.id}: the preset arguments of {tool.definition.name} don't match its schema: {wrong[0]}"
            )
        return await use(complete, lease)

    definition = replace(tool.definition, parameters=_without(full, names))
    return replace(tool, definition=definition, use=use_with_presets)


def _resolver(owner: Tool | Agent, agent: Agent | None, values: ValueResolver) -> Resolve:
    """Resolves preset arguments: a literal is a template with parameters of the tool, the agent and the query."""
    query = values.catalog.query
    value = values.parameters_of(owner, agent, query).value

    def lookup(name: str) -> str:
        return (
            values.parameters_of(query).value(name.removeprefix(QUERY))
            if query and name.startswith(QUERY)
            else value(name)
        )

    return lambda preset: fill(preset.value, lookup) if preset.value else values.resolve(preset, owner)


def _without(schema: JsonObject, names: set[str]) -> JsonObject:
    properties: JsonObject = {name: part for name, part in _properties(schema).items() if name not in names}
    required = schema.get("required")
    reduced: JsonObject = {**schema, "properties": properties}
    if isinstance(required, list):
        reduced["required"] = [name for name in required if name not in names]
    return reduced


def _properties(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _typed(text: str, schema: JsonValue) -> JsonValue:
    """A text as an argument: parsed as JSON if the schema does not allow a string."""
    types = schema.get("type", "string") if isinstance(schema, dict) else "string"
    if "string" in (types if isinstance(types, list) else [types]):
        return text
    return _parsed(text)


def _parsed(text: str) -> JsonValue:
    """The value of a JSON text; another text as it is."""
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return value


def _is_about(error: str, names: set[str]) -> bool:
    """Whether an error is in a preset argument. The others are already validated, with their defaults."""
    return any(error.startswith((f"$.{name}:", f"$.{name}.", f"$.{name}[")) for name in names)


def with_approvals(catalog: RunCatalog) -> RunCatalog:
    """The catalog, in which Tools with ``destructiveHint`` require approval unless they have their own rule.

    As the result is pinned, child runs require approval too, regardless of their workers' settings.
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
    """Applies filters. ``redact`` removes secrets before them: a filter could leave an unrecognizable part of one."""

    def __init__(self, redact: Callable[[str], Awaitable[str]]) -> None:
        self._redact = redact

    def applied_to(self, tool: CallableTool, functions: Sequence[Function]) -> CallableTool:
        """The tool with filtered results. A call raises FilterFailed if a filter fails after the tool has answered."""
        if not functions:
            return tool
        filters = [function.value for function in functions]

        async def filtered(answer: str) -> str:
            try:
                return str(await _apply.call({"text": await self._redact(answer), "filters": [*filters]}))
            except (ValueError, EvaluationFailed) as error:
                raise FilterFailed(f"{tool.definition.name} has answered, but its functions failed: {error}") from None

        return replace(tool, finish=filtered)


BUILT_IN = "built-in"
"""The type of tools without a manifest."""

SOURCES: dict[str, Callable[[SecretStore], ToolSource]] = {
    BUILT_IN: BuiltInTools,
    "builtin": BuiltInTools,
    "http": HttpTools,
    "openapi": OpenApiTools,
    "agent": DelegatingTools,
    "team": DelegatingTools,
    "activity": ApplicationTools,
    "workflow": ApplicationTools,
}
"""The source of tools by their type."""


class Tools:
    """The tools of a worker. ``approve_destructive``: those with a ``destructiveHint`` require approval.

    Without a ``journal``, access tokens of MCP servers are not refreshed.
    """

    def __init__(
        self,
        secrets: SecretStore,
        functions: FunctionRegistry,
        calls: Calls | None = None,
        journal: Journal | None = None,
        *,
        approve_destructive: bool = False,
        max_mcp_connections: int | None = None,
    ) -> None:
        self._calls = calls or Calls()
        self._approve_destructive = approve_destructive
        self._sources = {type_: make(secrets) for type_, make in SOURCES.items()}
        self._sources["mcp"] = McpTools(secrets, TokenStore(journal.database) if journal else None, max_mcp_connections)
        self._sources["function"] = FunctionTools(functions)
        self._filters = ResultFilters(secrets.redact_long)

    async def of_agent(
        self,
        agent: Agent,
        values: ValueResolver,
        answered: Answered | None = None,
        member: MemberPlace | None = None,
    ) -> list[CallableTool]:
        """An agent's tools, in the order of its manifest, and the one that reads its skills.

        As a ``member`` that can transfer the conversation, it has tools for that, too; then come those of the client.
        A ``description`` in the agent's manifest replaces the tool's own (ARK: teams, manifests).
        """
        tools = []
        values = values.used_by(agent)
        for agent_tool, reference in agent.tools():
            manifest = _find(values.catalog, reference) if reference else None
            repeatable = agent_tool.on_error == "retry"
            context = ToolContext(agent_tool.own_name, manifest, values, agent, repeatable, answered)
            tool = _with_settings(await self._discover(context), agent_tool)
            tool = with_presets(tool, agent_tool.partial, agent, agent, values)
            tools.append(self._filters.applied_to(tool, agent_tool.functions))
        tools += [*skill_tools(agent, values.catalog), *handoff_tools(member, values.catalog)]
        return [*tools, *client_tools(agent, values.catalog)]

    async def of_manifest(
        self, manifest: resources.Tool, values: ValueResolver, answered: Answered | None = None
    ) -> CallableTool:
        """The tool of a manifest, for a query with the tool as its target."""
        return await self._discover(ToolContext(manifest.name, manifest, values, answered=answered))

    async def pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog of a new run, with data from the servers of its tools."""
        for source in self._sources.values():
            values = replace(values, catalog=await source.pin(values))
        return self.approved(values.catalog)

    def approved(self, catalog: RunCatalog) -> RunCatalog:
        """The catalog, in which destructive tools need approvals if the worker requires that."""
        return with_approvals(catalog) if self._approve_destructive else catalog

    async def _discover(self, context: ToolContext) -> CallableTool:
        manifest = context.manifest
        if manifest is None:
            return self._metered((await self._sources[BUILT_IN].discover(context))[0], context)
        if manifest.spec.type not in self._sources:
            raise NotCarriedOut(f"{manifest.id}: tools of type '{manifest.spec.type}' are not supported")
        (tool,) = await self._sources[manifest.spec.type].discover(context)
        tool = replace(tool, untrusted=manifest.is_untrusted, approval=strictest(manifest.spec.approval))
        tool = self._metered(tool, context)
        return with_presets(tool, manifest.spec.partial, manifest, context.agent, context.values)

    def _metered(self, tool: CallableTool, context: ToolContext) -> CallableTool:
        """A tool whose calls are metered, and raise CircuitOpen while its circuit breaker or its server's is open.

        The arguments are validated before, within the span: invalid ones must not reach a half-open circuit, where
        they would count as a successful probe.
        """
        manifest = context.manifest
        if manifest and manifest.spec.type in BUILT_IN_TYPES:
            manifest = None  # built-in tools are Baton's, even if a manifest names one
        values = context.values
        reference = manifest.mcp_server() if manifest else None
        server = values.catalog.find(reference) if reference else None

        async def use(arguments: JsonObject, lease: Lease) -> str | ResultWithFiles:
            async with self._calls.make(lease, "tool", manifest, values, context.name, server):
                return await tool.use(arguments, lease)

        return replace(tool, use=use)

    async def close(self) -> None:
        """Closes the connections."""
        for source in self._sources.values():
            await source.close()


def _with_settings(tool: CallableTool, agent_tool: AgentTool) -> CallableTool:
    """A tool with the name, the description and the settings in its agent's manifest."""
    described = agent_tool.description or tool.definition.description
    untrusted = tool.untrusted if agent_tool.untrusted_content is None else agent_tool.untrusted_content
    definition = replace(tool.definition, name=agent_tool.name, description=described)
    approval = strictest(tool.approval, agent_tool.approval)
    retries = agent_tool.on_error == "retry"
    return replace(tool, definition=definition, retries=retries, untrusted=untrusted, approval=approval)


def _find(catalog: Catalog, reference: Reference) -> resources.Tool:
    if isinstance(tool := find(catalog, reference), resources.Tool):
        return tool
    raise UnknownResource(f"{tool.id} is not a Tool")
