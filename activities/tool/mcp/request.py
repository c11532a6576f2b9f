"""One request to an MCP server: the operations, their results, and the retries after failures."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context
from typing import TypeVar

from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    URL_ELICITATION_REQUIRED,
    AudioContent,
    BlobResourceContents,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    ElicitRequest,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import JsonValue, TypeAdapter, ValidationError

from ....contracts.errors import ToolFailed
from ....contracts.text import parse_json, repair_surrogates
from ....journal.leases import check_lease
from ....resources.base import JsonObject
from ....resources.content import ContentPart, part_of_bytes
from ....temporal.activity import on_text
from ...runtime.http import is_retryable
from ..http import MAX_BYTES
from ..tool import BeginOnce, no_guard
from .connection import McpConnection, McpConnections
from .endpoint import McpEndpoint
from .http_client import MAX_ERROR_TEXT, Exchange, watch_exchange
from .input import NEEDS_INPUT, Elicitation, answering, needs_input
from .pinned_tools import ListedTool

T = TypeVar("T")

RECONNECT_DELAYS = (0.5, 1.0, 2.0, 4.0)
"""Seconds between the attempts to send a request that had no effect, as while a server restarts."""


CurrentEndpoint = Callable[[bool, bool], Awaitable[McpEndpoint]]
"""Returns the endpoint of a server; its arguments: read the secrets again, and get another token than the last."""


class _NoEffect(Exception):
    """A request had no effect on the server, so it can be sent again, or only ``once`` more."""

    def __init__(self, failed: ToolFailed, *, once: bool = False, unauthorized: bool = False) -> None:
        self.failed = failed
        self.once = once
        self.unauthorized = unauthorized
        super().__init__(str(failed))


class McpRequest:
    """A request. ``repeatable``: it may be sent again if its outcome is unknown.

    ``begin_once`` is awaited right before the request is sent for the first time.
    """

    def __init__(
        self,
        connections: McpConnections,
        endpoint: CurrentEndpoint,
        *,
        repeatable: bool = True,
        begin_once: BeginOnce = no_guard,
    ) -> None:
        self._connections = connections
        self._endpoint = endpoint
        self._repeatable = repeatable
        self._begin_once = begin_once
        self._has_begun = False
        self._sent = False
        self._label = ""
        self._elicitation: Elicitation | None = None
        self._clock = asyncio.timeout(None)

    async def send(
        self, operation: Callable[[Client], Awaitable[T]], seconds: float, elicitation: Elicitation | None = None
    ) -> T:
        """The result of ``operation`` within ``seconds``, without the time that its ``elicitation`` waits for others.

        Raises ToolFailed, which is retryable only if the request is repeatable or was not sent; the errors of
        ``begin_once``; and those of reading the secrets.
        """
        self._elicitation = elicitation
        self._clock = asyncio.timeout(seconds)
        try:
            async with self._clock:
                return await self._send_with_retries(operation)
        except TimeoutError:
            if not self._label:
                text = f"the token of the MCP server was not refreshed within {seconds:g} s"
                raise ToolFailed(text, retryable=True) from None
            late = f"{self._label} did not respond within {seconds:g} s"
            raise self._unanswered(late, sent=self._sent) from None

    async def _send_with_retries(self, operation: Callable[[Client], Awaitable[T]]) -> T:
        """Sends the request until it takes effect, or is rejected, or there are no delays left."""
        refused = False
        unauthorized = False
        for wait in (*RECONNECT_DELAYS, None):
            try:
                return await self._send(operation, await self._current(refused, unauthorized))
            except _NoEffect as failure:
                if wait is None or (failure.once and refused):
                    failure.failed.unsent = True
                    raise failure.failed from None
                refused = failure.once
                unauthorized = failure.unauthorized
                self._sent = False
                await asyncio.sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _current(self, refused: bool, unauthorized: bool) -> McpEndpoint:
        """The endpoint. After a call has begun that must not be repeated, a failure here is not retryable."""
        try:
            return await self._endpoint(refused, unauthorized)
        except ToolFailed as failed:
            if self._has_begun and not self._repeatable:
                raise ToolFailed(failed.message) from None
            raise

    async def _send(self, operation: Callable[[Client], Awaitable[T]], endpoint: McpEndpoint) -> T:
        self._label = endpoint.label
        async with self._untimed(self._connections.used(endpoint)) as connection:
            with watch_exchange() as exchange:
                return await self._send_on(connection, exchange, operation)

    async def _send_on(
        self, connection: McpConnection, exchange: Exchange, operation: Callable[[Client], Awaitable[T]]
    ) -> T:
        try:
            client = await connection.client()
        except ToolFailed as failed:
            unauthorized = connection.is_unauthorized
            raise _NoEffect(failed, once=failed.non_retryable, unauthorized=unauthorized) from None
        async with self._untimed(answering(client, self._elicitation)):
            if not (self._repeatable or self._has_begun):
                await self._begin_once()
            self._has_begun = True
            if not connection.is_open:
                closed = f"the connection to {self._label} was closed before the call"
                raise _NoEffect(ToolFailed(closed, retryable=True))
            self._sent = True
            exchange.sent = connection.is_running
            try:
                return await operation(client)
            except MCPError as error:
                raise self._failure(error, exchange, connection) from None
            except ValidationError:
                raise ToolFailed(f"{connection.endpoint.label} sent an invalid response") from None

    @asynccontextmanager
    async def _untimed(self, entered: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """Enters a context that may wait for other calls; the timeout is suspended meanwhile."""
        now = asyncio.get_running_loop().time
        left = (self._clock.when() or now()) - now()
        self._clock.reschedule(None)
        async with entered as value:
            self._clock.reschedule(now() + left)
            yield value

    def _failure(self, error: MCPError, exchange: Exchange, connection: McpConnection) -> Exception:
        label = connection.endpoint.label
        if exchange.session_lost:
            connection.retire()
            lost = ToolFailed(f"{label} has no such session: {error.message}"[:MAX_ERROR_TEXT], retryable=True)
            return _NoEffect(lost, once=not exchange.in_session)
        if exchange.status:
            return self._refused(f"{label} answered HTTP {exchange.status}: {error.message}", exchange)
        if exchange.final:
            return ToolFailed(f"{label} {exchange.failure}")
        if error.code == CONNECTION_CLOSED or exchange.failure:
            connection.lost(sent=exchange.sent)
            broken = f"{label} {exchange.failure or connection.failure}"
            return (
                self._unanswered(broken, sent=exchange.sent)
                if exchange.sent
                else _NoEffect(ToolFailed(broken, retryable=True, outage=True))
            )
        if error.code in NEEDS_INPUT:
            return needs_input(label, [error.message])
        return ToolFailed(f"{label} rejected the call: {error.message}"[:MAX_ERROR_TEXT])

    def _refused(self, text: str, exchange: Exchange) -> Exception:
        retryable = self._repeatable and is_retryable(exchange.status)
        outage = exchange.status >= 500
        failed = ToolFailed(text[:MAX_ERROR_TEXT], retryable=retryable, retry_after=exchange.wait, outage=outage)
        return _NoEffect(failed, once=True, unauthorized=True) if exchange.status == 401 else failed

    def _unanswered(self, text: str, *, sent: bool) -> ToolFailed:
        """The failure of a request whose outcome is unknown if it was ``sent``."""
        if self._repeatable or not sent:
            return ToolFailed(text, retryable=True, outage=True)
        return ToolFailed(f"{text}; whether it was executed is unknown", outage=True)


MAX_TOOLS = 1_000
MAX_PAGES = 100

_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


async def list_tools(client: Client) -> list[ListedTool]:
    """All tools of a server, from all pages. Raises ToolFailed for a list beyond the limits."""
    tools = list[ListedTool]()
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        if len(tools) + len(page.tools) > MAX_TOOLS:
            break
        for tool in page.tools:
            hints = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
            tools.append(ListedTool(tool.name, tool.description or tool.title, tool.input_schema, hints))
        cursor = page.next_cursor
        if not cursor:
            return tools
    raise ToolFailed(f"an MCP server lists more than {MAX_TOOLS:,} tools, or has more than {MAX_PAGES} pages of them")


def use_tool(
    name: str, arguments: JsonObject, label: str, elicitation: Elicitation | None = None
) -> Callable[[Client], Awaitable[CallToolResult]]:
    """The operation that calls a tool; progress reports of the server are shown like the text of a model.

    With an ``elicitation``, the server may ask a person: then AsksPerson is raised. McpRequest.send needs the same one.

    The SDK's own method would validate the result against the tool's schema, on the event loop.
    """
    context = copy_context()  # the reports arrive in a task without the activity's context

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        part = f"{progress:g}" + (f"/{total:g}" if total else "")
        context.copy().run(on_text, f"{message} ({part})\n" if message else f"{part}\n")

    async def ask(client: Client) -> CallToolResult:
        params = CallToolRequestParams(name=name, arguments=arguments)
        if elicitation and client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            params.input_responses = {**elicitation.responses} or None
            params.request_state = elicitation.state
        request = CallToolRequest(params=params)
        check_lease(f"the tool {name} of {label}")
        result = await client.session.send_request(request, _RESULT, progress_callback=on_progress)
        if elicitation:
            return elicitation.check(result)
        return _completed(result, label)

    async def use(client: Client) -> CallToolResult:
        try:
            return await ask(client)
        except MCPError as error:
            if elicitation and elicitation.pending:  # the server had to be told `cancel`: its call is repeated
                raise elicitation.question(elicitation.pending) from None
            if error.code == URL_ELICITATION_REQUIRED and elicitation:
                raise elicitation.required(error.data) from None
            if error.code != HEADER_MISMATCH:
                raise
            await list_tools(client)  # tells the library which arguments are also headers (MCP 2026-07-28)
            return await ask(client)

    return use


def _completed(result: CallToolResult | InputRequiredResult, label: str) -> CallToolResult:
    """A complete result. Raises ToolFailed for one that requires input."""
    if isinstance(result, CallToolResult):
        return result
    requests = (result.input_requests or {}).values()
    questions = [
        str(request.params.message) if isinstance(request, ElicitRequest) else request.method for request in requests
    ]
    raise needs_input(label, questions or ["(no details)"])


def result_text(result: CallToolResult, redact: Callable[[str], str] = str) -> str:
    """The result's parts as lines; also ``structuredContent``, unless a part has the same value.

    A text that is too long for a model is truncated; ``redact`` removes a partial secret at its end.
    """
    parts = [_part(block) for block in result.content]
    structured: JsonValue = result.structured_content
    if structured is not None and not any(_is_same(part, structured) for part in parts):
        parts.append(json.dumps(structured, ensure_ascii=False))
    text = repair_surrogates("\n".join(parts)) or "(the tool returned no content)"
    if len(text) > MAX_BYTES:
        text = f"{redact(text[:MAX_BYTES])}… [truncated: the response has {len(text):,} characters]"
    return f"Error: {text.removeprefix('Error: ')}" if result.is_error else text


def result_files(result: CallToolResult) -> tuple[ContentPart, ...]:
    """The images and files in a result, whose stand-ins are in its text; the limit of a response limits their size."""
    return tuple(file for block in result.content if (file := _file(block)))


def _file(block: ContentBlock) -> ContentPart | None:
    """The image or the file in a block; None if it has none, or if it is not valid base64."""
    with contextlib.suppress(ValueError):
        match block:
            case ImageContent(mime_type=media_type, data=data):
                return part_of_bytes(base64.b64decode(data, validate=True), media_type)
            case EmbeddedResource(resource=BlobResourceContents(uri=uri, blob=data, mime_type=media_type)) if (
                media_type
            ):
                return part_of_bytes(base64.b64decode(data, validate=True), media_type, str(uri))
    return None


def _part(block: ContentBlock) -> str:
    if file := _file(block):
        return file.shown
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}: {block.mime_type}, {_size(block.data)}]"
        case ResourceLink():
            described = ", ".join(text for text in (block.uri, block.mime_type, block.description) if text)
            return f"[resource {block.name}: {described}]"
        case EmbeddedResource(resource=TextResourceContents(uri=uri, text=text)):
            return f"[resource {uri}]\n{text}"
        case EmbeddedResource(resource=BlobResourceContents(uri=uri, blob=data, mime_type=kind)):
            return f"[resource {uri}: {kind or 'binary'}, {_size(data)}]"
    raise AssertionError("unreachable: there are no other blocks")


def _size(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


def _is_same(part: str, structured: JsonValue) -> bool:
    """Whether a part is the same value: as JSON, or as the text that the Python SDK wraps as ``{"result": …}``."""
    try:
        value = parse_json(part)
    except ValueError:
        value = part
    return structured in (value, {"result": part}, {"result": value})
