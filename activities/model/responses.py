"""OpenAI's Responses API, without any state on the server: each request has the whole conversation."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from cachetools import LRUCache
from pydantic import BaseModel, ConfigDict, JsonValue

from ...contracts.message import TokenUsage
from ...resources.base import JsonObject
from ...resources.model_settings import ModelSettings, without_settings
from .alternation import Block, CallBlock, ReasoningBlock, ResultBlock, alternating, system_prompt
from .answer import End, StreamedAnswer
from .connection import Endpoint
from .openai import AnswerReader, is_strict, reported_error
from .provider import Attached, ModelRequest

Item = dict[str, object]


class Responses:
    """The Responses API, an ``OpenAIApi``.

    The server stores nothing. A reasoning model's encrypted reasoning is returned with its tool calls, and sent back.
    """

    path = "/responses"

    def __init__(self) -> None:
        self._without_reasoning: LRUCache[str, bool] = LRUCache(1_000)

    def adapts_to(self, rejection: str, endpoint: Endpoint) -> bool:
        """Models that don't reason have no encrypted reasoning, and reject a request for it."""
        is_about_reasoning = "encrypted content" in rejection.lower().replace("_", " ")
        adapts = is_about_reasoning and endpoint.where not in self._without_reasoning
        if adapts:
            self._without_reasoning[endpoint.where] = True
        return adapts

    def body(
        self, endpoint: Endpoint, request: ModelRequest, settings: ModelSettings, *, stream: bool
    ) -> dict[str, object]:
        """The body of a request. The Model's properties override its fields, except for the conversation and settings.

        The API has no names of speakers: messages of others are the user's, under their names.
        """
        properties = without_settings(endpoint.properties, settings)
        fields = settings.chosen
        effort = fields.pop("reasoning_effort", None)
        if "max_tokens" in fields:
            fields["max_output_tokens"] = fields.pop("max_tokens")
        body: dict[str, object] = {
            **{"model": endpoint.model},
            **_tools(request),
            **properties,
            **fields,
            **{"input": [*_input(request, endpoint)], "store": False, "stream": stream},
        }
        if endpoint.where not in self._without_reasoning:
            body["include"] = ["reasoning.encrypted_content"]
        if system := system_prompt(request.messages):
            body["instructions"] = system
        if effort is not None:
            body["reasoning"] = {**_mapping(properties.get("reasoning")), "effort": effort}
        if request.schema is not None:
            format_ = {
                "type": "json_schema",
                "name": "answer",
                "schema": request.schema,
                "strict": is_strict(request.schema),
            }
            body["text"] = {**_mapping(properties.get("text")), "format": format_}
        return body

    def reader(self, answer: StreamedAnswer, endpoint: Endpoint) -> AnswerReader:
        """The reader of the response to a request."""
        return _ResponseReader(answer, endpoint)


def _input(request: ModelRequest, endpoint: Endpoint) -> Iterator[Item]:
    for role, blocks in alternating(request, endpoint.where):
        for is_content, together in groupby(blocks, lambda block: isinstance(block, str | Attached)):
            content = [*together]
            if is_content and any(isinstance(block, Attached) for block in content):
                yield {"type": "message", "role": role, "content": [*map(_content, content)]}
            else:
                yield from (_item(role, block) for block in content)


def _content(segment: Block) -> Item:
    """A part of a message, or of a tool's result."""
    if not isinstance(segment, Attached):
        return {"type": "input_text", "text": segment}
    attachment = segment.attachment
    if attachment.kind == "image":
        return {"type": "input_image", "image_url": segment.url, "detail": attachment.detail or "auto"}
    if attachment.url:
        return {"type": "input_file", "file_url": attachment.url}
    return {"type": "input_file", "filename": attachment.name or "file", "file_data": segment.url}


def _item(role: str, block: Block) -> Item:
    match block:
        case CallBlock(id_, name, _, text):
            return {"type": "function_call", "call_id": id_, "name": name, "arguments": text}
        case ResultBlock(id_, segments):
            output = block.text or [*map(_content, segments)]
            return {"type": "function_call_output", "call_id": id_, "output": output}
        case ReasoningBlock(content):
            return {**content}
        case text:
            return {"type": "message", "role": role, "content": text}


def _tools(request: ModelRequest) -> Item:
    if not request.tools:
        return {}
    tools = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": False,
        }
        for tool in request.tools
    ]
    if not request.must_use:
        return {"tools": tools}
    only_tool = {"type": "function", "name": request.tools[0].name}
    return {"tools": tools, "tool_choice": "required" if len(tools) > 1 else only_tool}


def _mapping(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


class _Part(BaseModel):
    """A part of a server's response. A validation error does not repeat its content."""

    model_config = ConfigDict(hide_input_in_errors=True)


class _Content(_Part):
    text: str | None = None
    refusal: str | None = None


class _MessageItem(_Part):
    content: tuple[_Content, ...] = ()


class _CallItem(_Part):
    call_id: str | None = None
    name: str = ""
    arguments: str | None = None


class _InputDetails(_Part):
    cached_tokens: int | None = None


class _Usage(_Part):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None

    def as_token_usage(self) -> TokenUsage:
        prompt = self.input_tokens or 0
        completion = self.output_tokens or 0
        return TokenUsage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            cached_tokens=(self.input_tokens_details and self.input_tokens_details.cached_tokens) or 0,
        )


class _IncompleteDetails(_Part):
    reason: str | None = None


class _Response(_Part):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: tuple[dict[str, Any], ...] = ()
    usage: _Usage | None = None
    incomplete_details: _IncompleteDetails | None = None
    error: object = None


class _Event(_Part):
    """One event of a stream. Which fields it has depends on its ``type``."""

    type: str
    output_index: int = 0
    delta: object = None
    item: dict[str, Any] | None = None
    response: _Response | None = None


ENDS: dict[str, End] = {"max_output_tokens": "length", "content_filter": "filtered"}
"""Why a response is incomplete."""

FAILED = frozenset({"failed", "cancelled"})


class _ResponseReader:
    """Adds a response, or its events, to an answer; an ``AnswerReader``."""

    def __init__(self, answer: StreamedAnswer, endpoint: Endpoint) -> None:
        self._answer = answer
        self._endpoint = endpoint
        self._streamed = set[int]()

    def add_event(self, event: object) -> None:
        """Adds an event of a stream. An item of which no piece was streamed is added when it is done."""
        parsed = _Event.model_validate(event)
        index = parsed.output_index
        match parsed.type:
            case "error" | "response.error":
                raise reported_error(event, self._endpoint)
            case "response.output_text.delta" | "response.refusal.delta":
                self._streamed.add(index)
                self._answer.add_text(parsed.delta if isinstance(parsed.delta, str) else "")
            case "response.function_call_arguments.delta":
                self._streamed.add(index)
                self._answer.add_call(index, arguments=parsed.delta if isinstance(parsed.delta, str) else "")
            case "response.output_item.added" if parsed.item and parsed.item.get("type") == "function_call":
                call = _CallItem.model_validate(parsed.item)
                self._answer.add_call(index, call.call_id, call.name)
            case "response.output_item.done" if parsed.item:
                self._add_item(index, parsed.item)
            case _ if parsed.response:
                self._add_state(parsed.response)

    def add_whole(self, response: object) -> None:
        """Adds a whole response."""
        parsed = _Response.model_validate(response)
        for index, item in enumerate(parsed.output):
            self._add_item(index, item)
        self._add_state(parsed)

    def _add_item(self, index: int, item: dict[str, Any]) -> None:
        """Adds a complete item of the output, except for what was streamed."""
        match item.get("type"):
            case "reasoning" if item.get("encrypted_content") or item.get("content"):
                # Without state, an id would refer to what the server has not stored.
                kept = {key: value for key, value in item.items() if key not in ("id", "status") and value is not None}
                self._answer.add_reasoning_item(kept)
            case "message" if index not in self._streamed:
                for content in _MessageItem.model_validate(item).content:
                    self._answer.add_text(content.text or content.refusal or "")
            case "function_call" if index not in self._streamed:
                call = _CallItem.model_validate(item)
                known = self._answer.has_call(index)
                self._answer.add_call(index, call.call_id, "" if known else call.name, call.arguments or "")

    def _add_state(self, response: _Response) -> None:
        answer = self._answer
        answer.begun = answer.begun or bool(response.output or response.status)
        answer.model = response.model or answer.model
        answer.id = response.id or answer.id
        if response.usage:
            answer.usage = response.usage.as_token_usage()
        if response.error or response.status in FAILED:
            raise reported_error(response.error or f"the response is {response.status}", self._endpoint)
        if response.status == "completed":
            answer.end = "complete"
        elif response.status == "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details else None
            answer.end = ENDS.get(reason or "", "length")
