"""The protocol of what executes agents elsewhere: what the activity ``execute_agent`` needs of it."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import httpx

from ...contracts.errors import AgentFailed, AgentUnavailable, InvalidManifest
from ...contracts.message import Message, RemoteTask
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.memory import Memory
from ...resources.values import check_url
from ..context.call_record import CallRecord
from ..context.lookup import Executor
from ..context.value_resolver import ValueResolver, headers_of
from ..runtime.outbound import BodyLimits, Origin, Outbound
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


def outbound_of(executor: Executor | Memory, url: str, values: ValueResolver, *, private: bool = False) -> Outbound:
    """The rules for requests to a server at ``url``, and to others that it names, as in an agent card.

    These may be in the worker's own network only if they are ``private``; the server itself may, unless its manifest is
    an inline one.
    """
    return Outbound(
        BodyLimits(MAX_BYTES, MAX_OBJECTS),
        guarded=not private,
        trusted=None if values.is_guarded(executor) else Origin.of(url),
        exceeded=AgentFailed,
        refused=AgentFailed,
        unreachable=AgentUnavailable,
    )


class CurrentHeaders(httpx.Auth):
    """The headers of a server's manifest in each request; after a 401 they are read anew, as a token may have expired.

    A request that was refused so had no effect, and is sent again once if a header has changed.
    """

    def __init__(self, executor: Executor, values: ValueResolver, headers: dict[str, str]) -> None:
        self._executor = executor
        self._values = values
        self._headers = headers

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
