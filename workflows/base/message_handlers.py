"""What can be asked of any run from outside? Its signals and updates, passed on to the runs below it."""

import json
from collections.abc import Sequence

from pydantic import JsonValue
from temporalio import workflow
from temporalio.common import RawValue

from ...conversation.contracts.control_messages import (
    EndRequest,
    Steered,
    SteerRequest,
    read_end_request,
    read_steer_request,
)
from ...conversation.errors import InvalidInput
from ...conversation.messages.message import MAX_RESULT, weight
from ...resources.base import JsonObject
from ..calls.child_workflows import Children
from ..state.cancellation import Stop
from ..state.session_state import Session

MAX_SESSION = 16_000
"""Bytes of what a session holds; it goes with every brief."""


class Hearing:
    """What was asked of a run: to stop, to wait, to hear a person, to change its session."""

    def __init__(self) -> None:
        self.stop = Stop()
        self.session = Session()
        self.children = Children(self.stop, self.session)

    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def receive(self, name: str, payloads: Sequence[RawValue]) -> None:
        """``terminate_team`` and ``cancel`` with ``{reason, now}``, a text, nothing, or anything unreadable.

        ``pause`` and ``resume`` need nothing; ``steer`` and ``session`` take what the updates of these names take, and
        what those would refuse is passed over. One handler takes every signal: one with declared parameters would fail
        on payloads that don't fit them.
        """
        value = _value(payloads)
        request = read_end_request(value)
        if name == "terminate_team":
            self.stop.ask("terminated", request)
            await self.children.end()
        elif name == "cancel":
            self.stop.ask("canceled", EndRequest(reason=request.reason, now=True))
        elif name in ("pause", "resume"):
            self.stop.floor.paused = name == "pause"
            await self.children.pass_on(name, None)
        elif name == "session" and isinstance(value, dict) and self._has_room(value):
            await self._change(value)
        elif name == "steer" and (said := read_steer_request(value)):
            await self._steer(said)

    @workflow.update(name="session", description="Changes values of the session; null takes one out. Gives them all.")
    async def change_session(self, changes: JsonObject) -> JsonObject:
        """What conditions and functions of running panels read from then on, in this run and in those below it."""
        return await self._change(changes)

    @change_session.validator
    def _bounded(self, changes: JsonObject) -> None:
        """Refuses what would make every brief heavy."""
        if not self._has_room(changes):
            raise ValueError(f"a session's values may not be longer than {MAX_SESSION:,} bytes")

    @workflow.update(description="Says something to whoever speaks next: {text, name}. Gives the turn that hears it.")
    async def steer(self, request: SteerRequest) -> Steered:
        """A person's words, put before the next model call; where a run below this one speaks, before its next."""
        return await self._steer(request)

    @steer.validator
    def _worth_saying(self, request: SteerRequest) -> None:
        """Refuses what is empty, or too long for a history."""
        if not request.is_worth_saying:
            raise ValueError(f"a text of 1 to {MAX_RESULT:,} bytes is needed, and a name of at most 64 characters")

    def heard(self) -> Steered:
        """When what is said now is heard, where the run knows it."""
        return Steered()

    def _has_room(self, changes: JsonObject) -> bool:
        return weight(json.dumps({**self.session.values, **changes})) <= MAX_SESSION

    async def _change(self, changes: JsonObject) -> JsonObject:
        values = self.session.put(changes)
        await self.children.pass_on("session", changes)
        return values

    async def _steer(self, request: SteerRequest) -> Steered:
        if await self.children.pass_on("steer", request):
            return Steered()
        self.stop.floor.say(request)
        return self.heard()


def _value(payloads: Sequence[RawValue]) -> JsonValue:
    """What a signal brings; nothing where that can't be read."""
    if not payloads:
        return None
    try:
        value: JsonValue = workflow.payload_converter().from_payload(payloads[0].payload)
    except InvalidInput:
        return None
    return value
