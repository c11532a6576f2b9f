"""Handles on a run (its result, messages, status and controls) and on a schedule."""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, get_args

from pydantic import JsonValue, TypeAdapter, ValidationError
from temporalio.client import Client

from ...contracts.control_messages import SteerRequest
from ...contracts.decisions import ApproveRequest, PendingDecision, ReplyRequest
from ...contracts.inputs import QueryInput
from ...contracts.message import Message, PersonDecision, TokenUsage
from ...contracts.panel import Contribution, DebateShape, PanelShape, contributions_in
from ...contracts.status import Status
from ...contracts.text import full_length, truncate
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.catalog import Resource
from ...resources.loader import Loaded
from ...resources.query import Query
from ...resources.team import Team
from ..account import account_name, client_identity
from ..history.events import Event, MessageEvent
from ..history.fork import FAILURE, ForkChanges, find_source, start_fork, why_fork_waits
from ..history.status import current_status
from ..history.stream import stream_events
from ..runs import control
from ..runs.decisions import NotDecided, decide, pending_decisions, reply
from ..runs.runs import NotServedError, RunHandle, awaited_status, final_status
from ..runs.schedules import find_schedule, schedule_handle, trigger_schedule
from ..runs.start import NotForkedError, manifests_of_run, original_input, to_json
from .definitions import ResourceDefinition, Value_co, as_json, check_mapping, check_text, load_definitions

_log = logging.getLogger("baton")

RECONNECT_TIMEOUT = 60.0
"""Seconds for which a lost connection is retried."""


async def stream_messages(
    client: Client, run: RunHandle, reconnect_timeout: float = RECONNECT_TIMEOUT
) -> AsyncIterator[MessageEvent]:
    """The messages in a run and its child runs, without duplicates, from the beginning to the end of the run.

    Raises Temporal's RPCError if the connection is lost for longer than ``reconnect_timeout`` seconds.
    """
    events = stream_events(client, run, live=False, reconnect_timeout=reconnect_timeout)
    async with aclosing(events):
        async for event in events:
            if isinstance(event, MessageEvent):
                yield event


class NoValueError(ValueError):
    """A result has no value of the declared type; ``result.message`` has what was said, or its beginning."""


@dataclass(frozen=True)
class NoValue:
    """The place of a value in a result without one: the run ended early, or its status has a part of the answer."""

    why: str


class Result(Generic[Value_co]):
    """The result of a completed run: its ``id``, its ``status``, and the answer as ``message`` and as ``value``."""

    def __init__(self, id: str, status: Status, value: Value_co | NoValue) -> None:  # noqa: A002  # the attribute
        self.id = id
        self.status = status
        self._value = value

    def __repr__(self) -> str:
        text = truncate(self.message, 100)
        cost = "" if self.cost is None else f", cost={self.cost:g}"
        return f"Result(id={self.id!r}, message={text!r}, tokens={self.usage.total_tokens}{cost})"

    @property
    def value(self) -> Value_co:
        """The answer, parsed into the type that the target declares.

        That is an instance of the pydantic model that is the ``output_schema`` or ``output_type``; JSON for another
        ``output_schema``; a ``PanelShape`` or ``DebateShape`` for a panel without a synthesizer, or one that was
        terminated or whose budget is used up; otherwise the message itself. Raises NoValueError if the run ended before
        it had an answer of that pydantic model, or if the answer is too long for the status, which has its beginning.
        """
        if isinstance(self._value, NoValue):
            raise NoValueError(self._value.why)
        return self._value

    @property
    def message(self) -> str:
        """The answer."""
        return self.status.message

    @property
    def usage(self) -> TokenUsage:
        """The tokens and calls that the run used."""
        return self.status.token_usage

    @property
    def cost(self) -> float | None:
        """The cost in US dollars; None if the price of no model is known."""
        return self.usage.cost

    @property
    def messages(self) -> tuple[Message, ...]:
        """The latest messages, target by target."""
        return messages_in(self.status)


def messages_in(status: Status) -> tuple[Message, ...]:
    """The latest messages of a run, target by target."""
    return tuple(message for response in status.responses for message in response.messages) or status.messages


class RunFailed(Exception):
    """A run failed or was canceled: ``status`` has the reason, and ``messages`` are its latest messages."""

    def __init__(self, run_id: str, status: Status) -> None:
        self.id = run_id
        self.status = status
        if status.phase == "Failed":
            outcome = f"failed: {status.error}"
        else:
            outcome = f"was canceled: {status.note or 'no reason given'}"
        super().__init__(f"the run {run_id} {outcome}")

    @property
    def messages(self) -> tuple[Message, ...]:
        """The latest messages, target by target."""
        return messages_in(self.status)

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        """The contributions to a panel or a debate among the messages."""
        return contributions_in(self.messages)


class Refused(Exception):
    """A run rejected a message, a decision or a change of its session; the text says why."""


async def target_of(client: Client, run: RunHandle) -> Resource | None:
    """The target of a run; None if it has several, or if only its worker has the manifest."""
    run_id = run.run_id or (await run.describe()).run_id
    workflow_type, run_input = await original_input(client, run.id, run_id)
    if workflow_type != "query" or "carried" in run_input or "retries" in run_input:  # the first execution is deleted
        return None
    query_input = QueryInput.model_validate(run_input)
    catalog = await manifests_of_run(client, run.id, run_id)
    query = catalog.get("Query", query_input.namespace, query_input.name or "")
    targets = catalog.targets(query) if isinstance(query, Query) else ()
    return catalog.find(targets[0]) if len(targets) == 1 else None


_ENDED_EARLY = ("terminated", "budget")
"""Stop reasons of runs that completed early: their message is the last message, or the panel's state."""


def value_of(target: Resource | None, status: Status, output_type: Any = None) -> Any:
    """The value of a completed run's message; ``output_type`` is the type into which it is parsed, if it is known.

    If a run ended early, without an answer of that type, it is a NoValue, or without a type the message; a NoValue also
    for the beginning of a longer answer. Raises pydantic's ValidationError if any other answer does not fit the type.
    """
    try:
        return _parsed(target, status, output_type)
    except ValueError:
        length = full_length(status.message)
        if length == len(status.message):
            raise
        return NoValue(f"the answer has {length:,} characters, of which the status has the beginning")


def _parsed(target: Resource | None, status: Status, output_type: Any) -> Any:
    ended_early = status.stop_reason in _ENDED_EARLY
    if isinstance(target, Team) and target.spec.is_panel and (ended_early or target.spec.synthesizer is False):
        shape = DebateShape if target.spec.strategy == "debate" else PanelShape
        with suppress(ValidationError):
            return shape.model_validate_json(status.message)
    if output_type is not None and output_type is not str:
        try:
            return TypeAdapter(output_type).validate_json(status.message)
        except ValidationError:
            if status.stop_reason in (None, "completed"):
                raise
            return NoValue(
                f"the run ended early ({status.stop_reason}), without an answer of the type {type_name(output_type)}"
            )
    if output_type is None and isinstance(target, Team | Agent) and target.spec.output_schema:
        try:
            return json.loads(status.message)
        except ValueError:
            if not ended_early:
                raise
    return status.message


def type_name(type_: object) -> str:
    """A type as error messages name it, such as ``Verdict`` or ``list[str]``."""
    return type_.__name__ if isinstance(type_, type) and not get_args(type_) else str(type_)


def load_for_fork(resources: Iterable[ResourceDefinition[Any]]) -> Loaded:
    """Definitions that replace manifests in a fork. Raises NotForkedError and ManifestError."""
    loaded = load_definitions(resources)
    if loaded.secrets or loaded.has_commands:
        raise NotForkedError("the workers that execute a fork have its keys and commands: leave them out")
    return loaded


class Handle(Generic[Value_co]):
    """A run. It continues whether or not a program holds a handle on it.

    ``async for message in handle`` iterates over its messages from beginning to end, across lost connections; it can be
    repeated.
    """

    def __init__(self, client: Client, run: RunHandle, output_type: type[Value_co] | None = None) -> None:
        self._client = client
        self._run = run
        self._output_type = output_type

    def __repr__(self) -> str:
        return f"Handle(id={self.id!r})"

    @property
    def id(self) -> str:
        """The run's id, by which ``attach`` and ``baton watch`` find it."""
        return self._run.id

    def __aiter__(self) -> AsyncIterator[MessageEvent]:
        return stream_messages(self._client, self._run)

    def events(self, after: str | None = None, *, wait: bool = True) -> AsyncGenerator[Event, None]:
        """The events of the run and its child runs after a cursor, or from the beginning, to the end of the run.

        ``after`` is the ``cursor`` of an event: its reader, or any other one, goes on from there. With ``wait`` false
        only the events that exist already, without live text. Raises CursorError if the cursor belongs to another run,
        and Temporal's RPCError if the connection is lost for longer than a minute.
        """
        return stream_events(self._client, self._run, after, wait=wait, live=wait, reconnect_timeout=RECONNECT_TIMEOUT)

    async def result(self) -> Result[Value_co]:
        """Waits for the end of the run. Raises RunFailed if it failed or was canceled.

        While the program that executes the run is not running, a warning in the log says what to do.
        """
        status = await awaited_status(self._client, self._run)
        if status.phase != "Completed":
            raise RunFailed(self.id, status)
        return Result(self.id, status, value_of(await target_of(self._client, self._run), status, self._output_type))

    async def status(self) -> Status:
        """The current status of the run, or its final one.

        If the program that executes the run is not running, it is read from the run's history: it is Waiting, and its
        ``note`` says what to do. Raises NotServedError if no worker executes the run.
        """
        closed = (await self._run.describe()).close_time
        return await (final_status(self._client, self._run) if closed else current_status(self._client, self._run))

    async def steer(self, text: str, name: str = "user") -> None:
        """Sends a message into the discussion, which all later speakers read. Raises Refused."""
        check_text(text, "text")
        check_text(name, "name")
        with self._refused():
            await control.steer(self._client, self._run, text, name)

    async def session(self, **changes: JsonValue) -> JsonObject:
        """Changes values that conditions and functions read; None removes one. Returns all values. Raises Refused."""
        with self._refused():
            return await control.change_session(self._client, self._run, as_json(changes))

    async def fork(
        self,
        at: str = FAILURE,
        *,
        say: str | None = None,
        name: str = "user",
        session: dict[str, JsonValue] | None = None,
        changes: dict[str, JsonValue] | None = None,
        resources: Sequence[ResourceDefinition[Any]] = (),
        id: str | None = None,  # noqa: A002  # the attribute of a handle
    ) -> "Handle[Value_co]":
        """Goes on from a place in this run in a new run; this one does not change, and no call before is made again.

        ``at`` is the last turn to keep, as in ``"3"``, ``"2/1"``, ``"round-2/NAME"`` or ``"3/call-1"``; ``"0"`` keeps
        none, and ``"failure"`` is the place before the call that has failed. ``say`` is a message there, of the person
        ``name``. ``session`` changes values of the session, ``changes`` fields of manifests, as in
        ``{"NAME.prompt": "…"}``, and ``resources`` replace the manifests of their names. Workers execute the new run;
        one that calls functions of a program waits until a program attaches to it with them.

        Raises NotForkedError; and Temporal's WorkflowAlreadyStartedError if there was a run with this ``id``.
        """
        check_text(at, "at")
        loaded = load_for_fork(resources)
        forked = ForkChanges(
            say=None if say is None else SteerRequest(text=say, name=name),
            session=as_json(session or {}),
            fields=as_json(changes or {}),
            resources=tuple(map(to_json, loaded.catalog.manifests)),
        )
        source = await find_source(self._client, self._run, at)
        run = await start_fork(self._client, source, forked, id)
        if reason := why_fork_waits(source.run):
            _log.warning("%s waits: %s", run.id, reason)
        return Handle(self._client, run, self._output_type)

    async def approvals(self) -> list[PendingDecision]:
        """Tool calls and budgets that wait for approval, in this run and in the runs below it, the oldest first."""
        return [decision for decision in await self._pending_decisions() if decision.needs_approval]

    async def approve(
        self,
        call: str,
        *,
        arguments: dict[str, object] | None = None,
        reason: str = "",
        remember: bool = False,
        by: str | None = None,
    ) -> PersonDecision:
        """Approves the call with that id, with its own or with other ``arguments``.

        With ``remember``, later calls of this tool in the run are approved too. ``by`` is the name of the approver, by
        default the account and the host of this program. Raises Refused if the call is not or no longer pending, or
        the arguments don't match the tool's schema.
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
        """Rejects the call with that id; the model receives the reason. Raises Refused."""
        check_text(call, "call")
        check_text(reason, "reason")
        who = by or client_identity()
        request = ApproveRequest(call=call, approved=False, reason=reason, remember=remember, by=who)
        return await self._decided(decide(self._client, self._run, request))

    async def inbox(self) -> list[PendingDecision]:
        """Questions to people, in this run and in the runs below it, the oldest first."""
        return [decision for decision in await self._pending_decisions() if decision.kind == "question"]

    async def reply(self, text: str, to: str | None = None, *, by: str | None = None) -> PersonDecision:
        """Replies to the question with the id ``to``, or to the only one. Raises Refused, also for an invalid reply."""
        check_text(text, "text")
        request = ReplyRequest(text=text, to=to, by=by or client_identity())
        return await self._decided(reply(self._client, self._run, request))

    async def decline(self, to: str | None = None, reason: str = "", *, by: str | None = None) -> PersonDecision:
        """Declines the question of a server with the id ``to``, or the only one. Raises Refused."""
        check_text(reason, "reason")
        request = ReplyRequest(text=reason, to=to, by=by or client_identity(), declines=True)
        return await self._decided(reply(self._client, self._run, request))

    async def _pending_decisions(self) -> list[PendingDecision]:
        return await pending_decisions(self._client, self.id, self._run.run_id)

    async def _decided(self, sent: Coroutine[Any, Any, PersonDecision]) -> PersonDecision:
        try:
            return await sent
        except (NotDecided, NotServedError) as error:
            raise Refused(str(error)) from None

    async def terminate(self, reason: str = "", *, now: bool = False) -> None:
        """Ends the run after the current turn, or ``now``; its phase is then Completed. Raises Refused."""
        check_text(reason, "reason")
        with self._refused():
            await control.terminate(self._run, reason, now=now)

    async def cancel(self, reason: str = "") -> None:
        """Cancels the run at once; its messages remain stored. Raises Refused if it has ended."""
        check_text(reason, "reason")
        with self._refused():
            await control.cancel(self._run, reason)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Raises Refused if the run has ended, or rejects a request."""
        try:
            yield
        except (control.RunEndedError, control.RejectedError, NotServedError) as error:
            raise Refused(str(error)) from None


class ScheduleHandle:
    """A schedule in Temporal. It starts runs whether or not a program holds a handle on it."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self.namespace = namespace
        self.name = name
        self._schedule = schedule_handle(client, namespace, name)

    def __repr__(self) -> str:
        return f"ScheduleHandle(name={self.name!r}, namespace={self.namespace!r})"

    async def status(self) -> JsonObject:
        """Its status, as ``baton schedules list -o json`` shows it. Raises ScheduleError if it was deleted."""
        return (await find_schedule(self._client, self.namespace, self.name)).value

    async def pause(self, note: str = "") -> None:
        """Stops it from starting runs; open runs continue."""
        check_text(note, "note")
        await self._schedule.pause(note=note or f"paused by {account_name()}")

    async def unpause(self, note: str = "") -> None:
        """Lets it start runs again, from now on."""
        check_text(note, "note")
        await self._schedule.unpause(note=note or f"unpaused by {account_name()}")

    async def trigger(self) -> Handle[object] | None:
        """Starts a run now. None if an open run makes its overlap policy buffer or skip this one."""
        run = await trigger_schedule(self._client, self.namespace, self.name)
        return Handle(self._client, self._client.get_workflow_handle(run)) if run else None

    async def delete(self) -> None:
        """Deletes it; open runs continue."""
        await self._schedule.delete()
