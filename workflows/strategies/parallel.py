"""``strategy: parallel``: all members answer concurrently and independently (ARK: queries, team strategies)."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping

from pydantic import JsonValue
from temporalio import workflow

from ...contracts.errors import Failure
from ...contracts.inputs import ParallelState, State
from ...contracts.message import RowRange
from ...contracts.plan import MemberPlan
from ...contracts.text import MAX_MESSAGE
from ...contracts.turn import TurnResult
from ..discussion.discussion import Discussion, TeamTurn
from ..discussion.member_turn import MemberTurn
from ..run.base import workflow_type
from ..run.turn import TurnOutput, TurnWorkflow
from ..state.constants import END_BY_BUDGET, MAX_CONCURRENT_CHILDREN, PAUSE_BEFORE_MEMBERS
from ..state.stopping import ActivityInterrupted, ContinueAsNew, at_end, should_continue_as_new, wait_all


async def run_all_members(team: Discussion) -> str:
    """Lets all members answer the same conversation, joins their messages, and returns their answers with their names.

    A long run starts no further members; when the running ones are done, it continues as new. It does so, too, while a
    member waits for a person.
    """
    if not team.strategy_state:
        await team.attempt(team.read_inbox())
    state = ParallelState.model_validate(team.strategy_state or {"before": team.result.so_far.head})
    turns = await _take_turns(team, state) if len(state.spoken) < len(team.members) else {}
    if _ends_the_team(team, state, turns):
        # A retry resumes from a branch with the finished turns alone; the conversation itself has all of them in order.
        so_far = team.result.so_far
        await _join(team, state, {index: turn for index, turn in turns.items() if not turn.is_unfinished})
        team.keep_state([request for turn in turns.values() if turn.is_unfinished for request in turn.unread])
        team.result.so_far = so_far
    state = await _join(team, state, turns)
    if state.failure and (team.plan.on_member_error == "fail" or state.failed == len(team.members)):
        team.result.end_by(state.failure)
    if team.can_continue() and (len(state.spoken) < len(team.members) or (turns and should_continue_as_new())):
        raise ContinueAsNew
    return state.answer


def _ends_the_team(team: Discussion, state: ParallelState, turns: Mapping[int, TurnResult]) -> bool:
    """Whether turns that the team needs in order to continue have failed or were canceled."""
    failed = sum(turn.is_unfinished for turn in turns.values())
    needed = team.plan.on_member_error == "fail" or state.failed + failed == len(team.members)
    return bool(failed) and (needed or team.run.stop.is_requested or bool(_exhausted(team, turns)))


def _exhausted(team: Discussion, turns: Mapping[int, TurnResult]) -> list[Failure]:
    """The failures of turns that a budget of the team, or one above it, has ended: they are not their members' own."""
    failures = [
        turn.failure.in_turn(team.members[index].name, index + 1)
        for index, turn in turns.items()
        if turn.failure and turn.outer_budget
    ]
    return failures if failures and workflow.patched(END_BY_BUDGET) else []


async def _join(team: Discussion, state: ParallelState, turns: Mapping[int, TurnResult]) -> ParallelState:
    """Adds the messages of turns to the conversation; returns the state including them."""
    if turns:
        ranges = [RowRange(after=state.before, to=turn.head) for turn in turns.values() if turn.head != state.before]
        await team.append(ranges)
        state = _add(team, state, turns)
    team.strategy_state = state.model_dump(mode="json", exclude_unset=True)
    return state


def _add(team: Discussion, state: ParallelState, turns: Mapping[int, TurnResult]) -> ParallelState:
    """The state including these turns; a canceled turn is not the cause of the team's failure."""
    answers = [state.answer] if state.answer else []
    failed = [state.failure] if state.failure else []
    canceled = list[Failure]()
    count = state.failed
    exhausted = _exhausted(team, turns)
    for index, turn in turns.items():
        name = team.members[index].name
        if turn.failure and turn.outer_budget and exhausted:
            count += 1
        elif turn.failure:
            failure = turn.failure.in_turn(name, index + 1)
            (canceled if turn.stop_reason == "canceled" else failed).append(failure)
            count += 1
        elif turn.message:
            answers.append(f"{name}:\n{turn.message}")
    team.result.add_parallel_turns(*turns.values())
    if team.plan.on_member_error == "continue":
        team.result.add_member_failures(*failed[1 if state.failure else 0 :])
    for failure in exhausted[:1]:
        team.result.end_by(failure)
    return ParallelState(
        before=state.before,
        spoken=(*state.spoken, *turns),
        answer="\n\n".join(answers)[: MAX_MESSAGE + 1],  # truncated with a marker where it becomes the answer
        failed=count,
        failure=next(iter([*failed, *canceled]), None),
    )


async def _take_turns(team: Discussion, state: ParallelState) -> dict[int, TurnResult]:
    """Runs the turns of members that have not spoken yet, ``maxConcurrency`` at a time; returns those that have ended,
    by the indexes of the members, in their order."""
    limit = min(team.plan.max_concurrency or MAX_CONCURRENT_CHILDREN, MAX_CONCURRENT_CHILDREN)
    slots = asyncio.Semaphore(limit)
    thread = team.thread.at(state.before)
    turns: dict[int, TurnResult] = {}

    async def take(index: int, member: MemberPlan) -> None:
        async with slots:
            if team.run.inbox.pause and workflow.patched(PAUSE_BEFORE_MEMBERS):
                with contextlib.suppress(ActivityInterrupted):  # the team can't continue then
                    await team.run.ready(continues=True)
            long = bool(turns) and should_continue_as_new()
            if team.can_continue() and not long and not any(result.ended for result in turns.values()):
                turn = MemberTurn(member.name, index + 1, team.max_turns, thread)
                turns[index] = await team.run_turn(member, turn, beside=True)

    def gives_up() -> bool:
        return team.plan.on_member_error == "fail" and any(result.failure for result in turns.values())

    waiting = [(index, member) for index, member in enumerate(team.members) if index not in state.spoken]
    with _giving_up(team):
        tasks = [asyncio.create_task(take(index, member)) for index, member in waiting]
        await wait_all(tasks, gives_up)
    for task in tasks:
        if not task.cancelled() and not isinstance(task.exception(), ContinueAsNew):
            task.result()
    return dict(sorted(turns.items()))


@contextlib.contextmanager
def _giving_up(team: Discussion) -> Iterator[None]:
    """If the team continues without members that fail, their calls do not wait for the end of outages."""
    run = team.run
    gave_up = run.gives_up
    run.gives_up = gave_up or team.plan.on_member_error == "continue"

    def restore() -> None:
        run.gives_up = gave_up

    with at_end(restore):
        yield


async def parallel(team: Discussion) -> None:
    """Ends when all members have answered, or when an ``aggregator`` has combined their answers."""
    aggregator = team.plan.aggregator
    team.max_turns = len(team.members) + (aggregator is not None)
    if aggregator and team.turns == team.max_turns:  # it has spoken at the end of the run that this one is a fork of
        return
    answer = await run_all_members(team)
    if aggregator and (team.can_continue() or team.resumes):
        turn = MemberTurn(aggregator.name, team.turns + 1, team.max_turns, team.thread)
        team.result.add_turn(aggregator.name, await team.run_turn(aggregator, turn))
    else:
        team.result.set_answer(answer)


@workflow_type("parallel")
class ParallelWorkflow(TurnWorkflow):
    """The workflow type ``parallel``."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(parallel, self.pinned, self.run_state, self.children, state)
