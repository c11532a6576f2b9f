"""What has come of a team's discussion so far: messages, usage and failures, and why it ended."""

from ...conversation.contracts.plan import TeamPlan
from ...conversation.errors import MaxTurnsReached
from ...conversation.failure import Failure
from ...conversation.messages.message import Head, Message, TokenUsage, latest_within
from ...conversation.messages.turn import MAX_MEMBER_FAILURES, StopReason, TurnResult, latest_messages
from ...conversation.text import truncate
from ..state.run_state import RunState


class TeamResult:
    """The result of a team, as far as its discussion has come; ``max_turns`` bounds its turns, if anything does."""

    def __init__(self, plan: TeamPlan, run: RunState, so_far: TurnResult, max_turns: int | None = None) -> None:
        self._plan, self._run, self.so_far, self.max_turns = plan, run, so_far, max_turns

    @property
    def is_open(self) -> bool:
        """Whether another member may speak: nothing has ended the team, and nothing has failed."""
        turn = self.so_far
        return not (turn.ended or turn.failure or turn.stop_reason != "completed" or self._run.stop.reason)

    def add_turn(self, member: str, turn: TurnResult) -> None:
        """Adds a turn that followed the conversation so far, and whose failure is the team's."""
        self.move_to(turn.head)
        self.add_parallel_turns(turn)
        if turn.failure:
            self.end_by(turn.failure.model_copy(update={"member": member, "turn": self.so_far.turns}))

    def add_parallel_turns(self, *turns: TurnResult) -> None:
        """Adds turns whose messages are in the conversation already, and whose failures are not the team's.

        All at once: of hundreds, each by itself would take longer the more there are.
        """
        messages, cut = latest_messages((self.so_far, *turns))
        self._update(
            messages=messages,
            cut=cut,
            turns=self.so_far.turns + len(turns),
            ended=self.so_far.ended or any(turn.ended for turn in turns),
            usage=sum((turn.usage for turn in turns), self.so_far.usage),
            answer=turns[-1].answer,
        )
        self.add_member_failures(*(failure for turn in turns for failure in turn.member_failures))
        if above := next((turn.above for turn in turns if turn.outer_budget and not turn.failure), None):
            self.end_by(above)
        self._run.details.show_turn(self._plan.name, self.so_far, self.max_turns)

    def add_member_failures(self, *failures: Failure) -> None:
        """Adds failures of members that are not the team's; only the first ones are kept."""
        if failures:
            self._update(member_failures=(*self.so_far.member_failures, *failures)[:MAX_MEMBER_FAILURES])

    def add_usage(self, usage: TokenUsage) -> None:
        """Counts what a call has cost that was no member's turn."""
        self._update(usage=self.so_far.usage + usage)

    def add_message(self, message: Message) -> None:
        """Adds a message that is in the conversation already, but was no turn."""
        messages = latest_within((*self.so_far.messages, message))
        self._update(messages=messages, cut=self.so_far.cut or len(messages) <= len(self.so_far.messages))

    def move_to(self, head: Head) -> None:
        """The conversation has grown up to ``head``."""
        self._update(head=head)

    def terminate(self) -> None:
        """Ends the team as the tool ``terminate`` of a member does."""
        self._update(ended=True)

    def fail(self, failure: Failure) -> None:
        """Ends the team with a failure; the first one counts."""
        self._update(failure=self.so_far.failure or failure)

    def end_by(self, failure: Failure) -> None:
        """Ends the team with a failure, or as a budget says that is its own or that of somebody around."""
        if failure.budget and not self.so_far.failure:
            self.so_far = self.so_far.ended_by(failure, self._plan.id)
        else:
            self.fail(failure)

    def stop(self, reason: StopReason, note: str | None = None) -> None:
        """Ends the team for a reason that is no failure."""
        self._update(stop_reason=reason, **({"note": note} if note else {}))

    def reach_max_turns(self) -> None:
        """Ends the team at its bound: an error, unless ``onMaxTurns: complete`` (ARK: team strategies)."""
        text = f"team {self._plan.strategy} MaxTurns reached {self._plan.name}"
        if self._plan.bounded_by_default:
            text = f"{text}: nothing else bounds the run, so that it ends after {self.so_far.turns} turns"
        failure = None if self._plan.on_max_turns == "complete" else MaxTurnsReached(text).as_failure()
        self._update(stop_reason="max_turns", failure=failure)

    def set_answer(self, text: str) -> None:
        """Makes ``text`` the answer of the team, in place of the last message."""
        self._update(answer=truncate(text))

    def final(self) -> TurnResult:
        """The whole discussion as one turn, with the reason why it stopped."""
        note = self._run.stop.note or self.so_far.note
        return self.so_far.model_copy(update={"stop_reason": self._reason(), "note": note, "ended": False})

    def _reason(self) -> StopReason:
        if self.so_far.stop_reason != "completed":
            return self.so_far.stop_reason
        if self.so_far.failure:
            return "failed"
        if self.so_far.ended:
            return "terminated"
        return self._run.stop.reason or "completed"

    def _update(self, **fields: object) -> None:
        self.so_far = self.so_far.model_copy(update=fields)
