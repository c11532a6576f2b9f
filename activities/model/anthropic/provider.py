"""The provider for Anthropic's Messages API, and other servers that speak it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anthropic

from ....conversation.failure import BatonError
from ....conversation.messages.message import Message
from ...context.model_chain import ChainedModel
from ...context.value_resolver import ValueResolver
from ...runtime.call_spans import note_call, trace_headers
from ..answer import StreamedAnswer
from ..call_attributes import parameter_attributes
from ..client_pool import ClientPool
from ..connection import environment_headers, http_options
from ..failures import CONNECT_TIMEOUT
from ..provider import ModelRequest
from .endpoint import AnthropicEndpoint, anthropic_endpoint
from .errors import anthropic_error
from .request import request_body
from .stream import AnthropicStream, StreamEvent, WholeMessage


class AnthropicProvider:
    """A ``Provider``. The library's own retries are off: Temporal retries instead, where everybody can see it."""

    def __init__(self) -> None:
        self._clients = ClientPool(_new_client)

    async def ask(
        self, model: ChainedModel, values: ValueResolver, request: ModelRequest, on_text: Callable[[str], None]
    ) -> Message:
        """One answer, streamed if the model streams."""
        endpoint = anthropic_endpoint(model, values)
        answer, stream_class = StreamedAnswer(on_text), anthropic.AsyncStream[object]
        note_call(lambda: parameter_attributes(dict(endpoint.properties)))
        try:
            async with asyncio.timeout(model.timeout), self._clients.client(_server_of(endpoint)) as client:
                answered = await client.post(  # not by `messages`: that is slow for every event
                    "/v1/messages",
                    cast_to=object,
                    body=request_body(endpoint, request, stream=model.streams),
                    options={"headers": {**trace_headers(), **dict(endpoint.headers)}},
                    stream=model.streams,
                    stream_cls=stream_class,
                )
                await _read(answered, AnthropicStream(answer))
            return answer.message()
        except BatonError:
            raise
        except Exception as error:  # a server can fail in countless ways; each of them is an error of the model
            raise anthropic_error(error, endpoint) from None

    async def check(self, model: ChainedModel, values: ValueResolver) -> str:
        """Lists the server's models, which costs nothing; a server that has no such list answers all the same."""
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


async def _read(answered: object, events: AnthropicStream) -> None:
    """Reads a stream, or the whole answer."""
    if isinstance(answered, anthropic.AsyncStream):
        async with answered:
            async for event in answered:
                events.add(StreamEvent.model_validate(event))
    else:
        events.add_whole(WholeMessage.model_validate(answered))


def _server_of(endpoint: AnthropicEndpoint) -> AnthropicEndpoint:
    """What all models of one server have in common, which share its connections. A run may have headers of its own."""
    return replace(endpoint, model="", properties=(), headers=())


def _new_client(endpoint: AnthropicEndpoint) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        default_headers=_left_out(endpoint),
        max_retries=0,
        timeout=anthropic.Timeout(None, connect=CONNECT_TIMEOUT),  # each call has its own
        http_client=anthropic.DefaultAsyncHttpxClient(**http_options(guarded=endpoint.guarded)),
        open_telemetry=False,  # its spans would not belong to the run's
    )


def _left_out(endpoint: AnthropicEndpoint) -> dict[str, Any]:
    """The headers that the library takes from the worker's environment, for a Model that a run has brought."""
    names = environment_headers("ANTHROPIC_CUSTOM_HEADERS") if endpoint.brought else []
    return dict.fromkeys(names, anthropic.Omit())
