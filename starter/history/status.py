"""The status of a run, also of one whose program is not running: then from its history."""

from collections import deque

from temporalio.client import Client

from ...contracts.message import Message, TokenUsage
from ...contracts.status import Status
from ...contracts.text import format_time
from ..runs.runs import ProgramNotRunningError, RunHandle, live_status
from .events import MessageEvent
from .live_state import LiveState
from .stream import stream_events

LATEST_MESSAGES = 20
"""The number of messages in a status that is read from the history."""


async def current_status(client: Client, handle: RunHandle) -> Status:
    """The status of a run. If the program that executes it is not running, it is read from the run's history.

    Then its phase is Waiting, and its note says what to do. Raises NotServedError if no worker executes the run.
    """
    try:
        return await live_status(client, handle)
    except ProgramNotRunningError as error:
        return await _status_in_history(client, handle, str(error))


async def _status_in_history(client: Client, handle: RunHandle, note: str) -> Status:
    state = LiveState()
    messages: deque[Message] = deque(maxlen=LATEST_MESSAGES)
    async for event in stream_events(client, handle, wait=False, live=False):
        state.apply(event)
        if isinstance(event, MessageEvent):
            message = Message(
                role="assistant",
                content=event.text,
                name=event.name,
                round=event.round,
                part=event.part,
                finish_reason=event.finish_reason,
            )
            messages.append(message)
    return Status(
        phase="Waiting",
        message=messages[-1].content if messages else "",
        note=note,
        token_usage=sum((run.usage for run in state.runs.values()), TokenUsage()),
        messages=tuple(messages),
        start_time=format_time((await handle.describe()).start_time),
    )
