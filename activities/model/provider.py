"""The protocol of model providers, and what they share: client pools and the translation of errors."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Generic, Protocol, TypeVar

import httpx2

from ...contracts.attachment import Attachment, segments
from ...contracts.errors import BatonError, BrokenReply, CallTimeout, KeyRefused, ModelRejected, ModelUnavailable
from ...contracts.message import Message
from ...resources.base import JsonObject
from ..context.metering import ChainedModel
from ..context.value_resolver import ValueResolver
from ..runtime.http import is_retryable, retry_after
from ..tool.tool import ToolDefinition


@dataclass(frozen=True)
class Attached:
    """An image or a file for a request, with its ``content`` unless it is at a URL."""

    attachment: Attachment
    content: bytes | None = field(default=None, repr=False)

    @property
    def media_type(self) -> str:
        """The media type of the content."""
        return self.attachment.media_type or "application/octet-stream"

    @property
    def base64(self) -> str:
        """The content in base64."""
        return base64.b64encode(self.content or b"").decode()

    @property
    def url(self) -> str:
        """The URL of the image or the file, or a data URL."""
        return self.attachment.url or f"data:{self.media_type};base64,{self.base64}"


@dataclass(frozen=True)
class ModelRequest:
    """A request to a model, independent of an API.

    ``schema`` is the JSON Schema of the final answer, if it has one; a provider sends it in the form that its server
    supports. ``must_use``: the model must call one of the tools. ``speaker`` is the name of the model's own earlier
    messages in the conversation; assistant messages with other names are from other speakers. ``label`` distinguishes
    the calls of one activity. ``contents`` are the bytes of the attachments of messages that are stored, by their ids.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolDefinition] = ()
    schema: JsonObject | None = None
    must_use: bool = False
    speaker: str | None = None
    label: str = "call"
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def segments(self, message: Message) -> Iterator[str | Attached]:
        """The texts and attachments of a message in order."""
        for segment in segments(message.content, message.attachments):
            yield segment if isinstance(segment, str) else Attached(segment, self.contents.get(segment.stored or ""))


class Provider(Protocol):
    """Calls the models of one or more types (``spec.type`` of a Model). One instance serves all models of a worker.

    It resolves the model's address and key from the manifest at every call, and translates every failure into an error
    of ``contracts.errors``, which decides whether Temporal retries and whether a fallback is called.
    """

    async def ask(
        self, model: ChainedModel, values: ValueResolver, request: ModelRequest, on_text: Callable[[str], None]
    ) -> Message:
        """One answer of the model, within ``model.timeout``; ``on_text`` is called with its text in chunks.

        Raises ModelRejected if the server rejects the request, perhaps because of its schema.
        """
        ...

    async def check(self, model: ChainedModel, values: ValueResolver) -> str:
        """Checks the model's server without a paid request, and returns its address. Raises the errors of ``ask``."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...


Server = TypeVar("Server", bound=Hashable)
Client = TypeVar("Client")

MAX_IDLE = 50
"""Idle clients that stay open: runs may name any number of servers and keys, and clients hold connections."""


@dataclass
class _Open(Generic[Client]):
    client: Client
    stack: AsyncExitStack
    calls: int = 0

    async def close(self) -> None:
        """Closes the client, whose calls have all ended."""
        with contextlib.suppress(Exception):
            await self.stack.aclose()


class ClientPool(Generic[Server, Client]):
    """Clients by server; ``connect`` returns a context manager that opens and closes the client of a server."""

    def __init__(
        self, connect: Callable[[Server], AbstractAsyncContextManager[Client]], max_idle: int = MAX_IDLE
    ) -> None:
        self._connect = connect
        self._max_idle = max_idle
        self._open: dict[Server, _Open[Client]] = {}  # the most recently used client is the last one
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def client(self, server: Server) -> AsyncIterator[Client]:
        """The client of a server, which stays open while the block runs."""
        async with self._opening:
            used = self._open.pop(server, None) or await self._new(server)
            self._open[server] = used
            used.calls += 1
        try:
            yield used.client
        finally:
            used.calls -= 1
            if self._open.get(server) is not used and not used.calls:
                await used.close()
            await self._close_idle(self._max_idle)

    async def renew(self, is_outdated: Callable[[Server], bool]) -> None:
        """Opens new clients of these servers for the next calls; the present ones are closed after their calls."""
        async with self._opening:  # a client that is being opened is outdated, too
            outdated = [self._open.pop(server) for server in [*self._open] if is_outdated(server)]
        for entry in outdated:
            if not entry.calls:
                await entry.close()

    async def close(self) -> None:
        """Closes all clients without a call."""
        await self._close_idle(0)

    async def _new(self, server: Server) -> _Open[Client]:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._connect(server))
            return _Open(client, stack.pop_all())

    async def _close_idle(self, max_idle: int) -> None:
        idle = [server for server, entry in self._open.items() if not entry.calls]
        for entry in [self._open.pop(server) for server in idle[: max(0, len(idle) - max_idle)]]:
            await entry.close()


CONNECT_TIMEOUT = 5.0
"""Seconds after which a server that does not accept a connection counts as unreachable."""

NOT_STARTED = frozenset({503, 529})
"""HTTP status codes above 500 by which a server says that it has not started: such a request costs nothing."""

MAX_SERVER_TEXT = 5_000
"""Characters of a server's message. An error is truncated further after redaction."""


def error_of_status(
    where: str, status: int, message: str, headers: Mapping[str, str], special: type[BatonError] | None = None
) -> BatonError:
    """The error for an HTTP status. ``message`` is the server's; ``special`` is the error for its error code.

    If the server rejects the key, its message is dropped, as it may contain the key.
    """
    if status in (401, 403):
        return KeyRefused(f"{where} rejected the API key (HTTP {status})")
    text = f"{where} answered HTTP {status}: {message[:MAX_SERVER_TEXT]}"
    unsent = status != 408 and (status < 500 or status in NOT_STARTED)
    if special:
        return special(text)
    hint = headers.get("x-should-retry")
    retryable = hint == "true" if hint in ("true", "false") else is_retryable(status)
    if not retryable:
        return ModelRejected(text)
    return ModelUnavailable(text, retry_after=retry_after(headers), outage=status >= 500, unsent=unsent)


def connection_error(error: Exception, where: str, library: ModuleType) -> BatonError:
    """The error if the server sent no valid response.

    ``library`` is ``openai`` or ``anthropic``: their exceptions have the same names, and the cause of a connection
    error is the exception of the HTTP client.
    """
    cause = error.__cause__
    is_timeout = isinstance(error, library.APITimeoutError)
    if is_timeout and isinstance(cause, httpx2.ConnectTimeout):
        return ModelUnavailable(f"{where} can't be reached: no connection within {CONNECT_TIMEOUT:g} s", unsent=True)
    if is_timeout or isinstance(error, httpx2.TimeoutException | TimeoutError):
        return CallTimeout(f"{where} did not respond in time")
    if isinstance(error, library.APIConnectionError):
        if isinstance(cause, BatonError):  # of the Outbound, which refused the address or the response
            return cause
        reason = cause or error
        text = f"{where} can't be reached: {str(reason) or type(reason).__name__}"
        return ModelUnavailable(text, unsent=isinstance(reason, httpx2.ConnectError))
    text = f"{where} sent an invalid response: {type(error).__name__}: {str(error)[:MAX_SERVER_TEXT]}"
    return BrokenReply(text, outage=isinstance(error, httpx2.TransportError))
