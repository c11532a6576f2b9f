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
from .history_decoder import decoded, failure_of
from .run_events import Call, CallBegan, CallEnded, Happening, Run, RunBegan, RunEnded, spent


@dataclass
class Open:
    """A call of a model or a tool that has no answer yet, and what its heartbeats tell.

    An ``attempt`` that ``waits`` has not begun; ``failure`` is why the one before it has failed.
    """

    run: Run
    call: Call
    live: LiveText = field(default_factory=LiveText)
    attempt: int = 1
    waits: bool = False
    failure: str = ""


@dataclass
class Tally:
    """How a run stands that was started from outside."""

    run: Run
    since: datetime
    usage: TokenUsage = field(default_factory=TokenUsage)
    end: RunEnded | None = None

    @property
    def status(self) -> Status:
        """How it stands, or how it has ended."""
        if self.end is None:
            return Status(phase="Running", token_usage=self.usage, start_time=instant(self.since))
        return Status(
            phase=self.end.phase,
            stop_reason=self.end.stop_reason,
            error=self.end.failure.message if self.end.failure else None,
            failure=self.end.failure,
            token_usage=self.usage,
            start_time=instant(self.since),
            completion_time=instant(self.end.at),
        )


@dataclass
class Board:
    """What is open, in the order in which it began, and the tallies of the runs by their ids."""

    open: dict[tuple[str, str], Open] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)

    def note(self, happening: Happening) -> None:
        """Takes one thing into account that has happened."""
        run, at = happening.run, happening.at
        match happening:
            case RunBegan() if run.parent is None:
                self.tallies[run.id] = Tally(run, at)
            case CallBegan(call=call) if call.speaker and not call.hidden:
                self.open[run.run_id, call.id] = Open(run, call)
            case CallEnded(call=call):
                self.open.pop((run.run_id, call.id), None)
            case RunEnded():
                self.open = {key: each for key, each in self.open.items() if each.run.chain != run.chain}
                if run.id in self.tallies:
                    self.tallies[run.id].end = happening
        if run.root.id in self.tallies:
            self.tallies[run.root.id].usage += spent(happening)


async def look(client: Client, calls: Iterable[Open]) -> None:
    """Looks what the heartbeats of open calls tell. The runs themselves are not asked."""
    runs: dict[str, list[Open]] = {}
    for call in calls:
        runs.setdefault(call.run.run_id, []).append(call)
    await asyncio.gather(*(_look(client, calls) for calls in runs.values()))


async def _look(client: Client, calls: list[Open]) -> None:
    run = calls[0].run
    try:
        described = await client.get_workflow_handle(run.id, run_id=run.run_id).describe()
    except RPCError:
        return  # whoever reads the history notices, too, and says what is wrong
    pending = {each.activity_id: each for each in described.raw_description.pending_activities}
    for open_ in calls:
        if found := pending.get(open_.call.id):
            open_.attempt = found.attempt
            open_.waits = found.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
            if found.HasField("last_failure"):
                open_.failure = (await failure_of(client.data_converter, found.last_failure)).message
            if found.heartbeat_details.payloads:
                open_.live = await decoded(client.data_converter, found.heartbeat_details, LiveText)
