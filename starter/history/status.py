"""The status of a run, also of one whose program is not running: then from its history."""

from collections import deque

from temporalio.client import Client

from ...contracts.message import Message, TokenUsage
from ...contracts.status import Status
from ...contracts.text import format_time
from ..runs.runs import NotServedError, ProgramNotRunningError, RunHandle, final_status, live_status
from .events import MessageEvent
from .live_state import LiveState
from .stream import stream_events

LATEST_MESSAGES = 20
"""The number of messages in a status that is read from the history."""


async def current_status(client: Client, handle: RunHandle) -> Status:
    """The status of a run, for which an open one needs a worker. Raises NotServedError if none executes it.

    If the program that executes an open run is not running, it is read from the run's history: then its phase is
    Waiting, and its note says what to do.
    """
    try:
        return await live_status(client, handle)
    except NotServedError as error:
        if (await handle.describe()).close_time:
            return await final_status(client, handle)
        if not isinstance(error, ProgramNotRunningError):
            raise
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
