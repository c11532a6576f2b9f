"""``strategy: parallel``: all members answer at once, without reading each other (ARK: queries, team strategies)."""

import asyncio
from collections.abc import Sequence

from pydantic import JsonValue
from temporalio import workflow

from ...contracts.errors import Failure
from ...contracts.inputs import ParallelState, State
from ...contracts.message import Head, RowRange
from ...contracts.plan import MemberPlan
from ...contracts.text import MAX_MESSAGE
from ...contracts.turn import TurnResult
from ..discussion.discussion import Discussion, TeamTurn
from ..discussion.member_turn import MemberTurn
from ..run.turn import TurnOutput, TurnWorkflow
from ..state.constants import MAX_CONCURRENT_CHILDREN
from ..state.stopping import ContinueAsNew, should_continue_as_new, wait_all

MemberResult = tuple[MemberPlan, TurnResult]


async def run_all_members(team: Discussion) -> str:
    """Lets all members answer the same conversation, and joins what they said; returns their answers with their names.

    In a long run no more members begin; when those that have begun are done, it continues as new.
    """
    kept = ParallelState.model_validate(team.strategy_state or {"before": team.result.so_far.head})
    done = await _take_turns(team, kept.before)
    await team.append([RowRange(after=kept.before, to=turn.head) for _, turn in done if turn.head != kept.before])
    kept = _add(team, kept, done)
    if kept.failure and (team.plan.on_member_error == "fail" or kept.failed == len(team.members)):
        team.result.end_by(kept.failure)
    if done and team.can_continue() and (team.turns < len(team.members) or should_continue_as_new()):
        team.strategy_state = kept.model_dump(mode="json", exclude_unset=True)
        raise ContinueAsNew
    return kept.answer


def _add(team: Discussion, kept: ParallelState, done: Sequence[MemberResult]) -> ParallelState:
    """The state after these turns, too; a turn that was given up is not why the team failed."""
    answers = [kept.answer] if kept.answer else []
    failed = [kept.failure] if kept.failure else []
    given_up = list[Failure]()
    count = kept.failed
    for number, (member, turn) in enumerate(done, team.turns + 1):
        if turn.failure:
            failure = turn.failure.in_turn(member.name, number)
            (given_up if turn.stop_reason == "canceled" else failed).append(failure)
            count += 1
        elif turn.message:
            answers.append(f"{member.name}:\n{turn.message}")
    if done:
        team.result.add_parallel_turns(*(turn for _, turn in done))
    if team.plan.on_member_error == "continue":
        team.result.add_member_failures(*failed[1 if kept.failure else 0 :])
    answer = "\n\n".join(answers)[: MAX_MESSAGE + 1]  # too long already, and truncated where it becomes the answer
    first = next(iter([*failed, *given_up]), None)
    return ParallelState(before=kept.before, answer=answer, failed=count, failure=first)


async def _take_turns(team: Discussion, before: Head) -> list[MemberResult]:
    """The turns of members that have not spoken yet, ``maxConcurrency`` at a time, as far as they have begun."""
    limit = min(team.plan.max_concurrency or MAX_CONCURRENT_CHILDREN, MAX_CONCURRENT_CHILDREN)
    slots = asyncio.Semaphore(limit)
    waiting = [*enumerate(team.members)][team.turns :]
    thread = team.thread.at(before)
    done: dict[int, TurnResult] = {}

    async def take(index: int, member: MemberPlan) -> None:
        async with slots:
            long = bool(done) and should_continue_as_new()
            if team.can_continue() and not long and not any(each.ended for each in done.values()):
                turn = MemberTurn(member.name, index + 1, team.max_turns, thread)
                done[index] = await team.run_turn(member, turn)

    def gives_up() -> bool:
        return team.plan.on_member_error == "fail" and any(each.failure for each in done.values())

    tasks = [asyncio.create_task(take(index, member)) for index, member in waiting]
    await wait_all(tasks, gives_up)
    for task in tasks:
        if not task.cancelled():
            task.result()
    return [(member, done[index]) for index, member in waiting if index in done]


async def parallel(team: Discussion) -> None:
    """Ends when all have answered, or when an ``aggregator`` has made one answer of theirs."""
    aggregator = team.plan.aggregator
    team.max_turns = len(team.members) + (aggregator is not None)
    answer = await run_all_members(team)
    if aggregator and team.can_continue():
        turn = MemberTurn(aggregator.name, team.turns + 1, team.max_turns, team.thread)
        team.result.add_turn(aggregator.name, await team.run_turn(aggregator, turn))
    else:
        team.result.set_answer(answer)


@workflow.defn(name="parallel")
class ParallelWorkflow(TurnWorkflow):
    """The workflow type ``parallel``."""

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnOutput:
        return await self.execute()

    def new_turn(self, state: State | None) -> TeamTurn:
        return TeamTurn(parallel, self.pinned, self.run_state, self.children, state)
