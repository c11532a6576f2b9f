"""How are all members heard at once? Each on a branch of its own; then these are joined in the members' order."""

import asyncio
from collections.abc import Sequence

from conversation.errors import Failure
from conversation.message import Span
from conversation.plan import MemberPlan
from conversation.turn import Turn
from workflows.discussion import Discussion
from workflows.stopping import finish


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
    taken: dict[int, Turn] = {}

    async def turn(seat: int, member: MemberPlan) -> None:
        async with free:
            if team.goes_on() and not any(each.ended for each in taken.values()):
                taken[seat] = await team.take(member, seat + 1)

    def gives_up() -> bool:
        return team.plan.on_member_error == "fail" and any(each.failure for each in taken.values())

    tasks = [asyncio.create_task(turn(seat, member)) for seat, member in enumerate(team.members)]
    await finish(tasks, gives_up)
    for task in tasks:
        if not task.cancelled():
            task.result()
    return [taken.get(seat) for seat in range(len(team.members))]
