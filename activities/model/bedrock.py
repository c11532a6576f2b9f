"""The provider for Amazon Bedrock's Converse API, which supports all of Bedrock's chat models."""

import asyncio
import base64
import contextlib
import itertools
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from aiohttp.abc import AbstractResolver, ResolveResult
from botocore import UNSIGNED
from botocore import exceptions as aws
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from pydantic import JsonValue
from pydantic.alias_generators import to_camel

from ...contracts.errors import (
    BatonError,
    BrokenReply,
    CallTimeout,
    ContextTooLong,
    InvalidManifest,
    KeyMissing,
    KeyRefused,
    ModelRejected,
    ModelUnavailable,
    QuotaSpent,
)
from ...contracts.message import Message, TokenUsage
from ...contracts.settings import check_private_names
from ...journal.leases import check_lease, without_lease
from ...observability.spans import note_call
from ...resources.base import JsonObject
from ...resources.model import BedrockConfig, Model
from ...resources.model_settings import ModelSettings, without_settings
from ..context.metering import ChainedModel
from ..context.value_resolver import ValueResolver
from ..runtime.outbound import PORTS, SAFE_METHODS, Destination
from .accepted import BEDROCK_DOCUMENTS
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
from .connection import MAX_EVENT, checked_server, outbound_to, properties_of
from .provider import CONNECT_TIMEOUT, MAX_SERVER_TEXT, Attached, ClientPool, ModelRequest, error_of_status

_OF_ENVIRONMENT = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK")
"""Secrets that AWS' library reads from environment variables."""


@dataclass(frozen=True)
class Credentials:
    """Keys for requests: an API key, or a pair of keys for signatures. Without keys, AWS' library uses its own."""

    api_key: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None

    @property
    def are_named(self) -> bool:
        """Whether the Model names keys; else those of the worker are used."""
        return bool(self.api_key or self.access_key_id)


@dataclass(frozen=True)
class BedrockEndpoint:
    """A model of Bedrock in a region. ``model`` is its id, or the ARN of a profile or a provisioned model.

    ``server`` replaces the AWS endpoint of the region.
    """

    model: str
    region: str | None = None
    server: Destination | None = None
    credentials: Credentials = field(default=Credentials(), repr=False)
    max_tokens: int | None = None
    temperature: float | None = None
    properties: tuple[tuple[str, JsonValue], ...] = ()

    @property
    def where(self) -> str:
        """The model and its region, for errors."""
        return f"{self.model} at Bedrock{f' in {self.region}' if self.region else ''}"


def bedrock_endpoint(chained: ChainedModel, values: ValueResolver) -> BedrockEndpoint:
    """The endpoint of a model. Raises KeyMissing, InvalidManifest, or an error of ``ValueResolver.resolve``."""
    model = chained.manifest
    config = model.spec.connection if model else None
    if model is None or not isinstance(config, BedrockConfig):
        raise InvalidManifest(f"{chained.name} has no connection to Bedrock")
    server = values.server_of(model)
    secrets = values.secrets
    for name in _OF_ENVIRONMENT:
        secrets.environment_secret(name)  # so that it is redacted from now on
    region = values.resolve(config.region, model) or secrets.environment("AWS_REGION")
    return BedrockEndpoint(
        model=values.resolve(config.model_arn, model) or values.resolve(model.spec.model, model) or "",
        region=region or secrets.environment("AWS_DEFAULT_REGION"),
        server=checked_server(server) if server else None,
        credentials=_credentials(config, model, values),
        max_tokens=config.max_tokens,
        temperature=float(config.temperature) if config.temperature else None,
        properties=properties_of(config, values, model),
    )


def _credentials(config: BedrockConfig, model: Model, values: ValueResolver) -> Credentials:
    credentials = Credentials(
        api_key=values.resolve(config.api_key, model),
        access_key_id=values.resolve(config.access_key_id, model),
        secret_access_key=values.resolve(config.secret_access_key, model),
        session_token=values.resolve(config.session_token, model),
    )
    if bool(credentials.access_key_id) != bool(credentials.secret_access_key):
        missing = "secretAccessKey" if credentials.access_key_id else "accessKeyId"
        raise KeyMissing(f"{model.id} has no config.bedrock.{missing}")
    if not values.catalog.provenance_of(model).is_own and not credentials.are_named:
        raise KeyMissing(
            f"{model.id}: spec.config.bedrock: an inline Model must name keys: the worker's AWS keys are for its own "
            "manifests"
        )
    return credentials


_STATUS = {
    "ThrottlingException": 429,
    "ModelNotReadyException": 429,
    "ModelTimeoutException": 408,
    "InternalServerException": 500,
    "ModelStreamErrorException": 500,
    "ModelErrorException": 500,
    "ServiceUnavailableException": 503,
    "ValidationException": 400,
}
"""The HTTP status by error code: errors within a stream have no status, and a failed model's 424 is retryable."""

_TOO_LONG = re.compile(r"(?i)too long|too many (input )?tokens|maximum context|context (length|window|limit)")
"""The messages of a ValidationException for a conversation that exceeds the context window."""


UNREADABLE_KEYS = "the worker's AWS credentials can't be read"


def bedrock_error(error: Exception, where: str) -> BatonError:
    """The error of a run for an exception of AWS' library. The server's message is shortened."""
    if isinstance(baton_error := getattr(error, "kwargs", {}).get("error"), BatonError):  # raised by ``BedrockSession``
        return baton_error
    match error:
        case aws.ClientError():
            return _of_code(error, where)
        case aws.NoCredentialsError() | aws.PartialCredentialsError():
            return KeyMissing(f"{where}: the Model names no keys, and the worker has no AWS credentials")
        case aws.SSOError() | aws.RefreshWithMFAUnsupportedError() | aws.InvalidConfigError() | aws.ProfileNotFound():
            return KeyMissing(f"{where}: {UNREADABLE_KEYS}: {str(error)[:MAX_SERVER_TEXT]}")
        case aws.CredentialRetrievalError() | aws.TokenRetrievalError():
            return ModelUnavailable(f"{where}: {UNREADABLE_KEYS}: {str(error)[:MAX_SERVER_TEXT]}", unsent=True)
        case aws.NoRegionError():
            return InvalidManifest(f"{where}: the Model has no config.bedrock.region, and the worker has no AWS_REGION")
        case aws.ParamValidationError():
            return ModelRejected(f"{where}: {str(error)[:MAX_SERVER_TEXT]}")
        case aws.ReadTimeoutError() | TimeoutError():
            return CallTimeout(f"{where} did not respond in time")
        case aws.ConnectionError() | aws.HTTPClientError():
            return ModelUnavailable(f"{where} can't be reached: {str(error)[:MAX_SERVER_TEXT]}")
        case _:
            text = f"{where} sent an invalid response: {type(error).__name__}: {str(error)[:MAX_SERVER_TEXT]}"
            return BrokenReply(text, outage=isinstance(error, aiohttp.ClientError))


def _of_code(error: aws.ClientError, where: str) -> BatonError:
    details = error.response.get("Error", {})
    metadata = error.response.get("ResponseMetadata", {})
    code = details.get("Code", "")
    message = details.get("Message", "")
    code = code[:1].upper() + code[1:]  # in a stream it begins with a lower-case letter
    if code == "AccessDeniedException":  # its message names the missing permission or model, but no key
        return KeyRefused(f"{where} rejected the API key: {message[:MAX_SERVER_TEXT]}")
    special: type[BatonError] | None = QuotaSpent if code == "ServiceQuotaExceededException" else None
    if code == "ValidationException" and _TOO_LONG.search(message):
        special = ContextTooLong
    status = _STATUS.get(code) or metadata.get("HTTPStatusCode", 500)
    return error_of_status(where, status, f"{code}: {message}", metadata.get("HTTPHeaders", {}), special)


Fields = dict[str, Any]

INFERENCE = frozenset({"maxTokens", "temperature", "topP", "stopSequences"})
"""Properties that Converse supports for all models. They may also be written in snake_case."""


OBJECTS = frozenset({"inferenceConfig", "additionalModelRequestFields"})
"""Fields of Converse that a property may add to, and that have others as well."""

INFERENCE_NAMES = {"max_tokens": "maxTokens", "top_p": "topP", "stop": "stopSequences"}
"""The names of settings in ``inferenceConfig``, where they differ."""


def converse_fields(
    endpoint: BedrockEndpoint, request: ModelRequest, settings: ModelSettings, known: Collection[str]
) -> Fields:
    """The arguments of ``converse`` and ``converse_stream``; ``known`` are those of the installed library."""
    fields: Fields = {"inferenceConfig": {}, "additionalModelRequestFields": {}}
    for name, value in without_settings(endpoint.properties, settings).items():
        if (camel := to_camel(name)) in INFERENCE:
            fields["inferenceConfig"][camel] = value
        elif name in OBJECTS:
            if not isinstance(value, dict):
                raise InvalidManifest(f"{endpoint.where}: config.bedrock.properties: {name} must be a JSON object")
            fields[name] |= value
        elif name in known:
            fields[name] = value
        else:
            fields["additionalModelRequestFields"][name] = value
    own = {"maxTokens": endpoint.max_tokens, "temperature": endpoint.temperature}
    fields["inferenceConfig"] |= {name: value for name, value in own.items() if value is not None}
    fields["inferenceConfig"] |= {INFERENCE_NAMES.get(name, name): value for name, value in settings.chosen.items()}
    # The extra `s3` may install an aiobotocore without this field; the prompt also has the schema.
    if request.schema is not None and "outputConfig" in known and not has_open_objects(request.schema):
        fields["outputConfig"] = {**fields.get("outputConfig", {}), "textFormat": _text_format(request.schema)}
    entries = without_reasoning(alternating(request, endpoint.where), but=_is_signed)
    model_fields = fields["additionalModelRequestFields"]
    if rejects_thinking(model_fields.get("thinking"), entries, must_use=request.must_use):
        del model_fields["thinking"]
        entries = without_reasoning(entries)
    messages: list[Fields] = [{"role": role, "content": [*map(_block, blocks)]} for role, blocks in entries]
    _complete_documents(messages)
    system = system_prompt(request.messages)
    fixed = {"system": [{"text": system}] if system else None, "toolConfig": _tools(request)}
    fields |= {"modelId": endpoint.model, "messages": messages, **fixed}
    return {name: value for name, value in fields.items() if value}


def _is_signed(reasoning: JsonObject) -> bool:
    """Whether the server can check a reasoning. Models that don't sign it, such as DeepSeek's, reject it."""
    return bool(reasoning.get("signature") or reasoning.get("redacted"))


def _text_format(schema: JsonObject) -> Fields:
    return {"type": "json_schema", "structure": {"jsonSchema": {"schema": json.dumps(schema), "name": "answer"}}}


def _tools(request: ModelRequest) -> Fields:
    if not request.tools:
        return {}
    tools = [
        {
            "toolSpec": {
                "name": tool.name,
                "description": tool.description or tool.name,
                "inputSchema": {"json": tool.parameters},
            }
        }
        for tool in request.tools
    ]
    if not request.must_use:
        return {"tools": tools}
    only_tool = {"tool": {"name": request.tools[0].name}}
    return {"tools": tools, "toolChoice": {"any": {}} if len(tools) > 1 else only_tool}


def _block(block: Block) -> Fields:
    match block:
        case ReasoningBlock({"redacted": str(redacted)}):
            return {"reasoningContent": {"redactedContent": _encrypted(redacted)}}
        case ReasoningBlock(content):
            return {"reasoningContent": {"reasoningText": {"text": "", **content}}}  # a signature may come alone
        case CallBlock(id_, name, arguments, _):
            return {"toolUse": {"toolUseId": id_, "name": name, "input": arguments}}
        case ResultBlock(id_, segments):
            return {"toolResult": {"toolUseId": id_, "content": [*map(_block, segments)]}}
        case Attached():
            return _attached_block(block)
        case text:
            return {"text": text}


def _encrypted(redacted: str) -> bytes:
    """The bytes of encrypted reasoning. Each piece of a stream is base64 of its own, which padding may end."""
    return b"".join(map(base64.b64decode, re.findall("[^=]+=*", redacted)))


def _attached_block(attached: Attached) -> Fields:
    """An image or a document. Names of documents may have letters, digits, and few other characters."""
    source = {"bytes": attached.content}
    if attached.attachment.kind == "image":
        return {"image": {"format": attached.media_type.removeprefix("image/"), "source": source}}
    name = " ".join(re.sub(r"[^A-Za-z0-9()\[\]-]+", " ", attached.attachment.name or "").split())
    format_ = BEDROCK_DOCUMENTS[attached.media_type]
    return {"document": {"format": format_, "name": name or "document", "source": source}}


LONGEST_DOCUMENT_NAME = 200
"""Characters of the name of a document that Converse accepts."""

SEE_DOCUMENT = "(see the document)"
"""The text beside documents that came without one, as Converse demands."""


def _complete_documents(messages: Sequence[Fields]) -> None:
    """Names the documents of a request differently, and adds a text to a message that has only documents.

    Names are numbered in the order of the conversation, so that a document keeps its name in later requests.
    """
    names = set[str]()
    for message in messages:
        own = message["content"]
        blocks = [each for block in own for each in (block, *block.get("toolResult", {}).get("content", ()))]
        for document in (block["document"] for block in blocks if "document" in block):
            document["name"] = _unused(document["name"], names)
            names.add(document["name"])
        if any("document" in block for block in own) and not any("text" in block for block in own):
            own.append({"text": SEE_DOCUMENT})


def _unused(name: str, names: Collection[str]) -> str:
    numbered = (f" {number}" if number > 1 else "" for number in itertools.count(1))
    choices = (f"{name[: LONGEST_DOCUMENT_NAME - len(ending)].strip()}{ending}" for ending in numbered)
    return next(choice for choice in choices if choice not in names)


ENDS: dict[str, End | None] = {
    "max_tokens": "length",
    "content_filtered": "filtered",
    "guardrail_intervened": "filtered",
    "model_context_window_exceeded": "context",
    "malformed_model_output": None,
    "malformed_tool_use": None,
}
"""Stop reasons other than a normal end; None if the answer counts as incomplete."""


def add_event(answer: StreamedAnswer, event: dict[str, Any]) -> None:
    """Adds an event, whose single key is its type."""
    match event:
        case {"messageStart": _}:
            answer.begun = True
        case {"contentBlockStart": {"start": {"toolUse": use}, "contentBlockIndex": index}}:
            answer.add_call(index, use["toolUseId"], use["name"])
        case {"contentBlockDelta": {"delta": {"toolUse": use}, "contentBlockIndex": index}}:
            answer.add_call(index, arguments=use["input"])
        case {"contentBlockDelta": {"delta": {"text": text}}}:
            answer.add_text(text)
        case {"contentBlockDelta": {"delta": {"reasoningContent": piece}, "contentBlockIndex": index}}:
            _add_reasoning(answer, index, piece)
        case {"messageStop": {"stopReason": reason}}:
            answer.end = ENDS.get(reason, "complete")
        case {"metadata": {"usage": counts}}:
            answer.usage = _usage(counts)


def _add_reasoning(answer: StreamedAnswer, index: int, piece: dict[str, Any]) -> None:
    """Adds a piece of the model's reasoning: text, its signature, or bytes that the server has encrypted."""
    if "redactedContent" in piece:
        answer.add_thinking(index, redacted=base64.b64encode(piece["redactedContent"]).decode())
    else:
        answer.add_thinking(index, **{name: piece[name] for name in ("text", "signature") if name in piece})


def add_whole(answer: StreamedAnswer, reply: dict[str, Any]) -> None:
    """Adds an answer without streaming."""
    add_event(answer, {"messageStart": {}})
    for index, block in enumerate(reply["output"]["message"]["content"]):
        match block:
            case {"toolUse": use}:
                answer.add_call(index, use["toolUseId"], use["name"], json.dumps(use["input"]) if use["input"] else "")
            case {"text": text}:
                answer.add_text(text)
            case {"reasoningContent": content}:
                _add_reasoning(answer, index, content.get("reasoningText", content))
    add_event(answer, {"messageStop": reply})
    add_event(answer, {"metadata": reply})


def _usage(counts: dict[str, int]) -> TokenUsage:
    """The token counts; ``inputTokens`` excludes tokens read from the cache or written to it."""
    cached = counts.get("cacheReadInputTokens", 0)
    prompt = counts.get("inputTokens", 0) + cached + counts.get("cacheWriteInputTokens", 0)
    completion = counts.get("outputTokens", 0)
    return TokenUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion, cached_tokens=cached
    )


_PIECE = 65_536


class BoundedResponse(aiohttp.ClientResponse):
    """A response whose body is not read beyond the limit of a model's answer."""

    async def read(self) -> bytes:
        """The body. Raises AnswerTooLong; the library itself bounds the events of a stream."""
        if self._body is None:
            body = bytearray()
            async for piece in self.content.iter_chunked(_PIECE):
                body += piece
                if len(body) > MAX_EVENT:
                    self.close()
                    raise _RULES.exceeded(f"{_RULES.server} sent more than {MAX_EVENT:,} bytes")
            self._body = bytes(body)
        return self._body


class BedrockSession(AIOHTTPSession):
    """The library's session without redirects: Bedrock sends none, and another server may redirect to any address."""

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        untyped: Any = self  # the library's types lack these attributes
        if proxy_url not in untyped._sessions:
            tracing = aiohttp.TraceConfig()
            tracing.on_request_start.append(_check_lease)
            tracing.on_request_redirect.append(_refuse_redirect)
            new_session = aiohttp.ClientSession(
                connector=untyped._create_connector(proxy_url),
                timeout=untyped._timeout,
                skip_auto_headers={"CONTENT-TYPE"},
                auto_decompress=False,
                response_class=BoundedResponse,
                trace_configs=[tracing],
            )
            untyped._sessions[proxy_url] = await untyped._exit_stack.enter_async_context(new_session)
        session: aiohttp.ClientSession = untyped._sessions[proxy_url]
        return session


async def _check_lease(_: aiohttp.ClientSession, __: Any, request: aiohttp.TraceRequestStartParams) -> None:
    if request.method not in SAFE_METHODS:
        check_lease(f"{request.method} {request.url.host}")


async def _refuse_redirect(_: aiohttp.ClientSession, __: Any, request: aiohttp.TraceRequestRedirectParams) -> None:
    raise ModelRejected(f"{request.url.host} sent a redirect, which Bedrock never does")


_RULES = outbound_to(None)
"""The limits, the check of addresses and the errors, which the library's own client takes from the gate."""


class GuardedResolver(AbstractResolver):
    """Resolves a host to one public address. It is not called for a host that is an IP address."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """A public address of a host. Raises ModelRejected if any of its addresses is not public."""
        address = await _RULES.public_address(host, port)
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=address_family, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing to close."""


async def _check_public(url: str) -> None:
    """Raises ModelRejected or ModelUnavailable. The resolver does not check a host that is an IP address."""
    parts = urlsplit(url)
    await _RULES.public_address(parts.hostname or "", parts.port or PORTS[parts.scheme])


SERVICE: Literal["bedrock-runtime"] = "bedrock-runtime"
CONNECTIONS = 200
"""Concurrent connections to one server: the default number of concurrent activities of a worker."""


@dataclass(frozen=True)
class _Client:
    """A client of AWS' library, and the arguments of ``converse_stream`` that the library supports."""

    api: Any
    known: frozenset[str]


class BedrockProvider:
    """A ``Provider``. The library's own retries are disabled: Temporal retries, where retries are visible.

    The constructor loads the description of Bedrock's API, which is slow, so that calls need not.
    """

    def __init__(self) -> None:
        names = "_get_session", "_create_connector", "_timeout", "_sessions", "_exit_stack"
        check_private_names("aiobotocore", AIOHTTPSession(), names)
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
        answer = StreamedAnswer(on_text, endpoint.where)
        answer.model = endpoint.model
        session = self._session
        try:
            async with asyncio.timeout(model.timeout):
                async with self._client(endpoint) as client:
                    fields = converse_fields(endpoint, request, model.settings, client.known)
                    note_call(lambda: parameter_attributes(fields.get("inferenceConfig", {}), ModelSettings()))
                    await (_stream(client, fields, answer) if model.streams else _converse(client, fields, answer))
            return answer.message()
        except BatonError as error:
            raise answer.failed(error) from None
        except Exception as error:  # a server can fail in any way: all are errors of the model
            failure = bedrock_error(error, endpoint.where)
            fails_by_key = isinstance(failure, KeyRefused | KeyMissing)
            if fails_by_key and not endpoint.credentials.are_named and session is self._session:
                await self._read_keys_again()
            raise answer.failed(failure) from None

    async def check(self, model: ChainedModel, values: ValueResolver) -> str:
        """Sends an empty conversation, which Bedrock rejects at no cost after it has checked the key and the model."""
        endpoint = bedrock_endpoint(model, values)
        try:
            async with self._client(endpoint) as client:
                with without_lease():
                    await client.api.converse(modelId=endpoint.model, messages=[])
        except ClientError as error:
            detail = error.response.get("Error", {})
            if detail.get("Code") != "ValidationException" or "model identifier" in detail.get("Message", ""):
                raise bedrock_error(error, endpoint.where) from None
        except Exception as error:
            raise bedrock_error(error, endpoint.where) from None
        return endpoint.where

    async def close(self) -> None:
        """Closes the connections."""
        await self._clients.close()

    @contextlib.asynccontextmanager
    async def _client(self, endpoint: BedrockEndpoint) -> AsyncIterator[_Client]:
        if endpoint.server and endpoint.server.is_guarded:
            await _check_public(endpoint.server.url)
        async with self._clients.client(_server_of(endpoint)) as client:
            yield client

    async def _read_keys_again(self) -> None:
        """Lets the next calls read the worker's own keys, which a session keeps, even if it found none."""
        session = AioSession()
        session.register_component("data_loader", self._session.get_component("data_loader"))
        self._session = session
        await self._clients.renew(lambda server: not server.credentials.are_named)

    @contextlib.asynccontextmanager
    async def _new_client(self, endpoint: BedrockEndpoint) -> AsyncIterator[_Client]:
        keys = endpoint.credentials
        server = endpoint.server
        options: dict[str, Any] = {  # Any, as the library's types have an overload for every AWS service
            "region_name": endpoint.region,
            "endpoint_url": server.url if server else None,
            "aws_access_key_id": keys.access_key_id,
            "aws_secret_access_key": keys.secret_access_key,
            "aws_session_token": keys.session_token,
            "config": _config(keys, guarded=server is not None and server.is_guarded),
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
    """The endpoint without the fields of one model: all models of a region and its credentials share connections."""
    return replace(endpoint, model="", max_tokens=None, temperature=None, properties=())


def _config(keys: Credentials, *, guarded: bool) -> AioConfig:
    options: dict[str, Any] = {"connector_args": {"resolver": GuardedResolver()}, "proxies": {}} if guarded else {}
    if keys.are_named:  # else the library chooses by the credentials in the environment
        options["signature_version"] = UNSIGNED if keys.api_key else "v4"
    return AioConfig(
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=None,  # calls have their own timeouts
        max_pool_connections=CONNECTIONS,
        retries={"total_max_attempts": 1},
        http_session_cls=BedrockSession,
        **options,
    )


def _bearer(api_key: str) -> Callable[..., None]:
    """A handler that adds an API key to a request: the library only reads one from environment variables."""

    def add(request: AWSRequest, **_: object) -> None:
        request.headers["Authorization"] = f"Bearer {api_key}"

    return add
