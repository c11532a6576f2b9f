"""What the signals and updates of a run do: stop, pause, a person's message, changes of the session."""

import json
from collections.abc import Callable, Sequence

from pydantic import JsonValue
from temporalio import workflow
from temporalio.common import RawValue

from ...conversation.contracts.control_messages import (
    Pause,
    SteerRequest,
    SteerResult,
    TerminateRequest,
    read_person,
    read_steer_request,
    read_terminate_request,
)
from ...conversation.contracts.status import format_time
from ...conversation.errors import InvalidInput, JournalLost
from ...conversation.text import MAX_MESSAGE, byte_size
from ...resources.base import JsonObject
from ..calls.child_workflows import ChildWorkflows
from ..state.run_state import RunState
from .decision_handlers import DecisionHandlers

MAX_SESSION = 16_000
"""Bytes of a session's values, as JSON: they are part of every brief."""

SESSION_TOO_LARGE = f"a session's values may not be longer than {MAX_SESSION:,} bytes"


class MessageHandlers:
    """Handles what clients send to a run, and sends it on to the running children.

    ``next_turn`` gives the turn in which a message that comes now is read at the latest, where the run knows it;
    ``on_pause`` is called whenever the run was paused or resumed.
    """

    def __init__(
        self,
        run: RunState,
        children: ChildWorkflows,
        decisions: DecisionHandlers,
        next_turn: Callable[[], int | None],
        on_pause: Callable[[Pause | None], None],
    ) -> None:
        self._run, self._children, self._decisions = run, children, decisions
        self._next_turn, self._on_pause = next_turn, on_pause

    async def signal(self, name: str, value: JsonValue) -> None:
        """Handles the signal ``name``; what makes no sense is ignored, as nobody waits for an answer."""
        request = read_terminate_request(value)
        if name == "terminate_team":
            self._run.stop.request("terminated", request)
            await self._children.terminate_all()
        elif name == "cancel":
            self._run.stop.request("canceled", TerminateRequest(reason=request.reason, now=True))
        elif name in ("pause", "resume"):
            await self.pause(read_person(value), resume=name == "resume")
        elif name == "session" and isinstance(value, dict) and self.fits_session(value):
            await self.change_session(value)
        elif name == "steer" and (message := read_steer_request(value)):
            await self.steer(message)
        else:
            await self._decisions.signal(name, value)

    async def pause(self, person: str | None, *, resume: bool) -> None:
        """Lets the run and its children wait before their next model call, or go on."""
        inbox = self._run.inbox
        inbox.pause = None if resume else inbox.pause or Pause(since=format_time(workflow.now()), by=person)
        self._on_pause(inbox.pause)
        await self._children.signal_all("resume" if resume else "pause", {"name": person})

    async def change_session(self, changes: JsonObject) -> JsonObject:
        """Changes the session of the run and of its running children; returns all its values."""
        values = self._run.session.update(changes)
        await self._children.signal_all("session", changes)
        return values

    async def steer(self, request: SteerRequest) -> SteerResult:
        """Hands a person's message to the running children, or keeps it for the next model call of this run."""
        if await self._children.signal_all("steer", request):
            return SteerResult()
        self._run.inbox.put(request)
        turn = self._next_turn()
        return SteerResult() if turn is None else SteerResult(turn=turn)

    def fits_session(self, changes: JsonObject) -> bool:
        """Whether the session still has at most MAX_SESSION bytes after the changes."""
        return byte_size(json.dumps({**self._run.session.values, **changes})) <= MAX_SESSION

    def validate_session(self, changes: JsonObject) -> None:
        """Raises ValueError for changes that make the session too large."""
        if not self.fits_session(changes):
            raise ValueError(SESSION_TOO_LARGE)

    def validate_steer(self, request: SteerRequest) -> None:
        """Raises ValueError for a message that is empty or too long for a history, or that comes too late."""
        if self._run.inbox.is_closed:
            raise ValueError("the run is ending: nobody would read the message")
        if not request.is_acceptable:
            raise ValueError(f"a text of 1 to {MAX_MESSAGE:,} bytes is needed, and a name of at most 64 characters")


def first_value(payloads: Sequence[RawValue]) -> JsonValue:
    """The JSON value of a signal's first payload; None where there is none, or it can't be read."""
    if not payloads:
        return None
    try:
        value: JsonValue = workflow.payload_converter().from_payload(payloads[0].payload)
    except (InvalidInput, JournalLost) as error:
        workflow.logger.warning("a message to this run is passed over: %s", error.message)
        return None
    return value
