"""The protocol of a model provider: what the activities need of the API by which a type of models is asked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, Protocol, TypeVar

import httpx2

from ...contracts.errors import BatonError, BrokenReply, CallTimeout, KeyRefused, ModelRejected, ModelUnavailable
from ...contracts.message import Message
from ...resources.base import JsonObject
from ..context.metering import ChainedModel
from ..context.value_resolver import ValueResolver
from ..runtime.http import is_retryable, retry_after
from ..tool.tool import ToolDefinition


@dataclass(frozen=True)
class ModelRequest:
    """What a model is asked, in the words of no particular API.

    ``schema`` is the JSON Schema of its final answer, if it has to fit one; a provider passes it on as well as its
    server can. ``must_use``: the model has to call one of the tools. ``speaker`` is the name of its own earlier
    messages in the conversation; messages of the role assistant with other names are from others. ``label`` tells the
    calls of one activity apart.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolDefinition] = ()
    schema: JsonObject | None = None
    must_use: bool = False
    speaker: str | None = None
    label: str = "call"


class Provider(Protocol):
    """Asks the models of one or more types (``spec.type`` of a Model). One instance serves all models of a worker.

    It resolves the model's address and key from the manifest at the time of use, and translates every failure into an
    error of ``contracts.errors``: which one decides whether Temporal tries again, and whether a fallback is asked.
    """

    async def ask(
        self, model: ChainedModel, values: ValueResolver, request: ModelRequest, on_text: Callable[[str], None]
    ) -> Message:
        """One answer of the model, within ``model.timeout``; ``on_text`` gets its text piece by piece.

        Raises ModelRejected where the server refuses the request, perhaps because of its schema.
        """
        ...

    async def check(self, model: ChainedModel, values: ValueResolver) -> str:
        """Checks without a paid request that the model's server answers, and returns its address; raises as ``ask``."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...


Server = TypeVar("Server", bound=Hashable)
Client = TypeVar("Client")

MAX_IDLE = 50
"""Clients without a call that stay open. Runs may bring any number of servers and keys; each client has connections."""


@dataclass
class _Open(Generic[Client]):
    client: Client
    stack: AsyncExitStack
    calls: int = 0


class ClientPool(Generic[Server, Client]):
    """``connect`` makes the client of a server, as a context that closes it."""

    def __init__(
        self, connect: Callable[[Server], AbstractAsyncContextManager[Client]], max_idle: int = MAX_IDLE
    ) -> None:
        self._connect = connect
        self._max_idle = max_idle
        self._open: dict[Server, _Open[Client]] = {}  # the client that was used last is the last one
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
            await self._close_idle(self._max_idle)

    async def close(self) -> None:
        """Closes all clients without a call."""
        await self._close_idle(0)

    async def _new(self, server: Server) -> _Open[Client]:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._connect(server))
            return _Open(client, stack.pop_all())

    async def _close_idle(self, left: int) -> None:
        idle = [server for server, each in self._open.items() if not each.calls]
        for each in [self._open.pop(server) for server in idle[: max(0, len(idle) - left)]]:
            with contextlib.suppress(Exception):  # whoever has called has an answer already
                await each.stack.aclose()


CONNECT_TIMEOUT = 5.0
"""Seconds after which a server that does not accept a connection counts as unreachable."""

MAX_SERVER_TEXT = 5_000
"""Characters of a server's own words. An error is cut further, after secrets were removed from it."""


def error_of_status(
    where: str, status: int, words: str, headers: Mapping[str, str], special: type[BatonError] | None = None
) -> BatonError:
    """The error for an HTTP status. ``words`` are the server's own; ``special`` is what its error code stands for.

    The words of a server that refuses the key are left out: they may repeat the key.
    """
    if status in (401, 403):
        return KeyRefused(f"{where} refused the key (HTTP {status})")
    text = f"{where} answered HTTP {status}: {words[:MAX_SERVER_TEXT]}"
    if special:
        return special(text)
    hint = headers.get("x-should-retry")
    retryable = hint == "true" if hint in ("true", "false") else is_retryable(status)
    if not retryable:
        return ModelRejected(text)
    return ModelUnavailable(text, retry_after=retry_after(headers), outage=status >= 500)


def connection_error(error: Exception, where: str, library: ModuleType) -> BatonError:
    """The error where the server gave no answer that can be read.

    ``library`` is ``openai`` or ``anthropic``: their exceptions have the same names, and the cause of one that they
    raise for a connection is what the HTTP client raised.
    """
    cause = error.__cause__
    is_timeout = isinstance(error, library.APITimeoutError)
    if is_timeout and isinstance(cause, httpx2.ConnectTimeout):
        return ModelUnavailable(f"{where} can't be reached: no connection within {CONNECT_TIMEOUT:g} s")
    if is_timeout or isinstance(error, httpx2.TimeoutException | TimeoutError):
        return CallTimeout(f"{where} gave no answer in time")
    if isinstance(error, library.APIConnectionError):
        if isinstance(cause, BatonError):  # the rules for outbound requests refused the address or the answer
            return cause
        reason = cause or error
        return ModelUnavailable(f"{where} can't be reached: {str(reason) or type(reason).__name__}")
    return BrokenReply(f"{where} answered what can't be read: {type(error).__name__}: {str(error)[:MAX_SERVER_TEXT]}")
