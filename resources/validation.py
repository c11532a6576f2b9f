"""The rules between manifests, and notices about fields that are ignored or not supported yet.

The rules of a single manifest are validators of its model, in the module of its kind.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from ..installation import is_installed, missing_extra
from .a2a_server import A2AServer
from .agent import Agent
from .approval import Approval
from .base import Deprecated, Mark, NoEffect, NotSupportedYet, Path, Reference, walk
from .catalog import Catalog, Resource
from .child_process import child_command, child_environment, limit
from .config_map import ConfigMap
from .json_schema import broken_schema_rules
from .manifest import Manifest
from .mcp_server import MCPServer
from .member import Speaker
from .model import Model, missing_library
from .panel import FunctionRef
from .problems import did_you_mean, dotted_path
from .query import Query
from .secret import Secrets
from .skill import Skill
from .team import DEFAULT_MAX_TURNS, Team
from .template import TemplateError, check_names, names_in
from .tool import ARGUMENTS, PLURALS, Tool, argument_for_text
from .values import QUERY, Function, Parameter, PresetArguments, ValueSource, sources


class Violation(NamedTuple):
    """A rule that a manifest breaks, and the path."""

    manifest: Manifest
    path: Path
    text: str


def violations(catalog: Catalog) -> Iterator[Violation]:
    """Violations of rules between manifests (ARK: teams, MaxTurns protection; ARK: team strategies)."""
    seen: set[str] = set()
    for manifest in sorted(catalog.manifests, key=lambda manifest: not isinstance(manifest, Team)):
        yield from _contains_itself(manifest, catalog, seen)
        yield from _unusable_schemas(manifest)
        if isinstance(manifest, Team):
            yield from _never_ends(manifest, catalog)
            yield from _remote_selector(manifest, catalog)
            yield from _impossible_handoffs(manifest, catalog)
        if isinstance(manifest, Agent):
            yield from _misnamed_tools(manifest, catalog)
    for rule in (
        too_long_ids,
        unread_skill_folders,
        broken_filters,
        unmatched_patterns,
        secret_activity_arguments,
        unknown_costs,
        unsupported_settings,
        too_deep_tools,
        ambiguous_texts,
    ):
        yield from rule(catalog)


def _contains_itself(start: Manifest, catalog: Catalog, seen: set[str]) -> Iterator[Violation]:
    """Cycles of references among teams, agents and tools, by a depth-first search."""
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
            cycle = [manifest.name for manifest, _ in path.values()][[*path].index(target.id) :]
            what = f"the {target.kind.lower()} contains itself ({' → '.join((*cycle, target.name))})"
            yield Violation(owner, reference.path, f"{what}: remove one of them")
        elif isinstance(target, Team | Agent | Tool) and target.id not in seen:
            path[target.id] = (target, iter(target.references))


def _unusable_schemas(manifest: Manifest) -> Iterator[Violation]:
    """Unusable JSON Schemas. Not a pydantic validator: the check is slow, and workers read validated catalogs."""
    schemas = (
        ("inputSchema", manifest.spec.input_schema if isinstance(manifest, Tool) else None),
        ("outputSchema", manifest.spec.output_schema if isinstance(manifest, Agent | Team) else None),
    )
    for field, schema in schemas:
        for text in broken_schema_rules(schema) if schema else ():
            yield Violation(manifest, ("spec", field), text)


def _misnamed_tools(agent: Agent, catalog: Catalog) -> Iterator[Violation]:
    """Tools whose type in the agent differs from that in their own manifest."""
    for index, (tool, reference) in enumerate(agent.tools()):
        manifest = catalog.find(reference) if reference else None
        actual = manifest.spec.type if isinstance(manifest, Tool) else "mcp"
        if manifest and tool.type not in (None, "custom", actual):
            text = f"is '{tool.type}', but {manifest.id} is of the type '{actual}'"
            yield Violation(agent, ("spec", "tools", index, "type"), text)


def _never_ends(team: Team, catalog: Catalog) -> Iterator[Violation]:
    selector = team.spec.selector
    may_end = selector and (selector.enable_terminate_tool or selector.function)
    if team.spec.max_turns is not None or not team.spec.is_endless or may_end:
        return
    if team.budget and team.budget.ends_runs:
        return
    members = [catalog.find(reference) for reference in team.members() if reference.kinds]
    if all(members) and not any(isinstance(member, Agent) and member.can_terminate for member in members):
        units = f"{team.spec.rules.turn_unit}s"
        text = "is missing, and no member agent can terminate: the team would never end; "
        hint = f"set maxTurns (1 or more {units}) or give a member the built-in tool 'terminate'"
        yield Violation(team, ("spec", "maxTurns"), f"{text}{hint}")


def _impossible_handoffs(team: Team, catalog: Catalog) -> Iterator[Violation]:
    """Handoffs of members without a model, and tools of members with the name of a tool that Baton makes."""
    for index, (member, reference) in enumerate(zip(team.spec.members, team.members(), strict=True)):
        manifest = catalog.find(reference)
        if member.handoffs and (isinstance(manifest, Team) or (isinstance(manifest, Agent) and manifest.is_remote)):
            text = f"{manifest.id} has no model of its own: it can receive the conversation, but not transfer it"
            yield Violation(team, ("spec", "members", index, "handoffs"), text)
        own_tools = {tool.name for tool in manifest.spec.tools} if isinstance(manifest, Agent) else set[str]()
        for name in sorted(own_tools & team.spec.handoff_tools(index).keys()):
            text = f"the agent {reference.name} has a tool '{name}' of its own: give it or the member another name"
            yield Violation(team, ("spec", "members", index), text)


def _remote_selector(team: Team, catalog: Catalog) -> Iterator[Violation]:
    """A selector uses the model of its agent; an agent that is executed elsewhere has none."""
    if team.spec.strategy != "selector" or (team.spec.selector and team.spec.selector.function):
        return
    reference = team.selector_reference()
    manifest = catalog.find(reference)
    if isinstance(manifest, Agent) and manifest.is_remote:
        yield Violation(team, reference.path, f"{manifest.id} is executed elsewhere: a selector needs a model")


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
        return secret.keys if secret else None
    manifest = catalog.get(kind, namespace, name)
    return {*manifest.data} if isinstance(manifest, ConfigMap) else None


# The nesting of teams, tools and queries

MAX_WORKFLOW_ID = 1_000
"""Bytes of a workflow id that Temporal accepts. The id of a nested run contains the ids of all its ancestors."""

MAX_PLACE = len("/round-1000/synthesizer/")
"""Bytes between the id of a run and the name of the team that runs below it."""

RANDOM_SUFFIX = len("-xxxxxx")
"""Bytes that follow the name of a Query or Team in a generated workflow id."""


def too_long_ids(catalog: Catalog) -> Iterator[Violation]:
    """Queries and Teams whose nested runs would have ids that Temporal rejects; only the innermost are reported."""
    owners = {manifest.id: manifest for manifest in catalog.manifests if isinstance(manifest, Query | Team)}
    nested = {key: [*_nested_teams(owner, catalog)] for key, owner in owners.items()}
    try:
        graph = {key: [team.id for _, team in teams] for key, teams in nested.items()}
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError:
        return  # cycles are reported by another rule
    lengths: dict[str, int] = {}
    for key in order:
        owner = owners[key]
        below = max(((lengths[team.id], reference.path) for reference, team in nested[key]), default=None)
        lengths[key] = len(owner.name) + (MAX_PLACE + below[0] if below else 0)
        if below and lengths[key] + RANDOM_SUFFIX > MAX_WORKFLOW_ID >= below[0] + RANDOM_SUFFIX:
            size = f"{lengths[key] + RANDOM_SUFFIX:,} bytes, and Temporal accepts {MAX_WORKFLOW_ID:,}"
            text = f"the innermost team would have a workflow id of {size}: nest fewer teams, or use shorter names"
            yield Violation(owner, below[1], text)


def _nested_teams(owner: Query | Team, catalog: Catalog) -> Iterator[tuple[Reference, Team]]:
    for reference in (*owner.references, *(catalog.targets(owner) if isinstance(owner, Query) else ())):
        if isinstance(member := catalog.find(reference), Team):
            yield reference, member


MAX_TOOL_DEPTH = 8
"""How deeply tools may be nested: every tool delegates to the agent or team that has the next one."""


def too_deep_tools(catalog: Catalog) -> Iterator[Violation]:
    """Tools that nest too many others; only the innermost are reported."""
    nodes = {manifest.id: manifest for manifest in catalog.manifests if isinstance(manifest, Team | Agent | Tool)}
    below = {
        key: [manifest.id for ref in node.references if (manifest := catalog.find(ref)) and manifest.id in nodes]
        for key, node in nodes.items()
    }
    try:
        order = [*TopologicalSorter(below).static_order()]
    except CycleError:
        return  # cycles are reported by another rule
    depths: dict[str, int] = {}
    for key in order:
        node = nodes[key]
        deepest = max((depths[child] for child in below[key]), default=0)
        depths[key] = deepest + 1 if isinstance(node, Tool) and node.asks else deepest
        if isinstance(node, Tool) and depths[key] > MAX_TOOL_DEPTH == deepest:
            text = f"tools are nested {depths[key]} deep, each calling the next one; the maximum is {MAX_TOOL_DEPTH}"
            yield Violation(node, ("spec", node.spec.type), text)


# Bounds and budgets

UNBOUNDED = f"is missing, and nothing else reliably limits the run: it ends after {DEFAULT_MAX_TURNS} turns"
"""The notice about a team that may run forever."""


def unbounded_teams(catalog: Catalog) -> Iterator[Team]:
    """Teams that may never end: without ``maxTurns``, and in a run that no timeout or budget limits.

    A run starts with a manifest that no other references.
    """
    referred = {target.id for owner in catalog.manifests for target in below(owner, catalog)}
    waiting: list[Resource] = [manifest for manifest in catalog.manifests if manifest.id not in referred]
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
    """Whether a manifest limits everything below it."""
    if manifest.budget and manifest.budget.ends_runs:
        return True
    return isinstance(manifest, Query) and manifest.spec.timeout is not None


def below(manifest: Resource, catalog: Catalog) -> Iterator[Resource]:
    """The resources that a manifest references."""
    selected = catalog.targets(manifest) if isinstance(manifest, Query) else ()
    referenced = (catalog.find(reference) for reference in (*manifest.references, *selected))
    return (manifest for manifest in referenced if manifest)


def unknown_costs(catalog: Catalog) -> Iterator[Violation]:
    """Budgets that limit a cost that can't be calculated because a model has no price."""
    for owner in catalog.manifests:
        if owner.budget and owner.budget.cost is not None:
            for name in sorted(_without_price(owner, catalog)):
                text = f"the cost of {name} is not known: give that Model a pricing"
                yield Violation(owner, ("spec", "budget", "cost"), text)


def _without_price(owner: Resource, catalog: Catalog) -> set[str]:
    """The models without a price that may be called below a manifest."""
    waiting = [owner]
    seen = set[str]()
    unpriced = set[str]()
    while waiting:
        manifest = waiting.pop()
        if manifest.id in seen:
            continue
        seen.add(manifest.id)
        waiting.extend(below(manifest, catalog))
        if isinstance(manifest, Model):
            if manifest.spec.pricing is None:
                unpriced.add(manifest.id)
        elif not (isinstance(manifest, Agent) and manifest.is_remote):
            models = (reference for reference in manifest.references if reference.kinds == ("Model",))
            unpriced.update(str(model) for model in models if not catalog.find(model))
    return unpriced


def unsupported_settings(catalog: Catalog) -> Iterator[Violation]:
    """Settings of an agent that the provider of its model, or of a fallback, can't take."""
    for agent in catalog.manifests:
        if isinstance(agent, Agent):
            for field, text in unsupported_by_models(agent, catalog):
                yield Violation(agent, ("spec", field), text)


def unsupported_by_models(agent: Agent, catalog: Catalog) -> Iterator[tuple[str, str]]:
    """The settings of an agent that a provider of its models can't take: the field of its ``spec``, and the reason."""
    models = list[Model]()
    model = catalog.find(agent.model_reference()) if agent.spec.chosen else None
    while isinstance(model, Model) and model not in models:
        models.append(model)
        fallback = model.fallback_reference()
        model = catalog.find(fallback) if fallback else None
    for model in models:
        for field, text in agent.spec.unsupported_by(model.spec.server):
            yield field, f"{text} ({model.id})"


# Parameters, presets and approvals


def unknown_parameters(start: Resource, catalog: Catalog) -> Iterator[Violation]:
    """Unknown parameters in a run of ``start``. Only then it is known which query, agents and tools are combined."""
    query = start if isinstance(start, Query) else None
    parameters = _parameter_names(query.spec.parameters) if query else set[str]()
    for manifest in catalog.manifests:
        for path, source in sources(manifest):
            ref = source.value_from.query_parameter_ref if source.value_from else None
            if ref and ref.name not in parameters:
                known = ", ".join(sorted(parameters)) or "none"
                text = f"the query has no parameter '{ref.name}'; it has: {known}"
                yield Violation(manifest, (*path, "valueFrom", "queryParameterRef", "name"), text)
    for tool, user in _uses(start, catalog):
        known_names = {*parameters, *_parameter_names(user.spec.parameters if user else ())}
        yield from _unmet_by_tool(tool, known_names)
        yield from _unmet_by_presets(
            tool, ("spec",), tool.spec.partial, {*known_names, *_parameter_names(tool.parameters)}, parameters
        )
    for agent in (manifest for manifest in catalog.manifests if isinstance(manifest, Agent)):
        known_names = {*parameters, *_parameter_names(agent.spec.parameters)}
        for index, agent_tool in enumerate(agent.spec.tools):
            yield from _unmet_by_presets(agent, ("spec", "tools", index), agent_tool.partial, known_names, parameters)


def _uses(start: Resource, catalog: Catalog) -> Iterator[tuple[Tool, Agent | None]]:
    """The pairs of tools and agents in a run; None instead of an agent if the tool is a target of the query."""
    for manifest in catalog.manifests:
        if isinstance(manifest, Agent):
            targets = (catalog.find(reference) for _, reference in manifest.tools() if reference)
            yield from ((tool, manifest) for tool in targets if isinstance(tool, Tool))
    if isinstance(start, Query):
        targets = (catalog.find(reference) for reference in catalog.targets(start))
        yield from ((tool, None) for tool in targets if isinstance(tool, Tool))


def _unmet_by_tool(tool: Tool, known: set[str]) -> Iterator[Violation]:
    for path, template in tool.templates():
        arguments = [name for name in names_in(template) if name.startswith(ARGUMENTS) and path[-1] != "url"]
        try:
            check_names(template, {*known, *_parameter_names(tool.parameters), *arguments})
        except TemplateError as error:
            yield Violation(tool, path, str(error))


def _unmet_by_presets(
    owner: Tool | Agent, path: Path, presets: PresetArguments | None, known: set[str], parameters: set[str]
) -> Iterator[Violation]:
    for index, template in presets.templates() if presets else ():
        try:
            check_names(template, {*known, *(f"{QUERY}{name}" for name in parameters)})
        except TemplateError as error:
            yield Violation(owner, (*path, "partial", "parameters", index, "value"), str(error))


def _parameter_names(parameters: tuple[Parameter, ...]) -> set[str]:
    return {parameter.name for parameter in parameters}


def unknown_presets(catalog: Catalog) -> Iterator[Violation]:
    """Preset arguments that are not in a tool's input schema, if its manifest has one (as in ARK's samples)."""
    for owner in catalog.manifests:
        for path, presets, tool in _used(owner, catalog):
            known = tool.input_schema.get("properties") if isinstance(tool, Tool) else None
            for index, parameter in enumerate(
                presets.parameters if presets and known and isinstance(known, dict) else ()
            ):
                if isinstance(known, dict) and tool and parameter.name not in known:
                    text = f"'{parameter.name}' is not a property of {tool.id}'s inputSchema; it is sent anyway"
                    place = ("spec", *path, "partial", "parameters", index, "name")
                    yield Violation(owner, place, f"{text}; its properties: {', '.join(known)}")


def _used(owner: Manifest, catalog: Catalog) -> Iterator[tuple[Path, PresetArguments | None, Manifest | None]]:
    if isinstance(owner, Tool):
        yield (), owner.spec.partial, owner
    elif isinstance(owner, Agent):
        for index, (agent_tool, reference) in enumerate(owner.tools()):
            yield ("tools", index), agent_tool.partial, catalog.find(reference) if reference else None


def secret_activity_arguments(catalog: Catalog) -> Iterator[Violation]:
    """Preset arguments of activities and workflows that read a Secret.

    One in a parameter of the query is found at the call.
    """
    for owner in catalog.manifests:
        for path, presets, tool in _used(owner, catalog):
            if not (presets and isinstance(tool, Tool) and tool.spec.application):
                continue
            parameters = (*tool.parameters, *(owner.spec.parameters if isinstance(owner, Agent) else ()))
            secret = {parameter.name for parameter in parameters if _reads_secret(parameter)}
            for index, preset in enumerate(presets.parameters):
                if _reads_secret(preset) or secret.intersection(names_in(preset.value or "")):
                    place = ("spec", *path, "partial", "parameters", index)
                    text = f"reads a Secret, but the history of a run has the arguments of {PLURALS[tool.spec.type]}"
                    yield Violation(owner, place, text)


def _reads_secret(value: ValueSource) -> bool:
    return bool(value.value_from and value.value_from.secret_key_ref)


def unmatched_patterns(catalog: Catalog) -> Iterator[Violation]:
    """Patterns for preset arguments, in a Tool, in an agent's tool, or in a Tool whose argument an agent presets."""
    for owner in catalog.manifests:
        if isinstance(owner, Tool):
            for path, text in _matches(owner.spec.approval, _preset_names(owner.spec.partial)):
                yield Violation(owner, ("spec", *path), text)
        if isinstance(owner, Agent):
            for index, (agent_tool, reference) in enumerate(owner.tools()):
                place = ("spec", "tools", index)
                tool = catalog.find(reference) if reference else None
                preset = _preset_names(agent_tool.partial)
                preset_by_both = preset | _preset_names(tool.spec.partial) if isinstance(tool, Tool) else preset
                for path, text in _matches(agent_tool.approval, preset_by_both):
                    yield Violation(owner, (*place, *path), text)
                if isinstance(tool, Tool):
                    for _, text in _matches(tool.spec.approval, preset):
                        where = (*place, "partial", "parameters")
                        yield Violation(owner, where, f"{text}: it is in the approval of {tool.id}")


def _matches(rule: Approval | None, preset: set[str]) -> Iterator[tuple[Path, str]]:
    for index, match in enumerate(rule.argument_matches if rule else ()):
        if match.argument in preset:
            text = "people see only the arguments that a model chooses, so the pattern never matches"
            path = ("approval", "argumentMatches", index, "argument")
            yield path, f"'{match.argument}' is a preset argument: {text}"


def _preset_names(presets: PresetArguments | None) -> set[str]:
    return {parameter.name for parameter in presets.parameters} if presets else set()


# Other rules of one kind


def missing_memories(catalog: Catalog) -> Iterator[Violation]:
    """The queries whose conversation is stored in the journal, although they name a Memory."""
    for query in catalog.manifests:
        if isinstance(query, Query) and query.spec.memory:
            reference = query.memory_reference()
            if not catalog.find(reference):
                text = f"{reference} is not in the files: unless the worker has it, the journal stores the conversation"
                yield Violation(query, reference.path, text)


def ambiguous_texts(catalog: Catalog) -> Iterator[Violation]:
    """Queries that send a text to a tool with several arguments, any of which the text could be for."""
    for query in catalog.manifests:
        if not isinstance(query, Query) or query.spec.parameters or _is_json_object(query.spec.text):
            continue
        for reference in catalog.targets(query):
            tool = catalog.find(reference)
            try:
                if isinstance(tool, Tool):
                    argument_for_text(tool.input_schema, _preset_names(tool.spec.partial))
            except ValueError as error:
                yield Violation(query, ("spec", "input"), f"{error}")


@dataclass(frozen=True)
class Registered:
    """What a worker of a task queue has registered, by name; None for what other workers of the queue may have."""

    task_queue: str
    functions: Collection[str] | None
    activities: Collection[str] | None
    workflows: Collection[str] | None


def unregistered(catalog: Catalog, registered: Registered) -> Iterator[Violation]:
    """Functions, and activities and workflows on the worker's own task queue, that a worker has not registered."""
    functions = registered.functions
    for manifest in catalog.manifests:
        for path, name in functions_of(manifest):
            if functions is not None and name not in functions:
                yield Violation(manifest, path, f"the worker has no function '{name}'; {_instead(name, functions)}")
        called = manifest.spec.application if isinstance(manifest, Tool) else None
        if not (isinstance(manifest, Tool) and called and called.task_queue in (None, registered.task_queue)):
            continue
        types = registered.activities if manifest.spec.activity else registered.workflows
        if types is not None and called.type not in types:
            kind = manifest.spec.type
            text = f"the worker of the task queue {registered.task_queue} has no {kind} '{called.type}'"
            yield Violation(manifest, ("spec", kind, "type"), f"{text}; {_instead(called.type, types)}")


def functions_of(manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """The registered functions that a manifest names, with their paths."""
    if isinstance(manifest, Tool) and manifest.spec.type == "function" and manifest.spec.function:
        yield ("spec", "function", "name"), manifest.spec.function.name
    if isinstance(manifest, Team) and manifest.spec.selector and manifest.spec.selector.function:
        yield ("spec", "selector", "function"), manifest.spec.selector.function
    for path, item in walk(manifest):
        if isinstance(item, FunctionRef):
            yield (*path, "function"), item.function
        if isinstance(item, Speaker) and item.type == "activity":
            yield (*path, "name"), item.name


def function_names(catalog: Catalog) -> Iterator[str]:
    """The registered functions that manifests name."""
    yield from (name for manifest in catalog.manifests for _, name in functions_of(manifest))


def _instead(name: str, known: Collection[str]) -> str:
    return did_you_mean(name, known) if known else "it has none"


def _is_json_object(text: str) -> bool:
    with suppress(ValueError):
        return isinstance(json.loads(text), dict)
    return False


def unread_skill_folders(catalog: Catalog) -> Iterator[Violation]:
    """Skills whose folder was not read, because they do not come from a file."""
    for skill in catalog.manifests:
        if isinstance(skill, Skill) and skill.spec.folder:
            text = "is only read for manifests in files: write description, instructions and files"
            yield Violation(skill, ("spec", "folder"), text)


# Filters of jq

JQ_SECONDS = 5
JQ_MEMORY = 512_000_000
"""The limits of a process that compiles filters, in seconds and bytes.

jq folds constants at compile time: ``"x" * 1000000000 * 1000000000`` would exhaust the memory of a worker.
"""

_JQ_PROGRAM = f"""
import json, jq
from {limit.__module__} import limit
programs = json.load(sys.stdin)
limit("RLIMIT_NOFILE", 0)
limit("RLIMIT_AS", {JQ_MEMORY})
limit("RLIMIT_CPU", {JQ_SECONDS})
print("ready", flush=True)
for program in programs:
    try:
        jq.compile(program or ".")
        print("null", flush=True)
    except ValueError as error:
        print(json.dumps(str(error)), flush=True)
"""

_checked: dict[str, str | None] = {}
"""The filters that were compiled before, with their errors: a program may load the same manifest often."""


def broken_filters(catalog: Catalog) -> Iterator[Violation]:
    """The filters that jq can't compile. A client without jq leaves that to the worker."""
    filters = [
        (manifest, path, item.value)
        for manifest in catalog.manifests
        for path, item in walk(manifest)
        if isinstance(item, Function)
    ]
    new = dict.fromkeys(program for *_, program in filters if program not in _checked)
    if new and not is_installed("jq"):  # looks for files: most runs bring no filter
        return
    _checked.update(zip(new, _errors(new), strict=True))
    for manifest, path, program in filters:
        if error := _checked[program]:
            yield Violation(manifest, (*path, "value"), error)


def _errors(programs: Iterable[str]) -> Iterator[str | None]:
    """The errors of all programs, in order; None for one that compiles."""
    remaining = [*programs]
    while remaining:
        try:
            errors = _compile(remaining)
        except OSError as error:
            yield from [f"can't be checked: {error}"] * len(remaining)
            return
        yield from (_sentence(error) for error in errors)
        if len(errors) < len(remaining):  # the next program exceeded the limits of the process
            yield f"can't be compiled by jq within {JQ_SECONDS} s and {JQ_MEMORY // 1_000_000} MB"
        remaining = remaining[len(errors) + 1 :]


def _compile(programs: list[str]) -> list[str | None]:
    """jq's errors for the first programs, up to the one that exceeds the limits. Raises OSError if jq can't start."""
    try:
        done = subprocess.run(
            child_command(_JQ_PROGRAM),
            input=json.dumps(programs).encode(),
            capture_output=True,
            timeout=2 * JQ_SECONDS,
            check=False,
            env=child_environment(),
        )
        printed = done.stdout
        words = done.stderr.decode(errors="replace").strip().splitlines()
    except subprocess.TimeoutExpired as timeout:
        printed = timeout.stdout or b""
        words = []
    if not printed:
        raise ChildProcessError(f"{sys.executable} with jq did not start: {(words or ['it took too long'])[-1]}")
    return [json.loads(line) for line in printed.splitlines()[1:]]


def _sentence(error: str | None) -> str | None:
    if not error:
        return None
    first = error.removeprefix("jq: error: ").splitlines()[0].strip()
    return f"is not a valid jq filter: {first}"


# Marks of fields


def unsupported_fields(manifest: Manifest) -> Iterator[Violation]:
    """The fields of a manifest that are valid but not supported yet."""
    for path, mark, what in _marked(manifest):
        if isinstance(mark, NotSupportedYet):
            yield Violation(manifest, path, f"{what} is valid but not supported yet: remove it to run this")


def notices(manifest: Manifest) -> Iterator[Violation]:
    """Ignored fields, deprecated values of older releases of ARK, missing libraries and schemas."""
    if missing := _missing_library(manifest):
        yield missing
    if isinstance(manifest, Tool) and (names := manifest.arguments_without_schema):
        arguments = " and ".join(names)
        yield Violation(manifest, ("spec",), f"has no inputSchema: models see {arguments} as required texts")
    for path, mark, what in _marked(manifest):
        if isinstance(mark, NoEffect):
            yield Violation(manifest, path, f"is {mark}")
        if isinstance(mark, Deprecated):
            yield Violation(manifest, path, f"{what} is deprecated: write {mark.instead.format(what)}")


def _missing_library(manifest: Manifest) -> Violation | None:
    """The extra that workers need for a manifest, if it is not installed here. A mere client doesn't need it."""
    if not is_installed("openai"):  # this is no worker
        return None
    match manifest:
        case Model():
            text = missing_library(manifest.spec.server)
            path: Path = ("spec", "provider" if manifest.spec.provider else "type")
        case MCPServer():
            text = missing_extra("mcp", "an MCPServer")
            path = ("spec",)
        case A2AServer():
            text = missing_extra("a2a", "an A2AServer")
            path = ("spec",)
        case _:
            return None
    return Violation(manifest, path, text) if text else None


def _marked(manifest: Manifest) -> Iterator[tuple[Path, Mark, str]]:
    """The marks of the fields that a manifest sets, with their paths, and the value or the field."""
    for path, item in walk(manifest):
        for name in sorted(item.model_fields_set):
            field, value = type(item).model_fields[name], getattr(item, name)
            for mark in (mark for mark in field.metadata if isinstance(mark, Mark)):
                if value not in (None, False, ()) and (not mark.values or value in mark.values):
                    place = (*path, field.alias or name)
                    yield place, mark, f"'{value}'" if mark.values else dotted_path(place).rpartition(".")[2]
