"""The answers of the targets of a query in its status, and what they come to (ARK: queries, system outputs)."""

from typing import Literal

from ...resources.base import JsonModel
from ...resources.query import TargetType
from ..failure import Failure
from ..messages.message import Head, Message, TokenUsage
from ..messages.turn import StopReason, TurnResult
from .plan import TargetPlan


class StatusTarget(JsonModel):
    """The target of a response."""

    type: TargetType
    name: str
    namespace: str | None = None


class Response(JsonModel):
    """The result of one target. ``messages`` are the latest messages; ``head`` leads to all of them in the journal.

    ``run`` is the id of the run that answers: while it goes on, its own status has what was said until now.
    ``member_failures`` are the failures of members without whom a team has gone on.
    """

    target: StatusTarget
    message: str = ""
    status: Literal["Running", "Success", "Failed"]
    stop_reason: StopReason | None = None
    error: str | None = None
    failure: Failure | None = None
    messages: tuple[Message, ...] = ()
    head: Head | None = None
    run: str | None = None
    turns: int | None = None
    token_usage: TokenUsage | None = None
    member_failures: tuple[Failure, ...] | None = None


def response_of(target: TargetPlan, run: str | None, turn: TurnResult | None) -> Response:
    """The answer of a target, or without a ``turn`` that it is still asked."""
    target_status = StatusTarget(type=target.type, name=target.name, namespace=target.namespace)
    if turn is None:
        return Response(target=target_status, status="Running", run=run)
    failure = turn.failure.model_copy(update={"target": f"{target.type}/{target.name}"}) if turn.failure else None
    error = failure.message if failure else "canceled" if turn.stop_reason == "canceled" else None
    return Response(
        target=target_status,
        message=turn.message,
        status="Failed" if error else "Success",
        stop_reason=turn.stop_reason,
        error=error,
        failure=failure,
        messages=turn.messages,
        head=turn.head,
        run=run,
        turns=turn.turns,
        token_usage=turn.usage,
        member_failures=turn.member_failures or None,
    )


def joined_message(responses: tuple[Response, ...]) -> str:
    """The messages of all targets, each under its name where there are several."""
    if len(responses) == 1:
        return responses[0].message
    return "\n\n".join(f"{each.target.name}:\n{each.message}" for each in responses if each.message)


def joined_error(responses: tuple[Response, ...]) -> str | None:
    """The error of a query; None if no target has failed."""
    errors = [f"{each.target.name}: {each.error}" for each in responses if each.error]
    if len(responses) == 1:
        return responses[0].error
    return f"{len(errors)} of {len(responses)} targets failed: {'; '.join(errors)}" if errors else None


def joined_reason(responses: tuple[Response, ...], reason: StopReason | None, error: str | None) -> StopReason:
    """The stop reason of a query: that of a stop request, unless its targets have failed before."""
    if reason in ("canceled", "timeout") or (reason and not error):
        return reason
    reasons = {each.stop_reason for each in responses if each.stop_reason}
    if len(reasons) == 1:
        return reasons.pop()
    return "failed" if error else "completed"
