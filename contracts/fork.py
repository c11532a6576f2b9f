"""Whether what a run has decided so far fits other manifests, with which a fork of it goes on."""

from collections.abc import Iterator

from .inputs import AgentState, PanelProgress, ParallelState, QueryState, State, TeamState
from .plan import AgentPlan, Plan, QueryPlan, TeamPlan


def unfit(state: State, old: Plan, new: Plan) -> str | None:
    """Why a state under the plan ``old`` can't go on under the plan ``new``, as a sentence; None if it can."""
    return next(_problems(state, old, new), None)


def _problems(state: State, old: Plan, new: Plan) -> Iterator[str]:
    match state, old, new:
        case TeamState(), TeamPlan(), TeamPlan():
            yield from _team_problems(state, old, new)
        case QueryState(), QueryPlan(), QueryPlan():
            yield from _query_problems(state, old, new)
        case AgentState(), AgentPlan(), AgentPlan():
            yield from _agent_problems(state, old, new)


def _team_problems(state: TeamState, old: TeamPlan, new: TeamPlan) -> Iterator[str]:
    """A state refers to members by their indexes, and to what only some strategies have."""
    if old.strategy != new.strategy:
        yield f"team {new.name} was {old.strategy} and is now {new.strategy}: a fork keeps the strategy of a team"
    was, now = [member.name for member in old.members], [member.name for member in new.members]
    for index in sorted(_members(state, old)):
        if index >= len(now) or now[index] != was[index]:
            place = f"member {index + 1} of team {new.name}"
            instead = f"is now {now[index]}" if index < len(now) else "is removed"
            yield f"{was[index]} has spoken, or is to speak, as {place}, which {instead}: keep the places of members"
    if (old.panel is None) != (new.panel is None):
        yield f"team {new.name} is {'no longer' if old.panel else 'now'} a panel"
    if old.panel and new.panel:
        progress = PanelProgress.model_validate(state.strategy_state) if state.strategy_state else None
        speaking = progress.speaking if progress else None
        if speaking and speaking != "member" and speaking not in new.panel.parts:
            yield f"the {speaking} of team {new.name} is to speak, and is removed"
    member = state.interrupted_member
    if state.interrupted_turn and member is not None and member < len(new.members):
        before, after = old.members[member], new.members[member]
        if isinstance(before, AgentPlan) and isinstance(after, AgentPlan):
            yield from _agent_problems(state.interrupted_turn, before, after)
        elif before.kind != after.kind:
            yield f"{before.name} is in the middle of its turn as {before.kind}, and is now {after.kind}"


def _members(state: TeamState, plan: TeamPlan) -> set[int]:
    """The indexes of members to which a state refers."""
    indexes = {state.last_speaker, state.interrupted_member, state.so_far.handoff, state.verdict.member}
    if plan.strategy in ("sequential", "round-robin") and not plan.panel:
        indexes |= {*range(min(state.so_far.turns, len(plan.members)))}
    if plan.strategy == "parallel" and state.strategy_state:
        indexes |= {*ParallelState.model_validate(state.strategy_state).spoken}
    if plan.panel and state.strategy_state:
        indexes |= {*PanelProgress.model_validate(state.strategy_state).waiting}
    return {index for index in indexes if index is not None and index < len(plan.members)}


def _query_problems(state: QueryState, old: QueryPlan, new: QueryPlan) -> Iterator[str]:
    was = [f"{target.type}/{target.name}" for target in old.targets]
    now = [f"{target.type}/{target.name}" for target in new.targets]
    if was != now:
        yield f"the targets of query {new.name} were {', '.join(was)} and are now {', '.join(now)}: a fork keeps them"
    elif state.turn and isinstance(old.targets[0].turn, AgentPlan) and isinstance(new.targets[0].turn, AgentPlan):
        yield from _agent_problems(state.turn, old.targets[0].turn, new.targets[0].turn)


def _agent_problems(state: AgentState, old: AgentPlan, new: AgentPlan) -> Iterator[str]:
    """An agent in the middle of its turn: what is to be called next has to exist."""
    if bool(old.engine) != bool(new.engine):
        yield f"agent {new.name} is in the middle of its turn, and is now executed elsewhere or no longer"
    calls = state.reply.message.tool_calls[state.done :] if state.reply else ()
    known = {tool.name for tool in new.tools}
    for call in calls:
        if call.name in {tool.name for tool in old.tools} and call.name not in known:
            yield f"agent {new.name} is about to call {call.name}, which it no longer has"
