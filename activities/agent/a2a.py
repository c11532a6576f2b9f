"""Agents of A2AServers: reads the agent card, calls the agent, and converts its answer (ARK: A2A execution)."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import AgentCardResolutionError
from a2a.types import (
    AgentCard,
    AgentInterface,
    Artifact,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.types import Message as A2AMessage
from a2a.utils import errors as a2a
from a2a.utils.constants import TransportProtocol
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct, Value
from pydantic import JsonValue

from ...contracts.attachment import Attachment, segments
from ...contracts.errors import (
    AgentFailed,
    AgentRejected,
    AgentUnavailable,
    AuthorizationRequired,
    BatonError,
    CallTimeout,
    KeyRefused,
    OutcomeUnknown,
)
from ...contracts.message import Message, RemoteTask
from ...contracts.text import truncate
from ...journal.leases import Lease, without_lease
from ...observability.spans import trace_headers
from ...resources.a2a_server import A2AServer
from ...temporal.activity import is_withdrawn
from ..context.lookup import Executor
from ..context.value_resolver import ValueResolver
from ..runtime.http import is_retryable, retry_after
from ..runtime.outbound import Origin, SharedConnections, authority_of
from .executor import (
    CONNECT_SECONDS,
    MAX_BYTES,
    CurrentHeaders,
    Execution,
    endpoint_of,
    outbound_to,
)

LONGEST = 1_000
"""Characters of a server's message in an error."""

NOT_STARTED = frozenset({425, 429, 503})
"""HTTP status codes of a server that has not started to process the request: it may be sent again."""

_BY_SERVER = (
    a2a.UnsupportedOperationError,
    a2a.ContentTypeNotSupportedError,
    a2a.InvalidParamsError,
    a2a.InvalidRequestError,
    a2a.MethodNotFoundError,
    a2a.ExtensionSupportRequiredError,
    a2a.VersionNotSupportedError,
    a2a.TaskNotFoundError,
    a2a.TaskNotCancelableError,
)


def is_not_started(error: Exception) -> bool:
    """Whether a request had no effect: it did not reach the server, or the server rejected it unprocessed."""
    cause = _cause(error)
    if isinstance(cause, httpx.HTTPStatusError):
        return cause.response.status_code in NOT_STARTED
    return isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout)


def error_of(error: Exception, server: str) -> BatonError:
    """The error of a run for an exception of the A2A SDK or of its libraries."""
    if isinstance(error, BatonError):
        return error
    cause = _cause(error)
    text = truncate(str(error) or type(error).__name__, LONGEST)
    if isinstance(error, _BY_SERVER):
        return AgentRejected(f"{server} rejected the request: {text}")
    if isinstance(cause, httpx.HTTPStatusError):
        return _of_status(cause.response, server)
    if isinstance(cause, httpx.RequestError):
        return AgentUnavailable(f"{server} can't be reached: {cause or type(cause).__name__}")
    return AgentFailed(f"{server} sent an invalid response: {type(error).__name__}: {text}")


def _of_status(response: httpx.Response, server: str) -> BatonError:
    status = response.status_code
    text = f"{server} answered HTTP {status} {response.reason_phrase}".strip()
    if status in (401, 403):
        return KeyRefused(text)
    if is_retryable(status):
        return AgentUnavailable(text, retry_after=retry_after(response.headers), outage=status >= 500)
    return AgentRejected(text)


def _cause(error: Exception) -> BaseException:
    """The HTTP client's exception that caused one of the SDK, or the exception itself."""
    return error.__cause__ if isinstance(error.__cause__, httpx.HTTPError) else error


MAX_PAGES = 10
"""Pages of a task list that are read."""


async def find_task(client: Client, message_id: str, context: str, server: str) -> Task | None:
    """The task of a message, in its context or, without one, among all tasks; None if the server does not list it.

    A list omits artifacts, so the caller has to read the task itself. Raises AgentUnavailable.
    """
    request = ListTasksRequest(page_size=100, history_length=100, context_id=context)
    try:
        for _ in range(MAX_PAGES):
            page = await client.list_tasks(request)
            for task in page.tasks:
                if any(message.message_id == message_id for message in task.history):
                    return task
            if not page.next_page_token:
                return None
            request.page_token = page.next_page_token
    except Exception as error:
        failed = error_of(error, server)
        if isinstance(failed, AgentUnavailable):
            raise failed from None
    return None


async def cancel_task(client: Client, task: str, server: str) -> bool:
    """Requests cancellation of a task; False if it has ended. Raises an error of ``contracts.errors``."""
    try:
        await client.cancel_task(CancelTaskRequest(id=task))
    except (TaskNotCancelableError, TaskNotFoundError):
        return False
    except Exception as error:
        raise error_of(error, server) from None
    return True


def text_of(parts: Iterable[Part]) -> str:
    """The text of parts, as paragraphs. Raises AgentFailed for data that is not JSON."""
    return "\n\n".join(filter(None, map(_text, parts)))


def _text(part: Part) -> str:
    match part.WhichOneof("content"):
        case "text":
            return part.text
        case "data":
            try:
                value = json_of(part.data)
            except ValueError:
                raise AgentFailed("the answer has data with NaN or Infinity, which is not JSON") from None
            return f"[data]\n{json.dumps(value, ensure_ascii=False)}"
        case "url":
            return f"[{_file(part)}, at {part.url}]"
        case "raw":
            return f"[{_file(part)}, {len(part.raw):,} bytes]"
    return ""


def json_of(value: Value | Struct) -> JsonValue:
    """The JSON value of data or metadata, with integers instead of whole floats: protobuf has only floats.

    Raises ValueError for NaN and Infinity.
    """
    return _plain(MessageToDict(value))


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _file(part: Part) -> str:
    return ", ".join(filter(None, (f"file {part.filename}".strip(), part.media_type)))


def parts_of(messages: Sequence[Message], contents: Mapping[str, bytes]) -> list[Part]:
    """The parts of a request: the conversation as one text, then the question, with its images and files.

    ``contents`` are the bytes of those that the journal stores, by their ids.
    """
    *history, question = messages
    lines = [f"{message.name or message.role}: {message.content}" for message in history if message.content]
    before = [Part(text="\n\n".join(("The conversation so far:", *lines)))] if lines else []
    asked = [_part_of(segment, contents) for segment in segments(question.content, question.attachments)]
    return [*before, *(asked or [Part(text=question.content)])]


def _part_of(segment: str | Attachment, contents: Mapping[str, bytes]) -> Part:
    if isinstance(segment, str):
        return Part(text=segment)
    name = segment.name or ""
    media_type = segment.media_type or ""
    if segment.url:
        return Part(url=segment.url, filename=name, media_type=media_type)
    return Part(raw=contents[segment.stored or ""], filename=name, media_type=media_type)


OPEN = (TaskState.TASK_STATE_UNSPECIFIED, TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
"""States of a task that continues by itself."""

LONGEST_ID = 1_000
"""Characters of a server's ids; longer ones are truncated."""

OVERHEAD = 100
"""Bytes that an artifact or a part is counted with, besides its content."""


class Progress:
    """The answer while it arrives; ``on_text`` is called with every new chunk of the text of its artifacts.

    Messages about the state of the task are no part of the answer, unless it has no artifacts.
    """

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self.task = ""
        self.context = ""
        self.state: TaskState = TaskState.TASK_STATE_UNSPECIFIED
        self._message: A2AMessage | None = None
        self._status_text = ""
        self._artifacts: dict[str, list[Part]] = {}
        self._streamed = ""
        """The artifact whose text was streamed last."""
        self._sizes: dict[str, int] = {}
        self._size = 0

    @property
    def is_settled(self) -> bool:
        """Whether the task has ended or waits for input."""
        return self._message is not None or self.state not in OPEN

    @property
    def is_message(self) -> bool:
        """Whether the answer is a message, without a task."""
        return self._message is not None

    def remote_task(self, agent: str) -> RemoteTask:
        """The ids of the answer on its server."""
        state = TaskState.Name(self.state).removeprefix("TASK_STATE_").lower().replace("_", "-")
        return RemoteTask(
            agent=agent,
            context=self.context or None,
            task=self.task or None,
            state=state if self.task else None,
        )

    @property
    def text(self) -> str:
        """The answer's text: the artifacts; without any, the agent's last message."""
        if self._message is not None:
            return text_of(self._message.parts)
        artifacts = "\n\n".join(filter(None, map(text_of, self._artifacts.values())))
        if self.state == TaskState.TASK_STATE_COMPLETED:
            return artifacts or self._status_text
        return "\n\n".join(filter(None, (artifacts, self._status_text)))

    @property
    def status_text(self) -> str:
        """The agent's last message about the state of its task."""
        return self._status_text

    def add_event(self, event: StreamResponse) -> None:
        """Adds an event of a stream."""
        match event.WhichOneof("payload"):
            case "task":
                self.add_task(event.task)
            case "message":
                self._message = event.message
                self.set_ids("", event.message.context_id)
            case "status_update":
                update = event.status_update
                self.set_ids(update.task_id, update.context_id)
                self._set_status(update.status.state, update.status.message)
            case "artifact_update":
                self.set_ids(event.artifact_update.task_id, event.artifact_update.context_id)
                self._add_artifact(event.artifact_update.artifact, append=event.artifact_update.append)

    def add_task(self, task: Task) -> None:
        """Adds the current state of the task."""
        self.set_ids(task.id, task.context_id)
        for artifact in task.artifacts:
            self._add_artifact(artifact, append=False)
        agent_messages = [message for message in task.history if message.role == Role.ROLE_AGENT]
        has_message = task.status.HasField("message")
        self._set_status(
            task.status.state, task.status.message if has_message or not agent_messages else agent_messages[-1]
        )

    def set_ids(self, task: str, context: str) -> None:
        """Sets the ids of the task and its context, unless they are empty. The task never changes."""
        self.task = self.task or task[:LONGEST_ID]
        self.context = context[:LONGEST_ID] or self.context

    def _set_status(self, state: TaskState, message: A2AMessage) -> None:
        self.state = state
        self._status_text = text_of(message.parts) or self._status_text

    def _add_artifact(self, artifact: Artifact, *, append: bool) -> None:
        key = artifact.artifact_id
        text = "".join(part.text for part in artifact.parts)
        parts = self._artifacts.setdefault(key, [])
        if not append:
            text = text.removeprefix("".join(part.text for part in parts))
            parts.clear()
            self._size -= self._sizes.pop(key, 0)
        added = _extend(parts, artifact.parts) + (0 if key in self._sizes else OVERHEAD + len(key))
        self._sizes[key] = self._sizes.get(key, 0) + added
        self._size += added
        if text:
            self._on_text(text if self._streamed in ("", key) else f"\n\n{text}")
            self._streamed = key
        if self._size > MAX_BYTES:
            raise AgentFailed(f"the agent sent more than {MAX_BYTES:,} bytes")


def _extend(parts: list[Part], more: Iterable[Part]) -> int:
    """Adds the parts of the next chunk, and returns their size in bytes.

    Consecutive texts are joined: a streamed artifact has its text in chunks.
    """
    size = 0
    for part in more:
        size += part.ByteSize()
        if parts and part.HasField("text") and parts[-1].HasField("text"):
            parts[-1] = Part(text=parts[-1].text + part.text)
        else:
            parts.append(part)
            size += OVERHEAD
    return size


_log = logging.getLogger(__name__)

POLL_INTERVAL = 1.0
"""Seconds between two reads of a task's state without a stream."""

IDLE = 30.0
"""Seconds without an event after which a stream is closed, and the task's state is read."""

MAX_UNREACHABLE = 20.0
"""Seconds for which a server may be unreachable before the attempt fails; the next attempt follows the same task."""

CANCEL_IN_FLIGHT_SECONDS = 5.0


class A2ACall:
    """One call of an agent. ``server`` is the name of its server in errors."""

    def __init__(self, client: Client, execution: Execution, progress: Progress, server: str) -> None:
        self._client = client
        self._execution = execution
        self._progress = progress
        self._server = server
        self._record = execution.record
        self._is_sent = False
        self._is_known = asyncio.Event()

    async def run(self, lease: Lease) -> None:
        """Runs until the task has ended or waits for input. Raises an error of ``contracts.errors``."""
        await self._begin(lease)
        if not (self._progress.task or self._progress.is_settled):
            raise AgentUnavailable(f"{self._server} closed the connection before it returned a task id")
        while not self._progress.is_settled:
            await self._poll()
            if not self._progress.is_settled:
                await self._subscribe()

    async def cancel(self) -> None:
        """Requests cancellation of the task while ``run`` continues, after a short wait for the task's id."""
        if not (self._is_sent or self._is_known.is_set()):
            return
        with contextlib.suppress(Exception):  # the call has ended: its result does not matter any more
            async with asyncio.timeout(CANCEL_IN_FLIGHT_SECONDS):
                await self._is_known.wait()
                if not self._progress.is_settled:
                    await self._client.cancel_task(CancelTaskRequest(id=self._progress.task))

    async def cancel_earlier(self, *, was_sent: bool) -> bool:
        """Requests cancellation of the open task of an earlier attempt, if there is one. Returns whether it did.

        Without a list of tasks on the server, a task that the attempt did not record can't be found.
        """
        known = await self._recall() or (was_sent and await self._find())
        return known and await cancel_task(self._client, self._progress.task, self._server)

    async def _begin(self, lease: Lease) -> None:
        """Sends the message, or finds the task if an earlier attempt has sent it."""
        if await self._recall():
            return
        if self._execution.executor.spec.idempotent:
            await lease.send()
        else:
            if lease.was_sent and await self._find():
                return
            await lease.send_once(f"the task of {self._execution.agent.name}")
        await self._send()

    async def _send(self) -> None:
        previous = self._execution.previous
        self._is_sent = True
        try:
            if previous and previous.task and previous.waits:
                with contextlib.suppress(TaskNotFoundError):  # the server has lost it: a new task is started
                    if previous.state == "auth-required" and await self._is_authorized(previous):
                        return
                    messages = self._execution.since or self._execution.messages[-1:]
                    parts = parts_of(messages, self._execution.contents)
                    await self._read(self._client.send_message(self._message(parts, previous.task)))
                    return
            parts = parts_of(self._execution.messages, self._execution.contents)
            await self._read(self._client.send_message(self._message(parts)))
        except Exception as error:
            if self._progress.task and not isinstance(error, BatonError):
                return  # the task continues without the stream
            meaning = error_of(error, self._server)
            meaning.unsent = is_not_started(error)
            raise meaning from None

    async def _is_authorized(self, waiting: RemoteTask) -> bool:
        """Whether a task that required authorization was authorized in the meantime: then it needs no message."""
        task = await self._client.get_task(GetTaskRequest(id=waiting.task or ""))
        return task.status.state != TaskState.TASK_STATE_AUTH_REQUIRED and await self._follow(task)

    def _message(self, parts: list[Part], task: str = "") -> SendMessageRequest:
        """The request. Its ``messageId`` is the same for all attempts, so that a server can deduplicate it."""
        previous = self._execution.previous
        key = self._record.key
        context = (previous.context if previous else None) or ""
        message = A2AMessage(message_id=key, role=Role.ROLE_USER, parts=parts, task_id=task, context_id=context)
        return SendMessageRequest(message=message)

    async def _read(self, stream: AsyncIterator[StreamResponse]) -> None:
        """Reads a stream until the answer is settled, or no event arrives within IDLE."""
        assert isinstance(stream, AsyncGenerator)
        async with contextlib.aclosing(stream):
            while not self._progress.is_settled:
                try:
                    async with asyncio.timeout(IDLE if self._progress.task else None):
                        event = await anext(stream)
                except (StopAsyncIteration, TimeoutError):
                    return
                had_task = bool(self._progress.task)
                self._progress.add_event(event)
                if not had_task:
                    await self._record_task()

    async def _recall(self) -> bool:
        """Whether an earlier attempt has recorded the task."""
        if ids := await self._record.read("task"):
            self._progress.set_ids(**json.loads(ids))
            self._is_known.set()
        return bool(ids)

    async def _record_task(self) -> None:
        """Records the task for the next attempt."""
        if self._progress.task:
            self._is_known.set()
            ids = {"task": self._progress.task, "context": self._progress.context}
            await self._record.write("task", json.dumps(ids))

    async def _poll(self) -> None:
        """Reads the task's state, repeatedly while the server can't be reached, for up to MAX_UNREACHABLE."""
        deadline = asyncio.get_running_loop().time() + MAX_UNREACHABLE
        while True:
            try:
                self._progress.add_task(await self._client.get_task(GetTaskRequest(id=self._progress.task)))
                return
            except TaskNotFoundError:
                text = f"{self._server} no longer has the task {self._progress.task}"
                raise OutcomeUnknown(f"{text}; whether it was executed is unknown") from None
            except Exception as error:
                failed = error_of(error, self._server)
                if not isinstance(failed, AgentUnavailable) or asyncio.get_running_loop().time() > deadline:
                    raise failed from None
            await asyncio.sleep(POLL_INTERVAL)

    async def _subscribe(self) -> None:
        """Reads the task's event stream until it ends; without a stream, waits for POLL_INTERVAL."""
        started = asyncio.get_running_loop().time()
        try:
            await self._read(self._client.subscribe(SubscribeToTaskRequest(id=self._progress.task)))
        except BatonError:
            raise
        except Exception as error:  # some servers don't stream, and a stream may fail: the next poll decides
            _log.debug("no events of %s: %s", self._progress.task, error)
        if not self._progress.is_settled:
            await asyncio.sleep(max(0.0, POLL_INTERVAL - (asyncio.get_running_loop().time() - started)))

    async def _find(self) -> bool:
        """Whether the server has a task for the message that an earlier attempt may have sent; records it then."""
        previous = self._execution.previous
        task = await find_task(self._client, self._record.key, (previous and previous.context) or "", self._server)
        return task is not None and await self._follow(task)

    async def _follow(self, task: Task) -> bool:
        """Continues with a task of the server."""
        self._progress.set_ids(task.id, task.context_id)
        await self._record_task()
        return True


WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""The paths of an agent card: since version 0.3 of the protocol, and before."""

BINDINGS = (TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON)
VERSIONS = ("1.", "0.3", "0.2")
"""Prefixes of the supported versions, preferred ones first; 0.2 has the messages of 0.3."""


async def read_card(http: httpx.AsyncClient, url: str) -> AgentCard:
    """The agent card of the server at ``url``, from the first path that has one."""
    resolver = A2ACardResolver(http, url)
    for path in WELL_KNOWN:
        try:
            return await resolver.get_agent_card(path)
        except AgentCardResolutionError as error:
            if error.status_code not in (404, 405, 410):
                raise _no_card(error, url) from None
    raise AgentFailed(f"{authority_of(url)} has no agent card: neither {' nor '.join(WELL_KNOWN)}")


def _no_card(error: AgentCardResolutionError, url: str) -> BatonError:
    server = authority_of(url)
    status = error.status_code
    if status in (401, 403):
        return KeyRefused(f"{server} refused access to its agent card: HTTP {status}")
    if isinstance(error.__cause__, httpx.RequestError):
        return AgentUnavailable(f"{server} can't be reached: {error.__cause__ or type(error.__cause__).__name__}")
    if status is not None and is_retryable(status):
        return AgentUnavailable(f"the agent card of {server} is unavailable: HTTP {status}")
    # The text of the error itself has the whole URL.
    reason = f"HTTP {status}" if status else truncate(str(error.__cause__), 300)
    return AgentRejected(f"{server} has no valid agent card: {reason}")


def description_of(card: AgentCard) -> str:
    """The description of an agent in its card, with its skills and their descriptions."""
    skills = (": ".join(filter(None, (skill.name, skill.description))) for skill in card.skills)
    listed = "; ".join(filter(None, skills))
    return " ".join(filter(None, (card.description, f"Skills: {listed}" if listed else "")))


def choose_interface(card: AgentCard, url: str) -> AgentInterface:
    """The interface to use: at the manifest's own address if there is one, then by version, then by the card's order.

    Raises AgentRejected if no interface is supported.
    """
    supported = [
        interface
        for interface in card.supported_interfaces
        if interface.protocol_binding in BINDINGS and _rank(interface) is not None
    ]
    at_url = [interface for interface in supported if is_at(interface, url)]
    if not supported:
        offered = ", ".join(f"{i.protocol_binding} {i.protocol_version}" for i in card.supported_interfaces) or "none"
        only = truncate(offered, 200)
        raise AgentRejected(f"the agent at {authority_of(url)} has no supported interface, only: {only}")
    return min(at_url or supported, key=lambda interface: _rank(interface) or 0)


def is_at(interface: AgentInterface, url: str) -> bool:
    """Whether an interface is on the same server as ``url``."""
    try:
        return Origin.of(interface.url) == Origin.of(url)
    except httpx.InvalidURL:
        return False


def _rank(interface: AgentInterface) -> int | None:
    version = interface.protocol_version or VERSIONS[0]
    return next((rank for rank, prefix in enumerate(VERSIONS) if version.startswith(prefix)), None)


CARD_SECONDS = 30.0
DESCRIBE_SECONDS = 5.0
CANCEL_SECONDS = 10.0
MAX_CHECK = 300
"""Characters of a check's result."""


class A2AExecutor:
    """An ``AgentExecutor``."""

    def __init__(self) -> None:
        self._connections = SharedConnections()

    async def execute(self, lease: Lease, execution: Execution, on_text: Callable[[str], None]) -> list[Message]:
        """The agent's answer, as one message."""
        progress = Progress(on_text)
        seconds = execution.seconds
        agent = execution.agent
        async with self._client(execution.executor, execution.values, seconds) as (client, card):
            call = A2ACall(client, execution, progress, execution.executor.id)
            running = asyncio.create_task(call.run(lease))
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.shield(running)
            except TimeoutError:
                await call.cancel()
                raise CallTimeout(f"agent {agent.name} did not finish within {seconds:g} s", retryable=False) from None
            except asyncio.CancelledError:
                if is_withdrawn():
                    await call.cancel()
                raise
            finally:
                running.cancel()
                await asyncio.wait([running])
        asks = isinstance(execution.executor, A2AServer) and execution.executor.spec.questions is not None
        _check_state(progress, agent.name, asks=asks)
        text = progress.text or "(no text)"
        model = card.name[:100] or None
        remote = progress.remote_task(agent.id)
        return [Message(role="assistant", content=text, name=agent.name, model=model, remote=remote)]

    @contextlib.asynccontextmanager
    async def _client(
        self, server: Executor, values: ValueResolver, seconds: float
    ) -> AsyncIterator[tuple[Client, AgentCard]]:
        """A client for an interface in the agent's card.

        The manifest's headers are not sent to an interface on another server than the manifest's.
        """
        at, headers = endpoint_of(server, values)
        async with outbound_to(at).open(
            httpx.AsyncClient,
            transport=self._connections,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            auth=CurrentHeaders(server, values, at, headers),
        ) as http:
            http.headers.update(trace_headers())
            card = await _card(http, at.url, min(seconds, CARD_SECONDS))
            interface = choose_interface(card, at.url)
            del card.supported_interfaces[:]
            card.supported_interfaces.append(interface)
            config = ClientConfig(httpx_client=http, supported_protocol_bindings=[*BINDINGS], polling=True)
            yield ClientFactory(config).create(card), card

    async def cancel(self, execution: Execution, *, was_sent: bool) -> bool:
        """Cancels the task of an earlier attempt, within CANCEL_SECONDS."""
        progress = Progress(lambda _: None)
        server = execution.executor
        try:
            async with (
                asyncio.timeout(CANCEL_SECONDS),
                self._client(server, execution.values, CANCEL_SECONDS) as (client, _),
            ):
                with without_lease():  # a task is canceled once
                    return await A2ACall(client, execution, progress, server.id).cancel_earlier(was_sent=was_sent)
        except TimeoutError:
            raise AgentUnavailable(f"{server.id} did not cancel the task within {CANCEL_SECONDS:g} s") from None

    async def describe(self, executor: Executor, values: ValueResolver) -> str | None:
        """The description of the agent and its skills in the card."""
        async with self._client(executor, values, DESCRIBE_SECONDS) as (_, card):
            return description_of(card)

    async def check(self, executor: Executor, values: ValueResolver) -> str:
        """Reads the card: the agent's name, its protocol and its skills."""
        async with self._client(executor, values, CARD_SECONDS) as (_, card):
            interface = card.supported_interfaces[0]
            skills = ", ".join(skill.name for skill in card.skills)
            text = f"{card.name}, by A2A {interface.protocol_version} and {interface.protocol_binding}"
            return truncate(f"{text}; skills: {skills}" if skills else text, MAX_CHECK)

    async def close(self) -> None:
        """Closes the connections."""
        await self._connections.close()


async def _card(http: httpx.AsyncClient, url: str, seconds: float) -> AgentCard:
    try:
        async with asyncio.timeout(seconds):
            return await read_card(http, url)
    except TimeoutError:
        text = f"{authority_of(url)} did not send its agent card within {seconds:g} s"
        raise AgentUnavailable(text) from None


def _check_state(progress: Progress, agent: str, *, asks: bool) -> None:
    """Raises an error for a failed state of the task. If the server ``asks`` people, authorization is not a failure."""
    text = f": {progress.status_text}" if progress.status_text else ""
    match progress.state:
        case _ if progress.is_message:
            pass
        case TaskState.TASK_STATE_AUTH_REQUIRED if not asks:
            raise AuthorizationRequired(f"agent {agent} requires authorization{text}")
        case TaskState.TASK_STATE_REJECTED:
            raise AgentRejected(f"agent {agent} has rejected its task{text}")
        case TaskState.TASK_STATE_CANCELED:
            raise AgentFailed(f"the task of agent {agent} was canceled on its server{text}")
        case TaskState.TASK_STATE_FAILED:
            raise AgentFailed(f"agent {agent} has failed{text}")
