"""The provider for servers with OpenAI's chat completions API: OpenAI, Azure, Gemini and many others."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypedDict, cast

import httpx2
import openai
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolUnionParam,
)
from openai.types.shared_params import ResponseFormatJSONSchema
from pydantic import BaseModel, ConfigDict

from ...contracts.errors import (
    BatonError,
    BrokenReply,
    ContentFiltered,
    ContextTooLong,
    KeyRefused,
    ModelRejected,
    QuotaSpent,
)
from ...contracts.message import Message, TokenUsage, ToolCall
from ...contracts.settings import AGENT_HEADER
from ...contracts.text import parse_json
from ...observability.spans import note_call, trace_headers
from ...resources.base import JsonObject
from ...resources.model_settings import ModelSettings, without_settings
from ..context.metering import ChainedModel
from ..context.value_resolver import ValueResolver
from ..tool.tool import ToolDefinition
from .answer import LONGEST_NAME, End, StreamedAnswer, reasoning_of
from .call_attributes import parameter_attributes
from .connection import Endpoint, endpoint_of, environment_headers, outbound_to
from .provider import (
    CONNECT_TIMEOUT,
    MAX_SERVER_TEXT,
    Attached,
    ClientPool,
    ModelRequest,
    connection_error,
    error_of_status,
)

_KEY_REFUSED = frozenset({"401", "403", "invalid_api_key", "authentication_error", "permission_error"})
"""Statuses, codes and types of errors about the key. Their messages are dropped, as they may contain it."""

_BY_CODE: dict[str, type[BatonError]] = {
    "insufficient_quota": QuotaSpent,
    "billing_hard_limit_reached": QuotaSpent,
    "context_length_exceeded": ContextTooLong,
    "string_above_max_length": ContextTooLong,
    "content_filter": ContentFiltered,
    "invalid_request_error": ModelRejected,
    "invalid_prompt": ModelRejected,
}


_STATUS_BY_WORD = {
    "rate_limit": 429,
    "too_many_requests": 429,
    "server_error": 500,
    "internal_error": 500,
    "api_error": 500,
    "overloaded": 503,
    "unavailable": 503,
}
"""The HTTP status by a part of the code or type of an error within a stream: servers have many names for a few."""


def error_of(error: Exception, endpoint: Endpoint) -> BatonError:
    """The error of a run for an exception of the library. The server's message is shortened."""
    where = endpoint.where
    match error:
        case openai.APIStatusError():
            return _of_status(error, where)
        case openai.APIConnectionError():
            return connection_error(error, where, openai)
        case openai.APIError():
            return _of_event(error, where)
        case _:
            return connection_error(error, where, openai)


def _of_event(error: openai.APIError, where: str) -> BatonError:
    """The error that a server reports within a stream, after HTTP 200; as that with the status that it would have."""
    codes = [str(code) for code in (error.code, error.type) if code]
    if refused := next((code for code in codes if code in _KEY_REFUSED), None):
        return KeyRefused(f"{where} rejected the API key ({refused})")
    special = next((_BY_CODE[code] for code in codes if code in _BY_CODE), None)
    status = next((status for code in codes if (status := _status_of(code))), None)
    if special or status is None:
        return (special or BrokenReply)(f"{where} did not complete its response: {error.message[:MAX_SERVER_TEXT]}")
    return error_of_status(where, status, error.message, {})


def _status_of(code: str) -> int | None:
    """The HTTP status for an error's code or type; None if it says nothing about the cause."""
    if code.isdigit():
        return int(code) if 400 <= int(code) < 600 else None
    return next((status for word, status in _STATUS_BY_WORD.items() if word in code.lower()), None)


def _of_status(error: openai.APIStatusError, where: str) -> BatonError:
    if error.code in _KEY_REFUSED:
        return KeyRefused(f"{where} rejected the API key (HTTP {error.status_code})")
    message = error.body.get("message") if isinstance(error.body, dict) else None
    special = _BY_CODE.get(error.code or "")
    return error_of_status(where, error.status_code, str(message or error.message), error.response.headers, special)


NO_SIGNATURE: JsonObject = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""The signature that Gemini accepts for calls of other models.

See https://ai.google.dev/gemini-api/docs/thought-signatures. Gemini's own calls keep their signatures: according to
Google, this one lowers the quality of answers.
"""


REFUSED_IN_NAMES = re.compile("[^A-Za-z0-9_-]")
"""Characters with which a name is refused by OpenAI, and the whole request with it. People choose their names."""


def message_param(message: Message, endpoint: Endpoint, request: ModelRequest) -> ChatCompletionMessageParam:
    """A message of a request as it is sent to the endpoint. Only messages of users may have images and files."""
    data: JsonObject = {"role": message.role, "content": message.content}
    if message.role == "user" and message.attachments:
        data["content"] = [*map(_content_part, request.segments(message))]
    if message.role in ("assistant", "user") and message.name:
        data["name"] = REFUSED_IN_NAMES.sub("_", message.name)[:LONGEST_NAME]
    if message.role == "tool":
        data["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        for reasoning in reasoning_of(message, endpoint.where):
            data |= reasoning
        data["tool_calls"] = [
            _call_param(call, endpoint, first=number == 0) for number, call in enumerate(message.tool_calls)
        ]
    return cast(ChatCompletionMessageParam, data)


def _content_part(segment: str | Attached) -> JsonObject:
    if isinstance(segment, str):
        return {"type": "text", "text": segment}
    attachment = segment.attachment
    if attachment.kind == "file":
        return {"type": "file", "file": {"filename": attachment.name or "file", "file_data": segment.url}}
    detail: JsonObject = {"detail": attachment.detail} if attachment.detail else {}
    return {"type": "image_url", "image_url": {"url": segment.url, **detail}}


def _call_param(call: ToolCall, endpoint: Endpoint, *, first: bool) -> JsonObject:
    """A tool call. Of parallel calls, Gemini signs the first one, and expects only that signature."""
    data: JsonObject = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    extra = _extra_of(call, endpoint)
    if extra is None and first and endpoint.wants_signatures:
        extra = NO_SIGNATURE
    return data if extra is None else {**data, "extra_content": extra}


def _extra_of(call: ToolCall, endpoint: Endpoint) -> JsonObject | None:
    """The extra content of the call from this endpoint; None if another model made the call, or if it is invalid."""
    if call.extra is None or call.extra.model != endpoint.where:
        return None
    try:
        content = parse_json(call.extra.content)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


KEYWORDS = frozenset(
    {"type", "anyOf", "$ref", "$defs", "enum", "const", "title", "description", "pattern", "format"}
    | {"properties", "required", "additionalProperties", "items", "minItems", "maxItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
"""The keywords and formats of OpenAI's strict subset of JSON Schema."""


def response_format(schema: JsonObject) -> ResponseFormatJSONSchema:
    """The field of a request for a chat completion."""
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {**schema}, "strict": is_strict(schema)},
    }


def is_strict(schema: JsonObject) -> bool:
    """Whether a schema is in the strict subset: objects have no other properties, and all are required."""
    return schema.get("type") == "object" and _closed(schema)


def _closed(schema: Any) -> bool:
    if not isinstance(schema, dict) or not schema.keys() <= KEYWORDS or schema.get("format", "date") not in FORMATS:
        return False
    kinds = schema.get("type", ())
    properties = schema.get("properties", {})
    closed = schema.get("additionalProperties") is False and {*schema.get("required", ())} == {*properties}
    if ("object" in kinds and not closed) or ("array" in kinds and "items" not in schema):
        return False
    subschemas = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    subschemas += [schema["items"]] if "items" in schema else []
    return not schema.keys().isdisjoint({"type", "anyOf", "$ref"}) and all(map(_closed, subschemas))


ENDS: dict[str, End | None] = {
    "length": "length",
    "content_filter": "filtered",
    "model_length": "context",  # Mistral
    "function_call_filter": None,  # Gemini: the model has written a call that can't be read
    "error": None,
}
"""Finish reasons other than a normal end, without the detail that Gemini adds after a colon.

None if the answer counts as incomplete.
"""


class _Part(BaseModel):
    """A part of a server's response. A validation error does not repeat its content."""

    model_config = ConfigDict(hide_input_in_errors=True)


class _Function(_Part):
    name: str | None = None
    arguments: str | None = None


class _Call(_Part):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: object = None


class _Delta(_Part):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: object = None
    tool_calls: tuple[_Call, ...] | None = None


class _Choice(_Part):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> _Delta:
        """A delta of a stream, or the whole message; empty if the server sends neither."""
        return self.delta or self.message or _Delta()


class _PromptDetails(_Part):
    cached_tokens: int | None = None


class _Usage(_Part):
    """Token counts. Some servers omit some of them, and count a model's reasoning only in the total."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    def as_token_usage(self) -> TokenUsage:
        total = self.total_tokens or 0
        completion = self.completion_tokens or 0
        prompt = max(total - completion, 0) if self.prompt_tokens is None else self.prompt_tokens
        completion = max(completion, total - prompt)
        return TokenUsage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            cached_tokens=(self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0,
        )


class Chunk(_Part):
    """One event of a stream, with the delta since the last one; or the whole answer without streaming."""

    id: str | None = None
    model: str | None = None
    choices: tuple[_Choice, ...] | None = None
    usage: _Usage | None = None

    def add_to(self, answer: StreamedAnswer) -> None:
        """Adds the chunk to an answer."""
        answer.model = self.model or answer.model
        answer.id = self.id or answer.id
        if self.usage:
            answer.usage = self.usage.as_token_usage()
        for choice in (self.choices or ())[:1]:
            answer.begun = True
            if choice.finish_reason:
                answer.end = ENDS.get(choice.finish_reason.partition(":")[0], "complete")
            content = choice.content
            for text in (content.content, content.refusal):
                answer.add_text(text or "")
            if content.reasoning_content:
                answer.add_reasoning(0, reasoning_content=content.reasoning_content)
            elif isinstance(content.reasoning, str) and content.reasoning:
                answer.add_reasoning(0, reasoning=content.reasoning)
            for number, call in enumerate(content.tool_calls or ()):
                function = call.function or _Function()
                index = number if call.index is None else call.index
                answer.add_call(index, call.id, function.name or "", function.arguments or "")
                if isinstance(call.extra_content, dict):
                    answer.add_extra(index, call.extra_content)


class AnswerReader(Protocol):
    """Adds what a server sends to an answer. Raises openai.APIError for an error with HTTP 200."""

    def add_event(self, event: object) -> None:
        """Adds an event of a stream."""
        ...

    def add_whole(self, response: object) -> None:
        """Adds the whole answer without a stream."""
        ...


class OpenAIApi(Protocol):
    """One of OpenAI's two APIs for models, which have the same servers, keys and errors."""

    path: str
    """The path of requests, after that of the server."""

    def body(
        self, endpoint: Endpoint, request: ModelRequest, settings: ModelSettings, *, stream: bool
    ) -> dict[str, object]:
        """The body of a request."""
        ...

    def reader(self, answer: StreamedAnswer, endpoint: Endpoint) -> AnswerReader:
        """The reader of the response to a request."""
        ...

    def adapts_to(self, rejection: str, endpoint: Endpoint) -> bool:
        """Whether the next body lacks what the server has rejected with HTTP 400, so that it is sent again."""
        ...


class ChatCompletions:
    """The chat completions API, an ``OpenAIApi``."""

    path = "/chat/completions"

    def body(
        self, endpoint: Endpoint, request: ModelRequest, settings: ModelSettings, *, stream: bool
    ) -> dict[str, object]:
        """The body of a request. The Model's properties override its fields, except for messages and settings."""
        return {
            **{"model": endpoint.model},
            **({"stream_options": {"include_usage": True}} if stream else {}),
            **_options(request),
            **without_settings(endpoint.properties, settings),
            **_settings(endpoint, settings),
            **{
                "messages": [message_param(message, endpoint, request) for message in request.messages],
                "stream": stream,
            },
        }

    def reader(self, answer: StreamedAnswer, endpoint: Endpoint) -> AnswerReader:
        """The reader of the response to a request."""
        return _ChunkReader(answer, endpoint)

    def adapts_to(self, rejection: str, endpoint: Endpoint) -> bool:
        """Never: nothing in a body is optional."""
        return False


class _ChunkReader:
    def __init__(self, answer: StreamedAnswer, endpoint: Endpoint) -> None:
        self._answer = answer
        self._endpoint = endpoint

    def add_event(self, event: object) -> None:
        Chunk.model_validate(event).add_to(self._answer)

    def add_whole(self, response: object) -> None:
        if error := isinstance(response, dict) and response.get("error"):
            raise reported_error(error, self._endpoint)
        Chunk.model_validate(response).add_to(self._answer)


def reported_error(error: object, endpoint: Endpoint) -> openai.APIError:
    """The exception of the library for an error that a server reports with HTTP 200."""
    message = str(error.get("message") if isinstance(error, dict) else error)
    return openai.APIError(message, httpx2.Request("POST", endpoint.base_url), body=error)


class OpenAIProvider:
    """A ``Provider``. The library's own retries are disabled: Temporal retries, where retries are visible."""

    def __init__(self, api: OpenAIApi | None = None) -> None:
        self._api: OpenAIApi = api or ChatCompletions()
        self._clients = ClientPool(_new_client)

    async def ask(
        self, model: ChainedModel, values: ValueResolver, request: ModelRequest, on_text: Callable[[str], None]
    ) -> Message:
        """One answer, streamed if the model streams."""
        endpoint = endpoint_of(model, values)
        answer = StreamedAnswer(on_text, endpoint.where)
        note_call(lambda: parameter_attributes(dict(endpoint.properties), model.settings))
        try:
            async with asyncio.timeout(model.timeout), self._clients.client(_server_of(endpoint)) as client:
                try:
                    response = await self._post(client, endpoint, request, model)
                except openai.BadRequestError as rejection:
                    if not self._api.adapts_to(str(rejection), endpoint):
                        raise
                    response = await self._post(client, endpoint, request, model)
                await _read(response, self._api.reader(answer, endpoint))
            return answer.message()
        except BatonError as error:
            raise answer.failed(error) from None
        except Exception as error:  # a server can fail in any way: all are errors of the model
            raise answer.failed(error_of(error, endpoint)) from None

    async def _post(
        self, client: openai.AsyncOpenAI, endpoint: Endpoint, request: ModelRequest, model: ChainedModel
    ) -> object:
        """The library's stream, or the whole response."""
        stream_class = openai.AsyncStream[object]
        return await client.post(  # not `client.chat.completions`: it is slow for every chunk
            self._api.path,
            cast_to=object,
            body=self._api.body(endpoint, request, model.settings, stream=model.streams),
            options={"headers": {**trace_headers(), **dict(endpoint.headers), **_agent(endpoint, request)}},
            stream=model.streams,
            stream_cls=stream_class,
        )

    async def check(self, model: ChainedModel, values: ValueResolver) -> str:
        """Lists the server's models, which costs nothing. A server without such a list is reachable, too."""
        endpoint = endpoint_of(model, values)
        try:
            async with self._clients.client(_server_of(endpoint)) as client:
                await client.models.list(extra_headers=dict(endpoint.headers))
        except openai.NotFoundError:
            pass
        except Exception as error:
            raise error_of(error, endpoint) from None
        return endpoint.base_url

    async def close(self) -> None:
        """Closes the connections."""
        await self._clients.close()


async def _read(response: object, reader: AnswerReader) -> None:
    """Reads a stream, or the whole answer. Raises openai.APIError, as streams do, for an error with HTTP 200."""
    if isinstance(response, openai.AsyncStream):
        async with response:
            async for event in response:
                reader.add_event(event)
    else:
        reader.add_whole(response)


def _server_of(endpoint: Endpoint) -> Endpoint:
    """The endpoint without the fields of one model or run: all models of a server share its connections."""
    return replace(endpoint, model="", properties=(), headers=())


def _new_client(endpoint: Endpoint) -> openai.AsyncOpenAI:
    common: dict[str, Any] = {
        "api_key": endpoint.api_key,
        "default_headers": _omitted_headers(endpoint),
        "max_retries": 0,
        "timeout": openai.Timeout(None, connect=CONNECT_TIMEOUT),  # calls have their own timeouts
        "http_client": outbound_to(endpoint.server).open(openai.DefaultAsyncHttpxClient),
    }
    if version := endpoint.azure_version:
        return openai.AsyncAzureOpenAI(azure_endpoint=endpoint.base_url, api_version=version, **common)
    return openai.AsyncOpenAI(base_url=endpoint.base_url, **common)


def _omitted_headers(endpoint: Endpoint) -> dict[str, Any]:
    """The headers that the library reads from environment variables, omitted for inline Models."""
    names = ["OpenAI-Organization", "OpenAI-Project", *environment_headers("OPENAI_CUSTOM_HEADERS")]
    return dict.fromkeys(() if endpoint.server.provenance.is_own else names, openai.Omit())


def _agent(endpoint: Endpoint, request: ModelRequest) -> dict[str, str]:
    """The header with the agent's name, for a scripted model alone."""
    return {AGENT_HEADER: request.speaker} if endpoint.scripted and request.speaker else {}


def _settings(endpoint: Endpoint, settings: ModelSettings) -> JsonObject:
    """The fields of a request for settings.

    OpenAI's reasoning models reject ``max_tokens``, and other servers may not know its successor.
    """
    fields = settings.chosen
    if "max_tokens" in fields and endpoint.is_openai:
        fields["max_completion_tokens"] = fields.pop("max_tokens")
    return fields


class _Options(TypedDict, total=False):
    tools: list[ChatCompletionToolUnionParam]
    tool_choice: ChatCompletionToolChoiceOptionParam
    response_format: ResponseFormatJSONSchema


def _options(request: ModelRequest) -> _Options:
    """The optional fields of a request. A single tool that must be used is named: more servers support that."""
    options: _Options = {}
    if request.tools:
        options["tools"] = [_tool(tool) for tool in request.tools]
    if request.must_use:
        function: ChatCompletionNamedToolChoiceParam = {
            "type": "function",
            "function": {"name": request.tools[0].name},
        }
        options["tool_choice"] = "required" if len(request.tools) > 1 else function
    if request.schema is not None:
        options["response_format"] = response_format(request.schema)
    return options


def _tool(tool: ToolDefinition) -> ChatCompletionToolUnionParam:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return cast(ChatCompletionToolUnionParam, {"type": "function", "function": function})
