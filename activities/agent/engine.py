"""Agents of an ExecutionEngine: one request ``POST /execute`` executes an agent (ARK: agent execution, external)."""

import asyncio
from collections.abc import Callable

import httpx

from ...conversation.errors import (
    AgentFailed,
    AgentRejected,
    AgentUnavailable,
    CallTimeout,
    KeyRefused,
    OutcomeUnknown,
)
from ...conversation.failure import MAX_ERROR_TEXT, BatonError
from ...conversation.messages.message import Message
from ..context.executor import Executor
from ..context.value_resolver import ValueResolver
from ..runtime.call_spans import trace_headers
from ..runtime.retry import is_retryable, retry_after
from .bounded_http import CONNECT_SECONDS, BoundedTransport, CurrentHeaders, Origin, endpoint_of, new_pool
from .engine_protocol import EngineResponse, engine_request
from .executor import Execution

TURNED_AWAY = frozenset({425, 429, 503})
"""HTTP status codes by which a server says that it has not begun: the request may be sent again."""


class EngineExecutor:
    """An ``AgentExecutor``. An engine is asked once, unless its manifest says that it is idempotent."""

    def __init__(self) -> None:
        self._pool = new_pool()

    async def execute(self, execution: Execution, on_text: Callable[[str], None]) -> list[Message]:
        """The messages of the engine's response."""
        engine, record, seconds = execution.executor, execution.record, execution.seconds
        url, headers = endpoint_of(engine, execution.values)
        trusted = Origin.trusted(url, engine, execution.values)
        current = CurrentHeaders(engine, execution.values, headers)
        body = (await engine_request(execution)).model_dump_json(by_alias=True, exclude_none=True)
        if not engine.spec.idempotent:
            await record.begin_once(f"the execution of {execution.agent.name}")
        try:
            async with asyncio.timeout(seconds):
                response = await self._post(trusted, url, current, body, record.key)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            await record.not_sent()
            raise AgentUnavailable(f"{engine.id} can't be reached: {error or type(error).__name__}") from None
        except TimeoutError:
            raise _broken_off(engine, f"gave no answer in {seconds:g} s", CallTimeout) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            what = f"broke off its answer: {error or type(error).__name__}"
            raise _broken_off(engine, what, AgentUnavailable) from None
        if response.status_code in TURNED_AWAY:
            await record.not_sent()
        if not response.is_success:
            raise _refusal(engine, response)
        answer = EngineResponse.read(response.content, engine.name)
        return answer.messages_of(execution.agent.name, engine.name)

    async def cancel(self, execution: Execution) -> bool:
        """Nothing: an engine has no request for that."""
        return False

    async def describe(self, executor: Executor, values: ValueResolver) -> str | None:
        """Nothing: an engine executes whatever agent it is given."""
        return None

    async def check(self, executor: Executor, values: ValueResolver) -> str:
        """Whatever it answers to a GET shows that it is there."""
        url, headers = endpoint_of(executor, values)
        try:
            async with self._http(Origin.trusted(url, executor, values)).stream("GET", url, headers=headers):
                return f"{url} answers"
        except httpx.HTTPError as error:
            raise AgentUnavailable(f"{executor.id} can't be reached: {error or type(error).__name__}") from None

    async def _post(
        self, trusted: Origin | None, url: str, headers: CurrentHeaders, body: str, key: str
    ) -> httpx.Response:
        """The response, read to its end; redirects are not followed."""
        own = {"content-type": "application/json", "idempotency-key": key, **trace_headers()}
        return await self._http(trusted).post(f"{url}/execute", content=body, headers=own, auth=headers)

    def _http(self, trusted: Origin | None) -> httpx.AsyncClient:
        """A client that shares the connections of all; so it need not be closed."""
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        return httpx.AsyncClient(transport=BoundedTransport(self._pool, trusted), timeout=timeout)

    async def close(self) -> None:
        """Closes the connections."""
        await self._pool.aclose()


def _broken_off(engine: Executor, what: str, repeatable: type[BatonError]) -> BatonError:
    """The error for an execution that may have been carried out; ``repeatable`` if that does not matter."""
    if engine.spec.idempotent:
        return repeatable(f"{engine.id} {what}")
    return OutcomeUnknown(f"{engine.id} {what}; whether it was carried out is unknown", outage=True)


def _refusal(engine: Executor, response: httpx.Response) -> BatonError:
    status, words = response.status_code, " ".join(response.text.split())[:MAX_ERROR_TEXT]
    text = f"{engine.id} answered HTTP {status} {response.reason_phrase}".strip() + (f": {words}" if words else "")
    if status in (401, 403):
        return KeyRefused(text)
    if status in TURNED_AWAY or (engine.spec.idempotent and is_retryable(status)):
        return AgentUnavailable(text, retry_after=retry_after(response.headers), outage=status >= 500)
    return AgentFailed(text, outage=True) if status >= 500 else AgentRejected(text)
