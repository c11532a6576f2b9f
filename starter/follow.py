"""What happens in a run? Read from Temporal's history, its child runs' included, as it is written or afterwards."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistoryEventFilterType

from conversation.message import Message
from conversation.requests import Asked, AskRequest, Used, UseRequest
from conversation.wire import DATA_CONVERTER
from starter.runs import Handle

T = TypeVar("T")


@dataclass(frozen=True)
class Said:
    """An agent's model has spoken."""

    run: str
    at: datetime
    request: AskRequest
    message: Message


@dataclass(frozen=True)
class ToolUsed:
    """A tool has answered, or failed with an error."""

    run: str
    at: datetime
    message: Message | None = None
    error: str | None = None


@dataclass(frozen=True)
class CallFailed:
    """A model could not be asked, or something else went wrong for good."""

    run: str
    at: datetime
    what: str
    error: str


@dataclass(frozen=True)
class RunBegan:
    """A child run has begun."""

    run: str
    at: datetime
    type: str


Happening = Said | ToolUsed | CallFailed | RunBegan


async def follow(client: Client, handle: Handle, tell: Callable[[Happening], None], *, wait: bool = True) -> None:
    """Tells what happens in a run and in its child runs, from its beginning to its end, or with ``wait`` false to now.

    It only reads: the run doesn't notice, however many follow it.
    """
    await _Follower(client, tell, wait).run(handle)


@dataclass
class _Follower:
    client: Client
    tell: Callable[[Happening], None]
    wait: bool
    requests: dict[tuple[str, int], AskRequest | UseRequest | str] = field(default_factory=dict)

    async def run(self, handle: Handle) -> None:
        children: list[asyncio.Task[None]] = []
        events = handle.fetch_history_events(
            wait_new_event=self.wait, event_filter_type=WorkflowHistoryEventFilterType.ALL_EVENT
        )
        try:
            async for event in events:
                if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
                    started = event.child_workflow_execution_started_event_attributes
                    child = started.workflow_execution
                    self.tell(RunBegan(child.workflow_id, _time(event), started.workflow_type.name))
                    inner = self.client.get_workflow_handle(child.workflow_id, run_id=child.run_id)
                    children.append(asyncio.create_task(self.run(inner)))
                else:
                    await self._activity(handle.id, event)
            await asyncio.gather(*children)
        finally:
            for task in children:
                task.cancel()

    async def _activity(self, run: str, event: HistoryEvent) -> None:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            kind = _REQUESTS.get(scheduled.activity_type.name)
            request = await _decoded(scheduled.input, kind) if kind else scheduled.activity_type.name
            self.requests[run, event.event_id] = request
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            done = event.activity_task_completed_event_attributes
            request = self.requests.pop((run, done.scheduled_event_id))
            if isinstance(request, AskRequest):
                asked = await _decoded(done.result, Asked)
                self.tell(Said(run, _time(event), request, asked.message))
            elif isinstance(request, UseRequest):
                used = await _decoded(done.result, Used)
                self.tell(ToolUsed(run, _time(event), used.message))
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
            failed = event.activity_task_failed_event_attributes
            request = self.requests.pop((run, failed.scheduled_event_id))
            if isinstance(request, UseRequest):
                self.tell(ToolUsed(run, _time(event), error=failed.failure.message))
            else:
                what = request.speaker if isinstance(request, AskRequest) else request
                self.tell(CallFailed(run, _time(event), what, failed.failure.message))


_REQUESTS: dict[str, type[AskRequest | UseRequest]] = {"ask_model": AskRequest, "use_tool": UseRequest}


async def _decoded(payloads: Payloads, kind: type[T]) -> T:
    values = await DATA_CONVERTER.decode(payloads.payloads, [kind])
    value: T = values[0]
    return value


def _time(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime(UTC)
