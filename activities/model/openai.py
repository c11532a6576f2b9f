"""``type: openai``: OpenAI's chat completions, on any server that speaks them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypedDict, cast

import openai
from openai.types.chat import (
    ChatCompletionChunk,
    ChatCompletionMessageParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolUnionParam,
)
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from openai.types.shared_params import ResponseFormatJSONSchema

from activities.model.endpoint import Endpoint
from activities.model.errors import meaning
from activities.model.form import response_format
from activities.tool.kind import Tool
from conversation.errors import BrokenReply, EmptyReply
from conversation.failure import BatonError
from conversation.message import Message, TokenUsage, ToolCall
from resources.base import JsonObject

TIMEOUT = 290.0
"""Seconds for a whole call; a little less than its activity has."""

LONGEST_NAME = 64
MOST_CALLS = 128
"""Tool calls of one message that are carried out; no model in its right mind makes more."""


class OpenAI:
    """Asks OpenAI's API and its like. The library's own retries are off: Temporal tries again, and visibly."""

    def __init__(self, seconds: float = TIMEOUT) -> None:
        self._seconds = seconds
        self._clients: dict[Endpoint, openai.AsyncOpenAI] = {}

    async def ask(
        self,
        endpoint: Endpoint,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        hear: Callable[[str], None],
        *,
        must_use: bool = False,
        schema: JsonObject | None = None,
    ) -> Message:
        """One answer, streamed; ``hear`` is told its text as it comes."""
        answer = _Answer(hear)
        try:
            async with asyncio.timeout(self._seconds):
                await self._hear(endpoint, messages, _options(tools, schema, must_use=must_use), answer)
            return answer.message()
        except BatonError:
            raise
        except Exception as error:  # what a server can do wrong has no end; each of it is an error of the model
            raise meaning(error, endpoint) from None

    async def _hear(
        self, endpoint: Endpoint, messages: Sequence[Message], options: "_Options", answer: "_Answer"
    ) -> None:
        stream = await self.client(endpoint).chat.completions.create(
            model=endpoint.model,
            messages=[],
            # Given here, as the library would walk through every message else.
            extra_body={**dict(endpoint.properties), "messages": [*map(_message, messages)]},
            **options,
            stream=True,
            stream_options={"include_usage": True},
        )
        async with stream:
            async for chunk in stream:
                answer.add(chunk)

    async def close(self) -> None:
        """Closes the connections."""
        for client in self._clients.values():
            await client.close()

    def client(self, endpoint: Endpoint) -> openai.AsyncOpenAI:
        """The client for a server; models of one server share its connections."""
        server = replace(endpoint, model="", properties=())
        if server not in self._clients:
            self._clients[server] = _client(endpoint)
        return self._clients[server]


def _client(endpoint: Endpoint) -> openai.AsyncOpenAI:
    headers = dict(endpoint.headers)
    if endpoint.azure_version:
        return openai.AsyncAzureOpenAI(
            azure_endpoint=endpoint.base_url,
            api_key=endpoint.api_key,
            api_version=endpoint.azure_version,
            default_headers=headers,
            max_retries=0,
            timeout=TIMEOUT,
        )
    return openai.AsyncOpenAI(
        base_url=endpoint.base_url, api_key=endpoint.api_key, default_headers=headers, max_retries=0, timeout=TIMEOUT
    )


class _Answer:
    """An answer as it comes, piece by piece. (The library's own accumulator copies all of it for every piece.)"""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._text: list[str] = []
        self._calls: dict[int, ToolCall] = {}
        self._finish: str | None = None
        self._model: str | None = None
        self._usage: TokenUsage | None = None
        self._begun = False

    def add(self, chunk: ChatCompletionChunk) -> None:
        self._model = chunk.model or self._model
        if usage := chunk.usage:
            self._usage = TokenUsage(
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                total_tokens=usage.total_tokens,
            )
        for choice in chunk.choices[:1]:
            self._begun = True
            self._finish = choice.finish_reason or self._finish
            for text in (choice.delta.content, choice.delta.refusal):
                if text:
                    self._text.append(text)
                    self._hear(text)
            for call in choice.delta.tool_calls or ():
                self._add_call(call)

    def _add_call(self, piece: ChoiceDeltaToolCall) -> None:
        so_far = self._calls.get(piece.index, ToolCall(id="", name="", arguments=""))
        function = piece.function
        self._calls[piece.index] = ToolCall(
            id=so_far.id or (piece.id or f"call_{piece.index}")[:LONGEST_NAME],
            name=(so_far.name + ((function and function.name) or ""))[:LONGEST_NAME],
            arguments=so_far.arguments + ((function and function.arguments) or ""),
        )

    def message(self) -> Message:
        """The whole answer; raises EmptyReply or BrokenReply where there is none."""
        if not self._begun:
            raise EmptyReply("the model answered nothing at all")
        if self._finish is None:
            raise BrokenReply("the model's answer broke off before its end")
        usage = self._usage or TokenUsage()
        message = Message(role="assistant", content="".join(self._text), model=self._model, usage=usage)
        calls = tuple(self._calls[index] for index in sorted(self._calls))[:MOST_CALLS]
        return message.model_copy(update={"tool_calls": calls}) if calls else message


def _message(message: Message) -> ChatCompletionMessageParam:
    data: dict[str, object] = {"role": message.role, "content": message.content}
    if message.role in ("assistant", "user") and message.name:
        data["name"] = message.name.replace(".", "_")[:LONGEST_NAME]
    if message.role == "tool":
        data["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        data["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return cast(ChatCompletionMessageParam, data)


class _Options(TypedDict, total=False):
    tools: list[ChatCompletionToolUnionParam]
    tool_choice: ChatCompletionToolChoiceOptionParam
    response_format: ResponseFormatJSONSchema


def _options(tools: Sequence[Tool], schema: JsonObject | None, *, must_use: bool) -> _Options:
    """What a request asks for; a single tool that must be used is named, which more servers understand."""
    options: _Options = {}
    if tools:
        options["tools"] = [_tool(tool) for tool in tools]
    if must_use:
        name = tools[0].name
        options["tool_choice"] = "required" if len(tools) > 1 else {"type": "function", "function": {"name": name}}
    if schema is not None:
        options["response_format"] = response_format(schema)
    return options


def _tool(tool: Tool) -> ChatCompletionToolUnionParam:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return cast(ChatCompletionToolUnionParam, {"type": "function", "function": function})
