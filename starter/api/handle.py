"""A handle on a run: its result, messages and status, and the signals and updates that control it."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, JsonValue, ValidationError
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.control_messages import TerminateRequest
from ...contracts.decisions import ApproveRequest, PendingDecision, ReplyRequest
from ...contracts.inputs import QueryInput
from ...contracts.message import Message, PanelMessageKind, PersonDecision, TokenUsage
from ...contracts.panel import Contribution, DebateShape, PanelShape, contributions_in
from ...contracts.status import Status, turn_status
from ...contracts.turn import TurnResult
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.catalog import Catalog, Resource
from ...resources.query import Query
from ...resources.team import Team
from ...temporal.executions import execution_chain
from ..account import client_identity
from ..history.follow import follow
from ..history.run_events import CallEnded, RunEvent
from ..runs.decisions import NotDecided, decide, pending_decisions, reply
from ..runs.runs import RunHandle, closed_status, live_status, request_termination
from .resources import as_json, check_mapping, check_text

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


@dataclass(frozen=True)
class Result:
    """The result of a completed run. ``value`` is its ``message``, read into the type that the target declares:

    JSON or a pydantic model for an ``output_schema``; a ``PanelShape`` or ``DebateShape`` for a panel without a
    synthesizer, or for one that was terminated or whose budget is used up; otherwise the message itself, as where
    a run with an ``output_schema`` was ended before its answer had that form.
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
        """The tokens and calls it used."""
        return self.status.token_usage


class RunFailed(Exception):
    """A run has failed or was canceled: ``status`` says why, and ``messages`` are its latest messages."""

    def __init__(self, run_id: str, status: Status) -> None:
        self.id, self.status = run_id, status
        why = (
            f"has failed: {status.error}"
            if status.phase == "Failed"
            else f"was canceled: {status.note or 'no reason given'}"
        )
        super().__init__(f"the run {run_id} {why}")

    @property
    def messages(self) -> tuple[Message, ...]:
        """The latest messages, target by target."""
        messages = tuple(message for response in self.status.responses for message in response.messages)
        return messages or self.status.messages

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        """The contributions to a panel or a debate among the messages."""
        return contributions_in(self.messages)


class Refused(Exception):
    """A run rejects a message or a change of its session; the text says why."""


async def target_of(client: Client, run: RunHandle) -> Resource | None:
    """The target of a run; None if it has several, or if its manifest stands with the worker."""
    run_id = run.run_id or (await run.describe()).run_id
    (_, started), *_ = await execution_chain(client, run.id, run_id)
    if started.workflow_type.name != "query" or started.continued_execution_run_id:  # the first run is deleted
        return None
    (given,) = await client.data_converter.decode(started.input.payloads, [QueryInput])
    catalog = Catalog.model_validate({"manifests": given.resources})
    query = catalog.get("Query", given.namespace, given.name or "")
    targets = catalog.targets(query) if isinstance(query, Query) else ()
    return catalog.find(targets[0]) if len(targets) == 1 else None


_ENDED_EARLY = ("terminated", "budget")
"""Why a run is complete that has not come to its answer: its message is the last one, or the state of a panel."""


def value_of(target: Resource | None, status: Status, output_model: type[BaseModel] | None = None) -> object:
    """The value of a completed run's message; ``output_model`` is the model into which structured answers are read.

    A run that has ended early may not have come to an answer in that form: then it is the message. Raises pydantic's
    ValidationError where another answer does not fit that model.
    """
    ended = status.stop_reason in _ENDED_EARLY
    if isinstance(target, Team) and target.spec.is_panel and (ended or target.spec.synthesizer is False):
        shape = DebateShape if target.spec.strategy == "debate" else PanelShape
        with suppress(ValidationError):
            return shape.model_validate_json(status.message)
    if isinstance(target, Team | Agent) and target.spec.output_schema:
        try:
            return output_model.model_validate_json(status.message) if output_model else json.loads(status.message)
        except ValueError:  # of either
            if not ended:
                raise
    return status.message


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
