"""The status of a run (ARK: queries, system outputs)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Annotated, Literal

from pydantic import BeforeValidator, JsonValue, PlainSerializer

from ..resources.base import JsonModel, JsonObject
from ..resources.budget import Budget
from ..resources.query import TargetType
from .control_messages import Pause, SteerRequest
from .decisions import PendingDecision
from .errors import Failure, Outage
from .message import FinishReason, Head, Message, TokenUsage, last_spoken, latest_within
from .plan import QueryPlan, TargetPlan
from .text import format_time, parse_json, truncate
from .turn import MAX_MEMBER_FAILURES, StopReason, TurnResult

WholeUsage = Annotated[TokenUsage, PlainSerializer(lambda usage: usage.whole)]
"""A token usage whose counts are all part of its JSON, also those that are 0."""


class StatusTarget(JsonModel):
    """The target of a response."""

    type: TargetType
    name: str
    namespace: str | None = None


class Response(JsonModel):
    """The result of one target. ``messages`` are the latest messages; ``head`` leads to all of them in the journal.

    ``run`` is the id of the run that answers: while it is open, its own status has the messages so far. ``status`` is
    ``Canceled`` for a target that was canceled, or that was not started because the query was stopped before.
    ``member_failures`` are the failures of members that did not fail their team.
    """

    target: StatusTarget
    message: str = ""
    status: Literal["Running", "Success", "Failed", "Canceled"]
    stop_reason: StopReason | None = None
    error: str | None = None
    failure: Failure | None = None
    messages: tuple[Message, ...] = ()
    head: Head | None = None
    run: str | None = None
    turns: int | None = None
    token_usage: WholeUsage
    member_failures: tuple[Failure, ...] | None = None

    def so_far(self, turn: TurnResult) -> "Response":
        """The response so far of the target whose turn the query itself takes."""
        return self.model_copy(
            update={
                "message": turn.message,
                "messages": turn.messages,
                "turns": turn.turns,
                "token_usage": turn.usage,
            }
        )

    def closed_with(self, failure: Failure) -> "Response":
        """The response of a target whose query Temporal closed; that of one that had ended is unchanged."""
        if self.status != "Running":
            return self
        end = {"status": "Failed", "stop_reason": "failed", "error": failure.message, "failure": failure}
        return self.model_copy(update=end)

    def with_progress(self, progress: "Status") -> "Response":
        """The response of a running target, with the result of its own run so far."""
        return self.model_copy(
            update={
                "message": progress.message,
                "messages": progress.messages,
                "turns": progress.turns,
                "token_usage": progress.token_usage,
                "failure": progress.failure,
            }
        )


def response_of(target: TargetPlan, run: str | None, turn: TurnResult | None) -> Response:
    """The response of a target; without a ``turn`` the target is still running."""
    target_status = StatusTarget(type=target.type, name=target.name, namespace=target.namespace)
    if turn is None:
        return Response(target=target_status, status="Running", run=run, token_usage=TokenUsage())
    failure = turn.failure.of_target(f"{target.type}/{target.name}") if turn.failure else None
    is_canceled = turn.stop_reason == "canceled" and not failure
    return Response(
        target=target_status,
        message=turn.message,
        status="Failed" if failure else "Canceled" if is_canceled else "Success",
        stop_reason=turn.stop_reason,
        error=failure.message if failure else "canceled" if is_canceled else None,
        failure=failure,
        messages=turn.messages,
        head=turn.head,
        run=run,
        turns=turn.turns,
        token_usage=turn.usage,
        member_failures=turn.member_failures or None,
    )


def unasked_response(target: TargetPlan, reason: StopReason | None, failure: Failure | None) -> Response:
    """The response of a target that its query did not start, because of a failure or a stop request."""
    return Response(
        target=StatusTarget(type=target.type, name=target.name, namespace=target.namespace),
        status="Failed" if failure else "Canceled",
        stop_reason="failed" if failure and reason != "timeout" else reason,
        error=failure.message if failure else "canceled" if reason == "canceled" else None,
        failure=failure,
        turns=0,
        token_usage=TokenUsage(),
    )


def joined_message(responses: tuple[Response, ...]) -> str:
    """The messages of all targets, with the names of the targets if there are several."""
    if len(responses) == 1:
        return responses[0].message
    return "\n\n".join(f"{response.target.name}:\n{response.message}" for response in responses if response.message)


def joined_error(responses: tuple[Response, ...]) -> str | None:
    """The error of a query; None if no target has failed."""
    errors = [f"{response.target.name}: {response.error}" for response in responses if response.error]
    if len(responses) == 1:
        return responses[0].error
    if errors and all(response.status == "Canceled" for response in responses if response.error):
        return "canceled"
    return f"{len(errors)} of {len(responses)} targets failed: {'; '.join(errors)}" if errors else None


def joined_reason(responses: tuple[Response, ...], reason: StopReason | None, error: str | None) -> StopReason:
    """The stop reason of a query: that of a stop request, unless its targets have failed before."""
    if reason in ("canceled", "timeout") or (reason and not error):
        return reason
    reasons = {response.stop_reason for response in responses if response.stop_reason}
    if len(reasons) == 1:
        return reasons.pop()
    return "failed" if error else "completed"


class BudgetLeft(JsonModel):
    """What is left of every limited amount; ``cost`` in US dollars."""

    tokens: int | None = None
    cost: float | None = None
    model_calls: int | None = None
    tool_calls: int | None = None


class BudgetStatus(JsonModel):
    """The budget of a run, and what is ``left`` of it after its token usage.

    That has no calls that failed or were abandoned. They count as well: the journal has charged them.
    """

    limits: Budget
    left: BudgetLeft

    @classmethod
    def of(cls, limits: Budget | None, used: TokenUsage) -> "BudgetStatus | None":
        """The state of a budget after that usage; None without a budget."""
        if limits is None:
            return None
        pairs = {
            "tokens": (limits.tokens, used.total_tokens),
            "cost": (limits.cost, used.cost or 0),
            "model_calls": (limits.model_calls, used.model_calls),
            "tool_calls": (limits.tool_calls, used.tool_calls),
        }
        left = {name: round(max(0, limit - spent), 9) for name, (limit, spent) in pairs.items() if limit is not None}
        return cls(limits=limits, left=BudgetLeft.model_validate(left))


MAX_STATUS_MESSAGES = 150_000
"""Bytes of messages in the status of a query, shared evenly by its targets; its texts have the same limit again.

So the whole status stays below the threshold of external storage, and any Temporal client can read it.
"""

MAX_VALUE = 64_000
"""Characters of an answer that a status also has as a ``value``."""

MAX_UNREAD = 20
"""Messages that came too late, of which a status tells."""

MAX_UNREAD_BYTES = 500
"""Bytes of such a message in a status."""

Phase = Literal["Running", "InputRequired", "Waiting", "Completed", "Failed", "Canceled"]
"""The phase of a run. ``InputRequired``: it is open and waits for a person's decision. ``Waiting``: for the end of an
outage of a server."""

ArkPhase = Literal["running", "input-required", "done", "error", "canceled"]

ARK_PHASES: dict[Phase, ArkPhase] = {
    "Running": "running",
    "InputRequired": "input-required",
    "Waiting": "running",
    "Completed": "done",
    "Failed": "error",
    "Canceled": "canceled",
}
"""The phases in ARK's dialect, which a status may use as well."""

_OWN_PHASES = {ark: own for own, ark in reversed(ARK_PHASES.items())}


def _own_phase(value: object) -> object:
    return _OWN_PHASES.get(value, value) if isinstance(value, str) else value  # type: ignore[call-overload]  # any text


class Status(JsonModel):
    """The status of a query, or of a team or an agent that was started directly (then without ``responses``).

    While the run is open: ``paused``, the values of its ``session``, and the messages of people that are ``waiting``
    for the next model call. Messages passed on to a child run are in the child's status; ``runs`` are the ids of the
    open child runs, and ``workflows`` those of the application's workflows that tool calls wait for.
    ``pending_decisions`` are those of the run itself, and ``waiting_runs`` the ids of its child runs
    that wait for a person, directly or in a run below. ``outages`` are those that calls of the run wait for, and
    ``outage_runs`` its child runs that do. ``conversation_id`` is the conversation that a query continues,
    and ``notices`` are problems that did not fail the query. ``budget`` is that of the query, the team or the agent
    itself. ``message`` is the answer or, of a failed query, the error; the messages are in ``responses``. ``value`` is
    the answer of a completed run as JSON, if it is a JSON object or array. A fork has in ``forked_from`` the id of the
    run that it has gone on from, and in ``forked_at`` the name of the place there.
    """

    phase: Annotated[Phase, BeforeValidator(_own_phase)]
    message: str = ""
    value: JsonValue = None
    responses: tuple[Response, ...] = ()
    stop_reason: StopReason | None = None
    note: str | None = None
    error: str | None = None
    failure: Failure | None = None
    token_usage: WholeUsage
    turns: int | None = None
    messages: tuple[Message, ...] = ()
    head: Head | None = None
    paused: Pause | None = None
    session: JsonObject | None = None
    waiting: tuple[Message, ...] | None = None
    pending_decisions: tuple[PendingDecision, ...] | None = None
    waiting_runs: tuple[str, ...] | None = None
    outages: tuple[Outage, ...] | None = None
    outage_runs: tuple[str, ...] | None = None
    member_failures: tuple[Failure, ...] | None = None
    runs: tuple[str, ...] | None = None
    workflows: tuple[str, ...] | None = None
    budget: BudgetStatus | None = None
    conversation_id: str | None = None
    notices: tuple[str, ...] | None = None
    forked_from: str | None = None
    forked_at: str | None = None
    start_time: str
    completion_time: str | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended early: None if it is complete, or is not the text of one model."""
        messages = self.responses[0].messages if len(self.responses) == 1 else self.messages
        answer = last_spoken(messages)
        return answer.finish_reason if answer and answer.content == self.message else None

    @property
    def is_open(self) -> bool:
        """Whether the run is open."""
        return self.phase in ("Running", "InputRequired", "Waiting")

    @property
    def all_member_failures(self) -> tuple[Failure, ...]:
        """The failures of members that did not fail their team, of the run or of all its targets."""
        of_targets = (failure for response in self.responses for failure in response.member_failures or ())
        return (*(self.member_failures or ()), *of_targets)

    @property
    def said(self) -> str:
        """The answers of the run's targets, even if it failed; if there are none, its message."""
        if self.phase != "Failed":
            return self.message
        word = last_spoken(self.messages)
        return joined_message(self.responses) or (word.content if word else "") or self.message

    def in_turn(self, turn: TurnResult) -> "Status":
        """The status of a query that takes the turn of its only target, with the turn's result so far."""
        responses = (self.responses[0].so_far(turn),)
        return self.model_copy(update={"responses": responses, "message": turn.message, "token_usage": turn.usage})

    def with_value(self) -> "Status":
        """The status with the ``value`` of the answer, so that clients in any language get more than a text."""
        if self.phase != "Completed" or self.message[:1] not in ("{", "[") or len(self.message) > MAX_VALUE:
            return self
        try:
            return self.model_copy(update={"value": parse_json(self.message)})
        except ValueError:
            return self

    def with_runs(self, runs: tuple[str, ...], workflows: tuple[str, ...]) -> "Status":
        """The status with the ids of open child runs, and of the application's workflows that tool calls wait for."""
        return self.model_copy(update={"runs": runs or None, "workflows": workflows or None})

    def forked(self, run: str, at: str) -> "Status":
        """The status of a run that has gone on from a place in another one."""
        return self.model_copy(update={"forked_from": run, "forked_at": at})

    def with_notices(self, notices: tuple[str, ...]) -> "Status":
        """The status with problems that did not fail the query."""
        return self.model_copy(update={"notices": notices or None})

    def with_unread(self, unread: Sequence[SteerRequest]) -> "Status":
        """The status with people's messages that arrived too late to be read by anybody."""
        shown = (
            f"a message of {message.name} came too late to be read: {truncate(message.text, MAX_UNREAD_BYTES)}"
            for message in unread[:MAX_UNREAD]
        )
        more = (f"{len(unread) - MAX_UNREAD} more messages came too late",) if len(unread) > MAX_UNREAD else ()
        return self.with_notices((*(self.notices or ()), *shown, *more)) if unread else self

    def in_conversation(self, id_: str) -> "Status":
        """The status of a query that continues a conversation."""
        return self.model_copy(update={"conversation_id": id_})

    def with_requests(
        self,
        paused: Pause | None,
        session: JsonObject,
        waiting: tuple[Message, ...],
        pending: tuple[PendingDecision, ...],
        waiting_runs: tuple[str, ...],
        outages: tuple[Outage, ...],
        outage_runs: tuple[str, ...],
    ) -> "Status":
        """The status of an open run with people's requests and all that it and its child runs wait for."""
        phase = "InputRequired" if pending or waiting_runs else "Waiting" if outages or outage_runs else self.phase
        return self.model_copy(
            update={
                "phase": phase,
                "paused": paused,
                "session": session or None,
                "waiting": waiting or None,
                "pending_decisions": pending or None,
                "waiting_runs": waiting_runs or None,
                "outages": outages or None,
                "outage_runs": outage_runs or None,
            }
        )

    def closed_with(self, failure: Failure, end: datetime) -> "Status":
        """The status of a run that Temporal closed, regardless of its workflow's own status."""
        return self.model_copy(
            update={
                "phase": "Failed",
                "message": _message("Failed", self.message, failure.message),
                "responses": tuple(response.closed_with(failure) for response in self.responses),
                "stop_reason": "failed",
                "error": failure.message,
                "failure": failure,
                "completion_time": format_time(end),
            }
        )

    def with_target_progress(self, index: int, progress: "Status") -> "Status":
        """The status of a query with the progress of one of its targets, which runs in a child run."""
        response = self.responses[index].with_progress(progress)
        responses = (*self.responses[:index], response, *self.responses[index + 1 :])
        message = self.message or (response.message if len(responses) == 1 else "")
        usage = self.token_usage + progress.token_usage
        outages = (*(self.outages or ()), *(progress.outages or ())) or None
        workflows = (*(self.workflows or ()), *(progress.workflows or ())) or None
        update = {
            "responses": responses,
            "token_usage": usage,
            "message": message,
            "outages": outages,
            "workflows": workflows,
        }
        return self.model_copy(update=update)

    def with_child_progress(self, progress: "Status") -> "Status":
        """The status of a run with the messages and the usage of one of its child runs so far."""
        return self.model_copy(
            update={
                "token_usage": self.token_usage + progress.token_usage,
                "outages": (*(self.outages or ()), *(progress.outages or ())) or None,
                "workflows": (*(self.workflows or ()), *(progress.workflows or ())) or None,
                "messages": (*self.messages, *progress.messages),
                "message": progress.message or self.message,
            }
        )

    def with_budget_left(self) -> "Status":
        """The status with what is left of its budget after its usage."""
        limits = self.budget.limits if self.budget else None
        return self.model_copy(update={"budget": BudgetStatus.of(limits, self.token_usage)})


def phase_of(reason: StopReason | None, failed: object) -> Phase:
    """The phase of a finished run."""
    if reason == "canceled":
        return "Canceled"
    return "Failed" if failed else "Completed"


def query_status(
    plan: QueryPlan,
    answers: Mapping[int, TurnResult],
    times: tuple[datetime, datetime | None],
    *,
    reason: StopReason | None = None,
    note: str | None = None,
    failure: Failure | None = None,
    runs: Sequence[str] = (),
) -> Status:
    """The status of a query, from the results of its targets by index; ``times`` are its start and, if any, its end.

    ``reason`` is why the whole query was stopped, ``failure`` a failure before any target, ``runs`` the child runs.
    """
    start, end = times
    usage = sum((turn.usage for turn in answers.values()), TokenUsage())
    runs_of_targets = zip_longest(plan.targets, runs)
    responses = tuple(
        unasked_response(target, reason, failure)
        if end and index not in answers
        else response_of(target, run, answers.get(index))
        for index, (target, run) in enumerate(runs_of_targets)
    )
    error = failure.message if failure else joined_error(responses)
    phase = phase_of(reason, error) if end else "Running"
    return Status(
        phase=phase,
        message=_message(phase, joined_message(responses), error),
        responses=responses,
        stop_reason=joined_reason(responses, reason, error) if end else None,
        note=note,
        error=error if end else None,
        failure=failure or next((response.failure for response in responses if response.failure), None),
        token_usage=usage,
        budget=BudgetStatus.of(plan.budget, usage),
        start_time=format_time(start),
        completion_time=format_time(end) if end else None,
    )


def _message(phase: Phase, answer: str, error: str | None) -> str:
    """The message of a status: the answer or, if the run failed or has no answer, the error."""
    if error and (phase == "Failed" or not answer):
        return truncate(f"Error: {error}", MAX_STATUS_MESSAGES)
    return truncate(answer, MAX_STATUS_MESSAGES)


def turn_status(turn: TurnResult, start: datetime, end: datetime | None, budget: Budget | None = None) -> Status:
    """The status of a team or an agent that was started directly; without an ``end`` it is running."""
    phase = phase_of(turn.stop_reason, turn.failure) if end else "Running"
    error = turn.failure.message if turn.failure else None
    return Status(
        phase=phase,
        message=_message(phase, turn.message, error),
        stop_reason=turn.stop_reason if end else None,
        note=turn.note,
        error=error,
        failure=turn.failure,
        token_usage=turn.usage,
        budget=BudgetStatus.of(budget, turn.usage),
        turns=turn.turns,
        messages=turn.messages,
        head=turn.head,
        start_time=format_time(start),
        completion_time=format_time(end) if end else None,
        member_failures=turn.member_failures or None,
    )


def truncated_for_status(plan: QueryPlan, turn: TurnResult) -> TurnResult:
    """The result of a target, truncated to its share of the status."""
    targets = max(1, len(plan.targets))
    room = MAX_STATUS_MESSAGES // targets
    failures = turn.member_failures[: max(1, MAX_MEMBER_FAILURES // targets)]
    shown = {"messages": latest_within(turn.messages, room), "answer": truncate(turn.message, room)}
    return turn.model_copy(update={**shown, "member_failures": failures})
