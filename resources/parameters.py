"""Checks that the templates of a run only use parameters that exist: those of the query, the agent and the tool."""

from collections.abc import Iterator

from .agent import Agent
from .base import Path
from .catalog import Catalog, Resource
from .partial import QUERY, PresetArguments
from .query import Query
from .template import TemplateError, check_names, names_in
from .tool import Tool
from .validation import Violation, queries_without_targets
from .values import Parameter, sources

ARGUMENTS = "input."
"""The prefix of a tool call's arguments in the templates of a tool."""


def unknown_parameters(start: Resource, catalog: Catalog) -> Iterator[Violation]:
    """Unknown parameters in a run of ``start``. Only a run knows which query, agents and tools come together."""
    query = start if isinstance(start, Query) else None
    yield from queries_without_targets(catalog)
    asked = _names(query.spec.parameters) if query else set[str]()
    for manifest in catalog.manifests:
        for path, source in sources(manifest.parts):
            wanted = source.value_from.query_parameter_ref if source.value_from else None
            if wanted and wanted.name not in asked:
                known = ", ".join(sorted(asked)) or "none"
                text = f"the query has no parameter '{wanted.name}'; it has: {known}"
                yield Violation(manifest, (*path, "valueFrom", "queryParameterRef", "name"), text)
    for tool, user in _uses(start, catalog):
        theirs = {*asked, *_names(user.spec.parameters if user else ())}
        yield from _unmet_by_tool(tool, theirs)
        yield from _unmet_by_presets(tool, ("spec",), tool.spec.partial, {*theirs, *_names(tool.parameters)}, asked)
    for agent in (each for each in catalog.manifests if isinstance(each, Agent)):
        own = {*asked, *_names(agent.spec.parameters)}
        for index, given in enumerate(agent.spec.tools):
            yield from _unmet_by_presets(agent, ("spec", "tools", index), given.partial, own, asked)


def _uses(start: Resource, catalog: Catalog) -> Iterator[tuple[Tool, Agent | None]]:
    """Each tool of a run with each agent that has it; with None if the tool is a target of the query."""
    for manifest in catalog.manifests:
        if isinstance(manifest, Agent):
            found = (catalog.find(reference) for _, reference in manifest.tools() if reference)
            yield from ((tool, manifest) for tool in found if isinstance(tool, Tool))
    if isinstance(start, Query):
        found = (catalog.find(reference) for reference in catalog.targets(start))
        yield from ((tool, None) for tool in found if isinstance(tool, Tool))


def _unmet_by_tool(tool: Tool, known: set[str]) -> Iterator[Violation]:
    for path, template in tool.templates():
        arguments = [name for name in names_in(template) if name.startswith(ARGUMENTS) and path[-1] != "url"]
        try:
            check_names(template, {*known, *_names(tool.parameters), *arguments})
        except TemplateError as error:
            yield Violation(tool, path, str(error))


def _unmet_by_presets(
    owner: Tool | Agent, path: Path, presets: PresetArguments | None, known: set[str], asked: set[str]
) -> Iterator[Violation]:
    for index, template in presets.templates() if presets else ():
        try:
            check_names(template, {*known, *(f"{QUERY}{name}" for name in asked)})
        except TemplateError as error:
            yield Violation(owner, (*path, "partial", "parameters", index, "value"), str(error))


def _names(parameters: tuple[Parameter, ...]) -> set[str]:
    return {parameter.name for parameter in parameters}
