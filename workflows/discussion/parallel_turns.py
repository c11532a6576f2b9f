"""How are all members heard at once? Each on a branch of its own; then these are joined in the members' order."""

import asyncio
from collections.abc import Sequence

from ...conversation.contracts.continuation import TogetherState
from ...conversation.contracts.plan import MemberPlan
from ...conversation.failure import Failure
from ...conversation.messages.message import MAX_RESULT, Head, Span
from ...conversation.messages.turn import Turn
from ..state.cancellation import finish
from ..state.continue_as_new import WIDTH, Rest, is_long
from .discussion import Discussion

Heard = tuple[MemberPlan, Turn]


async def hear_all(team: Discussion) -> str:
    """Hears all members on the same history, and joins what each has said; gives their answers under their names.

    Where the run becomes long no more members begin; when those have spoken who have begun, it goes on in a new one.
    """
    kept = TogetherState.model_validate(team.kept or {"before": team.so_far.head})
    heard = await _turns(team, kept.before)
    await team.append([Span(after=kept.before, to=turn.head) for _, turn in heard if turn.head != kept.before])
    kept = _joined(team, kept, heard)
    if kept.failure and (team.plan.on_member_error == "fail" or kept.failed == len(team.members)):
        team.fail(kept.failure)
    if heard and team.goes_on() and (team.turn < len(team.members) or is_long()):
        team.kept = kept.model_dump(mode="json", exclude_unset=True)
        raise Rest
    return kept.answer


def _joined(team: Discussion, kept: TogetherState, heard: Sequence[Heard]) -> TogetherState:
    """What the team keeps after these have spoken, too; who was given up is not why the team failed."""
    answers = [kept.answer] if kept.answer else []
    failed, given_up = [kept.failure] if kept.failure else [], list[Failure]()
    count = kept.failed
    for number, (member, turn) in enumerate(heard, team.turn + 1):
        if turn.failure:
            failure = turn.failure.model_copy(update={"member": member.name, "turn": number})
            (given_up if turn.stop_reason == "canceled" else failed).append(failure)
            count += 1
        elif turn.message:
            answers.append(f"{member.name}:\n{turn.message}")
    if heard:
        team.join_beside(*(turn for _, turn in heard))
    answer = "\n\n".join(answers)[: MAX_RESULT + 1]  # which is too long already, and cut where it becomes the answer
    first = next(iter([*failed, *given_up]), None)
    return TogetherState(before=kept.before, answer=answer, failed=count, failure=first)


async def _turns(team: Discussion, before: Head) -> list[Heard]:
    """The turns of those who have not spoken yet, at most ``maxConcurrency`` at a time; without those not begun."""
    free = asyncio.Semaphore(min(team.plan.max_concurrency or WIDTH, WIDTH))
    left = [*enumerate(team.members)][team.turn :]
    taken: dict[int, Turn] = {}

    async def turn(seat: int, member: MemberPlan) -> None:
        async with free:
            long = bool(taken) and is_long()
            if team.goes_on() and not long and not any(each.ended for each in taken.values()):
                taken[seat] = await team.take(member, seat + 1, before)

    def gives_up() -> bool:
        return team.plan.on_member_error == "fail" and any(each.failure for each in taken.values())

    tasks = [asyncio.create_task(turn(seat, member)) for seat, member in left]
    await finish(tasks, gives_up)
    for task in tasks:
        if not task.cancelled():
            task.result()
    return [(member, taken[seat]) for seat, member in left if seat in taken]
