"""What does an event of a history mean? Temporal's events of one run, decoded into what has happened in it."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure as TemporalFailure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from ...conversation.contracts.continuation import Continuation
from ...conversation.contracts.status import Status, phase_of
from ...conversation.errors import RunClosed
from ...conversation.failure import BatonError, Failure
from ...conversation.messages.message import Message
from ...conversation.messages.turn import TurnResult
from .activity_calls import REPLY_TYPES, REQUEST_TYPES, CallTracker
from .run_events import ActivityCall, CallScheduled, CallEnded, RunEvent, RunInfo, RunStarted, RunEnded

T = TypeVar("T")

_LOCAL = "core_local_activity"
"""The marker that stands for a call within a workflow task: with its reply, or its failure."""


def event_attributes(event: HistoryEvent) -> tuple[str, Any]:
    """The name of an event, such as ``activity_task_started``, and what it tells."""
    name = event.WhichOneof("attributes") or ""
    return name.removesuffix("_event_attributes"), getattr(event, name, None)


async def decode_payload(converter: DataConverter, payloads: Payloads, kind: type[T]) -> T:
    """The only value of some payloads; raises InvalidInput where it is none of that kind, SettingsError without key."""
    values = await converter.decode(payloads.payloads, [kind])
    value: T = values[0]
    return value


class HistoryDecoder:
    """Reads the history of one run, and of those in which it goes on, event by event from the first."""

    def __init__(self, run: RunInfo, converter: DataConverter) -> None:
        self.run, self._converter = run, converter
        self.calls = CallTracker()
        self._begun = False
        self._open: dict[int, ActivityCall] = {}
        self._attempts: dict[int, int] = {}

    def continue_as_new(self, run_id: str) -> None:
        """The history of another run follows, in which this one goes on."""
        self.run = replace(self.run, run_id=run_id, continued_from=self.run.first_run_id)

    async def decode(self, event: HistoryEvent) -> list[RunEvent]:
        """What an event tells; most tell nothing."""
        at = event.event_time.ToDatetime(UTC)
        match event_attributes(event):
            case "marker_recorded", marker if marker.marker_name == _LOCAL:
                return await self._call_at_once(at, marker)
        happening = await self._read(at, event)
        return [happening] if happening else []

    async def _read(self, at: datetime, event: HistoryEvent) -> RunEvent | None:
        match event_attributes(event):
            case "workflow_execution_started", started if not self._begun:
                self._begun = True
                return await self._began(at, started)
            case "activity_task_scheduled", scheduled:
                call = self._open[event.event_id] = await self._call(at, scheduled)
                return CallScheduled(self.run, at, call)
            case "activity_task_started", started:
                self._attempts[started.scheduled_event_id] = started.attempt
            case "activity_task_completed" | "activity_task_failed" | "activity_task_timed_out", ended:
                return await self._ended_call(at, ended)
            case "activity_task_cancel_requested", ended:  # nobody waits for it any longer
                return await self._ended_call(at, ended)
            case name, closed if name in _CLOSED:
                return await _ended(self._converter, self.run, at, _CLOSED[name], closed)
        return None

    async def _began(self, at: datetime, started: Any) -> RunStarted:
        given: Any = None
        if len(started.input.payloads) == 1:
            try:
                given = await decode_payload(self._converter, started.input, object)
            except BatonError:
                given = None  # the run itself refuses what nobody can read
        given = given if isinstance(given, dict) else {}
        workflow = started.workflow_type.name
        kind = next((each for each in ("team", "agent", "model", "tool") if each in given), workflow)
        name, namespace = given.get("name" if kind == "query" else kind), given.get("namespace")
        named = replace(self.run, name=str(name or self.run.id), namespace=str(namespace or "default"))
        self.run = replace(named, type=workflow, kind=kind)
        if carried := given.get("carried"):  # the runs before this one are forgotten
            pinned = Continuation.model_validate_json(json.dumps(carried)).pinned
            self.calls.keep(pinned)
            return RunStarted(self.run, at, pinned)
        return RunStarted(self.run, at)

    async def _call(self, at: datetime, scheduled: Any) -> ActivityCall:
        effect = scheduled.activity_type.name
        kind = REQUEST_TYPES.get(effect)
        request = await decode_payload(self._converter, scheduled.input, kind) if kind else None
        return self.calls.begun(self.run, ActivityCall(scheduled.activity_id, effect, at, request))

    async def _call_at_once(self, at: datetime, marker: Any) -> list[RunEvent]:
        """A call within a workflow task; one that was not final is made again, in a task of its own."""
        about = json.loads(marker.details["data"].payloads[0].data)
        call = ActivityCall(about["activity_id"], about["activity_type"], at)
        if call.activity_type not in REPLY_TYPES or not _is_final(marker):
            return []
        reply, failure = None, None
        if not marker.HasField("failure"):
            reply = await decode_payload(self._converter, marker.details["result"], REPLY_TYPES[call.activity_type])
            self.calls.keep(reply)
        elif not marker.failure.HasField("canceled_failure_info"):
            failure = await decode_failure(self._converter, marker.failure)
        return [CallScheduled(self.run, at, call), CallEnded(self.run, at, call, reply=reply, failure=failure)]

    async def _ended_call(self, at: datetime, ended: Any) -> CallEnded | None:
        number = ended.scheduled_event_id
        call = self._open.pop(number, None)
        if call is None:
            return None
        reply, failure, said = None, None, tuple[Message, ...]()
        if hasattr(ended, "result") and call.activity_type in REPLY_TYPES:
            reply = await decode_payload(self._converter, ended.result, REPLY_TYPES[call.activity_type])
            self.calls.keep(reply, call.brief)
            said = self.calls.said(call, reply)
        elif hasattr(ended, "failure"):
            failure = await decode_failure(self._converter, ended.failure)
        return CallEnded(self.run, at, call, self._attempts.pop(number, 1), reply, failure, said)


def _is_final(marker: Any) -> bool:
    """Whether a call within a workflow task has come to its end: answered, given up, or failed for good."""
    failure = marker.failure
    given_up = failure.HasField("canceled_failure_info")
    return not marker.HasField("failure") or given_up or failure.application_failure_info.non_retryable


_CLOSED = {
    f"workflow_execution_{end}": end.replace("_", " ")
    for end in ("completed", "failed", "canceled", "terminated", "timed_out")
}


async def _ended(converter: DataConverter, run: RunInfo, at: datetime, end: str, closed: Any) -> RunEnded:
    result = await _result(converter, run, closed)
    match result:
        case TurnResult():
            phase = phase_of(result.stop_reason, result.failure)
            return RunEnded(run, at, phase, result.stop_reason, result.note, result.failure, result.turns)
        case Status():
            return RunEnded(run, at, result.phase, result.stop_reason, result.note, result.failure)
    if end == "canceled":
        return RunEnded(run, at, "Canceled", "canceled")
    failure = RunClosed(f"the run was closed in Temporal: {end}").as_failure()
    if end == "failed":
        failure = await decode_failure(converter, closed.failure)
    return RunEnded(run, at, "Failed", "failed", failure=failure)


async def _result(converter: DataConverter, run: RunInfo, closed: Any) -> TurnResult | Status | None:
    """What a run has returned, or failed with; None where it was closed from outside."""
    failure = getattr(closed, "failure", TemporalFailure())
    for payloads in (
        getattr(closed, "result", Payloads()),
        failure.application_failure_info.details,
        failure.canceled_failure_info.details,
    ):
        if payloads.payloads:
            return await decode_payload(converter, payloads, Status if run.kind == "query" else TurnResult)
    return None


async def decode_failure(converter: DataConverter, failure: TemporalFailure) -> Failure:
    """What went wrong, as the run itself takes it."""
    error = await converter.decode_failure(failure)
    match error:
        case ActivityTimeout(message=text):
            return Failure(family="TimeoutError", type="CallTimeout", message=text)
        case ApplicationError(message=text, type=kind, details=[str() as family, *_]):
            return Failure(family=family, type=kind or "ActivityError", message=text)
    kind = error.type if isinstance(error, ApplicationError) else None
    text = error.message if isinstance(error, FailureError) else str(error)
    return Failure(family="BatonError", type=kind or "ActivityError", message=text)
