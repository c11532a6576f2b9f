"""What is said in a run? Message by message, in their order, as a program hears it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from temporalio.client import Client

from ...conversation.messages.message import PanelMessageKind
from ..history.follow import follow
from ..history.run_events import CallEnded, RunEvent
from ..runs.runs import Handle

PATIENCE = 60.0
"""Seconds for which a lost connection is tried again."""


@dataclass(frozen=True)
class Heard:
    """A message: who says it in which team, and in a panel what it is, and in which round."""

    name: str
    text: str
    round: int | None
    part: PanelMessageKind | None
    team: str | None
    at: datetime


async def hear(client: Client, run: Handle, patience: float = PATIENCE) -> AsyncIterator[Heard]:
    """What is said in a run and its child runs, each message once, from the beginning to the end of the run.

    Raises Temporal's RPCError where the connection is lost for longer than ``patience`` seconds.
    """
    heard: asyncio.Queue[Heard | None] = asyncio.Queue()

    def tell(happening: RunEvent) -> None:
        for each in _heard_in(happening):
            heard.put_nowait(each)

    following = asyncio.create_task(follow(client, run, tell, reconnect_timeout=patience))
    following.add_done_callback(lambda _: heard.put_nowait(None))
    try:
        while (said := await heard.get()) is not None:
            yield said
        await following
    finally:
        following.cancel()


def _heard_in(happening: RunEvent) -> list[Heard]:
    if not isinstance(happening, CallEnded):
        return []
    team = happening.run.name if happening.run.kind == "team" else None
    return [
        Heard(each.name or each.role, each.content, each.round, each.part, team, happening.at)
        for each in happening.messages
    ]
