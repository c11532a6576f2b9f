"""One call of an agent: sends a message once, and follows its task to the end, whichever attempt has begun it."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator

from a2a.client import Client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.types import Message as A2AMessage
from a2a.utils.errors import TaskNotFoundError

from ....conversation.errors import AgentUnavailable, OutcomeUnknown
from ....conversation.failure import BatonError
from ....conversation.messages.message import RemoteTask
from ..executor import Execution
from .errors import error_of, is_not_begun
from .parts import parts_of
from .progress import Progress
from .tasks import cancel_task, find_task

_log = logging.getLogger(__name__)

POLL_INTERVAL = 1.0
"""Seconds between two questions for the state of a task that is not streamed."""

IDLE = 30.0
"""Seconds without an event after which a stream is left, and the task's state is asked for."""

PATIENCE = 20.0
"""Seconds for which a server may be unreachable before the attempt ends; another one follows the same task."""

CANCEL_SECONDS = 5.0


class A2ACall:
    """A call of an agent with a client of its server, ``server`` in errors."""

    def __init__(self, client: Client, execution: Execution, progress: Progress, server: str) -> None:
        self._client, self._execution, self._progress, self._server = client, execution, progress, server
        self._record = execution.record
        self._is_sent, self._is_known = False, asyncio.Event()

    async def run(self) -> None:
        """Brings the progress to where nothing more comes by itself; raises an error of ``conversation.errors``."""
        await self._begin()
        if not (self._progress.task or self._progress.is_settled):
            raise AgentUnavailable(f"{self._server} broke off before it named a task")
        while not self._progress.is_settled:
            await self._look()
            if not self._progress.is_settled:
                await self._listen()

    async def cancel(self) -> None:
        """Asks the server to cancel the task, while ``run`` goes on: a task that has no name yet is given a moment."""
        if not (self._is_sent or self._is_known.is_set()):
            return
        with contextlib.suppress(Exception):  # whatever it says: nobody waits for the task any more
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._is_known.wait()
                if not self._progress.is_settled:
                    await self._client.cancel_task(CancelTaskRequest(id=self._progress.task))

    async def cancel_earlier(self) -> bool:
        """Asks the server to cancel the task of an earlier attempt, if there is one that is open; whether it was asked.

        Of a server that has no list of tasks, one that was not yet noted can't be found.
        """
        sent = self._execution.executor.spec.idempotent or await self._record.has_begun()
        known = await self._recall() or (sent and await self._find())
        return known and await cancel_task(self._client, self._progress.task, self._server)

    async def _begin(self) -> None:
        """Sends the message, unless an earlier attempt has; then finds its task."""
        if await self._recall():
            return
        if not self._execution.executor.spec.idempotent:
            if await self._record.has_begun() and await self._find():
                return
            await self._record.begin_once(f"the task of {self._execution.agent.name}")
        await self._send()

    async def _send(self) -> None:
        goes_on, self._is_sent = self._execution.previous, True
        try:
            if goes_on and goes_on.task and goes_on.waits:
                with contextlib.suppress(TaskNotFoundError):  # the server has lost it: another one then
                    if goes_on.state == "auth-required" and await self._has_gone_on(goes_on):
                        return
                    asked = self._execution.since or self._execution.messages[-1:]
                    await self._read(self._client.send_message(self._message(parts_of(asked), goes_on.task)))
                    return
            await self._read(self._client.send_message(self._message(parts_of(self._execution.messages))))
        except Exception as error:
            if self._progress.task and not isinstance(error, BatonError):
                return  # it goes on without the stream
            if is_not_begun(error):
                await self._record.not_sent()
            raise error_of(error, self._server) from None

    async def _has_gone_on(self, waiting: RemoteTask) -> bool:
        """Whether a task that waited for an authorization has got it elsewhere: no message is needed then."""
        task = await self._client.get_task(GetTaskRequest(id=waiting.task or ""))
        return task.status.state != TaskState.TASK_STATE_AUTH_REQUIRED and await self._follow(task)

    def _message(self, parts: list[Part], task: str = "") -> SendMessageRequest:
        """The request. Its ``messageId`` is the same for all attempts, so that a server can know it again."""
        previous, key = self._execution.previous, self._record.key
        context = (previous.context if previous else None) or ""
        message = A2AMessage(message_id=key, role=Role.ROLE_USER, parts=parts, task_id=task, context_id=context)
        return SendMessageRequest(message=message)

    async def _read(self, stream: AsyncIterator[StreamResponse]) -> None:
        """Takes the events of a stream until the answer is settled, or too long nothing comes."""
        assert isinstance(stream, AsyncGenerator)
        async with contextlib.aclosing(stream):
            while not self._progress.is_settled:
                try:
                    event = await asyncio.wait_for(anext(stream), IDLE if self._progress.task else None)
                except (StopAsyncIteration, TimeoutError):
                    return
                known = self._progress.task
                self._progress.take(event)
                if not known:
                    await self._note()

    async def _recall(self) -> bool:
        """Whether an earlier attempt has noted the task."""
        if note := await self._record.read("task"):
            self._progress.recall(**json.loads(note))
            self._is_known.set()
        return bool(note)

    async def _note(self) -> None:
        """Notes the task for a next attempt."""
        if self._progress.task:
            self._is_known.set()
            note = {"task": self._progress.task, "context": self._progress.context}
            await self._record.write("task", json.dumps(note))

    async def _look(self) -> None:
        """Asks for the task's state; a server that can't be reached is asked again for a while."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                self._progress.take_task(await self._client.get_task(GetTaskRequest(id=self._progress.task)))
                return
            except TaskNotFoundError:
                text = f"{self._server} no longer knows the task {self._progress.task}"
                raise OutcomeUnknown(f"{text}; whether it was carried out is unknown") from None
            except Exception as error:
                meaning = error_of(error, self._server)
                if not isinstance(meaning, AgentUnavailable) or asyncio.get_running_loop().time() > deadline:
                    raise meaning from None
            await asyncio.sleep(POLL_INTERVAL)

    async def _listen(self) -> None:
        """Listens to the task's events until they end; where there is no stream, waits a moment."""
        begun = asyncio.get_running_loop().time()
        try:
            await self._read(self._client.subscribe(SubscribeToTaskRequest(id=self._progress.task)))
        except BatonError:
            raise
        except Exception as error:  # not every server streams, and a stream may break off: the state says what is next
            _log.debug("no events of %s: %s", self._progress.task, error)
        if not self._progress.is_settled:
            await asyncio.sleep(max(0.0, POLL_INTERVAL - (asyncio.get_running_loop().time() - begun)))

    async def _find(self) -> bool:
        """Whether the server has a task for the message that an earlier attempt may have sent; notes it then."""
        previous = self._execution.previous
        task = await find_task(self._client, self._record.key, (previous and previous.context) or "", self._server)
        return task is not None and await self._follow(task)

    async def _follow(self, task: Task) -> bool:
        """Goes on with a task that the server knows of."""
        self._progress.recall(task.id, task.context_id)
        await self._note()
        return True
