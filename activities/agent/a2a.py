"""Agents of A2AServers: finds the agent's card, calls it, and turns the answer into a message (ARK: A2A execution)."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence

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
from pydantic import JsonValue

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
from ...observability.spans import trace_headers
from ...resources.a2a_server import A2AServer
from ...temporal.activity import is_withdrawn
from ..context.lookup import Executor
from ..context.value_resolver import ValueResolver
from ..runtime.http import is_retryable, retry_after
from ..runtime.outbound import Origin, SharedConnections
from .executor import (
    CONNECT_SECONDS,
    MAX_BYTES,
    CurrentHeaders,
    Execution,
    endpoint_of,
    outbound_of,
)

LONGEST = 1_000
"""Characters of a server's words in an error."""

TURNED_AWAY = frozenset({425, 429, 503})
"""HTTP status codes by which a server says that it has not begun: the request may be sent again."""

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


def is_not_begun(error: Exception) -> bool:
    """Whether a request has had no effect: it did not arrive, or the server turned it away."""
    cause = _cause(error)
    if isinstance(cause, httpx.HTTPStatusError):
        return cause.response.status_code in TURNED_AWAY
    return isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout)


def error_of(error: Exception, server: str) -> BatonError:
    """The meaning of an exception of the SDK, or of what it uses to read an answer."""
    if isinstance(error, BatonError):
        return error
    cause = _cause(error)
    words = truncate(str(error) or type(error).__name__, LONGEST)
    if isinstance(error, _BY_SERVER):
        return AgentRejected(f"{server} refuses the request: {words}")
    if isinstance(cause, httpx.HTTPStatusError):
        return _of_status(cause.response, server)
    if isinstance(cause, httpx.RequestError):
        return AgentUnavailable(f"{server} can't be reached: {cause or type(cause).__name__}")
    return AgentFailed(f"{server} gives no answer that can be read: {type(error).__name__}: {words}")


def _of_status(response: httpx.Response, server: str) -> BatonError:
    status = response.status_code
    text = f"{server} answered HTTP {status} {response.reason_phrase}".strip()
    if status in (401, 403):
        return KeyRefused(text)
    if is_retryable(status):
        return AgentUnavailable(text, retry_after=retry_after(response.headers), outage=status >= 500)
    return AgentRejected(text)


def _cause(error: Exception) -> BaseException:
    """The exception of HTTP behind one of the SDK, or the exception itself."""
    return error.__cause__ if isinstance(error.__cause__, httpx.HTTPError) else error


MAX_PAGES = 10
"""Pages of tasks that are read."""


async def find_task(client: Client, message_id: str, context: str, server: str) -> Task | None:
    """The task of a message, among those of a context or, without one, among all; None if the server can't say.

    A list leaves out artifacts, so the task itself is still to be asked for. Raises AgentUnavailable.
    """
    request = ListTasksRequest(page_size=100, history_length=100, context_id=context)
    try:
        for _ in range(MAX_PAGES):
            page = await client.list_tasks(request)
            for task in page.tasks:
                if any(each.message_id == message_id for each in task.history):
                    return task
            if not page.next_page_token:
                return None
            request.page_token = page.next_page_token
    except Exception as error:
        meaning = error_of(error, server)
        if isinstance(meaning, AgentUnavailable):
            raise meaning from None
    return None


async def cancel_task(client: Client, task: str, server: str) -> bool:
    """Asks the server to cancel a task; False if that has ended. Raises an error of ``conversation.errors``."""
    try:
        await client.cancel_task(CancelTaskRequest(id=task))
    except (TaskNotCancelableError, TaskNotFoundError):
        return False
    except Exception as error:
        raise error_of(error, server) from None
    return True


def text_of(parts: Iterable[Part]) -> str:
    """The text of parts, each in a paragraph of its own."""
    return "\n\n".join(filter(None, map(_text, parts)))


def _text(part: Part) -> str:
    match part.WhichOneof("content"):
        case "text":
            return part.text
        case "data":
            return f"[data]\n{json.dumps(_plain(MessageToDict(part.data)), ensure_ascii=False)}"
        case "url":
            return f"[{_file(part)}, at {part.url}]"
        case "raw":
            return f"[{_file(part)}, {len(part.raw):,} bytes]"
    return ""


def _plain(value: JsonValue) -> JsonValue:
    """A JSON value whose whole numbers are written without a fraction: the protocol's library has no others."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _file(part: Part) -> str:
    return ", ".join(filter(None, (f"file {part.filename}".strip(), part.media_type)))


def parts_of(messages: Sequence[Message]) -> list[Part]:
    """What an agent gets to read: the conversation so far as one text, then what it is asked as another."""
    *history, asked = messages
    lines = [f"{each.name or each.role}: {each.content}" for each in history if each.content]
    if not lines:
        return [Part(text=asked.content)]
    return [Part(text="\n\n".join(("The conversation so far:", *lines))), Part(text=asked.content)]


OPEN = (TaskState.TASK_STATE_UNSPECIFIED, TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
"""States of a task after which more is to come by itself."""

LONGEST_ID = 1_000
"""Characters of an id that a server gives; a longer one is not kept."""

OVERHEAD = 100
"""Bytes of an artifact, or of a part of one, besides its content."""


class Progress:
    """The answer as it grows; ``on_text`` gets each new piece of its text."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self.task = ""
        self.context = ""
        self.state: TaskState = TaskState.TASK_STATE_UNSPECIFIED
        self._message: A2AMessage | None = None
        self._said = ""
        self._artifacts: dict[str, list[Part]] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will come by itself."""
        return self._message is not None or self.state not in OPEN

    @property
    def is_message(self) -> bool:
        """Whether the answer is a message, without a task."""
        return self._message is not None

    def place(self, agent: str) -> RemoteTask:
        """The place of the answer on its server."""
        state = TaskState.Name(self.state).removeprefix("TASK_STATE_").lower().replace("_", "-")
        return RemoteTask(
            agent=agent,
            context=self.context or None,
            task=self.task or None,
            state=state if self.task else None,
        )

    @property
    def text(self) -> str:
        """The answer's text: the artifacts; without any, what the agent has said last."""
        if self._message is not None:
            return text_of(self._message.parts)
        made = "\n\n".join(filter(None, map(text_of, self._artifacts.values())))
        if self.state == TaskState.TASK_STATE_COMPLETED:
            return made or self._said
        return "\n\n".join(filter(None, (made, self._said)))

    @property
    def said(self) -> str:
        """What the agent has said last about its state."""
        return self._said

    def take(self, event: StreamResponse) -> None:
        """Takes what a server sends."""
        match event.WhichOneof("payload"):
            case "task":
                self.take_task(event.task)
            case "message":
                self._message = event.message
                self._known("", event.message.context_id)
            case "status_update":
                update = event.status_update
                self._known(update.task_id, update.context_id)
                self._status(update.status.state, update.status.message)
            case "artifact_update":
                self._known(event.artifact_update.task_id, event.artifact_update.context_id)
                self._artifact(event.artifact_update.artifact, append=event.artifact_update.append)

    def take_task(self, task: Task) -> None:
        """Takes a whole task."""
        self._known(task.id, task.context_id)
        for artifact in task.artifacts:
            self._artifact(artifact, append=False)
        own = [each for each in task.history if each.role == Role.ROLE_AGENT]
        has_said = task.status.HasField("message")
        self._status(task.status.state, task.status.message if has_said or not own else own[-1])

    def recall(self, task: str, context: str) -> None:
        """Takes the ids that an earlier attempt has noted."""
        self._known(task, context)

    def _known(self, task: str, context: str) -> None:
        self.task = self.task or task[:LONGEST_ID]
        self.context = context[:LONGEST_ID] or self.context

    def _status(self, state: TaskState, message: A2AMessage) -> None:
        self.state = state
        said = text_of(message.parts)
        if said and said != self._said:
            self._said = said
            self._on_text(f"{said}\n")

    def _artifact(self, artifact: Artifact, *, append: bool) -> None:
        key = artifact.artifact_id
        text = "".join(part.text for part in artifact.parts)
        known = self._artifacts.setdefault(key, [])
        if not append:
            text = text.removeprefix("".join(part.text for part in known))
            known.clear()
            self._size -= self._sizes.pop(key, 0)
        added = _extend(known, artifact.parts) + (0 if key in self._sizes else OVERHEAD + len(key))
        self._sizes[key] = self._sizes.get(key, 0) + added
        self._size += added
        self._on_text(text)
        if self._size > MAX_BYTES:
            raise AgentFailed(f"the agent gives more than {MAX_BYTES:,} bytes")


def _extend(parts: list[Part], more: Iterable[Part]) -> int:
    """Adds the parts of a next chunk, and returns how many bytes they take.

    A text after a text continues it: so they stand in a task that was streamed.
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
"""Seconds between two questions for the state of a task that is not streamed."""

IDLE = 30.0
"""Seconds without an event after which a stream is left, and the task's state is asked for."""

PATIENCE = 20.0
"""Seconds for which a server may be unreachable before the attempt ends; another one follows the same task."""

CANCEL_IN_FLIGHT_SECONDS = 5.0


class A2ACall:
    """A call of an agent with a client of its server, ``server`` in errors."""

    def __init__(self, client: Client, execution: Execution, progress: Progress, server: str) -> None:
        self._client = client
        self._execution = execution
        self._progress = progress
        self._server = server
        self._record = execution.record
        self._is_sent = False
        self._is_known = asyncio.Event()

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
            async with asyncio.timeout(CANCEL_IN_FLIGHT_SECONDS):
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
        goes_on = self._execution.previous
        self._is_sent = True
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
        previous = self._execution.previous
        key = self._record.key
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


WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where a card stands: since version 0.3 of the protocol, and before."""

BINDINGS = (TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON)
VERSIONS = ("1.", "0.3", "0.2")
"""How the versions begin that can be spoken, the best first; 0.2 has the messages of 0.3."""


async def read_card(http: httpx.AsyncClient, url: str) -> AgentCard:
    """The card of the server at ``url``, from the first place where it has one."""
    resolver = A2ACardResolver(http, url)
    for path in WELL_KNOWN:
        try:
            return await resolver.get_agent_card(path)
        except AgentCardResolutionError as error:
            if error.status_code not in (404, 405, 410):
                raise _no_card(error, url) from None
    raise AgentFailed(f"{url} has no agent card: neither {' nor '.join(WELL_KNOWN)}")


def _no_card(error: AgentCardResolutionError, url: str) -> BatonError:
    status = error.status_code
    text = truncate(str(error), 300)
    if status in (401, 403):
        return KeyRefused(f"{url} refuses to give its agent card: HTTP {status}")
    if isinstance(error.__cause__, httpx.RequestError):
        return AgentUnavailable(f"{url} can't be reached: {error.__cause__ or type(error.__cause__).__name__}")
    if status is not None and is_retryable(status):
        return AgentUnavailable(f"{url} gives no agent card now: HTTP {status}")
    return AgentRejected(f"{url} has no agent card that can be read: {text}")


def description_of(card: AgentCard) -> str:
    """What a card says of its agent: its description, and its skills with theirs."""
    skills = (": ".join(filter(None, (each.name, each.description))) for each in card.skills)
    listed = "; ".join(filter(None, skills))
    return " ".join(filter(None, (card.description, f"Skills: {listed}" if listed else "")))


def choose_interface(card: AgentCard, url: str) -> AgentInterface:
    """The interface to use: at the manifest's own address if there is one, then by version, then by the card's order.

    Raises AgentRejected if the agent speaks nothing that is known here.
    """
    known = [
        each for each in card.supported_interfaces if each.protocol_binding in BINDINGS and _rank(each) is not None
    ]
    near = [each for each in known if is_at(each, url)]
    if not known:
        spoken = ", ".join(f"{i.protocol_binding} {i.protocol_version}" for i in card.supported_interfaces) or "nothing"
        raise AgentRejected(f"the agent at {url} speaks {truncate(spoken, 200)}: none of that is supported")
    return min(near or known, key=lambda each: _rank(each) or 0)


def is_at(interface: AgentInterface, url: str) -> bool:
    """Whether an interface is at the same server as ``url``."""
    try:
        return Origin.of(interface.url) == Origin.of(url)
    except httpx.InvalidURL:
        return False


def _rank(interface: AgentInterface) -> int | None:
    version = interface.protocol_version or VERSIONS[0]
    return next((rank for rank, begin in enumerate(VERSIONS) if version.startswith(begin)), None)


CARD_SECONDS = 30.0
DESCRIBE_SECONDS = 5.0
CANCEL_SECONDS = 10.0
MAX_CHECK = 300
"""Characters that a check tells of a card."""


class A2AExecutor:
    """An ``AgentExecutor``. ``private`` allows agents in the worker's own network whose address only a card says."""

    def __init__(self, *, private: bool = False) -> None:
        self._connections = SharedConnections()
        self._private = private

    async def execute(self, execution: Execution, on_text: Callable[[str], None]) -> list[Message]:
        """The agent's answer, as one message."""
        progress = Progress(on_text)
        seconds = execution.seconds
        agent = execution.agent
        async with self._client(execution.executor, execution.values, seconds) as (client, card):
            call = A2ACall(client, execution, progress, execution.executor.id)
            running = asyncio.create_task(call.run())
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.shield(running)
            except TimeoutError:
                await call.cancel()
                raise CallTimeout(f"agent {agent.name} has not finished in {seconds:g} s", retryable=False) from None
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
        return [Message(role="assistant", content=text, name=agent.name, model=model, remote=progress.place(agent.id))]

    @contextlib.asynccontextmanager
    async def _client(
        self, server: Executor, values: ValueResolver, seconds: float
    ) -> AsyncIterator[tuple[Client, AgentCard]]:
        """A client of the agent, by the interface that its card offers.

        An interface at another server than the manifest's gets none of the manifest's headers.
        """
        url, headers = endpoint_of(server, values)
        async with outbound_of(server, url, values, private=self._private).open(
            httpx.AsyncClient,
            headers=trace_headers(),
            transport=self._connections,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            auth=CurrentHeaders(server, values, headers),
        ) as http:
            card = await _card(http, url, min(seconds, CARD_SECONDS))
            interface = choose_interface(card, url)
            if not is_at(interface, url):
                http.auth = httpx.Auth()  # none
            del card.supported_interfaces[:]
            card.supported_interfaces.append(interface)
            config = ClientConfig(httpx_client=http, supported_protocol_bindings=[*BINDINGS], polling=True)
            yield ClientFactory(config).create(card), card

    async def cancel(self, execution: Execution) -> bool:
        """Cancels the task of an earlier attempt, in CANCEL_SECONDS."""
        progress = Progress(lambda _: None)
        server = execution.executor
        try:
            async with asyncio.timeout(CANCEL_SECONDS), self._client(server, execution.values, CANCEL_SECONDS) as made:
                return await A2ACall(made[0], execution, progress, server.id).cancel_earlier()
        except TimeoutError:
            raise AgentUnavailable(f"{server.id} has canceled no task in {CANCEL_SECONDS:g} s") from None

    async def describe(self, executor: Executor, values: ValueResolver) -> str | None:
        """What the card says of the agent and its skills."""
        async with self._client(executor, values, DESCRIBE_SECONDS) as (_, card):
            return description_of(card)

    async def check(self, executor: Executor, values: ValueResolver) -> str:
        """Reads the card: the agent's name, how it is spoken to, and its skills."""
        async with self._client(executor, values, CARD_SECONDS) as (_, card):
            interface = card.supported_interfaces[0]
            skills = ", ".join(each.name for each in card.skills)
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
        raise AgentUnavailable(f"{url} gave no agent card in {seconds:g} s") from None


def _check_state(progress: Progress, agent: str, *, asks: bool) -> None:
    """Raises the error that the state of a task stands for; where it ``asks``, a person can give an authorization."""
    words = f": {progress.said}" if progress.said else ""
    match progress.state:
        case _ if progress.is_message:
            pass
        case TaskState.TASK_STATE_AUTH_REQUIRED if not asks:
            raise AuthorizationRequired(f"agent {agent} waits for an authorization{words}")
        case TaskState.TASK_STATE_REJECTED:
            raise AgentRejected(f"agent {agent} has rejected its task{words}")
        case TaskState.TASK_STATE_CANCELED:
            raise AgentFailed(f"the task of agent {agent} was canceled at its server{words}")
        case TaskState.TASK_STATE_FAILED:
            raise AgentFailed(f"agent {agent} has failed{words}")
