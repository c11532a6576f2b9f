"""The live state of runs: their open calls with heartbeats, and their status and usage."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.service import RPCError

from ...contracts.control_messages import Pause
from ...contracts.errors import Failure
from ...contracts.message import TokenUsage
from ...contracts.requests import LiveText
from ...contracts.status import Phase, Status
from ...contracts.text import format_time
from .decoder import decode_failure, decode_payload
from .run_events import (
    ActivityCall,
    CallEnded,
    CallScheduled,
    DecisionMade,
    DecisionRequested,
    RequestReceived,
    RunEnded,
    RunEvent,
    RunInfo,
    RunReset,
    RunStarted,
    token_usage,
)


@dataclass
class OpenCall:
    """An open call of a model, a tool or a function, and the progress that its last heartbeat reported.

    If ``waiting``, the ``attempt`` has not started yet; it starts at ``next_at``. ``failure`` is the error of the
    previous attempt.
    """

    run: RunInfo
    call: ActivityCall
    progress: LiveText = field(default_factory=LiveText)
    attempt: int = 1
    waiting: bool = False
    failure: str = ""
    next_at: datetime | None = None


@dataclass
class RunProgress:
    """A root run: its usage so far, its pause, and its end once it has ended.

    ``waits`` are the pending decisions of the run and its child runs, by id.
    """

    run: RunInfo
    started_at: datetime
    usage: TokenUsage = field(default_factory=TokenUsage)
    pause: Pause | None = None
    waits: dict[str, DecisionRequested] = field(default_factory=dict)
    end: RunEnded | None = None

    @property
    def status(self) -> Status:
        """The run's status, derived from its events."""
        if self.end is None:
            start = format_time(self.started_at)
            phase: Phase = "InputRequired" if self.waits else "Running"
            return Status(phase=phase, token_usage=self.usage, start_time=start, paused=self.pause)
        return Status(
            phase=self.end.phase,
            stop_reason=self.end.stop_reason,
            error=self.end.failure.message if self.end.failure else None,
            failure=self.end.failure,
            token_usage=self.usage,
            start_time=format_time(self.started_at),
            completion_time=format_time(self.end.at),
            member_failures=self.end.member_failures or None,
            notices=self.end.notices or None,
        )


@dataclass
class LiveState:
    """The open calls in the order of their start, and the progress of root runs, by id."""

    open_calls: dict[tuple[str, str], OpenCall] = field(default_factory=dict)
    runs: dict[str, RunProgress] = field(default_factory=dict)

    def apply(self, event: RunEvent) -> None:
        """Updates the state with the next event."""
        run = event.run
        match event:
            case RunStarted() if run.parent is None:
                self.runs[run.id] = RunProgress(run, event.at)
            case RequestReceived(kind="pause") if run.id in self.runs:
                self.runs[run.id].pause = Pause(since=format_time(event.at), by=event.by)
            case RequestReceived(kind="resume") if run.id in self.runs:
                self.runs[run.id].pause = None
            case CallScheduled() | CallEnded():
                self._apply_call(event)
            case DecisionRequested(id=id_) if run.root.id in self.runs:
                self.runs[run.root.id].waits[id_] = event
            case DecisionMade(pending=pending) if run.root.id in self.runs:
                self.runs[run.root.id].waits.pop(pending.id, None)
            case RunReset():
                self.open_calls = {key: call for key, call in self.open_calls.items() if call.run.root.id != run.id}
            case RunEnded():
                self._end(event)
        if run.root.id in self.runs:
            self.runs[run.root.id].usage += token_usage(event)

    def _apply_call(self, event: CallScheduled | CallEnded) -> None:
        run = event.run
        call = event.call
        match event:
            case CallScheduled() if call.speaker and not call.hidden:
                deferred = self.open_calls.get((run.run_id, call.id))
                failure = deferred.failure if deferred else ""
                self.open_calls[run.run_id, call.id] = OpenCall(run, call, failure=failure)
            case CallEnded(failure=Failure(wait=float() | int()) as failed) if call.speaker:
                # The run waits for the end of an outage, or for a circuit breaker, and makes the call again.
                attempt = (failed.attempts or 0) + 1
                self.open_calls[run.run_id, call.id] = OpenCall(
                    run, call, attempt=attempt, waiting=True, failure=failed.message
                )
            case CallEnded():
                self.open_calls.pop((run.run_id, call.id), None)

    def _end(self, ended: RunEnded) -> None:
        first = ended.run.first_run_id
        self.open_calls = {key: call for key, call in self.open_calls.items() if call.run.first_run_id != first}
        if root := self.runs.get(ended.run.root.id):
            root.waits = {key: pending for key, pending in root.waits.items() if pending.run.first_run_id != first}
        if ended.run.id in self.runs:
            self.runs[ended.run.id].end = ended


async def read_heartbeats(client: Client, calls: Iterable[OpenCall]) -> None:
    """Updates open calls from their latest heartbeats, which Temporal stores; no workflow is queried."""
    runs: dict[str, list[OpenCall]] = {}
    for call in calls:
        runs.setdefault(call.run.run_id, []).append(call)
    await asyncio.gather(*(_read_heartbeats(client, calls) for calls in runs.values()))


async def _read_heartbeats(client: Client, calls: list[OpenCall]) -> None:
    """Updates open calls of one run."""
    run = calls[0].run
    try:
        described = await client.get_workflow_handle(run.id, run_id=run.run_id).describe()
    except RPCError:
        return  # the reader of the history gets the same error, and reports it
    pending = {activity.activity_id: activity for activity in described.raw_description.pending_activities}
    for call in calls:
        if activity := pending.get(call.call.id):
            call.attempt = activity.attempt
            call.waiting = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
            is_planned = call.waiting and activity.HasField("next_attempt_schedule_time")
            call.next_at = activity.next_attempt_schedule_time.ToDatetime(UTC) if is_planned else None
            if activity.HasField("last_failure"):
                call.failure = (await decode_failure(client.data_converter, activity.last_failure)).message
            if _is_of_earlier_attempt(activity):
                call.progress = LiveText()
            elif activity.heartbeat_details.payloads:
                call.progress = await decode_payload(client.data_converter, activity.heartbeat_details, LiveText)


def _is_of_earlier_attempt(activity: PendingActivityInfo) -> bool:
    """Whether the last heartbeat is from before the start of the current attempt."""
    if not (activity.HasField("last_started_time") and activity.HasField("last_heartbeat_time")):
        return False
    return activity.last_heartbeat_time.ToNanoseconds() < activity.last_started_time.ToNanoseconds()
