"""The protocol of executors of remote agents, and the rules for their requests."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import httpx

from ...contracts.errors import AgentFailed, AgentUnavailable, InvalidManifest
from ...contracts.message import Message, RemoteTask
from ...journal.leases import Lease
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.memory import Memory
from ...resources.values import check_url
from ..context.call_record import CallRecord
from ..context.lookup import Executor
from ..context.value_resolver import ValueResolver, headers_of
from ..runtime.outbound import BodyLimits, Destination, Origin, Outbound
from ..tool.tool import ToolDefinition


@dataclass(frozen=True)
class Execution:
    """One execution of an agent.

    ``messages`` are the conversation and, as the last one, the question; ``previous`` has the remote ids of the agent's
    last message in this conversation, ``since`` the messages after it. ``record`` passes data to the next attempt.
    ``contents`` are the bytes of the attachments of the last message that are stored, by their ids.
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
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)


class AgentExecutor(Protocol):
    """Executes the agents of one kind of manifest. One instance serves all agents of a worker.

    It resolves addresses and keys when they are used, and translates every failure into an error of
    ``contracts.errors``, which decides whether Temporal retries.
    """

    async def execute(self, lease: Lease, execution: Execution, on_text: Callable[[str], None]) -> list[Message]:
        """The agent's messages, of which the last is its answer; ``on_text`` is called with its text in chunks.

        The caller holds the call's ``lease``: right before a request that must not be sent twice, the executor awaits
        ``Lease.send_once``.
        """
        ...

    async def cancel(self, execution: Execution, *, was_sent: bool) -> bool:
        """Cancels the remote task of a canceled execution, if possible. Returns whether it sent a request.

        ``execution`` has no messages. ``was_sent``: its request may have reached the server.
        """
        ...

    async def describe(self, executor: Executor, values: ValueResolver) -> str | None:
        """The server's description of its agent; None if it has none."""
        ...

    async def check(self, executor: Executor, values: ValueResolver) -> str:
        """Checks the server without an execution, and returns a description of it."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...


MAX_BYTES = 8_000_000
"""Bytes of a response, or of one event of a stream."""

MAX_OBJECTS = 10_000
"""Opening braces and brackets in a response or an event: many small values are much slower to parse than one text."""

CONNECT_SECONDS = 10.0


def outbound_to(server: Destination) -> Outbound:
    """The rules for requests to a server, and to other servers that it names, as in an agent card."""
    return Outbound(
        BodyLimits(MAX_BYTES, MAX_OBJECTS),
        destination=server,
        exceeded=AgentFailed,
        refused=AgentFailed,
        unreachable=AgentUnavailable,
    )


class CurrentHeaders(httpx.Auth):
    """Adds the headers of a manifest to requests to its server. After a 401 they are read again: a token may expire.

    A request with a 401 had no effect, and is sent once more if a header has changed.
    """

    def __init__(self, executor: Executor, values: ValueResolver, server: Destination, headers: dict[str, str]) -> None:
        self._executor = executor
        self._values = values
        self._server = server
        self._headers = headers

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Sends the request, and repeats it after a 401 if a header has changed. Other servers get no headers."""
        if Origin.of(str(request.url)) != self._server.origin:
            yield request
            return
        sent = self._headers
        request.headers.update(sent)
        response = yield request
        if response.status_code != 401:
            return
        self._headers = endpoint_of(self._executor, await self._values.with_current_secrets())[1]
        if self._headers != sent:
            request.headers.update(self._headers)
            yield request


def endpoint_of(executor: Executor | Memory, values: ValueResolver) -> tuple[Destination, dict[str, str]]:
    """The server of a manifest, without a trailing slash, and the headers of requests to it, by name."""
    server = values.server_of(executor)
    try:
        check_url(server.url if server else "")
    except ValueError as error:
        raise InvalidManifest(f"{executor.id}: its address {error}") from None
    assert server
    return replace(server, url=server.url.rstrip("/")), dict(headers_of(executor, executor.spec.headers, values))
