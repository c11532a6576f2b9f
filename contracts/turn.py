"""The start and the result of a turn: `Thread` and `TurnResult`; the latest messages of several turns."""

from collections.abc import Sequence
from typing import Literal

from ..resources.base import Dialect, JsonModel
from .control_messages import SteerRequest
from .errors import BudgetReached, Failure
from .message import FinishReason, Head, Message, TokenUsage, last_spoken, latest_within, recent_messages
from .scope import scoped

StopReason = Literal[
    "completed", "terminated", "condition", "no_progress", "max_turns", "budget", "canceled", "timeout", "failed"
]


MAX_MEMBER_FAILURES = 20
"""Failures of members in a result, and in a status, where the targets of a query share the limit."""


class Thread(JsonModel):
    """A place in a conversation, and the id of the pinned catalog. ``question`` is the id of the question's row.

    ``run`` is the workflow id of the run that a client has started, if there is a slash in it; child runs inherit it.
    If a manifest has a budget, ``account`` is the run id of that run, and ``budgets`` are the ids of the enclosing
    manifests with a budget. ``tenant`` is the ServiceAccount whose Quotas apply, as NAMESPACE/NAME, if there are any.
    ``dialect`` is the one in which the run counts turns and reports its status, if it is not
    Baton's own. ``redacted``: the run began on a worker that redacts personal data, and continues on such workers only.
    ``scope`` is that of the sessions in which panels share their contributions, if the run has a caller or an account.
    """

    catalog: str
    question: str
    head: Head
    run: str | None = None
    account: str | None = None
    budgets: tuple[str, ...] | None = None
    dialect: Dialect | None = None
    tenant: str | None = None
    redacted: bool | None = None
    scope: str | None = None

    def at(self, head: Head) -> "Thread":
        """Another place in the conversation."""
        return self.model_copy(update={"head": head})

    def in_run(self, run: str | None, account: str | None, scope: str | None) -> "Thread":
        """The same place in another root run, with its accounts if there are any, and its scope."""
        return self.model_copy(update={"run": run, "account": account, "scope": scope})

    def placed_as(self, other: "Thread") -> "Thread":
        """The same with the question and the place of another thread."""
        return self.model_copy(update={"question": other.question, "head": other.head})

    def under(self, owner: str) -> "Thread":
        """The same place below one more manifest with a budget."""
        return self.model_copy(update={"budgets": tuple(dict.fromkeys((*(self.budgets or ()), owner)))})

    def asking(self, question: Head) -> "Thread":
        """The thread of a new conversation that has only a question."""
        return self.model_copy(update={"question": question.id, "head": question})

    def session(self, workflow_id: str, name: str | None = None) -> str:
        """The session of the run with that id in its scope: the one that a manifest names, or the id of the root run.

        If that has no slash, it is the part before the first slash of ``workflow_id``.
        """
        return scoped(self.scope or "", name or self.run or workflow_id.partition("/")[0])


class TurnResult(JsonModel):
    """The result of a turn of a member, or of a whole team or agent.

    ``messages`` are the latest messages, without a gap; ``cut``: earlier ones were omitted. ``ended``: an agent has
    ended its team. ``failure`` is set exactly when ``stop_reason`` is ``failed`` or ``timeout``, or ``max_turns`` or
    ``budget`` where those fail the run. ``answer`` is set if the answer is not the last message: after ``terminate``,
    or from a parallel team. ``unread`` are messages of people that a child workflow received too late: it returns them
    to its parent; or those that a function was to read, whose call failed. ``member_failures`` are the failures of
    members that did not fail their team. ``outer_budget`` is an enclosing budget, if it has ended the turn. ``handoff``
    is the index of the member to which a member has transferred the conversation.
    """

    head: Head
    messages: tuple[Message, ...] = ()
    cut: bool = False
    turns: int = 1
    ended: bool = False
    stop_reason: StopReason = "completed"
    note: str | None = None
    failure: Failure | None = None
    usage: TokenUsage = TokenUsage()
    answer: str | None = None
    unread: tuple[SteerRequest, ...] = ()
    member_failures: tuple[Failure, ...] = ()
    outer_budget: BudgetReached | None = None
    handoff: int | None = None

    @property
    def above(self) -> Failure | None:
        """The enclosing budget that has ended it, as a failure."""
        if not self.outer_budget:
            return None
        if self.failure:
            return self.failure
        text = self.note or "a budget is exhausted"
        return Failure(family="BudgetError", type="BudgetExceeded", message=text, budget=self.outer_budget)

    @property
    def is_unfinished(self) -> bool:
        """Whether a failure or a cancellation has ended the turn, so that a retry takes it again."""
        return self.failure is not None or self.stop_reason in ("canceled", "timeout")

    def at(self, head: Head) -> "TurnResult":
        """The turn where the conversation continues at ``head``."""
        return self.model_copy(update={"head": head})

    def saying(self, head: Head, *messages: Message, cut: bool = False) -> "TurnResult":
        """The turn with these messages in place of its own, up to ``head``."""
        return self.model_copy(update={"head": head, "messages": messages, "cut": cut})

    def handed_to(self, member: int | None) -> "TurnResult":
        """The turn that has transferred the conversation to the member at an index."""
        return self.model_copy(update={"handoff": member})

    def with_usage(self, usage: TokenUsage) -> "TurnResult":
        """The turn with its token usage."""
        return self.model_copy(update={"usage": usage})

    def with_answer(self, text: str) -> "TurnResult":
        """The turn with a text as its answer, instead of the last message."""
        return self.model_copy(update={"answer": text})

    def with_message(self, message: Message) -> "TurnResult":
        """The turn with one more message, which does not count as a turn. A text of an assistant is the answer then."""
        messages = latest_within((*self.messages, message))
        cut = self.cut or len(messages) <= len(self.messages)
        answer = None if last_spoken([message]) else self.answer
        return self.model_copy(update={"messages": messages, "cut": cut, "answer": answer})

    def with_member_failures(self, failures: Sequence[Failure]) -> "TurnResult":
        """The turn with failures of members that did not fail the team; only the first ones are stored."""
        return self.model_copy(update={"member_failures": (*self.member_failures, *failures)[:MAX_MEMBER_FAILURES]})

    def followed_by(self, *turns: "TurnResult") -> "TurnResult":
        """The discussion so far with more turns. Adding them one by one would take quadratic time."""
        messages, cut = latest_messages((self, *turns))
        sums = {"turns": self.turns + len(turns), "usage": sum((turn.usage for turn in turns), self.usage)}
        ended = self.ended or any(turn.ended for turn in turns)
        # A silent turn, such as that of a person who does not reply, leaves the answer as it is.
        answering = next(
            (turn for turn in reversed(turns) if last_spoken(turn.messages) or turn.answer is not None), self
        )
        last = {"answer": answering.answer, "handoff": turns[-1].handoff}
        return self.model_copy(update={"messages": messages, "cut": cut, "ended": ended, **last, **sums})

    def terminated(self) -> "TurnResult":
        """The discussion, ended by a member or by its selector."""
        return self.model_copy(update={"ended": True})

    def with_unread(self, messages: Sequence[SteerRequest]) -> "TurnResult":
        """The turn with the messages of people that it returns to its parent."""
        return self.model_copy(update={"unread": tuple(messages)})

    def because_of(self, failure: Failure | None) -> "TurnResult":
        """The turn with the failure that explains its stop reason."""
        return self.model_copy(update={"failure": failure})

    def because(self, reason: StopReason, note: str | None = None) -> "TurnResult":
        """The turn with the reason why it stopped."""
        return self.model_copy(update={"stop_reason": reason, "note": note or self.note})

    def of_run(self, note: str | None) -> "TurnResult":
        """The turn as the result of a run, which has no team to end; ``note`` is that of a stop request."""
        return self.model_copy(update={"ended": False, "handoff": None, "note": note or self.note})

    def of_member(self, note: str | None) -> "TurnResult":
        """The turn as the result of a run of a team's member, who may have ended the team."""
        return self.model_copy(update={"note": note or self.note})

    def stopped(self, reason: StopReason, note: str | None = None, *, ended: bool = False) -> "TurnResult":
        """The turn with the reason why it stopped, which is no failure."""
        return self.model_copy(update={"stop_reason": reason, "note": note, "ended": ended, "failure": None})

    def failed(self, failure: Failure) -> "TurnResult":
        """The turn, ended by a failure."""
        return self.model_copy(update={"stop_reason": "failed", "failure": failure})

    def ended_by(self, failure: Failure, owner: str) -> "TurnResult":
        """The turn of the manifest ``owner``, ended by a failure, or by a budget: its own or an enclosing one."""
        reached = failure.budget
        if reached is None:
            return self.failed(failure)
        above = None if reached.owner == owner else reached
        fails = failure.model_copy(update={"budget": above}) if reached.on_exceeded == "fail" else None
        end = {"stop_reason": "budget", "note": failure.message, "failure": fails, "outer_budget": above}
        return self.model_copy(update=end)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended early; None if it is complete, or is not the text of one model."""
        word = last_spoken(self.messages)
        return word.finish_reason if word and word.content == self.message else None

    @property
    def message(self) -> str:
        """The answer; without an explicit one, the last text of an assistant."""
        if self.answer is not None:
            return self.answer
        word = last_spoken(self.messages)
        return word.content if word else ""


def latest_messages(turns: Sequence[TurnResult]) -> tuple[tuple[Message, ...], bool]:
    """The latest messages of consecutive turns, without a gap, and whether earlier ones were omitted.

    All messages of the last turn, and ``MAX_RECENT`` bytes of those before it.
    """
    whole_since = max((index for index, turn in enumerate(turns) if turn.cut), default=0)
    *before, last = turns[whole_since:]
    recent = recent_messages([message for turn in before for message in turn.messages])
    messages = latest_within((*recent, *last.messages))
    return messages, any(turn.cut for turn in turns) or len(messages) < sum(len(turn.messages) for turn in turns)


class CanceledChild(JsonModel):
    """The signal ``child_canceled``: the result of a child run that closes as canceled, which Temporal itself drops.

    ``run`` is the id of the first Temporal run of that child, since another child may have had the same workflow id.
    """

    run: str
    result: TurnResult
