"""Histories: their payloads, and their workflow tasks, the moments at which a run has decided what comes next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter

T = TypeVar("T")

TASK_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
ACTIVITY_SCHEDULED = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
SIGNAL_INITIATED = EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED

APPENDING = "append"
"""The activity type that adds messages to a conversation, which the state of the run has no longer meanwhile."""

CLOSED_ACTIVITY = (
    "activity_task_completed_event_attributes",
    "activity_task_failed_event_attributes",
    "activity_task_timed_out_event_attributes",
    "activity_task_canceled_event_attributes",
)
CLOSED_SIGNAL = (
    "external_workflow_execution_signaled_event_attributes",
    "signal_external_workflow_execution_failed_event_attributes",
)


@dataclass(frozen=True)
class WorkflowTask:
    """A completed workflow task: the index after its commands in the history, its event and its time.

    It ``rests`` if the state of the run is complete there: no message is being added to the conversation, and none is
    being forwarded to a child run, whose result the run takes up after that.
    """

    end: int
    event: int
    at: datetime
    rests: bool


def workflow_tasks(events: Sequence[HistoryEvent]) -> Iterator[WorkflowTask]:
    """The completed workflow tasks of a history, in order."""
    unfinished = set[int]()
    index = 0
    while index < len(events):
        event = events[index]
        index += 1
        _note(event, unfinished)
        if event.event_type != TASK_COMPLETED:
            continue
        while index < len(events) and workflow_task_of(events[index]) == event.event_id:
            _note(events[index], unfinished)
            index += 1
        yield WorkflowTask(index, event.event_id, event.event_time.ToDatetime(UTC), rests=not unfinished)


def _note(event: HistoryEvent, unfinished: set[int]) -> None:
    """Notes the start or the end of an activity that adds messages, or of a signal to a child run."""
    attributes = event.WhichOneof("attributes")
    if event.event_type == ACTIVITY_SCHEDULED:
        if event.activity_task_scheduled_event_attributes.activity_type.name == APPENDING:
            unfinished.add(event.event_id)
    elif event.event_type == SIGNAL_INITIATED:
        if event.signal_external_workflow_execution_initiated_event_attributes.child_workflow_only:
            unfinished.add(event.event_id)
    elif attributes in CLOSED_ACTIVITY:
        unfinished.discard(getattr(event, attributes).scheduled_event_id)
    elif attributes in CLOSED_SIGNAL:
        unfinished.discard(getattr(event, attributes).initiated_event_id)


def workflow_task_of(event: HistoryEvent) -> int:
    """The workflow task whose command has caused an event; 0 if it is no such event."""
    attributes = getattr(event, event.WhichOneof("attributes") or "", None)
    return getattr(attributes, "workflow_task_completed_event_id", 0)


async def decode_payload(converter: DataConverter, payloads: Payloads, kind: type[T]) -> T:
    """The single value in payloads.

    Raises InvalidInput if it is not of that type, and SettingsError if it is encrypted and the key is missing.
    """
    values = await converter.decode(payloads.payloads, [kind])
    value: T = values[0]
    return value
