"""The provider for Anthropic's Messages API and compatible servers."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anthropic
from anthropic import transform_schema
from pydantic import BaseModel, ConfigDict, JsonValue

from ...contracts.errors import (
    BatonError,
    ContextTooLong,
    InvalidManifest,
    KeyMissing,
    QuotaSpent,
)
from ...contracts.message import Message, TokenUsage
from ...observability.spans import note_call, trace_headers
from ...resources.base import JsonObject
from ...resources.model import AnthropicConfig
from ...resources.model_settings import ModelSettings, without_settings
from ..context.metering import ChainedModel
from ..context.value_resolver import ValueResolver, headers_of
from ..runtime.outbound import Destination
from .alternation import (
    Block,
    CallBlock,
    ReasoningBlock,
    ResultBlock,
    alternating,
    rejects_thinking,
    system_prompt,
    without_reasoning,
)
from .answer import End, StreamedAnswer, has_open_objects
from .call_attributes import parameter_attributes
from .connection import NO_KEY, checked_server, environment_headers, outbound_to, properties_of
from .provider import CONNECT_TIMEOUT, Attached, ClientPool, ModelRequest, connection_error, error_of_status

ANTHROPIC = "https://api.anthropic.com"
VERSION = "2023-06-01"


@dataclass(frozen=True)
class AnthropicEndpoint:
    """A model on a server with Anthropic's Messages API; see ``Endpoint``."""

    model: str
    server: Destination
    api_key: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    properties: tuple[tuple[str, JsonValue], ...] = ()

    @property
    def base_url(self) -> str:
        """The address of the server, to which the library adds paths."""
        return self.server.url

    @property
    def where(self) -> str:
        """The model and its server, for errors."""
        return f"{self.model} at {self.server.authority}"


def anthropic_endpoint(chained: ChainedModel, values: ValueResolver) -> AnthropicEndpoint:
    """The endpoint of a model. Raises KeyMissing, InvalidManifest, or an error of ``ValueResolver.resolve``."""
    model = chained.manifest
    config = model.spec.connection if model else None
    if model is None or not isinstance(config, AnthropicConfig):
        raise InvalidManifest(f"{chained.name} has no connection to Anthropic")
    server = values.server_of(model, ANTHROPIC)
    assert server
    server = checked_server(server)
    base_url = server.url.rstrip("/").removesuffix("/v1")  # the library adds /v1, which ARK's manifests have
    key = values.resolve(config.api_key, model)
    if not key and base_url == ANTHROPIC:
        raise KeyMissing(f"{model.id} has no config.anthropic.apiKey")
    version = ("anthropic-version", values.resolve(config.version, model) or VERSION)
    return AnthropicEndpoint(
        model=values.resolve(model.spec.model, model) or "",
        server=replace(server, url=base_url),
        api_key=key or NO_KEY,
        headers=(version, *headers_of(model, config.headers, values)),
        properties=properties_of(config, values, model),
    )


_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The HTTP status by the type of an error within a stream; 500 for other types."""

_BY_TYPE = {"billing_error": QuotaSpent, "request_too_large": ContextTooLong}
_BY_PHRASE = {
    "prompt is too long": ContextTooLong,
    "exceed context limit": ContextTooLong,
    "credit balance is too low": QuotaSpent,
}
"""Errors of the type ``invalid_request_error`` that only the message distinguishes."""


def anthropic_error(error: Exception, endpoint: AnthropicEndpoint) -> BatonError:
    """The error of a run for an exception of the library. The server's message is shortened."""
    if isinstance(error, anthropic.APIStatusError):
        return _of_status(error, endpoint.where)
    return connection_error(error, endpoint.where, anthropic)


def _of_status(error: anthropic.APIStatusError, where: str) -> BatonError:
    message = error.api_message or error.message
    status = error.status_code if error.status_code >= 300 else _STATUS.get(error.type or "", 500)
    special = _BY_TYPE.get(error.type or "")
    if error.type == "invalid_request_error":
        lower = message.lower()
        special = next((_BY_PHRASE[phrase] for phrase in _BY_PHRASE if phrase in lower), None)
    return error_of_status(where, status, message, error.response.headers, special)


MAX_TOKENS = 8_192
"""The token limit of an answer if the Model has no property ``max_tokens``: the API requires one."""

Body = dict[str, Any]


def request_body(endpoint: AnthropicEndpoint, request: ModelRequest, settings: ModelSettings, *, stream: bool) -> Body:
    """The body of a request. The Model's properties override its fields, except for the conversation and settings."""
    entries = alternating(request, endpoint.where)
    properties: Body = without_settings(endpoint.properties, settings)
    body: Body = {
        **{"model": endpoint.model, "max_tokens": MAX_TOKENS},
        **_tools(request),
        **properties,
        **_settings(settings),
        **{"stream": stream},
    }
    if rejects_thinking(body.get("thinking"), entries, must_use=request.must_use):
        del body["thinking"]
        entries = without_reasoning(entries)
    body["messages"] = [{"role": role, "content": [*map(_block, blocks)]} for role, blocks in entries]
    if settings.reasoning_effort:
        body["output_config"] = {**_mapping(body.get("output_config")), "effort": settings.reasoning_effort}
    if system := system_prompt(request.messages):
        body["system"] = system
    if request.schema is not None and (schema := enforced_schema(request.schema)):
        format_ = {"type": "json_schema", "schema": schema}
        body["output_config"] = {**_mapping(body.get("output_config")), "format": format_}
    return body


def _settings(settings: ModelSettings) -> Body:
    """The fields of a request for settings, which have the same names except for these two."""
    fields: Body = settings.chosen
    fields.pop("reasoning_effort", None)  # a part of output_config
    if "stop" in fields:
        fields["stop_sequences"] = fields.pop("stop")
    return fields


def _mapping(value: object) -> Body:
    return value if isinstance(value, dict) else {}


def enforced_schema(schema: JsonObject) -> JsonObject | None:
    """The schema in the form that the API enforces; None if it can't: objects with other properties are unsupported."""
    if has_open_objects(schema):
        return None
    try:
        return transform_schema(schema)
    except (ValueError, RecursionError):
        return None


def _tools(request: ModelRequest) -> Body:
    if not request.tools:
        return {}
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools
    ]
    if not request.must_use:
        return {"tools": tools}
    only_tool = {"type": "tool", "name": request.tools[0].name}
    return {"tools": tools, "tool_choice": {"type": "any"} if len(tools) > 1 else only_tool}


def _block(block: Block) -> Body:
    match block:
        case CallBlock(id_, name, arguments, _):
            return {"type": "tool_use", "id": id_, "name": name, "input": arguments}
        case ResultBlock(id_, segments):
            return {"type": "tool_result", "tool_use_id": id_, "content": block.text or [*map(_block, segments)]}
        case Attached():
            return _attached_block(block)
        case ReasoningBlock(content):
            return content
        case text:
            return {"type": "text", "text": text}


def _attached_block(attached: Attached) -> Body:
    attachment = attached.attachment
    if attachment.url:
        source = {"type": "url", "url": attachment.url}
    elif attachment.media_type == "text/plain":
        text = (attached.content or b"").decode(errors="replace")
        source = {"type": "text", "media_type": "text/plain", "data": text}
    else:
        source = {"type": "base64", "media_type": attached.media_type, "data": attached.base64}
    if attachment.kind == "image":
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, **({"title": attachment.name} if attachment.name else {})}


ENDS: dict[str, End] = {
    "max_tokens": "length",
    "refusal": "filtered",
    "model_context_window_exceeded": "context",
}
"""Stop reasons other than a normal end."""


class _Piece(BaseModel):
    """A part of a server's response. A validation error does not repeat its content."""

    model_config = ConfigDict(hide_input_in_errors=True)


class _TokenCounts(_Piece):
    """Token counts; ``input_tokens`` excludes tokens read from the cache or written to it."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Start(_Piece):
    id: str | None = None
    model: str | None = None
    usage: _TokenCounts | None = None


class _ContentBlock(_Piece):
    type: str = ""
    text: str = ""
    id: str | None = None
    name: str = ""
    input: Any = None
    thinking: str = ""
    signature: str = ""
    data: str = ""


class _BlockDelta(_Piece):
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class WholeMessage(_Start):
    """An answer without streaming."""

    content: tuple[_ContentBlock, ...]
    stop_reason: str | None = None


class StreamEvent(_Piece):
    """One event of the stream. Which fields it has depends on its ``type``."""

    type: str
    index: int = 0
    message: _Start = _Start()
    content_block: _ContentBlock = _ContentBlock()
    delta: _BlockDelta = _BlockDelta()
    usage: _TokenCounts | None = None


class AnthropicStream:
    """Adds events to an answer. Several events have token counts, which are cumulative."""

    def __init__(self, answer: StreamedAnswer) -> None:
        self._answer = answer
        self._counts: dict[str, int] = {}

    def add(self, event: StreamEvent) -> None:
        """Adds an event."""
        answer = self._answer
        if event.type == "message_start":
            answer.begun = True
            answer.model = event.message.model
            answer.id = event.message.id or answer.id
            self._count(event.message.usage)
        elif event.type == "content_block_start":
            self._begin(event.index, event.content_block)
        elif event.type == "content_block_delta":
            answer.add_text(event.delta.text)
            if event.delta.thinking or event.delta.signature:
                answer.add_thinking(event.index, thinking=event.delta.thinking, signature=event.delta.signature)
            if event.delta.partial_json:
                answer.add_call(event.index, arguments=event.delta.partial_json)
        elif event.type == "message_delta":
            self._count(event.usage)
            if event.delta.stop_reason:
                answer.end = ENDS.get(event.delta.stop_reason, "complete")

    def add_whole(self, message: WholeMessage) -> None:
        """Adds a whole answer."""
        self.add(StreamEvent(type="message_start", message=message))
        for index, block in enumerate(message.content):
            self._begin(index, block)
        self.add(StreamEvent(type="message_delta", delta=_BlockDelta(stop_reason=message.stop_reason or "")))

    def _begin(self, index: int, block: _ContentBlock) -> None:
        self._answer.add_text(block.text)
        if block.type == "thinking":
            self._answer.add_thinking(index, type=block.type, thinking=block.thinking, signature=block.signature)
        if block.type == "redacted_thinking":
            self._answer.add_thinking(index, type=block.type, data=block.data)
        if block.type == "tool_use":
            self._answer.add_call(index, block.id, block.name, json.dumps(block.input) if block.input else "")

    def _count(self, counts: _TokenCounts | None) -> None:
        self._counts |= counts.model_dump(exclude_none=True) if counts else {}
        cached = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        prompt = self._counts.get("input_tokens", 0) + cached + written
        completion = self._counts.get("output_tokens", 0)
        self._answer.usage = TokenUsage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            cached_tokens=cached,
        )


class AnthropicProvider:
    """A ``Provider``. The library's own retries are disabled: Temporal retries, where retries are visible."""

    def __init__(self) -> None:
        self._clients = ClientPool(_new_client)

    async def ask(
        self, model: ChainedModel, values: ValueResolver, request: ModelRequest, on_text: Callable[[str], None]
    ) -> Message:
        """One answer, streamed if the model streams."""
        endpoint = anthropic_endpoint(model, values)
        answer = StreamedAnswer(on_text, endpoint.where)
        stream_class = anthropic.AsyncStream[object]
        note_call(lambda: parameter_attributes(dict(endpoint.properties), model.settings))
        try:
            async with asyncio.timeout(model.timeout), self._clients.client(_server_of(endpoint)) as client:
                response = await client.post(  # not `client.messages`: it is slow for every event
                    "/v1/messages",
                    cast_to=object,
                    body=request_body(endpoint, request, model.settings, stream=model.streams),
                    options={"headers": {**trace_headers(), **dict(endpoint.headers)}},
                    stream=model.streams,
                    stream_cls=stream_class,
                )
                await _read(response, AnthropicStream(answer))
            return answer.message()
        except BatonError as error:
            raise answer.failed(error) from None
        except Exception as error:  # a server can fail in any way: all are errors of the model
            raise answer.failed(anthropic_error(error, endpoint)) from None

    async def check(self, model: ChainedModel, values: ValueResolver) -> str:
        """Lists the server's models, which costs nothing. A server without such a list is reachable, too."""
        endpoint = anthropic_endpoint(model, values)
        try:
            async with self._clients.client(_server_of(endpoint)) as client:
                await client.models.list(extra_headers=dict(endpoint.headers))
        except anthropic.NotFoundError:
            pass
        except Exception as error:
            raise anthropic_error(error, endpoint) from None
        return endpoint.base_url

    async def close(self) -> None:
        """Closes the connections."""
        await self._clients.close()


async def _read(response: object, events: AnthropicStream) -> None:
    """Reads a stream, or the whole answer."""
    if isinstance(response, anthropic.AsyncStream):
        async with response:
            async for event in response:
                events.add(StreamEvent.model_validate(event))
    else:
        events.add_whole(WholeMessage.model_validate(response))


def _server_of(endpoint: AnthropicEndpoint) -> AnthropicEndpoint:
    """The endpoint without the fields of one model or run: all models of a server share its connections."""
    return replace(endpoint, model="", properties=(), headers=())


def _new_client(endpoint: AnthropicEndpoint) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        default_headers=_omitted_headers(endpoint),
        max_retries=0,
        timeout=anthropic.Timeout(None, connect=CONNECT_TIMEOUT),  # calls have their own timeouts
        http_client=outbound_to(endpoint.server).open(anthropic.DefaultAsyncHttpxClient),
        open_telemetry=False,  # its spans would not be part of the run's trace
    )


def _omitted_headers(endpoint: AnthropicEndpoint) -> dict[str, Any]:
    """The headers that the library reads from environment variables, omitted for Models that are not the worker's."""
    names = [] if endpoint.server.provenance.is_own else environment_headers("ANTHROPIC_CUSTOM_HEADERS")
    return dict.fromkeys(names, anthropic.Omit())
