"""Streams the messages of a run to a program, in their order."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from temporalio.client import Client

from ...conversation.messages.message import PanelMessageKind
from ..history.follow import follow
from ..history.run_events import CallEnded, RunEvent
from ..runs.run_handle import RunHandle

RECONNECT_TIMEOUT = 60.0
"""Seconds for which a lost connection is retried."""


@dataclass(frozen=True)
class MessageEvent:
    """A message in a run: its author's name, its text, and the team and time; in a panel also its round and part."""

    name: str
    text: str
    round: int | None
    part: PanelMessageKind | None
    team: str | None
    at: datetime


async def stream_messages(
    client: Client, run: RunHandle, reconnect_timeout: float = RECONNECT_TIMEOUT
) -> AsyncIterator[MessageEvent]:
    """The messages in a run and its child runs, each once, from the beginning to the end of the run.

    Raises Temporal's RPCError where the connection is lost for longer than ``reconnect_timeout`` seconds.
    """
    queue: asyncio.Queue[MessageEvent | None] = asyncio.Queue()

    def enqueue(event: RunEvent) -> None:
        for each in _messages_in(event):
            queue.put_nowait(each)

    following = asyncio.create_task(follow(client, run, enqueue, reconnect_timeout=reconnect_timeout))
    following.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (message := await queue.get()) is not None:
            yield message
        await following
    finally:
        following.cancel()


def _messages_in(event: RunEvent) -> list[MessageEvent]:
    if not isinstance(event, CallEnded):
        return []
    team = event.run.name if event.run.kind == "team" else None
    return [
        MessageEvent(each.name or each.role, each.content, each.round, each.part, team, event.at)
        for each in event.messages
    ]
