"""The plan of a team: its strategy's settings, and the plans of its members and other roles."""

from collections.abc import Sequence
from typing import Literal

from ..contracts.decisions import MAX_CLIENT_CALLS, QuestionsPlan
from ..contracts.plan import (
    ActivityMember,
    ActivityPlan,
    AgentPlan,
    ApprovalPlan,
    DelegatePlan,
    EdgePlan,
    HandoffPlan,
    HumanMember,
    MemberPlace,
    MemberPlan,
    PanelPlan,
    RetryPlan,
    SelectorPlan,
    TeamMember,
    TeamPlan,
    ToolPlan,
    ToolTarget,
    WorkflowPlan,
)
from ..resources.a2a_server import A2AServer
from ..resources.agent import Agent, AgentTool
from ..resources.approval import Approval, strictest
from ..resources.base import Dialect, Reference, parse_duration
from ..resources.client import ClientRequest, ClientTool
from ..resources.manifest import Manifest
from ..resources.mcp_server import MCPServer
from ..resources.member import Member, Speaker
from ..resources.model import Model
from ..resources.panel import Visibility
from ..resources.retry_policy import RetryPolicy
from ..resources.run_catalog import RunCatalog
from ..resources.team import Team
from ..resources.tool import Tool, timeout_seconds
from ..resources.validation import unbounded_teams
from .context.lookup import find, find_executor, find_optional, mcp_server_of
from .context.metering import ChainedModel, longest_timeout, model_chain, selector_model_chain
from .panel import default_agent, default_agent_id


def agent_plan(agent: Agent, catalog: RunCatalog, team: Team | None = None) -> AgentPlan:
    """The plan of an agent's turns. Without a context window of its own, it uses that of its team."""
    owner = team if team and not agent.spec.context_window else agent
    window = owner.spec.context_window.used_in(owner.namespace) if owner.spec.context_window else None
    if executor := find_executor(agent, catalog):
        return AgentPlan(
            kind="agent",
            name=agent.name,
            namespace=agent.namespace,
            models=(),
            max_iterations=agent.spec.max_iterations,
            window=window,
            engine=executor.name,
            timeout=parse_duration(executor.spec.timeout).total_seconds(),
            budget=agent.budget,
            questions=_questions(executor),
        )
    models = model_chain(agent, catalog)
    client = catalog.client_of(agent)
    tools = [_tool_plan(agent_tool, reference, catalog) for agent_tool, reference in agent.tools()]
    tools += [_client_tool_plan(tool) for tool in client.offered_tools] if client else []
    return AgentPlan(
        kind="agent",
        name=agent.name,
        namespace=agent.namespace,
        models=tuple(model.name for model in models),
        model_timeout=longest_timeout(models),
        retries=_retries_of(models),
        tools=tuple(tools),
        max_iterations=agent.spec.max_iterations,
        window=window,
        parallel_tool_calls=agent.spec.parallel_tool_calls,
        budget=agent.budget,
        client_calls=_client_calls(client),
    )


def _client_calls(client: ClientRequest | None) -> int:
    if client is None or not client.offered_tools:
        return 0
    return MAX_CLIENT_CALLS if client.settings.parallel_tool_calls else 1


def _client_tool_plan(tool: ClientTool) -> ToolPlan:
    """The plan of a tool that the client executes: whatever it returns is untrusted."""
    return ToolPlan(name=tool.name, untrusted=True, by_client=True).without_defaults


def _tool_plan(agent_tool: AgentTool, reference: Reference | None, catalog: RunCatalog) -> ToolPlan:
    """The plan of an agent's tool. Settings in the agent's manifest take precedence over those of the Tool."""
    tool = find(catalog, reference) if reference else None
    if not isinstance(tool, Tool):
        return ToolPlan(
            name=agent_tool.name,
            on_error=agent_tool.on_error,
            untrusted=bool(agent_tool.untrusted_content),
            approval=_approval(strictest(agent_tool.approval), agent_tool.name),
        ).without_defaults
    return ToolPlan(
        name=agent_tool.name,
        on_error=agent_tool.on_error,
        timeout=tool_timeout(tool, catalog),
        untrusted=tool.is_untrusted if agent_tool.untrusted_content is None else agent_tool.untrusted_content,
        asks=_asks(tool, catalog),
        activity=_activity(tool),
        workflow=_workflow(tool),
        approval=_approval(strictest(tool.spec.approval, agent_tool.approval), tool.id),
        reads_run=tool.spec.type == "function",
        questions=_questions(mcp_server_of(tool, catalog)),
        retries=_retries(tool.spec.retry_policy),
    ).without_defaults


def _asks(tool: Tool, catalog: RunCatalog) -> DelegatePlan | None:
    """The agent or team that a tool delegates to, and its workflow type."""
    target = find(catalog, tool.asks) if tool.asks else None
    if isinstance(target, Team):
        return DelegatePlan(kind="team", name=target.name, namespace=target.namespace, workflow=target.spec.strategy)
    if isinstance(target, Agent):
        return DelegatePlan(kind="agent", name=target.name, namespace=target.namespace, workflow="agent")
    return None


def _activity(tool: Tool) -> ActivityPlan | None:
    """The activity of an application that a tool calls."""
    spec = tool.spec.activity
    if spec is None:
        return None
    return ActivityPlan(
        type=spec.type,
        task_queue=spec.task_queue,
        schedule_to_start=timeout_seconds(spec.schedule_to_start_timeout),
        heartbeat=timeout_seconds(spec.heartbeat_timeout) if spec.heartbeat_timeout else None,
    ).without_defaults


def _workflow(tool: Tool) -> WorkflowPlan | None:
    """The workflow of an application that a tool starts."""
    spec = tool.spec.workflow
    if spec is None:
        return None
    return WorkflowPlan(
        type=spec.type, task_queue=spec.task_queue, id_reuse_policy=spec.id_reuse_policy
    ).without_defaults


def _approval(rule: Approval | None, manifest: str) -> ApprovalPlan | None:
    if rule is None or not rule.required:
        return None
    proceeds = rule.on_timeout == "proceed"
    return ApprovalPlan(rule=manifest, timeout=rule.seconds, proceeds=proceeds).without_defaults


def _questions(server: Manifest | None) -> QuestionsPlan | None:
    """The plan of questions that a server asks people; None if it may not ask any."""
    questions = server.spec.questions if isinstance(server, MCPServer | A2AServer) else None
    if server is None or questions is None:
        return None
    skips = questions.on_timeout == "skip"
    return QuestionsPlan(
        server=server.id, timeout=questions.seconds, skips=skips, approvers=questions.approvers
    ).without_defaults


def model_plan(model: Model, catalog: RunCatalog) -> AgentPlan:
    """The plan of a model as a target: an agent without a prompt and without tools."""
    models = model_chain(model, catalog)
    return AgentPlan(
        kind="model",
        name=model.name,
        namespace=model.namespace,
        models=tuple(model.name for model in models),
        model_timeout=longest_timeout(models),
        retries=_retries_of(models),
    )


def tool_plan(tool: Tool, catalog: RunCatalog) -> ToolTarget:
    """The plan of a tool as a target."""
    return ToolTarget(
        kind="tool",
        name=tool.name,
        namespace=tool.namespace,
        timeout=tool_timeout(tool, catalog),
        asks=_asks(tool, catalog),
        activity=_activity(tool),
        workflow=_workflow(tool),
        approval=_approval(tool.spec.approval, tool.id),
        questions=_questions(mcp_server_of(tool, catalog)),
        retries=_retries(tool.spec.retry_policy),
    )


def _retries(policy: RetryPolicy | None) -> RetryPlan | None:
    if policy is None:
        return None
    return RetryPlan(
        attempts=policy.maximum_attempts, initial=policy.initial_seconds, maximum=policy.maximum_seconds
    ).without_defaults


def _retries_of(chain: Sequence[ChainedModel]) -> tuple[RetryPlan | None, ...]:
    """The retries of the models of a chain; empty if no Model has a retry policy."""
    retries = tuple(_retries(model.manifest.spec.retry_policy) if model.manifest else None for model in chain)
    return retries if any(retries) else ()


def tool_timeout(tool: Tool, catalog: RunCatalog) -> float | None:
    """The timeout of one call in seconds; None for the default."""
    if tool.mcp_server():
        server = mcp_server_of(tool, catalog)
        return server.call_timeout if server else None
    return tool.spec.http.seconds if tool.spec.http else tool.spec.seconds


def team_plan(team: Team, catalog: RunCatalog, dialect: Dialect | None = None) -> TeamPlan:
    """The plan of a team and its members. In ARK's dialect, reaching ``maxTurns`` completes the team by default."""
    spec = team.spec
    ends_as_in_ark = dialect == "ark" and "on_max_turns" not in spec.model_fields_set
    is_unbounded = spec.max_turns is None and (
        spec.rules.always_limited or (spec.is_endless and team in unbounded_teams(catalog))
    )
    members = zip(spec.members, team.members(), strict=True)
    roles = {role: _role(role, reference, team, catalog) for role, reference in team.role_holders()}
    aggregator = roles.pop("aggregator", None)
    plan = TeamPlan(
        kind="discussion",
        name=team.name,
        namespace=team.namespace,
        strategy=spec.strategy,
        members=tuple(
            _with_handoffs(_speaker(member, reference, "member", team, catalog), team, index)
            for index, (member, reference) in enumerate(members)
        ),
        max_turns=spec.default_max_turns if is_unbounded else spec.max_turns,
        on_max_turns="complete" if ends_as_in_ark else spec.on_max_turns,
        loops=spec.loops,
        edges=_edges(team),
        selector=_selector(team, catalog) if spec.strategy == "selector" else None,
        aggregator=aggregator if isinstance(aggregator, AgentPlan) else None,
        max_concurrency=spec.max_concurrency,
        on_member_error=spec.on_member_error,
        no_progress=spec.no_progress,
        conditional=spec.terminate_when is not None,
        panel=_panel(team, roles) if spec.is_panel else None,
        budget=team.budget,
        dialect=dialect,
        bounded_by_default=is_unbounded,
    )
    return plan.without_defaults


def _with_handoffs(member: MemberPlan, team: Team, index: int) -> MemberPlan:
    """The plan of a member, with its tools to transfer the conversation. An agent executed elsewhere has none."""
    tools = team.spec.handoff_tools(index)
    if not (tools and isinstance(member, AgentPlan) and member.engine is None):
        return member
    return member.with_handoffs(HandoffPlan(place=MemberPlace(team=team.id, index=index), tools=tools))


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


def _role(role: str, reference: Reference | None, team: Team, catalog: RunCatalog) -> MemberPlan:
    """The plan of a role that is not a member, such as a panel's referee; without a reference a default agent."""
    holder = getattr(team.spec, role)
    speaker = holder if isinstance(holder, Speaker) else Speaker(name=role)
    if reference is None:
        return _default(role, role, team, catalog)
    return _speaker(speaker, reference, role, team, catalog)


def _speaker(speaker: Speaker, reference: Reference, role: str, team: Team, catalog: RunCatalog) -> MemberPlan:
    """The plan of a speaker's turns: as an agent, a team, a person, a function, or a default agent."""
    if speaker.type == "activity":
        name = speaker.name_in_team if isinstance(speaker, Member) else speaker.name
        return ActivityMember(kind="activity", name=name, namespace=team.namespace, function=speaker.name)
    if isinstance(speaker, Member) and speaker.is_human:
        return _human(speaker, team)
    resource = find_optional(catalog, reference)
    if isinstance(resource, Agent):
        return agent_plan(resource, catalog, team)
    if isinstance(resource, Team):
        return TeamMember(
            kind="team",
            name=resource.name,
            namespace=resource.namespace,
            strategy=resource.spec.strategy,
            joins=_joined_messages(resource),
        )
    return _default(role, speaker.name_in_team if isinstance(speaker, Member) else speaker.name, team, catalog)


def _joined_messages(team: Team) -> Literal["conversation", "result", "nothing"]:
    """Which messages of a nested team join its parent's conversation."""
    if not team.spec.is_panel:
        return "conversation"
    visibility = team.spec.synthesizer_visibility
    return "result" if visibility is None or visibility.history else "nothing"


def _human(member: Member, team: Team) -> HumanMember:
    return HumanMember(
        kind="human",
        name=member.name_in_team,
        namespace=team.namespace,
        timeout=parse_duration(member.timeout).total_seconds() if member.timeout else None,
        skips=member.on_timeout == "skip",
        checked=member.output_schema is not None,
    ).without_defaults


def _default(role: str, name: str, team: Team, catalog: RunCatalog) -> AgentPlan:
    plan = agent_plan(default_agent(team, role, name, catalog), catalog, team)
    return plan.of_default_agent(default_agent_id(team, role, name))


def _edges(team: Team) -> tuple[EdgePlan, ...]:
    index = {member.name_in_team: number for number, member in enumerate(team.spec.members)}
    edges = team.spec.graph.edges if team.spec.graph else ()
    return tuple(EdgePlan(from_=index[e.from_], to=index[e.to], conditional=e.when is not None) for e in edges)


def _selector(team: Team, catalog: RunCatalog) -> SelectorPlan:
    selector = team.spec.selector
    if selector and selector.function:
        return SelectorPlan(models=(), function=selector.function)
    chain = selector_model_chain(team, catalog)
    return SelectorPlan(
        models=tuple(model.name for model in chain),
        model_timeout=longest_timeout(chain),
        retries=_retries_of(chain),
        can_end=bool(selector and selector.enable_terminate_tool),
    )
