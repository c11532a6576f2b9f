"""Decodes the last event of a history: how the run has ended."""

from datetime import datetime
from typing import Any

from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure as TemporalFailure
from temporalio.converter import DataConverter

from ...conversation.contracts.status import Status, phase_of
from ...conversation.errors import RunClosed
from ...conversation.messages.turn import TurnResult
from .payloads import decode_failure, decode_payload
from .run_events import RunEnded, RunInfo

END_EVENTS = {
    f"workflow_execution_{end}": end.replace("_", " ")
    for end in ("completed", "failed", "canceled", "terminated", "timed_out")
}
"""The names of the events that end a run, with the word for each."""


async def decode_run_end(converter: DataConverter, run: RunInfo, at: datetime, event: str, attributes: Any) -> RunEnded:
    """How a run has ended: as its result says, or else as Temporal says."""
    result = await _result(converter, run, attributes)
    match result:
        case TurnResult():
            phase = phase_of(result.stop_reason, result.failure)
            return RunEnded(run, at, phase, result.stop_reason, result.note, result.failure, result.turns)
        case Status():
            return RunEnded(run, at, result.phase, result.stop_reason, result.note, result.failure)
    if event == "workflow_execution_canceled":
        return RunEnded(run, at, "Canceled", "canceled")
    failure = RunClosed(f"the run was closed in Temporal: {END_EVENTS[event]}").as_failure()
    if event == "workflow_execution_failed":
        failure = await decode_failure(converter, attributes.failure)
    return RunEnded(run, at, "Failed", "failed", failure=failure)


async def _result(converter: DataConverter, run: RunInfo, attributes: Any) -> TurnResult | Status | None:
    """The result that a run has returned, or that is in the details of its failure; None if there is none."""
    failure = getattr(attributes, "failure", TemporalFailure())
    for payloads in (
        getattr(attributes, "result", Payloads()),
        failure.application_failure_info.details,
        failure.canceled_failure_info.details,
    ):
        if payloads.payloads:
            return await decode_payload(converter, payloads, Status if run.kind == "query" else TurnResult)
    return None
