"""The rules between manifests, and the fields that are ignored or not supported yet."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from .agent import Agent
from .approval import Approval
from .base import Deprecated, Mark, NoEffect, NotSupportedYet, Path, Reference, walk
from .catalog import Catalog, Resource
from .config_map import ConfigMap
from .json_schema import broken_schema_rules
from .labels import PRIORITY, TENANT, priority_of, tenant_of
from .manifest import Manifest
from .model import Model, missing_package
from .problems import dotted_path
from .query import Query
from .secret import Secrets
from .skill import LOAD_SKILL, Skill
from .team import Team
from .tool import Tool
from .values import Function, PresetArguments, sources

PATH: Path = ("approval", "argumentMatches")
WHY = "people see only the arguments that a model chooses, so the pattern never matches"


def unmatched_patterns(catalog: Catalog) -> Iterator[tuple[Manifest, Path, str]]:
    """Patterns for preset arguments, in a Tool, in an agent's tool, or in a Tool whose argument an agent presets."""
    for owner in catalog.manifests:
        if isinstance(owner, Tool):
            preset = _names(owner.spec.partial)
            yield from ((owner, ("spec", *path), text) for path, text in _matches(owner.spec.approval, preset))
        if isinstance(owner, Agent):
            for number, (given, reference) in enumerate(owner.tools()):
                found = catalog.find(reference) if reference else None
                tool = found if isinstance(found, Tool) else None
                preset, at = _names(given.partial), ("spec", "tools", number)
                of_tool = _names(tool.spec.partial) if tool else set[str]()
                yield from ((owner, (*at, *path), text) for path, text in _matches(given.approval, preset | of_tool))
                for _, text in _matches(tool.spec.approval if tool else None, preset):
                    yield owner, (*at, "partial", "parameters"), f"{text}: the approval of {tool and tool.id} has it"


def _matches(rule: Approval | None, preset: set[str]) -> Iterator[tuple[Path, str]]:
    for index, match in enumerate(rule.argument_matches if rule else ()):
        if match.argument in preset:
            yield (*PATH, index, "argument"), f"'{match.argument}' is a preset argument: {WHY}"


def _names(presets: PresetArguments | None) -> set[str]:
    return {each.name for each in presets.parameters} if presets else set()


DEFAULT_MAX_TURNS = 100
"""Turns of its members after which a team ends that nothing else bounds."""

UNBOUNDED = f"is missing, and nothing else bounds the run for sure: it ends after {DEFAULT_MAX_TURNS} turns"
"""What users are told about such a team."""


def default_max_turns(team: Team) -> int:
    """The default in the unit in which the team's ``maxTurns`` counts: turns, or rounds of all members."""
    counts_rounds = team.spec.rules.turn_unit == "round"
    return max(1, DEFAULT_MAX_TURNS // len(team.spec.members)) if counts_rounds else DEFAULT_MAX_TURNS


def unbounded_teams(catalog: Catalog) -> Iterator[Team]:
    """The teams that may go on for ever: without ``maxTurns``, and in a run that no timeout or budget bounds.

    A run begins with what no other manifest refers to.
    """
    referred = {found.id for each in catalog.manifests for found in below(each, catalog)}
    waiting: list[Resource] = [each for each in catalog.manifests if each.id not in referred]
    reached = set[str]()
    while waiting:
        manifest = waiting.pop()
        if manifest.id in reached or _is_bounded(manifest):
            continue
        reached.add(manifest.id)
        waiting.extend(below(manifest, catalog))
        if isinstance(manifest, Team) and manifest.spec.max_turns is None and manifest.spec.is_endless:
            yield manifest


def _is_bounded(manifest: Resource) -> bool:
    """Whether a manifest bounds all that is done below it."""
    if manifest.budget and manifest.budget.ends_runs:
        return True
    return isinstance(manifest, Query) and manifest.spec.timeout is not None


def below(manifest: Resource, catalog: Catalog) -> Iterator[Resource]:
    """What a manifest refers to."""
    selected = catalog.targets(manifest) if isinstance(manifest, Query) else ()
    found = (catalog.find(reference) for reference in (*manifest.references, *selected))
    return (each for each in found if each)


def unknown_costs(catalog: Catalog) -> Iterator[tuple[Resource, str]]:
    """The manifests with a budget of a cost that can't be kept, and why."""
    for owner in catalog.manifests:
        if owner.budget and owner.budget.cost is not None:
            for name in sorted(_without_price(owner, catalog)):
                yield owner, f"the cost of {name} is not known: give that Model a pricing"


def _without_price(owner: Resource, catalog: Catalog) -> set[str]:
    """The models that may be asked below a manifest and have no price."""
    waiting, seen, found = [owner], set[str](), set[str]()
    while waiting:
        manifest = waiting.pop()
        if manifest.id in seen:
            continue
        seen.add(manifest.id)
        waiting.extend(below(manifest, catalog))
        if isinstance(manifest, Model):
            found.update({manifest.id} if manifest.spec.pricing is None else ())
        elif not (isinstance(manifest, Agent) and manifest.is_remote):
            asked = (each for each in manifest.references if each.kinds == ("Model",))
            found.update(str(each) for each in asked if not catalog.find(each))
    return found


def broken_skill_rules(catalog: Catalog) -> Iterator[tuple[Agent | Skill, Path, str]]:
    """The Agents and Skills that break them, each with the path and what is wrong."""
    for each in catalog.manifests:
        if isinstance(each, Agent) and each.spec.skills:
            yield from _broken_by_agent(each)
        if isinstance(each, Skill) and each.spec.folder:
            text = "is only read for manifests in files: write description, instructions and files"
            yield each, ("spec", "folder"), text


def _broken_by_agent(agent: Agent) -> Iterator[tuple[Agent, Path, str]]:
    names = [skill.name for skill in agent.spec.skills]
    if twice := next((name for name in names if names.count(name) > 1), None):
        yield agent, ("spec", "skills"), f"'{twice}' appears twice"
    if any(tool.name == LOAD_SKILL for tool in agent.spec.tools):
        yield agent, ("spec", "tools"), f"'{LOAD_SKILL}' is the tool that loads skills: give the tool another name"
    if agent.is_remote:
        yield agent, ("spec", "skills"), "can't be used by an agent that is executed elsewhere: remove it"


MAX_TOOL_DEPTH = 8
"""How many tools may stand below each other, each asking the agent or the team that has the next one."""


def too_deep_tools(catalog: Catalog) -> Iterator[tuple[Tool, str]]:
    """The tools below which too many others stand: the innermost of them alone."""
    nodes = {each.id: each for each in catalog.manifests if isinstance(each, Team | Agent | Tool)}
    below = {
        key: [found.id for ref in each.references if (found := catalog.find(ref)) and found.id in nodes]
        for key, each in nodes.items()
    }
    try:
        order = [*TopologicalSorter(below).static_order()]
    except CycleError:
        return  # who contains itself has a rule of its own
    depths: dict[str, int] = {}
    for key in order:
        node, deepest = nodes[key], max((depths[each] for each in below[key]), default=0)
        depths[key] = deepest + 1 if isinstance(node, Tool) and node.asks else deepest
        if isinstance(node, Tool) and depths[key] > MAX_TOOL_DEPTH == deepest:
            yield node, f"{depths[key]} tools stand below each other, each asking the next one; {MAX_TOOL_DEPTH} may"


SECONDS, MEMORY = 5, 512_000_000
"""The limits of the process: even compiling a filter may take any time and memory."""

_PROGRAM = f"""
import json, resource, sys, jq
programs = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
print("ready", flush=True)
for each in programs:
    try:
        jq.compile(each or ".")
        print("null", flush=True)
    except ValueError as error:
        print(json.dumps(str(error)), flush=True)
"""

_known: dict[str, str | None] = {}
"""What was found about filters before: a program loads the same manifest often."""


def broken_filters(catalog: Catalog) -> Iterator[tuple[Manifest, Path, str]]:
    """The filters that jq does not understand, each with its manifest, the path and what is wrong."""
    found = [(each, path, item) for each in catalog.manifests for path, item in walk(each)]
    filters = [(each, path, item.value) for each, path, item in found if isinstance(item, Function)]
    if new := dict.fromkeys(text for *_, text in filters if text not in _known):
        _known.update(zip(new, _errors(new), strict=True))
    for manifest, path, text in filters:
        if wrong := _known[text]:
            yield manifest, (*path, "value"), wrong


def _errors(programs: Iterable[str]) -> Iterator[str | None]:
    """For each program what is wrong with it; None for one that can be compiled."""
    left = [*programs]
    while left:
        said = _compiled(left)
        yield from (_sentence(each) for each in said)
        if len(said) < len(left):  # the process has ended over this one
            yield f"can't be compiled by jq within {SECONDS} s and {MEMORY // 1_000_000} MB"
        left = left[len(said) + 1 :]


def _compiled(programs: list[str]) -> list[str | None]:
    """What jq says of the first programs: of all, unless the process exceeds its limits. Nothing, if it can't start."""
    command, given = [sys.executable, "-I", "-c", _PROGRAM], json.dumps(programs).encode()
    try:
        printed = subprocess.run(
            command, input=given, capture_output=True, timeout=2 * SECONDS, check=False, env={}
        ).stdout
    except subprocess.TimeoutExpired as late:
        printed = late.stdout or b""
    ready, *lines = printed.splitlines() or [b""]
    return [json.loads(line) for line in lines] if ready else [None] * len(programs)


def _sentence(error: str | None) -> str | None:
    first = error.removeprefix("jq: error: ").splitlines()[0].strip() if error else ""
    return f"is no filter that jq understands: {first}" if error else None


MAX_WORKFLOW_ID = 1_000
"""Bytes of a workflow id that Temporal takes. The id of a nested run contains the ids of all runs above it."""

MAX_PLACE = len("/round-1000/synthesizer/")
"""Bytes that stand between the id of a run and the name of the team that runs below it."""

RANDOM_SUFFIX = len("-xxxxxx")
"""Bytes behind the name of a Query or Team in the id of a run that is given none."""


def too_long_ids(catalog: Catalog) -> Iterator[tuple[Query | Team, Path, str]]:
    """The Queries and Teams whose nested runs would have ids that Temporal refuses: the innermost of them alone."""
    owners = {each.id: each for each in catalog.manifests if isinstance(each, Query | Team)}
    nested = {key: [*_nested_teams(owner, catalog)] for key, owner in owners.items()}
    try:
        graph = {key: [team.id for _, team in teams] for key, teams in nested.items()}
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError:
        return  # teams that contain themselves have a rule of their own
    lengths: dict[str, int] = {}
    for key in order:
        owner, below = owners[key], max(((lengths[team.id], ref.path) for ref, team in nested[key]), default=None)
        lengths[key] = len(owner.name) + (MAX_PLACE + below[0] if below else 0)
        if below and lengths[key] + RANDOM_SUFFIX > MAX_WORKFLOW_ID >= below[0] + RANDOM_SUFFIX:
            size = f"{lengths[key] + RANDOM_SUFFIX:,} bytes, and Temporal takes {MAX_WORKFLOW_ID:,}"
            text = f"the innermost team would have a workflow id of {size}: nest fewer teams, or use shorter names"
            yield owner, below[1], text


def _nested_teams(owner: Query | Team, catalog: Catalog) -> Iterator[tuple[Reference, Team]]:
    for reference in (*owner.references, *(catalog.targets(owner) if isinstance(owner, Query) else ())):
        if isinstance(found := catalog.find(reference), Team):
            yield reference, found


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
        for path, source in sources(manifest):
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
    for path, item in walk(manifest):
        for name in sorted(item.model_fields_set):
            field, value = type(item).model_fields[name], getattr(item, name)
            for mark in (mark for mark in field.metadata if isinstance(mark, Mark)):
                if value not in (None, False, (), {}) and (not mark.values or value in mark.values):
                    place = (*path, field.alias or name)
                    yield place, mark, f"'{value}'" if mark.values else dotted_path(place).rpartition(".")[2]
