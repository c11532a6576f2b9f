"""A running activity: heartbeats with the text received so far, one attempt at a time, and its ids."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from temporalio import activity
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import RetryPolicy
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ..contracts.requests import MISSED_HEARTBEATS, LiveText
from .threads import COMPUTING

T = TypeVar("T")

INTERVAL = 1.5
"""Seconds between two heartbeats. A cancellation arrives with the reply to a heartbeat."""

REDACTING_SECONDS = 0.5
"""How long a heartbeat waits for a thread that redacts its text."""

SHOWN_CHARACTERS = 2_000
"""Characters of streamed text in a heartbeat."""

BUFFERED_CHARACTERS = 10 * SHOWN_CHARACTERS
"""Characters of streamed text in the buffer: more than is shown, so that no secret is cut before it is redacted."""


class Heartbeat:
    """The content of an activity's heartbeats: the end of the text received so far, after ``redact``.

    ``on_change`` is called after each piece of text.
    """

    withdrawn = False
    """Whether Temporal has canceled the activity, or no longer waits for it."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._redact = redact
        self._pieces: list[str] = []
        self._offset = 0
        self._cutting = asyncio.Lock()

    def on_text(self, text: str) -> None:
        """Adds a piece of text."""
        self._pieces.append(text)
        self.on_change()

    @property
    def has_text(self) -> bool:
        """Whether a text was received."""
        return bool(self._pieces)

    async def live_text(self) -> LiveText:
        """The last part of the text. It is redacted before it is cut: half of a secret is not recognized."""
        whole = await self.streamed()
        surplus = max(0, len(whole.text) - SHOWN_CHARACTERS)
        return LiveText(offset=whole.offset + surplus, text=whole.text[surplus:])

    async def streamed(self) -> LiveText:
        """The text in the buffer, redacted. Only a part that was sent before may begin within a secret.

        Offsets count redacted characters. The beginning of a long text is then removed from the buffer.
        """
        async with self._cutting:
            text = "".join(self._pieces)
            self._pieces = [text]
            offset = self._offset
            clean = await in_thread_if_long(len(text), self._redact, text)
            if len(text) > 2 * BUFFERED_CHARACTERS:
                last = text[-BUFFERED_CHARACTERS:]
                # As many characters as it lacks of the whole text when both are redacted.
                self._offset += len(clean) - len(await in_thread_if_long(len(last), self._redact, last))
                self._pieces = [last, *self._pieces[1:]]
        return LiveText(offset=offset, text=clean)


_current: ContextVar[Heartbeat] = ContextVar("heartbeat")


def on_text(text: str) -> None:
    """Adds a piece of text to the heartbeats of the running activity."""
    _current.get().on_text(text)


async def is_restated(text: str) -> bool:
    """Whether a text does not begin with what the running activity has streamed, both redacted."""
    heartbeat = _current.get(None)
    if heartbeat is None or not heartbeat.has_text:
        return False
    streamed = await heartbeat.streamed()
    return not text.startswith(streamed.text, streamed.offset)


def is_withdrawn() -> bool:
    """Whether the current activity is canceled for good; False if another attempt may continue its work.

    It does after a local activity, which has no heartbeats: one that takes too long is tried as a regular activity.
    """
    heartbeat = _current.get(None)
    return heartbeat is not None and heartbeat.withdrawn


def run_with(heartbeat: Heartbeat, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """A task that runs ``work``, whose streamed text goes to ``heartbeat``."""
    context = copy_context()
    context.run(_current.set, heartbeat)
    return asyncio.create_task(work, context=context)


@contextlib.asynccontextmanager
async def heartbeats(heartbeat: Heartbeat) -> AsyncIterator[None]:
    """A context manager that sends a heartbeat every ``INTERVAL`` seconds, the first one after the first interval."""

    async def send() -> None:
        text = LiveText(offset=0, text="")
        redacting: asyncio.Task[LiveText] | None = None
        try:
            while True:
                await asyncio.sleep(INTERVAL)
                # A thread can't be canceled: a new redaction would only run beside it, with a longer text.
                redacting = redacting or asyncio.create_task(heartbeat.live_text())
                await asyncio.wait([redacting], timeout=REDACTING_SECONDS)
                if redacting.done():  # otherwise a heartbeat with the former text is better than a late one
                    text = redacting.result()
                    redacting = None
                activity.heartbeat(text)
        finally:
            if redacting:
                redacting.cancel()

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def is_last_attempt(attempt: int, policy: RetryPolicy | None) -> bool:
    """Whether a failure of this attempt is final."""
    return attempts_left(attempt, policy) == 0


def attempts_left(attempt: int, policy: RetryPolicy | None) -> int | None:
    """How many attempts may follow this one; None if Temporal alone decides that.

    The policy allows ``MISSED_HEARTBEATS`` more attempts, which only replace attempts that missed a heartbeat.
    """
    maximum = policy.maximum_attempts if policy else 0
    return max(maximum - MISSED_HEARTBEATS - attempt, 0) if maximum > MISSED_HEARTBEATS else None


def idempotency_key() -> str:
    """``run_id/activity_id`` of the current activity: the same for all its attempts, but different after a reset."""
    return key_of(activity.info().activity_id)


def key_of(activity_id: str) -> str:
    """The idempotency key of another activity of the same run, or of something that several activities share."""
    return f"{activity.info().workflow_run_id}/{activity_id}"


def workflow_id() -> str:
    """The workflow id of the run that called the activity."""
    return activity.info().workflow_id or ""


def root_id() -> str | None:
    """The workflow id if it contains a slash; otherwise None, as child runs derive the root's id from their own."""
    return workflow_id() if "/" in workflow_id() else None


GIVEN_UP = PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED
"""The state of an activity whose result Temporal does not wait for, although it is listed."""


@dataclass(eq=False)
class StreamingCall:
    """An activity that receives text, identified as in histories; ``attempt`` is the newest that waits for it."""

    workflow_id: str
    run_id: str
    activity_id: str
    heartbeat: Heartbeat
    attempt: int = 0

    async def streamed(self) -> LiveText:
        """The text received so far, of a long one the end."""
        return await self.heartbeat.streamed()


_client: ContextVar[Client] = ContextVar("client")


def own_client() -> Client:
    """The client of the worker, with Baton's types, keys and external storage.

    ``activity.client()`` is that of the application if it has added Baton to a worker by the plugin: the SDK passes
    the one that the worker was made with, whatever a plugin changes.
    """
    return _client.get()


def set_own_client(client: Client) -> None:
    """Sets the client that ``own_client`` returns in this task and in those that it starts."""
    _client.set(client)


class OwnClient(Interceptor):
    """Gives activities the client that ``own_client`` returns."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        return _ActivitiesWithClient(super().intercept_activity(next), self._client)


class _ActivitiesWithClient(ActivityInboundInterceptor):
    def __init__(self, next_interceptor: ActivityInboundInterceptor, client: Client) -> None:
        super().__init__(next_interceptor)
        self._client = client

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        set_own_client(self._client)
        return await self.next.execute_activity(input)


@dataclass
class _Flight:
    task: asyncio.Task[Any]
    call: StreamingCall


class SingleFlight(Interceptor):
    """Lets a new attempt of an activity join the work of an earlier attempt in the same process; sends heartbeats.

    After a network interruption the server considers the worker dead: it times the attempt out and schedules another,
    although the model call or tool call of the first one is still running. To avoid paying twice, the next attempt on
    this worker waits for that call. Work is identified by the idempotency key; ``redact`` is applied to heartbeats.
    ``publish`` is called when a call has received text.
    """

    def __init__(
        self, redact: Callable[[str], str] = str, publish: Callable[[StreamingCall], None] = lambda _: None
    ) -> None:
        self._redact = redact
        self._publish = publish
        self._flights: dict[str, _Flight] = {}

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        return _JoinedActivities(super().intercept_activity(next), self)

    async def run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> object:
        """The result of ``work``, or of the same work begun by an earlier attempt of this activity."""
        key = idempotency_key()
        flight = self._flights.get(key) or self._begin(key, work)
        flight.call.attempt = activity.info().attempt
        async with heartbeats(flight.call.heartbeat):
            try:
                return await asyncio.shield(flight.task)
            except asyncio.CancelledError:
                await _keep_for_next_attempt(flight)
                raise

    def _begin(self, key: str, work: Callable[[], Coroutine[Any, Any, object]]) -> _Flight:
        heartbeat = Heartbeat(self._redact)
        info = activity.info()
        call = StreamingCall(workflow_id(), info.workflow_run_id or "", info.activity_id, heartbeat)
        heartbeat.on_change = lambda: self._publish(call)
        flight = self._flights[key] = _Flight(run_with(heartbeat, work()), call)
        flight.task.add_done_callback(lambda task: self._end(key, task))
        return flight

    def _end(self, key: str, task: asyncio.Task[Any]) -> None:
        del self._flights[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio would log it if no attempt waits for it

    async def close(self) -> None:
        """Cancels the remaining work when the worker shuts down."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _JoinedActivities(ActivityInboundInterceptor):
    def __init__(self, next_interceptor: ActivityInboundInterceptor, flights: SingleFlight) -> None:
        super().__init__(next_interceptor)
        self._flights = flights

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        """Runs local activities directly: they are part of a workflow task, and have no heartbeats."""
        if activity.info().is_local:
            return await self.next.execute_activity(input)
        return await self._flights.run(partial(self.next.execute_activity, input))


async def _keep_for_next_attempt(flight: _Flight) -> None:
    """Lets the work continue until a later attempt joins it; cancels it once Temporal no longer waits for its result.

    It is canceled only once, so that it can still cancel a remote task.
    """
    cancelled = False
    while not flight.task.done() and flight.call.attempt == activity.info().attempt:
        if not cancelled and not await _is_awaited():
            details = activity.cancellation_details()
            flight.call.heartbeat.withdrawn = details is not None and not details.worker_shutdown
            cancelled = flight.task.cancel()
        await asyncio.wait([flight.task], timeout=INTERVAL)


async def _is_awaited() -> bool:
    """Whether Temporal ended only this attempt and still waits for the activity; True if Temporal is unreachable.

    An attempt that missed its heartbeats, timed out, or was paused or reset does not cancel the call.
    """
    info = activity.info()
    details = activity.cancellation_details()
    if details is None or details.cancel_requested or details.worker_shutdown or info.workflow_id is None:
        return False
    try:
        run = await own_client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id).describe()
    except RPCError:
        return True
    pending = run.raw_description.pending_activities if run.status is WorkflowExecutionStatus.RUNNING else ()
    return any(call.activity_id == info.activity_id and call.state != GIVEN_UP for call in pending)


P = ParamSpec("P")


LONG = 5_000
"""Characters from which a text is processed in a thread: searching for secrets takes up to 2 µs per escape."""


async def in_thread_if_long(size: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Calls a function, in a thread if ``size``, the number of characters that it processes, is large."""
    return work(*args, **options) if size < LONG else await COMPUTING.run(work, *args, **options)
