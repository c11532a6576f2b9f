"""What do all strategies share? The members, hearing one of them, counting turns, and ending."""

from conversation.errors import MaxTurnsReached
from conversation.message import latest
from conversation.plan import AgentPlan, MemberPlan, TeamPlan
from conversation.turn import StopReason, Thread, Turn, TurnInput
from workflows.agent_turn import AgentTurn
from workflows.children import Children
from workflows.details import show
from workflows.stopping import Stop


class Discussion:
    """A team's discussion in progress.

    A strategy decides who is heard next from ``members`` and ``turn``, the number of turns taken, and from nothing
    else: so it can be carried on from any turn.
    """

    def __init__(self, plan: TeamPlan, thread: Thread, stop: Stop, children: Children) -> None:
        self.plan, self.members = plan, plan.members
        self.turns: int | None = None
        self.so_far = Turn(head=thread.head, turns=0)
        self._thread, self._stop, self._children = thread, stop, children

    @property
    def turn(self) -> int:
        """How many turns have been taken."""
        return self.so_far.turns

    def goes_on(self) -> bool:
        """Whether another member may speak: nobody has ended the team, and nothing has failed."""
        return not (self.so_far.ended or self.so_far.failure or self._stop.reason)

    async def hear(self, member: MemberPlan) -> None:
        """Lets one member take its turn, and joins what it says to the discussion (seed 001, Message Accumulation)."""
        thread = self._thread.model_copy(update={"head": self.so_far.head})
        number = self.turn + 1
        if isinstance(member, AgentPlan):
            turn = await AgentTurn(member, thread, self._stop, number, self.turns).take()
        else:
            given = TurnInput(team=member.name, namespace=member.namespace, thread=thread)
            turn = await self._children.take(member.strategy, given, f"turn-{number}", thread.head)
        failure = turn.failure.model_copy(update={"member": member.name, "turn": number}) if turn.failure else None
        self.so_far = Turn(
            head=turn.head,
            messages=latest((*self.so_far.messages, *turn.messages)),
            turns=number,
            ended=turn.ended,
            failure=failure,
            usage=self.so_far.usage + turn.usage,
        )
        show(self.plan.name, self.so_far, self.turns)

    def max_turns_reached(self) -> None:
        """Ends the discussion at its bound: an error, unless ``onMaxTurns: complete`` (seed 001, section 2)."""
        error = MaxTurnsReached(f"team {self.plan.strategy} MaxTurns reached {self.plan.name}")
        failure = None if self.plan.on_max_turns == "complete" else error.as_failure()
        self.so_far = self.so_far.model_copy(update={"stop_reason": "max_turns", "failure": failure})

    def result(self) -> Turn:
        """The discussion as the turn of its team, with the reason why it stopped."""
        return self.so_far.model_copy(update={"stop_reason": self._reason(), "note": self._stop.note, "ended": False})

    def _reason(self) -> StopReason:
        if self.so_far.stop_reason == "max_turns":
            return "max_turns"
        if self.so_far.failure:
            return "failed"
        if self.so_far.ended:
            return "terminated"
        return self._stop.reason or "completed"
