"""The provider for Amazon Bedrock's Converse API, which all of Bedrock's chat models have."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore import UNSIGNED
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError

from ....conversation.failure import BatonError
from ....conversation.messages.message import Message
from ...context.model_chain import ChainedModel
from ...context.value_resolver import ValueResolver
from ..answer import StreamedAnswer
from ..client_pool import ClientPool
from ..failures import CONNECT_TIMEOUT
from ..guarded_transport import public_address_of
from ..provider import ModelRequest
from .endpoint import BedrockEndpoint, Credentials, bedrock_endpoint
from .errors import bedrock_error
from .http_session import BedrockSession, GuardedResolver
from .request import Fields, converse_fields
from .stream import add_event, add_whole

SERVICE: Literal["bedrock-runtime"] = "bedrock-runtime"
CONNECTIONS = 200
"""Connections to one server at the same time: as many as a worker makes calls by default."""


@dataclass(frozen=True)
class _Client:
    """A client of AWS' library, and the arguments of ``converse_stream`` that the library knows."""

    api: Any
    known: frozenset[str]


class BedrockProvider:
    """A ``Provider``. The library's own retries are off: Temporal retries instead, where everybody can see it.

    Making one loads the description of Bedrock's API, which takes time, so that no call does.
    """

    def __init__(self) -> None:
        self._session = AioSession()
        loader = self._session.get_component("data_loader")
        for name in ("service-2", "endpoint-rule-set-1"):
            loader.load_service_model(SERVICE, name)
        for name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
            loader.load_data(name)
        self._clients = ClientPool(self._new_client)

    async def ask(
        self, model: ChainedModel, values: ValueResolver, request: ModelRequest, on_text: Callable[[str], None]
    ) -> Message:
        """One answer, streamed if the model streams."""
        endpoint = bedrock_endpoint(model, values)
        answer = StreamedAnswer(on_text)
        answer.model = endpoint.model
        try:
            async with asyncio.timeout(model.timeout):
                if endpoint.guarded and endpoint.base_url:
                    await public_address_of(endpoint.base_url)
                async with self._clients.client(_server_of(endpoint)) as client:
                    fields = converse_fields(endpoint, request, client.known)
                    await (_stream(client, fields, answer) if model.streams else _converse(client, fields, answer))
            return answer.message()
        except BatonError:
            raise
        except Exception as error:  # a server can fail in countless ways; each of them is an error of the model
            raise bedrock_error(error, endpoint.where) from None

    async def check(self, model: ChainedModel, values: ValueResolver) -> str:
        """Sends an empty conversation, which Bedrock refuses, at no cost, after it has checked key and model."""
        endpoint = bedrock_endpoint(model, values)
        try:
            async with self._clients.client(_server_of(endpoint)) as client:
                await client.api.converse(modelId=endpoint.model, messages=[])
        except ClientError as error:
            refused = error.response.get("Error", {})
            if refused.get("Code") != "ValidationException" or "model identifier" in refused.get("Message", ""):
                raise bedrock_error(error, endpoint.where) from None
        except Exception as error:
            raise bedrock_error(error, endpoint.where) from None
        return endpoint.where

    async def close(self) -> None:
        """Closes the connections."""
        await self._clients.close()

    @contextlib.asynccontextmanager
    async def _new_client(self, server: BedrockEndpoint) -> AsyncIterator[_Client]:
        keys = server.credentials
        options: dict[str, Any] = {  # any, since the library's types have an overload for each of Amazon's services
            "region_name": server.region,
            "endpoint_url": server.base_url,
            "aws_access_key_id": keys.access_key_id,
            "aws_secret_access_key": keys.secret_access_key,
            "aws_session_token": keys.session_token,
            "config": _config(keys, guarded=server.guarded and server.base_url is not None),
        }
        async with self._session.create_client(SERVICE, **options) as made:
            api: Any = made
            if keys.api_key:
                api.meta.events.register("request-created", _bearer(keys.api_key))
            members = api.meta.service_model.operation_model("ConverseStream").input_shape.members
            yield _Client(api, frozenset(members))


async def _stream(client: _Client, fields: Fields, answer: StreamedAnswer) -> None:
    reply = await client.api.converse_stream(**fields)
    with contextlib.closing(reply["stream"]) as stream:
        async for event in stream:
            add_event(answer, event)


async def _converse(client: _Client, fields: Fields, answer: StreamedAnswer) -> None:
    add_whole(answer, await client.api.converse(**fields))


def _server_of(endpoint: BedrockEndpoint) -> BedrockEndpoint:
    """A region with these credentials: all its models share the connections."""
    return replace(endpoint, model="", max_tokens=None, temperature=None, properties=())


def _config(keys: Credentials, *, guarded: bool) -> AioConfig:
    options: dict[str, Any] = {"connector_args": {"resolver": GuardedResolver()}, "proxies": {}} if guarded else {}
    if keys.api_key or keys.access_key_id:  # else the library chooses, by the credentials that it finds
        options["signature_version"] = UNSIGNED if keys.api_key else "v4"
    return AioConfig(
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=None,  # each call has a timeout of its own
        max_pool_connections=CONNECTIONS,
        retries={"total_max_attempts": 1},
        http_session_cls=BedrockSession,
        **options,
    )


def _bearer(api_key: str) -> Callable[..., None]:
    """A handler that adds an API key to a request: the library itself reads one only from the environment."""

    def add(request: AWSRequest, **_: object) -> None:
        request.headers["Authorization"] = f"Bearer {api_key}"

    return add
