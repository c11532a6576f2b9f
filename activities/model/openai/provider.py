"""The provider for servers that speak OpenAI's chat completions: OpenAI, Azure, Gemini and many others."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypedDict, cast

import httpx2
import openai
from openai.types.chat import (
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolUnionParam,
)
from openai.types.shared_params import ResponseFormatJSONSchema

from ....conversation.failure import BatonError
from ....conversation.messages.message import Message
from ...context.model_chain import ChainedModel
from ...context.value_resolver import ValueResolver
from ...runtime.call_spans import note_call, trace_headers
from ...tool.tool import ToolDefinition
from ..answer import StreamedAnswer
from ..call_attributes import parameter_attributes
from ..client_pool import ClientPool
from ..connection import environment_headers, http_options
from ..failures import CONNECT_TIMEOUT
from ..provider import ModelRequest
from .endpoint import Endpoint, endpoint_of
from .errors import error_of
from .messages import message_param
from .response_format import response_format
from .stream import Chunk


class OpenAIProvider:
    """A ``Provider``. The library's own retries are off: Temporal retries instead, where everybody can see it."""

    def __init__(self) -> None:
        self._clients = ClientPool(_new_client)

    async def ask(
        self, model: ChainedModel, values: ValueResolver, request: ModelRequest, on_text: Callable[[str], None]
    ) -> Message:
        """One answer, streamed if the model streams."""
        endpoint = endpoint_of(model, values)
        answer, stream_class = StreamedAnswer(on_text, endpoint.where), openai.AsyncStream[object]
        note_call(lambda: parameter_attributes(dict(endpoint.properties)))
        try:
            async with asyncio.timeout(model.timeout), self._clients.client(_server_of(endpoint)) as client:
                answered = await client.post(  # not by chat.completions: that is slow for every chunk
                    "/chat/completions",
                    cast_to=object,
                    body=_body(endpoint, request, stream=model.streams),
                    options={"headers": {**trace_headers(), **dict(endpoint.headers)}},
                    stream=model.streams,
                    stream_cls=stream_class,
                )
                await _read(answered, answer, endpoint)
            return answer.message()
        except BatonError:
            raise
        except Exception as error:  # a server can fail in countless ways; each of them is an error of the model
            raise error_of(error, endpoint) from None

    async def check(self, model: ChainedModel, values: ValueResolver) -> str:
        """Lists the server's models, which costs nothing; a server that has no such list answers all the same."""
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


async def _read(answered: object, answer: StreamedAnswer, endpoint: Endpoint) -> None:
    """Reads a stream, or the whole answer. Raises openai.APIError, as streams do, for an error with HTTP 200."""
    if isinstance(answered, openai.AsyncStream):
        async with answered:
            async for chunk in answered:
                Chunk.model_validate(chunk).add_to(answer)
        return
    if wrong := isinstance(answered, dict) and answered.get("error"):
        words = str(wrong.get("message") if isinstance(wrong, dict) else wrong)
        raise openai.APIError(words, httpx2.Request("POST", endpoint.base_url), body=wrong)
    Chunk.model_validate(answered).add_to(answer)


def _server_of(endpoint: Endpoint) -> Endpoint:
    """What all models of one server have in common, which share its connections. A run may have headers of its own."""
    return replace(endpoint, model="", properties=(), headers=())


def _new_client(endpoint: Endpoint) -> openai.AsyncOpenAI:
    common: dict[str, Any] = {
        "api_key": endpoint.api_key,
        "default_headers": _left_out(endpoint),
        "max_retries": 0,
        "timeout": openai.Timeout(None, connect=CONNECT_TIMEOUT),  # each call has its own
        "http_client": openai.DefaultAsyncHttpxClient(**http_options(guarded=endpoint.guarded)),
    }
    if version := endpoint.azure_version:
        return openai.AsyncAzureOpenAI(azure_endpoint=endpoint.base_url, api_version=version, **common)
    return openai.AsyncOpenAI(base_url=endpoint.base_url, **common)


def _left_out(endpoint: Endpoint) -> dict[str, Any]:
    """The headers that the library takes from the worker's environment, for a Model that a run has brought."""
    names = ["OpenAI-Organization", "OpenAI-Project", *environment_headers("OPENAI_CUSTOM_HEADERS")]
    return dict.fromkeys(names if endpoint.brought else (), openai.Omit())


def _body(endpoint: Endpoint, request: ModelRequest, *, stream: bool) -> dict[str, object]:
    return {
        **{"model": endpoint.model},
        **({"stream_options": {"include_usage": True}} if stream else {}),
        **_options(request),
        **dict(endpoint.properties),
        **{"messages": [message_param(each, endpoint) for each in request.messages], "stream": stream},
    }


class _Options(TypedDict, total=False):
    tools: list[ChatCompletionToolUnionParam]
    tool_choice: ChatCompletionToolChoiceOptionParam
    response_format: ResponseFormatJSONSchema


def _options(request: ModelRequest) -> _Options:
    """The optional fields of a request. A single tool that must be used is named: more servers understand that."""
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
