"""What do all strategies share? The members, hearing them, counting turns, judging what was said, and ending."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from temporalio import workflow

from conversation.errors import Failure, MaxTurnsReached
from conversation.message import Head, Message, TokenUsage, cut, latest
from conversation.plan import AgentPlan, MemberPlan, TeamMember, TeamPlan
from conversation.requests import Bookmark, Evaluated, EvaluateRequest, Item
from conversation.turn import StopReason, Thread, Turn, TurnInput
from workflows import effects
from workflows.agent_turn import AgentTurn
from workflows.children import Children
from workflows.details import show
from workflows.effects import Failed, Interrupted
from workflows.progress import Progress
from workflows.stopping import Stop, uninterrupted

T = TypeVar("T")


class Discussion:
    """A team's discussion in progress.

    A strategy decides who is heard next from the members' seats, ``seat``, where who spoke last sits, and ``turn``,
    the number of turns taken, and from nothing else: so it can be carried on from any turn.
    """

    def __init__(self, plan: TeamPlan, thread: Thread, stop: Stop, children: Children) -> None:
        self.plan, self.members = plan, plan.members
        self.turns: int | None = None
        self.seat: int | None = None
        self.so_far = Turn(head=thread.head, turns=0)
        self.verdict = Evaluated()
        self.warned = set[str]()
        self.stop, self.children, self._thread = stop, children, thread
        self._progress = Progress(plan.no_progress)

    @property
    def turn(self) -> int:
        """How many turns have been taken."""
        return self.so_far.turns

    @property
    def thread(self) -> Thread:
        """The conversation as far as it has come."""
        return self._thread.model_copy(update={"head": self.so_far.head})

    def goes_on(self) -> bool:
        """Whether another member may speak: nothing has ended the team, and nothing has failed."""
        turn = self.so_far
        return not (turn.ended or turn.failure or turn.stop_reason != "completed" or self.stop.reason)

    async def hear(self, seat: int) -> None:
        """Lets one member take its turn, and joins what it says to the discussion (seed 001, Message Accumulation)."""
        member = self.members[seat]
        self.join(member, await self.take(member, self.turn + 1))
        self.seat = seat
        await self._judge(seat, member.name)

    async def take(self, member: MemberPlan, number: int) -> Turn:
        """The turn of a member, which has heard the conversation as far as it has come."""
        thread = self.thread
        if isinstance(member, AgentPlan):
            return await AgentTurn(member, thread, self.stop, number, self.turns).take()
        assert isinstance(member, TeamMember), "the loader lets functions speak in panels alone"
        given = TurnInput(team=member.name, namespace=member.namespace, thread=thread)
        turn = await self.children.take(member.strategy, given, f"turn-{number}", thread.head)
        return turn if member.joins == "conversation" else await self._result_of(turn, member, thread.head)

    async def _result_of(self, turn: Turn, member: TeamMember, before: Head) -> Turn:
        """The turn of a panel, of which nothing but the result joins the conversation, or not even that."""
        head = before
        if member.joins == "result" and turn.message and not turn.failure:
            said = Message(role="assistant", content=turn.message, name=member.name)
            task = asyncio.create_task(effects.append(before, (said,)))
            head = await uninterrupted(task)
        return turn.model_copy(update={"head": head})

    def join(self, member: MemberPlan, turn: Turn) -> None:
        """Joins a turn that went on where the discussion stands."""
        self.so_far = self.so_far.model_copy(update={"head": turn.head})
        self.join_beside(member, turn)
        if turn.failure:
            self.fail(turn.failure.model_copy(update={"member": member.name, "turn": self.turn}))

    def join_beside(self, member: MemberPlan, turn: Turn) -> None:
        """Joins a turn whose messages stand in the conversation already, and whose failure is not the team's."""
        self.so_far = self.so_far.model_copy(
            update={
                "messages": latest((*self.so_far.messages, *turn.messages)),
                "turns": self.turn + 1,
                "ended": self.so_far.ended or turn.ended,
                "usage": self.so_far.usage + turn.usage,
                "answer": turn.answer,
            }
        )
        show(self.plan.name, self.so_far, self.turns)

    def led_to(self) -> int | None:
        """Where the edge leads that goes on from who spoke last; None where the graph ends."""
        edges = [edge for edge in self.plan.edges if edge.from_ == self.seat]
        if any(edge.conditional for edge in edges):
            place = self.verdict.edge
            return None if place is None else self.plan.edges[place].to
        return edges[0].to if edges else None

    def spend(self, usage: TokenUsage) -> None:
        """Counts what a choice has cost."""
        self.so_far = self.so_far.model_copy(update={"usage": self.so_far.usage + usage})

    def say(self, message: Message) -> None:
        """Adds words that stand in the conversation already, but were no turn."""
        self.so_far = self.so_far.model_copy(update={"messages": latest((*self.so_far.messages, message))})

    def move_to(self, head: Head) -> None:
        """Goes on at a head that another effect has led to."""
        self.so_far = self.so_far.model_copy(update={"head": head})

    def end(self) -> None:
        """Ends the team as a member would."""
        self.so_far = self.so_far.model_copy(update={"ended": True})

    async def _judge(self, seat: int, speaker: str) -> None:
        """Whether what was said ends the discussion, and where it leads."""
        last = self.so_far.messages[-1].content if self.so_far.messages else ""
        if self.goes_on() and self._progress.is_stuck(speaker, last):
            self._no_progress()
        leads = any(edge.conditional for edge in self.plan.edges if edge.from_ == seat)
        if self.goes_on() and (self.plan.conditional or leads):
            await self.judge(self.evaluation(seat))

    def evaluation(self, seat: int | None = None) -> EvaluateRequest:
        """What a team's conditions are judged on, after a turn of the member at ``seat``."""
        return EvaluateRequest(
            thread=self.thread,
            team=self.plan.id,
            seat=seat,
            turn=self.turn,
            tokens=self.so_far.usage.total_tokens,
            elapsed=(workflow.now() - workflow.info().start_time).total_seconds(),
        )

    async def judge(self, request: EvaluateRequest) -> None:
        """Has the conditions judged, and ends the discussion where ``terminateWhen`` holds."""
        self.verdict = await self.attempt(effects.evaluate(request)) or Evaluated()
        if self.verdict.ends:
            self.so_far = self.so_far.model_copy(update={"stop_reason": "condition"})

    def _no_progress(self) -> None:
        rule = self.plan.no_progress
        text = f"{self._progress.repeated} turns in a row have repeated what was said before"
        if rule and rule.action == "stop":
            self.so_far = self.so_far.model_copy(update={"stop_reason": "no_progress", "note": text})
        else:
            workflow.logger.warning("team %s gets nowhere: %s", self.plan.name, text)

    async def attempt(self, effect: Coroutine[Any, Any, T]) -> T | None:
        """An effect's reply; None where it fails, which fails the discussion, or where the run is to stop."""
        try:
            return await effect
        except Failed as failed:
            self.fail(failed.failure)
        except (Interrupted, asyncio.CancelledError):
            workflow.logger.info("stopped between two turns")
        return None

    async def append(self, items: Sequence[Item], bookmark: Bookmark | None = None) -> None:
        """Joins what was said apart to the conversation, however the run is to end."""
        task = asyncio.create_task(effects.append(self.so_far.head, tuple(items), bookmark))
        try:
            head = await uninterrupted(task)
            self.so_far = self.so_far.model_copy(update={"head": head})
        except Failed as failed:
            self.fail(failed.failure)

    def fail(self, failure: Failure) -> None:
        """Ends the discussion with a failure; the first counts."""
        self.so_far = self.so_far.model_copy(update={"failure": self.so_far.failure or failure})

    def answer(self, text: str) -> None:
        """Makes ``text`` the answer of the team, in place of its last words."""
        self.so_far = self.so_far.model_copy(update={"answer": cut(text)})

    def max_turns_reached(self) -> None:
        """Ends the discussion at its bound: an error, unless ``onMaxTurns: complete`` (seed 001, sections 2 to 4)."""
        error = MaxTurnsReached(f"team {self.plan.strategy} MaxTurns reached {self.plan.name}")
        failure = None if self.plan.on_max_turns == "complete" else error.as_failure()
        self.so_far = self.so_far.model_copy(update={"stop_reason": "max_turns", "failure": failure})

    def result(self) -> Turn:
        """The discussion as the turn of its team, with the reason why it stopped."""
        note = self.stop.note or self.so_far.note
        return self.so_far.model_copy(update={"stop_reason": self._reason(), "note": note, "ended": False})

    def _reason(self) -> StopReason:
        if self.so_far.stop_reason != "completed":
            return self.so_far.stop_reason
        if self.so_far.failure:
            return "failed"
        if self.so_far.ended:
            return "terminated"
        return self.stop.reason or "completed"
