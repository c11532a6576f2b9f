"""The plan of a team: its strategy's settings, and a plan for each member and for each other role."""

from ...conversation.contracts.member_plans import ActivityMember, HumanMember, TeamMember
from ...conversation.contracts.plan import AgentPlan, EdgePlan, MemberPlan, PanelPlan, SelectorPlan, TeamPlan
from ...resources.agent import Agent
from ...resources.base import Reference
from ...resources.bounds import default_max_turns, unbounded_teams
from ...resources.catalog import Catalog
from ...resources.dialect import Dialect
from ...resources.duration import parse_duration
from ...resources.member import Member, Speaker
from ...resources.panel import Visibility
from ...resources.team import Team
from ..context.lookup import find_optional
from ..context.model_chain import longest_timeout, selector_model_chain
from ..panel.default_agents import default_agent, default_agent_id
from .agent_plan import agent_plan


def team_plan(team: Team, catalog: Catalog, dialect: Dialect | None = None) -> TeamPlan:
    """The plan of a team, with the plans of its members. In ARK's dialect, ``maxTurns`` is a normal end by default."""
    spec, given = team.spec, "on_max_turns" in team.spec.model_fields_set
    members = zip(spec.members, team.members(), strict=True)
    roles = {role: _role(role, reference, team, catalog) for role, reference in team.role_holders()}
    aggregator = roles.pop("aggregator", None)
    plan = TeamPlan(
        kind="discussion",
        name=team.name,
        namespace=team.namespace,
        strategy=spec.strategy,
        members=tuple(_speaker(member, reference, "member", team, catalog) for member, reference in members),
        max_turns=spec.max_turns,
        on_max_turns="complete" if dialect == "ark" and not given else spec.on_max_turns,
        loops=spec.loops,
        edges=_edges(team),
        chooser=_selector(team, catalog) if spec.strategy == "selector" else None,
        aggregator=aggregator if isinstance(aggregator, AgentPlan) else None,
        max_concurrency=spec.max_concurrency,
        on_member_error=spec.on_member_error,
        no_progress=spec.no_progress,
        conditional=spec.terminate_when is not None,
        panel=_panel(team, roles) if spec.is_panel else None,
        budget=team.budget,
        dialect=dialect,
    )
    if spec.max_turns is None and spec.is_endless and team in unbounded_teams(catalog):
        return plan.model_copy(update={"max_turns": default_max_turns(team), "bounded_by_default": True})
    return plan


def _panel(team: Team, roles: dict[str, MemberPlan]) -> PanelPlan:
    spec = team.spec
    return PanelPlan(
        max_rounds=spec.rounds,
        roster=tuple(member.name_in_team for member in spec.members),
        parts=roles,
        stances=tuple(member.stance or "" for member in spec.members if member.stance),
        audit=spec.audit,
        contributions=spec.contributions,
        session=spec.session or {},
        visibility=spec.synthesizer_visibility or Visibility(),
    )


def _role(role: str, reference: Reference | None, team: Team, catalog: Catalog) -> MemberPlan:
    """The speaker of a role that is no member's, such as a panel's referee; without a reference a default agent."""
    given = getattr(team.spec, role)
    speaker = given if isinstance(given, Speaker) else Speaker(name=role)
    if reference is None:
        return _default(role, role, team, catalog)
    return _speaker(speaker, reference, role, team, catalog)


def _speaker(speaker: Speaker, reference: Reference, role: str, team: Team, catalog: Catalog) -> MemberPlan:
    """How a speaker of a team takes its turn: as an agent, a team, a person, a function, or a default agent."""
    if speaker.type == "activity":
        name = speaker.name_in_team if isinstance(speaker, Member) else speaker.name
        return ActivityMember(kind="activity", name=name, namespace=team.namespace, function=speaker.name)
    if isinstance(speaker, Member) and speaker.is_human:
        return _human(speaker, team)
    found = find_optional(catalog, reference)
    if isinstance(found, Agent):
        return agent_plan(found, catalog, team)
    if isinstance(found, Team):
        visible = found.spec.synthesizer_visibility
        joins = "conversation" if not found.spec.is_panel else "result" if not visible or visible.history else "nothing"
        strategy = found.spec.strategy
        return TeamMember(kind="team", name=found.name, namespace=found.namespace, strategy=strategy, joins=joins)
    return _default(role, speaker.name_in_team if isinstance(speaker, Member) else speaker.name, team, catalog)


def _human(member: Member, team: Team) -> HumanMember:
    plan = HumanMember(kind="human", name=member.name_in_team, namespace=team.namespace)
    other = {
        "timeout": parse_duration(member.timeout).total_seconds() if member.timeout else None,
        "skips": member.on_timeout == "skip",
        "checked": member.output_schema is not None,
    }
    return plan.model_copy(update={key: each for key, each in other.items() if each})


def _default(role: str, name: str, team: Team, catalog: Catalog) -> AgentPlan:
    plan = agent_plan(default_agent(team, role, name, catalog), catalog, team)
    return plan.model_copy(update={"cast": default_agent_id(team, role, name)})


def _edges(team: Team) -> tuple[EdgePlan, ...]:
    index = {member.name_in_team: place for place, member in enumerate(team.spec.members)}
    edges = team.spec.graph.edges if team.spec.graph else ()
    return tuple(EdgePlan(from_=index[e.from_], to=index[e.to], conditional=e.when is not None) for e in edges)


def _selector(team: Team, catalog: Catalog) -> SelectorPlan:
    chain, selector = selector_model_chain(team, catalog), team.spec.selector
    return SelectorPlan(
        models=tuple(each.name for each in chain),
        model_timeout=longest_timeout(chain),
        can_end=bool(selector and selector.enable_terminate_tool),
    )
