"""A handle on a run: its result, messages and status, and the signals and updates that control it."""

import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from pydantic import BaseModel, JsonValue
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode

from ...conversation.contracts.control_messages import TerminateRequest
from ...conversation.contracts.decisions import ApproveRequest, PendingDecision
from ...conversation.contracts.replies import ReplyRequest
from ...conversation.contracts.status import Status, turn_status
from ...conversation.messages.person_decision import PersonDecision
from ...conversation.messages.turn import TurnResult
from ...resources.base import JsonObject
from ..account import client_identity
from ..runs.decisions import NotDecided, decide, pending_decisions, reply
from ..runs.run_handle import RunHandle, request_termination
from ..runs.run_status import closed_status, live_status
from .arguments import as_json, check_mapping, check_text
from .message_stream import MessageEvent, stream_messages
from .outcome import Refused, Result, RunFailed
from .result_value import target_of, value_of


class Handle:
    """A run. It continues whether or not a program holds a handle on it.

    ``async for message in handle`` gives its messages from its beginning to its end, also if the connection is lost for
    a while; it can be repeated.
    """

    def __init__(self, client: Client, run: RunHandle, output_model: type[BaseModel] | None = None) -> None:
        self._client, self._run, self._output_model = client, run, output_model

    @property
    def id(self) -> str:
        """The run's id, by which ``attach`` and ``baton watch`` find it."""
        return self._run.id

    def __aiter__(self) -> AsyncIterator[MessageEvent]:
        return stream_messages(self._client, self._run)

    async def result(self) -> Result:
        """Waits until the run is over. Raises RunFailed where it has failed or was canceled."""
        status = await self._ended()
        if status.phase != "Completed":
            raise RunFailed(self.id, status)
        return Result(self.id, status, value_of(await target_of(self._client, self._run), status, self._output_model))

    async def status(self) -> Status:
        """The current status of the run, or its final one."""
        closed = (await self._run.describe()).close_time
        return await (self._ended() if closed else live_status(self._client, self._run))

    async def steer(self, text: str, name: str = "user") -> None:
        """Sends a message into the discussion, for all who speak after it. Raises Refused."""
        check_text(text, "text")
        check_text(name, "name")
        await self._update("steer", {"name": name, "text": text})

    async def session(self, **changes: JsonValue) -> JsonObject:
        """Changes values that conditions and functions read; None removes one. All values. Raises Refused."""
        values = await self._update("session", as_json(changes))
        return values if isinstance(values, dict) else {}

    async def approvals(self) -> list[PendingDecision]:
        """The tool calls that wait for a person's yes, in this run and in the runs below it, the oldest first."""
        return [
            each for each in await pending_decisions(self._client, self.id, self._run.run_id) if each.kind != "question"
        ]

    async def approve(
        self,
        call: str,
        *,
        arguments: dict[str, object] | None = None,
        reason: str = "",
        remember: bool = False,
        by: str | None = None,
    ) -> PersonDecision:
        """Lets the call with that id be carried out, with its own or with other ``arguments``.

        With ``remember``, all calls of this tool in the run are carried out from then on. ``by`` says who decides, by
        default the account and the host of this program. Raises Refused if the call doesn't wait (any longer), or the
        arguments don't fit the tool's schema.
        """
        check_text(call, "call")
        check_text(reason, "reason")
        check_mapping(arguments, "arguments")
        changed = None if arguments is None else as_json(arguments)
        who = by or client_identity()
        request = ApproveRequest(call=call, arguments=changed, reason=reason, remember=remember, by=who)
        return await self._decided(decide(self._client, self._run, request))

    async def reject(
        self, call: str, reason: str = "", *, remember: bool = False, by: str | None = None
    ) -> PersonDecision:
        """Rejects the call with that id; the model is told the reason. Raises Refused."""
        check_text(call, "call")
        check_text(reason, "reason")
        who = by or client_identity()
        request = ApproveRequest(call=call, approved=False, reason=reason, remember=remember, by=who)
        return await self._decided(decide(self._client, self._run, request))

    async def inbox(self) -> list[PendingDecision]:
        """What people are asked, in this run and in the runs below it, the oldest first."""
        return [
            each for each in await pending_decisions(self._client, self.id, self._run.run_id) if each.kind == "question"
        ]

    async def reply(self, text: str, to: str | None = None, *, by: str | None = None) -> PersonDecision:
        """Replies to the question with the id ``to``, or to the only one. Raises Refused, as where it doesn't fit."""
        check_text(text, "text")
        request = ReplyRequest(text=text, to=to, by=by or client_identity())
        return await self._decided(reply(self._client, self._run, request))

    async def decline(self, to: str | None = None, reason: str = "", *, by: str | None = None) -> PersonDecision:
        """Declines to answer the question of a server, as ``reply`` answers it. Raises Refused."""
        check_text(reason, "reason")
        request = ReplyRequest(text=reason, to=to, by=by or client_identity(), declines=True)
        return await self._decided(reply(self._client, self._run, request))

    async def _pending(self) -> list[PendingDecision]:
        return await pending_decisions(self._client, self.id, self._run.run_id)

    async def _decided(self, sent: Coroutine[Any, Any, PersonDecision]) -> PersonDecision:
        try:
            return await sent
        except NotDecided as error:
            raise Refused(str(error)) from None

    async def terminate(self, reason: str = "", *, now: bool = False) -> None:
        """Ends the run gracefully after the current turn, or ``now``; it counts as completed. Raises Refused."""
        check_text(reason, "reason")
        with self._refused_after_its_end():
            await request_termination(self._run, reason, now=now)

    async def cancel(self, reason: str = "") -> None:
        """Cancels the run at once; its messages are kept. Raises Refused where it has ended."""
        check_text(reason, "reason")
        with self._refused_after_its_end():
            await self._run.signal("cancel", TerminateRequest(reason=reason))

    async def _update(self, name: str, given: JsonObject) -> object:
        try:
            with self._refused_after_its_end():
                return await self._run.execute_update(name, given)
        except WorkflowUpdateFailedError as error:
            raise Refused(str(error.cause)) from None

    @contextmanager
    def _refused_after_its_end(self) -> Iterator[None]:
        """Raises Refused where Temporal has no open run to which it could hand a message."""
        try:
            yield
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            raise Refused(f"the run {self.id} has ended") from None

    async def _ended(self) -> Status:
        """Waits for the end of the run; the status is read from its result, without a worker."""
        try:
            result: object = await self._run.result()
        except WorkflowFailureError as error:
            cause = error.cause
            details = cause.details if isinstance(cause, ApplicationError | CancelledError) else ()
            result = details[0] if details else None
            if not isinstance(result, dict):
                return await closed_status(self._run)
        if isinstance(result, dict) and "phase" in result:
            return Status.model_validate_json(json.dumps(result))
        about = await self._run.describe()
        end: datetime = about.close_time or about.start_time
        return turn_status(TurnResult.model_validate_json(json.dumps(result)), about.start_time, end)
