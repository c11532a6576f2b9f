"""Agents of an ExecutionEngine, executed by one request ``POST /execute`` (ARK: agent execution, external)."""

import asyncio
import json
from collections.abc import Callable

import httpx
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ...contracts.errors import (
    MAX_ERROR_TEXT,
    AgentFailed,
    AgentRejected,
    AgentUnavailable,
    BatonError,
    CallTimeout,
    KeyRefused,
    OutcomeUnknown,
)
from ...contracts.message import Message, TokenUsage
from ...journal.leases import Lease
from ...observability.spans import trace_headers
from ...resources.agent import Agent
from ...resources.base import JsonModel, JsonObject
from ...resources.execution_engine import ExecutionEngine
from ...resources.model import Model
from ...resources.values import ValueSource
from ..context.lookup import Executor
from ..context.metering import model_chain
from ..context.value_resolver import ValueResolver
from ..model.connection import environment_model
from ..runtime.http import is_retryable, retry_after
from ..runtime.outbound import Destination, SharedConnections
from .executor import CONNECT_SECONDS, CurrentHeaders, Execution, endpoint_of, outbound_to


class _Part(BaseModel):
    """A part of a request or a response. A validation error does not repeat its content."""

    model_config = ConfigDict(hide_input_in_errors=True)


class EngineMessage(_Part):
    """A message of the conversation."""

    role: str
    content: str = ""
    name: str | None = None


class NamedValue(_Part):
    """A parameter of the agent."""

    name: str
    value: str


class EngineModel(_Part):
    """The agent's model; ``config`` is its connection, by the name of its provider."""

    name: str
    type: str
    config: dict[str, JsonValue] = {}


class AgentConfig(_Part):
    """The agent: its prompt with the parameters filled in."""

    name: str
    namespace: str
    prompt: str = ""
    description: str = ""
    labels: dict[str, str] = {}
    parameters: list[NamedValue] = []
    model: EngineModel | None = None
    output_schema: JsonObject | None = Field(None, serialization_alias="outputSchema")


class EngineTool(_Part):
    """A tool of the agent; ``parameters`` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject


class EngineRequest(_Part):
    """The body of ``POST /execute``."""

    agent: AgentConfig
    user_input: EngineMessage = Field(serialization_alias="userInput")
    history: list[EngineMessage]
    tools: list[EngineTool]


class _Usage(_Part):
    prompt_tokens: int = Field(0, validation_alias=AliasChoices("prompt_tokens", "promptTokens"))
    completion_tokens: int = Field(0, validation_alias=AliasChoices("completion_tokens", "completionTokens"))
    total_tokens: int = Field(0, validation_alias=AliasChoices("total_tokens", "totalTokens"))


class _ResponseMessage(_Part):
    role: str = "assistant"
    content: str | None = None


class EngineResponse(_Part):
    """The response of an engine; with an ``error`` the execution has failed."""

    messages: list[_ResponseMessage] | None = None
    error: str | None = None
    usage: _Usage | None = Field(None, validation_alias=AliasChoices("token_usage", "tokenUsage"))

    @classmethod
    def read(cls, data: bytes, engine: str) -> "EngineResponse":
        """Parses the body of a response. Raises AgentFailed if it is invalid."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise AgentFailed(f"the engine {engine} sent an invalid response: {where}: {first['msg']}") from None

    def messages_of(self, agent: str, engine: str) -> list[Message]:
        """The messages for the conversation; the last one has the usage. Raises AgentFailed if the execution failed.

        As in ARK, a tool's message becomes one of the agent, and one with an unknown role a user message.
        """
        if self.error:
            raise AgentFailed(f"agent {agent} has failed in its engine: {self.error}")
        received = [message for message in self.messages or () if message.content]
        if not received or received[-1].role not in ("assistant", "tool"):
            raise AgentFailed(f"the engine returned no answer from agent {agent}")
        usage = TokenUsage(**self.usage.model_dump()) if self.usage else None
        messages = [_message(message, agent, engine) for message in received]
        return [*messages[:-1], messages[-1].with_usage(usage)]


def _message(received: _ResponseMessage, agent: str, engine: str) -> Message:
    role = "assistant" if received.role in ("assistant", "tool") else "user"
    return Message(role=role, content=received.content or "", name=agent, model=engine)


async def engine_request(execution: Execution) -> EngineRequest:
    """The request for an execution."""
    agent = execution.agent
    values = execution.values
    engine = execution.executor
    *history, question = execution.messages
    keys = isinstance(engine, ExecutionEngine) and engine.spec.send_keys and values.catalog.provenance_of(engine).is_own
    return EngineRequest(
        agent=AgentConfig(
            name=agent.name,
            namespace=agent.namespace,
            prompt=values.prompt(agent) or "",
            description=agent.spec.description or "",
            labels=dict(agent.metadata.labels),
            parameters=_parameters(agent, values),
            model=_model(agent, values, keys=keys),
            output_schema=execution.schema,
        ),
        user_input=_engine_message(question),
        history=[_engine_message(message) for message in history if message.content],
        tools=[EngineTool(name=t.name, description=t.description, parameters=t.parameters) for t in execution.tools],
    )


def _engine_message(message: Message) -> EngineMessage:
    return EngineMessage(role=message.role, content=message.content, name=message.name)


def _parameters(agent: Agent, values: ValueResolver) -> list[NamedValue]:
    """The agent's parameters, without those from Secrets."""
    return [
        NamedValue(name=parameter.name, value=values.resolve(parameter, agent) or "")
        for parameter in agent.parameters
        if not _is_secret(parameter)
    ]


def _model(agent: Agent, values: ValueResolver, *, keys: bool) -> EngineModel | None:
    """The agent's model, with its connection; without ``keys`` no value from a Secret."""
    chained = model_chain(agent, values.catalog)[0]
    if chained.manifest is None:
        return EngineModel(name=environment_model(chained.name, values.secrets), type="openai")
    model = chained.manifest
    connection = model.spec.connection
    config = {} if connection is None else _resolved(connection, model, values, keys=keys)
    settings = {key: item if isinstance(item, str) else json.dumps(item) for key, item in model.spec.chosen.items()}
    if settings:
        properties = config.get("properties")
        config["properties"] = {**(properties if isinstance(properties, dict) else {}), **settings}
    name = values.resolve(model.spec.model, model) or chained.name
    return EngineModel(name=name, type=model.spec.server, config={model.spec.server: config})


def _is_secret(source: ValueSource) -> bool:
    return bool(source.value_from and source.value_from.secret_key_ref)


def _resolved(connection: JsonModel, model: Model, values: ValueResolver, *, keys: bool) -> dict[str, JsonValue]:
    """The resolved fields of a connection; headers and properties are mappings."""

    def value(field: object) -> JsonValue:
        if isinstance(field, ValueSource):
            return values.resolve(field, model) if keys or not _is_secret(field) else None
        if isinstance(field, dict):
            return {name: resolved for name, item in field.items() if (resolved := value(item)) is not None}
        if isinstance(field, tuple):
            return value({parameter.name: parameter.value for parameter in field})
        return field if isinstance(field, int | str) else None

    fields = type(connection).model_fields.items()
    return {field.alias or name: resolved for name, field in fields if (resolved := value(getattr(connection, name)))}


NOT_STARTED = frozenset({425, 429, 503})
"""HTTP status codes of a server that has not started to process the request: it may be sent again."""


class EngineExecutor:
    """An ``AgentExecutor``. A request is sent once, unless the engine's manifest declares it idempotent."""

    def __init__(self) -> None:
        self._connections = SharedConnections()

    async def execute(self, lease: Lease, execution: Execution, on_text: Callable[[str], None]) -> list[Message]:
        """The messages of the engine's response."""
        engine = execution.executor
        seconds = execution.seconds
        server, headers = endpoint_of(engine, execution.values)
        current = CurrentHeaders(engine, execution.values, server, headers)
        body = (await engine_request(execution)).model_dump_json(by_alias=True, exclude_none=True)
        if engine.spec.idempotent:
            await lease.send()
        else:
            await lease.send_once(f"the execution of {execution.agent.name}")
        try:
            async with asyncio.timeout(seconds):
                response = await self._post(server, current, body, execution.record.key)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            text = f"{engine.id} can't be reached: {error or type(error).__name__}"
            raise AgentUnavailable(text, unsent=True) from None
        except TimeoutError:
            raise _incomplete(engine, f"did not respond within {seconds:g} s", CallTimeout) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            what = f"did not complete its response: {error or type(error).__name__}"
            raise _incomplete(engine, what, AgentUnavailable) from None
        if not response.is_success:
            raise _refusal(engine, response)
        answer = EngineResponse.read(response.content, engine.name)
        return answer.messages_of(execution.agent.name, engine.name)

    async def cancel(self, execution: Execution, *, was_sent: bool) -> bool:
        """Always False: the protocol has no cancellation."""
        return False

    async def describe(self, executor: Executor, values: ValueResolver) -> str | None:
        """Always None: the agent is defined by its manifest, not by the engine."""
        return None

    async def check(self, executor: Executor, values: ValueResolver) -> str:
        """Any response to a GET request shows that the engine is reachable."""
        server, headers = endpoint_of(executor, values)
        try:
            async with self._http(server).stream("GET", server.url, headers=headers):
                return f"{server.authority} responds"
        except httpx.HTTPError as error:
            raise AgentUnavailable(f"{executor.id} can't be reached: {error or type(error).__name__}") from None

    async def _post(self, server: Destination, headers: CurrentHeaders, body: str, key: str) -> httpx.Response:
        """The complete response; redirects are not followed."""
        request_headers = {"content-type": "application/json", "idempotency-key": key, **trace_headers()}
        return await self._http(server).post(
            f"{server.url}/execute", content=body, headers=request_headers, auth=headers
        )

    def _http(self, server: Destination) -> httpx.AsyncClient:
        """A client that uses the shared connections, and so need not be closed."""
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        return outbound_to(server).open(httpx.AsyncClient, transport=self._connections, timeout=timeout)

    async def close(self) -> None:
        """Closes the connections."""
        await self._connections.close()


def _incomplete(engine: Executor, problem: str, repeatable: type[BatonError]) -> BatonError:
    """The error for an execution that may have taken effect; ``repeatable`` if the engine is idempotent."""
    if engine.spec.idempotent:
        return repeatable(f"{engine.id} {problem}")
    return OutcomeUnknown(f"{engine.id} {problem}; whether it was executed is unknown", outage=True)


def _refusal(engine: Executor, response: httpx.Response) -> BatonError:
    status = response.status_code
    body = " ".join(response.text.split())[:MAX_ERROR_TEXT]
    text = f"{engine.id} answered HTTP {status} {response.reason_phrase}".strip() + (f": {body}" if body else "")
    if status in (401, 403):
        return KeyRefused(text)
    if status in NOT_STARTED or (engine.spec.idempotent and is_retryable(status)):
        unsent = status in NOT_STARTED
        return AgentUnavailable(text, retry_after=retry_after(response.headers), outage=status >= 500, unsent=unsent)
    return AgentFailed(text, outage=True) if status >= 500 else AgentRejected(text)
