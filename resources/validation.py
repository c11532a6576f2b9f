"""Rules between manifests, and the fields that are ignored or not supported yet."""

from collections.abc import Iterator
from typing import NamedTuple

from .agent import Agent
from .approval_rules import unmatched_patterns
from .base import Deprecated, Mark, NoEffect, NotSupportedYet, Path, Reference
from .budget_rules import unknown_costs
from .catalog import Catalog
from .config_map import ConfigMap
from .jq_syntax import broken_filters
from .labels import PRIORITY, TENANT, priority_of, tenant_of
from .manifest import Manifest
from .model import Model, missing_package
from .problems import dotted_path
from .query import Query
from .schema_rules import broken_schema_rules
from .secret_extraction import Secrets
from .skill_rules import broken_skill_rules
from .team import Team
from .tool import Tool
from .tool_depth import too_deep_tools
from .values import sources
from .workflow_ids import too_long_ids


class Violation(NamedTuple):
    """A rule that a manifest breaks, and the path."""

    manifest: Manifest
    path: Path
    text: str


def violations(catalog: Catalog) -> Iterator[Violation]:
    """Violations of rules between manifests (ARK: teams, MaxTurns protection; ARK: team strategies)."""
    seen: set[str] = set()
    for manifest in sorted(catalog.manifests, key=lambda each: not isinstance(each, Team)):
        yield from _contains_itself(manifest, catalog, seen)
        yield from _unreadable_labels(manifest)
        yield from _unusable_schemas(manifest)
        if isinstance(manifest, Team):
            yield from _never_ends(manifest, catalog)
            yield from _remote_selector(manifest, catalog)
        if isinstance(manifest, Agent):
            yield from _misnamed_tools(manifest, catalog)
    for rule in (too_long_ids, broken_skill_rules, broken_filters, unmatched_patterns):
        yield from (Violation(*each) for each in rule(catalog))
    yield from (Violation(owner, ("spec", "budget", "cost"), text) for owner, text in unknown_costs(catalog))
    for tool, text in too_deep_tools(catalog):
        yield Violation(tool, ("spec", tool.spec.type), text)


def _contains_itself(start: Manifest, catalog: Catalog, seen: set[str]) -> Iterator[Violation]:
    """Cycles among the references of teams, agents and tools: a depth-first search that visits each once."""
    path: dict[str, tuple[Manifest, Iterator[Reference]]] = {}
    if start.id not in seen and isinstance(start, Team | Agent | Tool):
        path[start.id] = (start, iter(start.references))
    while path:
        owner, references = next(reversed(path.values()))
        seen.add(owner.id)
        reference = next(references, None)
        target = catalog.find(reference) if reference else None
        if reference is None:
            path.pop(owner.id)
        elif target and target.id in path:
            cycle = [each.name for each, _ in path.values()][[*path].index(target.id) :]
            what = f"the {target.kind.lower()} contains itself ({' → '.join((*cycle, target.name))})"
            yield Violation(owner, reference.path, f"{what}: remove one of them")
        elif isinstance(target, Team | Agent | Tool) and target.id not in seen:
            path[target.id] = (target, iter(target.references))


def _unreadable_labels(manifest: Manifest) -> Iterator[Violation]:
    for label, read in ((PRIORITY, priority_of), (TENANT, tenant_of)):
        try:
            read(manifest.metadata.labels)
        except ValueError as error:
            yield Violation(manifest, ("metadata", "labels", label), str(error))


def _unusable_schemas(manifest: Manifest) -> Iterator[Violation]:
    schemas = (
        ("inputSchema", manifest.spec.input_schema if isinstance(manifest, Tool) else None),
        ("outputSchema", manifest.spec.output_schema if isinstance(manifest, Agent | Team) else None),
    )
    for field, schema in schemas:
        for text in broken_schema_rules(schema) if schema else ():
            yield Violation(manifest, ("spec", field), text)


def _misnamed_tools(agent: Agent, catalog: Catalog) -> Iterator[Violation]:
    """Tools with another type in the agent than in their own manifest."""
    for index, (tool, reference) in enumerate(agent.tools()):
        found = catalog.find(reference) if reference else None
        right = found.spec.type if isinstance(found, Tool) else "mcp"
        if found and tool.type not in (None, "custom", right):
            text = f"is '{tool.type}', but {found.id} is of the type '{right}'"
            yield Violation(agent, ("spec", "tools", index, "type"), text)


def _never_ends(team: Team, catalog: Catalog) -> Iterator[Violation]:
    selector = team.spec.selector
    if team.spec.max_turns is not None or not team.spec.is_endless or (selector and selector.enable_terminate_tool):
        return
    if team.budget and team.budget.ends_runs:
        return
    members = [catalog.find(reference) for reference in team.members() if reference.kinds]
    if all(members) and not any(isinstance(member, Agent) and member.can_terminate for member in members):
        units = f"{team.spec.rules.turn_unit}s"
        text = "is missing, and no member agent can terminate: the team would never end; "
        hint = f"set maxTurns (1 or more {units}) or give a member the built-in tool 'terminate'"
        yield Violation(team, ("spec", "maxTurns"), f"{text}{hint}")


def _remote_selector(team: Team, catalog: Catalog) -> Iterator[Violation]:
    """A selector's agent lends it its model: one that is executed elsewhere has none."""
    if team.spec.strategy != "selector":
        return
    reference = team.selector_reference()
    found = catalog.find(reference)
    if isinstance(found, Agent) and found.is_remote:
        yield Violation(team, reference.path, f"{found.id} is executed elsewhere: a selector needs a model")


def queries_without_targets(catalog: Catalog) -> Iterator[Violation]:
    """Queries whose selector matches nothing and that have no other targets."""
    for query in catalog.manifests:
        if isinstance(query, Query) and not catalog.targets(query):
            text = f"no targets: no agent, team, model or tool in namespace '{query.namespace}' has these labels"
            yield Violation(query, ("spec", "selector"), text)


def missing_keys(catalog: Catalog, secrets: Secrets) -> Iterator[Violation]:
    """References to a key that does not exist in a Secret or a ConfigMap of the files."""
    for manifest in catalog.manifests:
        for path, source in sources(manifest.parts):
            for field, kind, ref in source.needs():
                known = _keys(kind, manifest.namespace, ref.name, catalog, secrets)
                if known is not None and ref.key not in known and not ref.optional:
                    keys = ", ".join(sorted(known)) or "none"
                    text = f"{kind} '{ref.name}' has no key '{ref.key}'; its keys: {keys}"
                    yield Violation(manifest, (*path, "valueFrom", field, "key"), text)


def _keys(kind: str, namespace: str, name: str, catalog: Catalog, secrets: Secrets) -> set[str] | None:
    if kind == "Secret":
        secret = secrets.get(namespace, name)
        return {*secret.data, *secret.string_data} if secret else None
    found = catalog.get(kind, namespace, name)
    return {*found.data} if isinstance(found, ConfigMap) else None


def unsupported_fields(manifest: Manifest) -> Iterator[Violation]:
    """The fields of a manifest that are valid but not supported yet."""
    for path, mark, what in _marked(manifest):
        if isinstance(mark, NotSupportedYet):
            yield Violation(manifest, path, f"{what} is valid but not supported yet: remove it to run this")


def notices(manifest: Manifest) -> Iterator[Violation]:
    """The fields of a manifest that are ignored, values of older versions of ARK, and what must be installed for it."""
    if isinstance(manifest, Model) and (lacking := missing_package(manifest.spec.server)):
        yield Violation(manifest, ("spec", "provider" if manifest.spec.provider else "type"), lacking)
    for path, mark, what in _marked(manifest):
        if isinstance(mark, NoEffect):
            yield Violation(manifest, path, f"is {mark}")
        if isinstance(mark, Deprecated):
            yield Violation(manifest, path, f"{what} is deprecated: write {mark.instead.format(what)}")


def _marked(manifest: Manifest) -> Iterator[tuple[Path, Mark, str]]:
    """The marks of the fields that a manifest sets, each with its path, and the value or the field."""
    for path, item in (((), manifest), *manifest.parts):
        for name in sorted(item.model_fields_set):
            field, value = type(item).model_fields[name], getattr(item, name)
            for mark in (mark for mark in field.metadata if isinstance(mark, Mark)):
                if value not in (None, False, (), {}) and (not mark.values or value in mark.values):
                    place = (*path, field.alias or name)
                    yield place, mark, f"'{value}'" if mark.values else dotted_path(place).rpartition(".")[2]
