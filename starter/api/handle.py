"""What can a program do with a run? Wait for its result, hear what is said, steer it, change its session, end it."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, JsonValue
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError

from ...conversation.contracts.control_messages import TerminateRequest
from ...conversation.contracts.status import Status, turn_status
from ...conversation.messages.message import Message, TokenUsage
from ...conversation.messages.panel import Contribution, contributed
from ...conversation.messages.turn import TurnResult
from ...resources.base import JsonObject
from ..runs import runs
from .message_stream import Heard, hear
from .result_value import asked_of, value_of


@dataclass(frozen=True)
class Result:
    """What came of a run. ``value`` is what its ``message`` says, read as what was asked for:

    what an ``output_schema`` describes, as JSON or as its pydantic model; a ``PanelShape`` or ``DebateShape`` of a
    panel without a synthesizer, or of one that was ended; else the message.
    """

    id: str
    status: Status
    value: object

    @property
    def message(self) -> str:
        """The answer."""
        return self.status.message

    @property
    def usage(self) -> TokenUsage:
        """What it has cost."""
        return self.status.token_usage


class RunFailed(Exception):
    """A run has failed or was canceled: ``status`` says how, and ``messages`` are the latest that was said in it."""

    def __init__(self, run_id: str, status: Status) -> None:
        self.id, self.status = run_id, status
        why = f"has failed: {status.error}" if status.phase == "Failed" else f"was canceled: {status.note or 'why?'}"
        super().__init__(f"the run {run_id} {why}")

    @property
    def messages(self) -> tuple[Message, ...]:
        """The latest of what was said, target by target."""
        of_targets = tuple(message for response in self.status.responses for message in response.messages)
        return of_targets or self.status.messages

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        """What of it are contributions to a panel or a debate."""
        return contributed(self.messages)


class Refused(Exception):
    """A run does not take what was sent to it; the text says why."""


class Handle:
    """A run. It goes on whether or not anybody holds a handle on it.

    ``async for said in handle`` gives what is said from its beginning to its end, also where the connection breaks off
    in between; it can be done any number of times.
    """

    def __init__(self, client: Client, run: runs.Handle, answers: type[BaseModel] | None = None) -> None:
        self._client, self._run, self._answers = client, run, answers

    @property
    def id(self) -> str:
        """The run's id, by which ``attach`` and ``baton watch`` find it."""
        return self._run.id

    def __aiter__(self) -> AsyncIterator[Heard]:
        return hear(self._client, self._run)

    async def result(self) -> Result:
        """Waits until the run is over. Raises RunFailed where it has failed or was canceled."""
        status = await self._ended()
        if status.phase != "Completed":
            raise RunFailed(self.id, status)
        return Result(self.id, status, value_of(await asked_of(self._client, self._run), status, self._answers))

    async def status(self) -> Status:
        """How the run stands, or has ended."""
        closed = (await self._run.describe()).close_time
        return await (self._ended() if closed else runs.status_of(self._run))

    async def steer(self, text: str, name: str = "user") -> None:
        """Says something in the running discussion, which all who speak after it are told. Raises Refused."""
        await self._update("steer", {"name": name, "text": text})

    async def session(self, **changes: JsonValue) -> JsonObject:
        """Changes values that conditions and functions read; None takes one out. Gives all. Raises Refused."""
        values = await self._update("session", changes)
        return values if isinstance(values, dict) else {}

    async def terminate(self, reason: str = "", *, now: bool = False) -> None:
        """Ends the run gracefully after the current turn, or ``now``; it counts as completed."""
        await runs.terminate(self._run, reason, now=now)

    async def cancel(self, reason: str = "") -> None:
        """Cancels the run at once; what was said is kept."""
        await self._run.signal("cancel", TerminateRequest(reason=reason))

    async def _update(self, name: str, given: JsonObject) -> object:
        try:
            return await self._run.execute_update(name, given)
        except WorkflowUpdateFailedError as error:
            raise Refused(str(error.cause)) from None

    async def _ended(self) -> Status:
        """How the run has ended, once it has: as it says itself, or else as Temporal does. No worker is asked."""
        try:
            said: object = await self._run.result()
        except WorkflowFailureError as error:
            cause = error.cause
            details = cause.details if isinstance(cause, ApplicationError | CancelledError) else ()
            said = details[0] if details else None
            if not isinstance(said, dict):
                return await runs.closed_status(self._run)
        if isinstance(said, dict) and "phase" in said:
            return Status.model_validate_json(json.dumps(said))
        about = await self._run.describe()
        end: datetime = about.close_time or about.start_time
        return turn_status(TurnResult.model_validate_json(json.dumps(said)), about.start_time, end)
