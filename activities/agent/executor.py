"""The protocol of what executes agents elsewhere: what the activity ``execute_agent`` needs of it."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import httpx

from ...contracts.errors import AgentFailed, AgentUnavailable, InvalidManifest, ToolFailed
from ...contracts.message import Message, RemoteTask
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.memory import Memory
from ...resources.values import check_url
from ..context.call_record import CallRecord
from ..context.lookup import Executor
from ..context.value_resolver import ValueResolver, headers_of
from ..runtime.http import BodyLimits, bound_response, read_once
from ..tool.http_request import public_address
from ..tool.tool import ToolDefinition


@dataclass(frozen=True)
class Execution:
    """One execution of an agent.

    ``messages`` are the conversation and, at last, what the agent is asked; ``previous`` is the place of the agent's
    last message in this conversation, and ``since`` the messages after it. ``record`` keeps notes for a next attempt.
    """

    agent: Agent
    executor: Executor
    values: ValueResolver
    record: CallRecord
    messages: Sequence[Message]
    seconds: float
    tools: Sequence[ToolDefinition] = ()
    schema: JsonObject | None = None
    previous: RemoteTask | None = None
    since: Sequence[Message] = ()


class AgentExecutor(Protocol):
    """Executes agents by one kind of manifest. One instance serves all agents of a worker.

    It resolves addresses and keys at the time of use, and translates every failure into an error of
    ``contracts.errors``: which one decides whether Temporal tries again.
    """

    async def execute(self, execution: Execution, on_text: Callable[[str], None]) -> list[Message]:
        """The agent's messages, of which the last is its answer; ``on_text`` gets its text as it is written."""
        ...

    async def cancel(self, execution: Execution) -> bool:
        """Cancels what an execution that is given up has left open, if that can be done; whether the server was asked.

        ``execution`` has no messages.
        """
        ...

    async def describe(self, executor: Executor, values: ValueResolver) -> str | None:
        """What the server says that its agent can do; None if it does not say that."""
        ...

    async def check(self, executor: Executor, values: ValueResolver) -> str:
        """Checks without an execution that the server answers, and returns what it says of itself."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...


MAX_BYTES = 8_000_000
"""Bytes of an answer, or of one event of a stream."""

MAX_OBJECTS = 10_000
"""Opening braces and brackets in them: many small values take far longer to read than one long text."""

CONNECT_SECONDS = 10.0


def new_pool() -> httpx.AsyncHTTPTransport:
    """Connections for all calls of a worker, which bounds their number itself."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    return httpx.AsyncHTTPTransport(verify=read_once(httpx.create_ssl_context), limits=limits)


class Origin(str):
    """Scheme, host and port of an address."""

    @classmethod
    def trusted(cls, url: str, executor: Executor | Memory, values: ValueResolver) -> "Origin | None":
        """The origin of an executor's address, unless a run has brought its manifest."""
        return None if values.is_guarded(executor) else cls.of(url)

    @classmethod
    def of(cls, url: str) -> "Origin":
        parsed = httpx.URL(url)
        return cls(f"{parsed.scheme}://{parsed.host}:{parsed.port or {'http': 80, 'https': 443}.get(parsed.scheme)}")


class BoundedTransport(httpx.AsyncBaseTransport):
    """Sends requests with the connections of ``pool``, which outlives it, and bounds the answers.

    A server that is not ``trusted``, because its address comes from elsewhere than the worker's own manifest, has to
    have a public address, unless ``private``. Raises AgentFailed for what is out of bounds.
    """

    def __init__(
        self,
        pool: httpx.AsyncBaseTransport,
        trusted: Origin | None,
        *,
        private: bool = False,
        max_objects: int = MAX_OBJECTS,
    ) -> None:
        self._pool, self._trusted, self._private, self._max_objects = pool, trusted, private, max_objects

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response, whose body raises AgentFailed as soon as it is too long."""
        request.headers["accept-encoding"] = "identity"  # a compressed answer may be a thousand times as long
        if not (self._private or Origin.of(str(request.url)) == self._trusted):
            await _to_public_address(request)
        response = await self._pool.handle_async_request(request)
        host = request.headers["host"]
        bound_response(response, BodyLimits(MAX_BYTES, self._max_objects, lambda text: AgentFailed(f"{host} {text}")))
        return response


async def _to_public_address(request: httpx.Request) -> None:
    """Leads a request to the address that was checked, with the name of its host in the header and for TLS."""
    host = request.extensions.get("sni_hostname", request.url.host)  # of a request that is sent again
    try:
        address = await public_address(host, request.url.port or {"http": 80, "https": 443}[request.url.scheme])
    except ToolFailed as refused:
        family = AgentFailed if refused.non_retryable else AgentUnavailable
        raise family(refused.message) from None
    request.url = request.url.copy_with(host=address)
    request.extensions = {**request.extensions, "sni_hostname": host}
    request.headers["connection"] = "close"  # a connection for this host must not be reused for another one


class CurrentHeaders(httpx.Auth):
    """The headers of a server's manifest in each request; after a 401 they are read anew, as a token may have expired.

    A request that was refused so had no effect, and is sent again once if a header has changed.
    """

    def __init__(self, executor: Executor, values: ValueResolver, headers: dict[str, str]) -> None:
        self._executor, self._values, self._headers = executor, values, headers

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Sends the request, and sends it again where that can help."""
        sent = self._headers
        request.headers.update(sent)
        response = yield request
        if response.status_code != 401:
            return
        self._headers = endpoint_of(self._executor, await self._values.with_current_secrets())[1]
        if self._headers != sent:
            request.headers.update(self._headers)
            yield request


def endpoint_of(executor: Executor | Memory, values: ValueResolver) -> tuple[str, dict[str, str]]:
    """The address of a server, without a slash at its end, and the headers of requests to it, by their names."""
    url = (values.resolve(executor.spec.address, executor) or "").rstrip("/")
    try:
        check_url(url)
    except ValueError as error:
        raise InvalidManifest(f"{executor.id}: its address {error}") from None
    return url, dict(headers_of(executor, executor.spec.headers, values))
