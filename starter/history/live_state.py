"""Who speaks at this moment, and what has it all cost? What is left open by the happenings of some runs."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client
from temporalio.service import RPCError

from ...conversation.contracts.requests import LiveText
from ...conversation.contracts.status import Status, instant
from ...conversation.messages.message import TokenUsage
from .history_decoder import decode_payload, decode_failure
from .run_events import ActivityCall, CallScheduled, CallEnded, RunEvent, RunInfo, RunStarted, RunEnded, token_usage


@dataclass
class OpenCall:
    """A call of a model or a tool that has no answer yet, and what its heartbeats tell.

    An ``attempt`` that ``waits`` has not begun; ``failure`` is why the one before it has failed.
    """

    run: RunInfo
    call: ActivityCall
    progress: LiveText = field(default_factory=LiveText)
    attempt: int = 1
    waiting: bool = False
    failure: str = ""


@dataclass
class RunProgress:
    """How a run stands that was started from outside."""

    run: RunInfo
    started_at: datetime
    usage: TokenUsage = field(default_factory=TokenUsage)
    end: RunEnded | None = None

    @property
    def status(self) -> Status:
        """How it stands, or how it has ended."""
        if self.end is None:
            return Status(phase="Running", token_usage=self.usage, start_time=instant(self.started_at))
        return Status(
            phase=self.end.phase,
            stop_reason=self.end.stop_reason,
            error=self.end.failure.message if self.end.failure else None,
            failure=self.end.failure,
            token_usage=self.usage,
            start_time=instant(self.started_at),
            completion_time=instant(self.end.at),
        )


@dataclass
class LiveState:
    """What is open, in the order in which it began, and the tallies of the runs by their ids."""

    open_calls: dict[tuple[str, str], OpenCall] = field(default_factory=dict)
    runs: dict[str, RunProgress] = field(default_factory=dict)

    def apply(self, happening: RunEvent) -> None:
        """Takes one thing into account that has happened."""
        run, at = happening.run, happening.at
        match happening:
            case RunStarted() if run.parent is None:
                self.runs[run.id] = RunProgress(run, at)
            case CallScheduled(call=call) if call.speaker and not call.hidden:
                self.open_calls[run.run_id, call.id] = OpenCall(run, call)
            case CallEnded(call=call):
                self.open_calls.pop((run.run_id, call.id), None)
            case RunEnded():
                self.open_calls = {key: each for key, each in self.open_calls.items() if each.run.first_run_id != run.first_run_id}
                if run.id in self.runs:
                    self.runs[run.id].end = happening
        if run.root.id in self.runs:
            self.runs[run.root.id].usage += token_usage(happening)


async def read_heartbeats(client: Client, calls: Iterable[OpenCall]) -> None:
    """Looks what the heartbeats of open calls tell. The runs themselves are not asked."""
    runs: dict[str, list[OpenCall]] = {}
    for call in calls:
        runs.setdefault(call.run.run_id, []).append(call)
    await asyncio.gather(*(_look(client, calls) for calls in runs.values()))


async def _look(client: Client, calls: list[OpenCall]) -> None:
    run = calls[0].run
    try:
        described = await client.get_workflow_handle(run.id, run_id=run.run_id).describe()
    except RPCError:
        return  # whoever reads the history notices, too, and says what is wrong
    pending = {each.activity_id: each for each in described.raw_description.pending_activities}
    for open_ in calls:
        if found := pending.get(open_.call.id):
            open_.attempt = found.attempt
            open_.waiting = found.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
            if found.HasField("last_failure"):
                open_.failure = (await decode_failure(client.data_converter, found.last_failure)).message
            if found.heartbeat_details.payloads:
                open_.progress = await decode_payload(client.data_converter, found.heartbeat_details, LiveText)
