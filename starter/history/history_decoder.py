"""Decodes Temporal's history events of one run into run events."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter

from ...conversation.contracts.continuation import Continuation
from ...conversation.contracts.decisions import DECISION
from ...conversation.failure import BatonError
from .activity_calls import CallTracker
from .activity_types import REQUEST_TYPES, RESULT_TYPES, CallResult
from .client_requests import REQUEST_EVENTS, decode_decision, decode_request
from .decision_tracker import DecisionTracker
from .payloads import decode_failure, decode_payload
from .run_end import END_EVENTS, decode_run_end
from .run_events import ActivityCall, CallEnded, CallScheduled, RunEvent, RunInfo, RunStarted

LOCAL_ACTIVITY_MARKER = "core_local_activity"
"""The marker with which Temporal's SDK records a local activity."""

CALL_ENDS = tuple(f"activity_task_{end}" for end in ("completed", "failed", "timed_out", "cancel_requested"))
"""The events after which a workflow no longer waits for an activity."""


def event_attributes(event: HistoryEvent) -> tuple[str, Any]:
    """The name of a history event, such as ``activity_task_started``, and its attributes."""
    name = event.WhichOneof("attributes") or ""
    return name.removesuffix("_event_attributes"), getattr(event, name, None)


class HistoryDecoder:
    """Decodes the events of one run in their order, through all executions in which it continues as new."""

    def __init__(self, run: RunInfo, converter: DataConverter) -> None:
        self.run, self._converter = run, converter
        self.calls, self.decisions = CallTracker(), DecisionTracker()
        self._started = False
        self._open: dict[int, ActivityCall] = {}
        self._attempts: dict[int, int] = {}
        self._timers: dict[str, str] = {}

    def continue_as_new(self, run_id: str) -> None:
        """Goes on with the history of another execution of the same run."""
        self.run = replace(self.run, run_id=run_id, continued_from=self.run.first_run_id)

    async def decode(self, event: HistoryEvent) -> list[RunEvent]:
        """The run events that a history event stands for; most stand for none."""
        at = event.event_time.ToDatetime(UTC)
        match event_attributes(event):
            case "workflow_execution_started", started if not self._started:
                self._started = True
                return [await self._run_started(at, started)]
            case "marker_recorded", marker if marker.marker_name == LOCAL_ACTIVITY_MARKER:
                return await self._local_activity(at, marker)
            case "activity_task_scheduled", scheduled:
                call = self._open[event.event_id] = await self._scheduled_call(at, scheduled)
                return [*self.decisions.scheduled(CallScheduled(self.run, at, call))]
            case "activity_task_started", started:
                self._attempts[started.scheduled_event_id] = started.attempt
            case name, ended if name in CALL_ENDS:
                return await self._call_ended(at, ended)
            case "timer_started" | "timer_fired", timer:
                return await self._timer(at, event, timer.timer_id)
            case name, request if name in REQUEST_EVENTS:
                return await self._request(at, name, request)
            case name, ended if name in END_EVENTS:
                return [await decode_run_end(self._converter, self.run, at, name, ended)]
        return []

    async def _run_started(self, at: datetime, started: Any) -> RunStarted:
        given = await self._input(started)
        workflow = started.workflow_type.name
        kind = next((each for each in ("team", "agent", "model", "tool") if each in given), workflow)
        name, namespace = given.get("name" if kind == "query" else kind), given.get("namespace")
        named = replace(self.run, name=str(name or self.run.id), namespace=str(namespace or "default"))
        self.run = replace(named, type=workflow, kind=kind)
        if carried := given.get("carried"):  # Temporal has deleted the first executions of this run
            pinned = Continuation.model_validate_json(json.dumps(carried)).pinned
            self.calls.record(pinned)
            return RunStarted(self.run, at, pinned)
        return RunStarted(self.run, at)

    async def _input(self, started: Any) -> dict[str, Any]:
        """The input of the workflow; empty if it is no object, which the workflow itself refuses."""
        if len(started.input.payloads) != 1:
            return {}
        try:
            given = await decode_payload(self._converter, started.input, object)
        except BatonError:
            return {}
        return given if isinstance(given, dict) else {}

    async def _request(self, at: datetime, name: str, attributes: Any) -> list[RunEvent]:
        """What somebody asks of the run, or has decided about its budgets."""
        if decided := await decode_decision(self._converter, name, attributes):
            return [*self.decisions.decided(self.run, at, decided)]
        received = await decode_request(self._converter, self.run, at, name, attributes)
        return [received] if received else []

    async def _timer(self, at: datetime, event: HistoryEvent, timer: str) -> list[RunEvent]:
        """A timer that limits how long a decision is waited for begins, or ends."""
        if event.HasField("timer_fired_event_attributes"):
            return [*self.decisions.timed_out(self.run, at, self._timers.pop(timer, ""))]
        if event.user_metadata.HasField("summary"):
            summary = await decode_payload(self._converter, Payloads(payloads=[event.user_metadata.summary]), str)
            self._timers[timer] = summary.removeprefix(DECISION)
        return []

    async def _scheduled_call(self, at: datetime, scheduled: Any) -> ActivityCall:
        activity_type = scheduled.activity_type.name
        kind = REQUEST_TYPES.get(activity_type)
        request = await decode_payload(self._converter, scheduled.input, kind) if kind else None
        return self.calls.complete(self.run, ActivityCall(scheduled.activity_id, activity_type, at, request))

    async def _local_activity(self, at: datetime, marker: Any) -> list[RunEvent]:
        """A local activity. One that has failed but may be retried is called again as a regular activity."""
        about = json.loads(marker.details["data"].payloads[0].data)
        call = ActivityCall(about["activity_id"], about["activity_type"], at)
        if call.activity_type not in RESULT_TYPES or not _is_final(marker):
            return []
        result, failure = None, None
        if not marker.HasField("failure"):
            result = await self._result(call, marker.details["result"])
        elif not marker.failure.HasField("canceled_failure_info"):
            failure = await decode_failure(self._converter, marker.failure)
        return [CallScheduled(self.run, at, call), CallEnded(self.run, at, call, result=result, failure=failure)]

    async def _call_ended(self, at: datetime, ended: Any) -> list[RunEvent]:
        number = ended.scheduled_event_id
        call = self._open.pop(number, None)
        if call is None:
            return []
        attempts = self._attempts.pop(number, 1)
        if hasattr(ended, "result") and call.activity_type in RESULT_TYPES:
            result = await self._result(call, ended.result)
            messages = self.calls.messages(call, result)
            return [*self.decisions.ended(CallEnded(self.run, at, call, attempts, result, messages=messages))]
        failure = await decode_failure(self._converter, ended.failure) if hasattr(ended, "failure") else None
        return [*self.decisions.ended(CallEnded(self.run, at, call, attempts, failure=failure))]

    async def _result(self, call: ActivityCall, payloads: Any) -> CallResult:
        result = await decode_payload(self._converter, payloads, RESULT_TYPES[call.activity_type])
        self.calls.record(result, call.brief)
        return result


def _is_final(marker: Any) -> bool:
    """Whether a local activity has completed, was canceled, or has failed for good."""
    failure = marker.failure
    canceled = failure.HasField("canceled_failure_info")
    return not marker.HasField("failure") or canceled or failure.application_failure_info.non_retryable
