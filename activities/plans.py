"""What does a workflow have to know of a manifest? Its decisions, drawn from the catalog."""

from conversation.errors import UnknownResource
from conversation.plan import AgentPlan, QueryPlan, TargetPlan, TeamMember, TeamPlan, ToolPlan
from resources.agent import Agent
from resources.base import Reference
from resources.catalog import Catalog, Resource
from resources.duration import parse_duration
from resources.model import Model
from resources.query import Query
from resources.team import Team


def find(catalog: Catalog, reference: Reference) -> Resource:
    """What a reference leads to; raises UnknownResource if it leads to nothing."""
    if found := catalog.find(reference):
        return found
    raise UnknownResource(f"{reference} is known neither to the run nor to its worker")


def query_plan(query: Query, catalog: Catalog) -> QueryPlan:
    """Whom a query asks, and by which workflows they answer."""
    targets = []
    for (_, target), reference in zip(query.spec.asked(), query.targets(), strict=True):
        found = find(catalog, reference)
        workflow = found.spec.strategy if isinstance(found, Team) else target.type
        targets.append(TargetPlan(type=target.type, name=found.name, namespace=found.namespace, workflow=workflow))
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
    members: list[AgentPlan | TeamMember] = []
    for reference in team.members():
        found = find(catalog, reference)
        if isinstance(found, Agent):
            members.append(agent_plan(found, catalog))
        elif isinstance(found, Team):
            strategy = found.spec.strategy
            members.append(TeamMember(kind="team", name=found.name, namespace=found.namespace, strategy=strategy))
    return TeamPlan(
        kind="discussion",
        name=team.name,
        namespace=team.namespace,
        strategy=team.spec.strategy,
        members=tuple(members),
        max_turns=team.spec.max_turns,
        on_max_turns=team.spec.on_max_turns,
    )


def agent_plan(agent: Agent, catalog: Catalog) -> AgentPlan:
    """How an agent takes its turn."""
    return AgentPlan(
        kind="agent",
        name=agent.name,
        namespace=agent.namespace,
        models=tuple(model.name if model else name for model, name in models_of(agent, catalog)),
        tools=tuple(ToolPlan(name=tool.name, on_error=tool.on_error) for tool in agent.spec.tools),
        max_iterations=agent.spec.max_iterations,
        parallel_tool_calls=agent.spec.parallel_tool_calls,
    )


def models_of(agent: Agent, catalog: Catalog) -> list[tuple[Model | None, str]]:
    """The Model that an agent asks and the fallbacks behind it.

    None stands for the environment's server, with the name that the agent gives to its model.
    """
    reference = agent.model_reference()
    model = catalog.find(reference) if reference.optional else find(catalog, reference)
    chain: list[Model] = []
    while isinstance(model, Model) and model not in chain:
        chain.append(model)
        fallback = model.fallback_reference()
        model = find(catalog, fallback) if fallback else None
    return [(model, model.name) for model in chain] or [(None, reference.name)]
