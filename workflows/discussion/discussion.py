"""What do all strategies share? The members, hearing them, judging what was said, and going on in a new run."""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar

from temporalio import workflow

from ...conversation.contracts.continuation import AgentState, TeamState
from ...conversation.contracts.inputs import TurnInput
from ...conversation.contracts.plan import AgentPlan, MemberPlan, TeamMember, TeamPlan
from ...conversation.contracts.requests import Bookmark, Evaluated, EvaluateRequest, Item
from ...conversation.messages.message import Head, Message
from ...conversation.messages.turn import Thread, Turn
from ..calls import effects
from ..calls.child_workflows import Children
from ..calls.execute_activity import Failed, Interrupted
from ..state.cancellation import Stop, uninterrupted
from ..state.continue_as_new import Rest, is_long
from ..state.current_details import show
from .agent_turn import AgentTurn
from .stall_detection import Progress
from .team_result import Outcome

T = TypeVar("T")


class Discussion(Outcome):
    """A team's discussion in progress.

    A strategy decides who is heard next from the members' seats, ``seat``, where who spoke last sits, and ``turn``,
    the number of turns taken, and from nothing else: so it can be carried on from any turn.
    """

    def __init__(
        self,
        plan: TeamPlan,
        thread: Thread,
        stop: Stop,
        children: Children,
        since: datetime,
        state: TeamState | None = None,
    ) -> None:
        state = state or TeamState(kind="team", so_far=Turn(head=thread.head, turns=0))
        super().__init__(plan, stop, state.so_far, state.turns)
        self.members, self.seat, self.verdict = plan.members, state.seat, state.verdict
        self.kept, self.children, self.since = dict(state.kept), children, since
        self.warned = set[str]()
        self._thread, self._state = thread, state
        self._speaking: tuple[int, AgentTurn] | None = None
        self._progress = Progress(plan.no_progress, state.said, state.repeated)

    @property
    def thread(self) -> Thread:
        """The conversation as far as it has come."""
        return self._thread.model_copy(update={"head": self.so_far.head})

    @property
    def state(self) -> TeamState:
        """What another run must know to carry the discussion on."""
        seat, speaking = self._speaking or (None, None)
        return TeamState(
            kind="team",
            so_far=self.so_far,
            turns=self.turns,
            seat=self.seat,
            verdict=self.verdict,
            said=self._progress.said,
            repeated=self._progress.repeated,
            kept=self.kept,
            heard=seat,
            midst=speaking.state if speaking else None,
        )

    async def resume(self) -> None:
        """Hears the rest of a turn in whose midst the run before this one has stopped."""
        if self._state.heard is not None:
            await self.hear(self._state.heard, self._state.midst)
        elif self.turn:
            show(self.plan.name, self.so_far, self.turns)

    async def hear(self, seat: int, midst: AgentState | None = None) -> None:
        """Lets one member take its turn, and joins what it says to the discussion (seed 001, Message Accumulation).

        Between two turns, and between the steps of an agent's turn, a long run goes on in a new one.
        """
        member = self.members[seat]
        await self.attempt(self.stop.ready())
        if not (self.goes_on() or midst):
            return
        if isinstance(member, AgentPlan):
            turn = AgentTurn(member, self.thread, self.stop, self.turn + 1, self.turns, rests=True, state=midst)
            self._speaking = seat, turn
            self.join(member, await turn.take())
            self._speaking = None
        else:
            self.join(member, await self.take(member, self.turn + 1))
        self.seat = seat
        await self._judge(seat, member.name)
        self.rest()

    def rest(self) -> None:
        """Between two turns: if the run has become long, the discussion goes on in a new one."""
        if self.goes_on() and is_long():
            raise Rest

    async def take(self, member: MemberPlan, number: int, head: Head | None = None) -> Turn:
        """The turn of a member, which has heard the conversation up to a head, or as far as it has come."""
        thread = self._thread.model_copy(update={"head": head}) if head else self.thread
        if isinstance(member, AgentPlan):
            return await AgentTurn(member, thread, self.stop, number, self.turns).take()
        assert isinstance(member, TeamMember), "the loader lets functions speak in panels alone"
        given = TurnInput(team=member.name, namespace=member.namespace, thread=thread)
        turn = await self.children.take(member.strategy, given, f"turn-{number}", thread.head)
        return turn if member.joins == "conversation" else await self._result_of(turn, member, thread.head)

    async def _result_of(self, turn: Turn, member: TeamMember, before: Head) -> Turn:
        """The turn of a panel, of which nothing but the result joins the conversation, or not even that."""
        if turn.failure:
            return turn.model_copy(update={"head": before})
        if member.joins == "nothing" or not turn.message:
            return turn.model_copy(update={"head": before, "messages": ()})
        said = Message(role="assistant", content=turn.message, name=member.name)
        task = asyncio.create_task(effects.append(before, (said,)))
        return turn.model_copy(update={"head": await uninterrupted(task), "messages": (said,)})

    def led_to(self) -> int | None:
        """Where the edge leads that goes on from who spoke last, at first to the first; None where the graph ends."""
        if self.seat is None:
            return 0
        edges = [edge for edge in self.plan.edges if edge.from_ == self.seat]
        if any(edge.conditional for edge in edges):
            place = self.verdict.edge
            return None if place is None else self.plan.edges[place].to
        return edges[0].to if edges else None

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
            elapsed=(workflow.now() - self.since).total_seconds(),
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
