"""``type: openai``: OpenAI's chat completions, on any server that speaks them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypedDict, cast

import openai
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolUnionParam,
)
from openai.types.shared_params import ResponseFormatJSONSchema

from ...conversation.failure import BatonError
from ...conversation.messages.message import Message
from ...resources.base import JsonObject
from ..tool.tool import Tool
from .endpoint import Endpoint
from .errors import meaning
from .response_format import response_format
from .stream import LONGEST_NAME, Answer, Piece

TIMEOUT = 290.0
"""Seconds for a whole call; a little less than its activity has."""


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
        answer = Answer(hear)
        try:
            async with asyncio.timeout(self._seconds):
                await self._hear(endpoint, messages, _options(tools, schema, must_use=must_use), answer)
            return answer.message()
        except BatonError:
            raise
        except Exception as error:  # what a server can do wrong has no end; each of it is an error of the model
            raise meaning(error, endpoint) from None

    async def _hear(self, endpoint: Endpoint, messages: Sequence[Message], options: "_Options", answer: Answer) -> None:
        # Not by ``chat.completions``, which builds a tree of objects for every word that comes.
        stream = await self.client(endpoint).post(
            "/chat/completions",
            cast_to=object,
            body={
                **{"model": endpoint.model, "stream_options": {"include_usage": True}},
                **options,
                **dict(endpoint.properties),
                **{"messages": [*map(_message, messages)], "stream": True},
            },
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        async with stream:
            async for chunk in stream:
                answer.add(Piece.model_validate(chunk))

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
