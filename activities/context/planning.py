"""What does a workflow have to know of a manifest? Its decisions, drawn from the catalog."""

from ...conversation.contracts.plan import (
    ActivityMember,
    AgentPlan,
    ChooserPlan,
    EdgePlan,
    MemberPlan,
    PanelPlan,
    QueryPlan,
    TargetPlan,
    TeamMember,
    TeamPlan,
    ToolPlan,
    ToolTarget,
)
from ...conversation.errors import UnknownResource
from ...resources.agent import Agent
from ...resources.base import Reference
from ...resources.catalog import Catalog, Resource
from ...resources.duration import parse_duration
from ...resources.member import Member, Speaker
from ...resources.model import Model
from ...resources.panel import Visibility
from ...resources.query import TARGETS, Query
from ...resources.team import Team
from ...resources.tool import Tool
from ..panel.default_agents import cast, cast_id


def find(catalog: Catalog, reference: Reference) -> Resource:
    """What a reference leads to; raises UnknownResource if it leads to nothing."""
    if found := catalog.find(reference):
        return found
    raise UnknownResource(f"{reference} is known neither to the run nor to its worker")


def query_plan(query: Query, catalog: Catalog) -> QueryPlan:
    """Whom a query asks, and by which workflows they answer."""
    targets = []
    for reference in catalog.targets(query):
        found = find(catalog, reference)
        kind = TARGETS[found.kind]
        workflow = found.spec.strategy if isinstance(found, Team) else kind
        targets.append(TargetPlan(type=kind, name=found.name, namespace=found.namespace, workflow=workflow))
    return QueryPlan(
        kind="query",
        name=query.name,
        namespace=query.namespace,
        targets=tuple(targets),
        timeout=parse_duration(query.spec.timeout).total_seconds() if query.spec.timeout else None,
        fail_fast=query.spec.fail_fast,
    )


def team_plan(team: Team, catalog: Catalog) -> TeamPlan:
    """How a team discusses, with the plans of its agents."""
    spec = team.spec
    seats = zip(spec.members, team.members(), strict=True)
    parts = {part: _part(part, reference, team, catalog) for part, reference in team.appointed()}
    aggregator = parts.pop("aggregator", None)
    return TeamPlan(
        kind="discussion",
        name=team.name,
        namespace=team.namespace,
        strategy=spec.strategy,
        members=tuple(_speaker(member, reference, "member", team, catalog) for member, reference in seats),
        max_turns=spec.max_turns,
        on_max_turns=spec.on_max_turns,
        loops=spec.loops,
        edges=_edges(team),
        chooser=_chooser(team, catalog) if spec.strategy == "selector" else None,
        aggregator=aggregator if isinstance(aggregator, AgentPlan) else None,
        max_concurrency=spec.max_concurrency,
        on_member_error=spec.on_member_error,
        no_progress=spec.no_progress,
        conditional=spec.terminate_when is not None,
        panel=_panel(team, parts) if spec.is_panel else None,
    )


def _panel(team: Team, parts: dict[str, MemberPlan]) -> PanelPlan:
    spec = team.spec
    return PanelPlan(
        max_rounds=spec.rounds,
        roster=tuple(member.address for member in spec.members),
        parts=parts,
        stances=tuple(member.stance or "" for member in spec.members if member.stance),
        audit=spec.audit,
        contributions=spec.contributions,
        session=spec.session or {},
        visibility=spec.synthesizer_visibility or Visibility(),
    )


def _part(part: str, reference: Reference | None, team: Team, catalog: Catalog) -> MemberPlan:
    given = getattr(team.spec, part)
    speaker = given if isinstance(given, Speaker) else Speaker(name=part)
    if reference is None:
        return _default(part, part, team, catalog)
    return _speaker(speaker, reference, part, team, catalog)


def _speaker(speaker: Speaker, reference: Reference, part: str, team: Team, catalog: Catalog) -> MemberPlan:
    """How a team's speaker takes its turn, whatever it is."""
    if speaker.type == "activity":
        name = speaker.address if isinstance(speaker, Member) else speaker.name
        return ActivityMember(kind="activity", name=name, namespace=team.namespace, function=speaker.name)
    found = catalog.find(reference) if reference.optional else find(catalog, reference)
    if isinstance(found, Agent):
        return agent_plan(found, catalog, team)
    if isinstance(found, Team):
        visible = found.spec.synthesizer_visibility
        joins = "conversation" if not found.spec.is_panel else "result" if not visible or visible.history else "nothing"
        strategy = found.spec.strategy
        return TeamMember(kind="team", name=found.name, namespace=found.namespace, strategy=strategy, joins=joins)
    return _default(part, speaker.address if isinstance(speaker, Member) else speaker.name, team, catalog)


def _default(part: str, name: str, team: Team, catalog: Catalog) -> AgentPlan:
    plan = agent_plan(cast(team, part, name, catalog), catalog, team)
    return plan.model_copy(update={"cast": cast_id(team, part, name)})


def _edges(team: Team) -> tuple[EdgePlan, ...]:
    seats = {member.address: seat for seat, member in enumerate(team.spec.members)}
    edges = team.spec.graph.edges if team.spec.graph else ()
    return tuple(EdgePlan(from_=seats[e.from_], to=seats[e.to], conditional=e.when is not None) for e in edges)


def _chooser(team: Team, catalog: Catalog) -> ChooserPlan:
    models = tuple(model.name if model else name for model, name in chooser_models(team, catalog))
    selector = team.spec.selector
    return ChooserPlan(models=models, can_end=bool(selector and selector.enable_terminate_tool))


def chooser_models(team: Team, catalog: Catalog) -> list[tuple[Model | None, str]]:
    """The Model that chooses for a selector, or that its agent asks, and the fallbacks behind it."""
    reference = team.chooser()
    found = catalog.find(reference) if reference.optional else find(catalog, reference)
    if isinstance(found, Agent | Model):
        return models_of(found, catalog)
    return [(None, reference.name)]


def agent_plan(agent: Agent, catalog: Catalog, team: Team | None = None) -> AgentPlan:
    """How an agent takes its turn; what it doesn't say of its context window, its team says."""
    tools = []
    for given, reference in agent.tools():
        tool = find(catalog, reference) if reference else None
        seconds = _seconds(tool) if isinstance(tool, Tool) else None
        tools.append(ToolPlan(name=given.name, on_error=given.on_error, timeout=seconds))
    return AgentPlan(
        kind="agent",
        name=agent.name,
        namespace=agent.namespace,
        models=tuple(model.name if model else name for model, name in models_of(agent, catalog)),
        tools=tuple(tools),
        max_iterations=agent.spec.max_iterations,
        window=agent.spec.context_window or (team.spec.context_window if team else None),
        parallel_tool_calls=agent.spec.parallel_tool_calls,
    )


def model_plan(model: Model, catalog: Catalog) -> AgentPlan:
    """How a model answers by itself."""
    chain = tuple(each.name if each else name for each, name in models_of(model, catalog))
    return AgentPlan(kind="model", name=model.name, namespace=model.namespace, models=chain)


def tool_plan(tool: Tool) -> ToolTarget:
    """How a tool is used by itself."""
    return ToolTarget(kind="tool", name=tool.name, namespace=tool.namespace, timeout=_seconds(tool))


def _seconds(tool: Tool) -> float | None:
    return tool.spec.http.seconds if tool.spec.http else None


def models_of(speaker: Agent | Model, catalog: Catalog) -> list[tuple[Model | None, str]]:
    """The Model that a speaker asks, or is, and the fallbacks behind it.

    None stands for the environment's server, with the name that the agent gives to its model.
    """
    if isinstance(speaker, Model):
        return [(model, model.name) for model in _chain(speaker, catalog)]
    reference = speaker.model_reference()
    model = catalog.find(reference) if reference.optional else find(catalog, reference)
    return [(model, model.name) for model in _chain(model, catalog)] or [(None, reference.name)]


def _chain(model: Resource | None, catalog: Catalog) -> list[Model]:
    chain: list[Model] = []
    while isinstance(model, Model) and model not in chain:
        chain.append(model)
        fallback = model.fallback_reference()
        model = find(catalog, fallback) if fallback else None
    return chain
