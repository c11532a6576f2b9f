"""What has come of a discussion so far? Its messages, costs and failures, and how it ends."""

from ...conversation.contracts.plan import MemberPlan, TeamPlan
from ...conversation.errors import MaxTurnsReached
from ...conversation.failure import Failure
from ...conversation.messages.message import Head, Message, TokenUsage, cut, latest, tail
from ...conversation.messages.turn import StopReason, Turn
from ..state.cancellation import Stop
from ..state.current_details import show


class Outcome:
    """A discussion as far as it has come; ``turns`` is how many turns it can have, if it is bounded."""

    def __init__(self, plan: TeamPlan, stop: Stop, so_far: Turn, turns: int | None = None) -> None:
        self.plan, self.stop, self.so_far, self.turns = plan, stop, so_far, turns

    @property
    def turn(self) -> int:
        """How many turns have been taken."""
        return self.so_far.turns

    def goes_on(self) -> bool:
        """Whether another member may speak: nothing has ended the team, and nothing has failed."""
        turn = self.so_far
        return not (turn.ended or turn.failure or turn.stop_reason != "completed" or self.stop.reason)

    def join(self, member: MemberPlan, turn: Turn) -> None:
        """Joins a turn that went on where the discussion stands."""
        self.so_far = self.so_far.model_copy(update={"head": turn.head})
        self.join_beside(turn)
        if turn.failure:
            self.fail(turn.failure.model_copy(update={"member": member.name, "turn": self.turn}))

    def join_beside(self, *turns: Turn) -> None:
        """Joins turns whose messages stand in the conversation already, and whose failures are not the team's.

        Hundreds at once, as each by itself would take longer the more there are.
        """
        before = (*self.so_far.messages, *(message for turn in turns[:-1] for message in turn.messages))
        self.so_far = self.so_far.model_copy(
            update={
                "messages": latest((*tail(before), *turns[-1].messages)),
                "turns": self.turn + len(turns),
                "ended": self.so_far.ended or any(turn.ended for turn in turns),
                "usage": sum((turn.usage for turn in turns), self.so_far.usage),
                "answer": turns[-1].answer,
            }
        )
        show(self.plan.name, self.so_far, self.turns)

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
