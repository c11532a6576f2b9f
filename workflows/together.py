"""How are all members heard at once? Each on a branch of its own; then these are joined in the members' order."""

import asyncio
from collections.abc import Sequence

from temporalio import workflow

from conversation.errors import Failure
from conversation.message import Span
from conversation.plan import MemberPlan
from conversation.turn import Turn
from workflows.discussion import Discussion


async def hear_all(team: Discussion) -> str:
    """Hears all members on the same history, and joins what each has said; gives their answers under their names."""
    before, turns = team.so_far.head, await _turns(team)
    heard = [(member, turn) for member, turn in zip(team.members, turns, strict=True) if turn]
    await team.append([Span(after=before, to=turn.head) for _, turn in heard if turn.head != before])
    failed, given_up = list[Failure](), list[Failure]()
    for number, (member, turn) in enumerate(heard, start=1):
        team.join_beside(member, turn)
        if turn.failure:
            failure = turn.failure.model_copy(update={"member": member.name, "turn": number})
            (given_up if turn.stop_reason == "canceled" else failed).append(failure)
    failed += given_up
    if failed and (team.plan.on_member_error == "fail" or len(failed) == len(team.members)):
        team.fail(failed[0])
    answers = [(member.name, turn.message) for member, turn in heard if turn.message and not turn.failure]
    return "\n\n".join(f"{name}:\n{text}" for name, text in answers)


async def _turns(team: Discussion) -> Sequence[Turn | None]:
    """The turns of all members, at most ``maxConcurrency`` at a time; None for one that was not begun."""
    free = asyncio.Semaphore(team.plan.max_concurrency or len(team.members))
    over = False

    async def turn(number: int, member: MemberPlan) -> Turn | None:
        nonlocal over
        async with free:
            if over or not team.goes_on():
                return None
            taken = await team.take(member, number)
            over = over or taken.ended
            return taken

    tasks = [asyncio.create_task(turn(number, member)) for number, member in enumerate(team.members, start=1)]
    turns: list[Turn | None] = [None] * len(tasks)
    given_up = False
    while waiting := [task for task in tasks if not task.done()]:
        try:
            await workflow.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done = [task.result() for task in tasks if task.done() and not task.cancelled()]
            give_up = team.plan.on_member_error == "fail" and any(turn and turn.failure for turn in done)
        except asyncio.CancelledError:
            give_up = True
        if give_up and not given_up:
            given_up = True
            for task in waiting:
                task.cancel()
    for seat, task in enumerate(tasks):
        turns[seat] = None if task.cancelled() else task.result()
    return turns
