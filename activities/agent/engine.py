"""Agents of an ExecutionEngine: one request ``POST /execute`` executes an agent (ARK: agent execution, external)."""

import asyncio
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
from ...observability.spans import trace_headers
from ...resources.agent import Agent
from ...resources.base import JsonModel, JsonObject
from ...resources.execution_engine import ExecutionEngine
from ...resources.model import Model
from ...resources.values import ValueSource
from ..context.lookup import Executor
from ..context.metering import model_chain
from ..context.value_resolver import ValueResolver
from ..runtime.http import is_retryable, retry_after
from ..runtime.outbound import Outbound, SharedConnections
from .executor import CONNECT_SECONDS, CurrentHeaders, Execution, endpoint_of, outbound_of


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
    """The agent's model; ``config`` is its connection under the name of its provider."""

    name: str
    type: str
    config: dict[str, JsonValue] = {}


class AgentConfig(_Part):
    """The agent: its prompt with the parameters filled in."""

    name: str
    namespace: str
    prompt: str = ""
    description: str = ""
    parameters: list[NamedValue] = []
    model: EngineModel | None = None
    output_schema: JsonObject | None = Field(None, serialization_alias="outputSchema")


class EngineTool(_Part):
    """A tool of the agent: ``parameters`` is the JSON Schema of its arguments."""

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


class _Said(_Part):
    role: str = "assistant"
    content: str | None = None


class EngineResponse(_Part):
    """What an engine responds; with an ``error`` the execution has failed."""

    messages: list[_Said] | None = None
    error: str | None = None
    usage: _Usage | None = Field(None, validation_alias=AliasChoices("token_usage", "tokenUsage"))

    @classmethod
    def read(cls, data: bytes, engine: str) -> "EngineResponse":
        """Reads the body of a response; raises AgentFailed where it is none."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise AgentFailed(
                f"the engine {engine} gives no response that can be read: {where}: {first['msg']}"
            ) from None

    def messages_of(self, agent: str, engine: str) -> list[Message]:
        """The messages that join the conversation; the last one has the usage. Raises AgentFailed where it says so.

        As in ARK, a tool's message becomes the agent's, and one of an unknown role a user's.
        """
        if self.error:
            raise AgentFailed(f"agent {agent} has failed in its engine: {self.error}")
        said = [each for each in self.messages or () if each.content]
        if not said or said[-1].role not in ("assistant", "tool"):
            raise AgentFailed(f"the engine has no answer of agent {agent}")
        usage = TokenUsage(**self.usage.model_dump()) if self.usage else None
        messages = [_message(each, agent, engine) for each in said]
        return [*messages[:-1], messages[-1].with_usage(usage)]


def _message(said: _Said, agent: str, engine: str) -> Message:
    role = "assistant" if said.role in ("assistant", "tool") else "user"
    return Message(role=role, content=said.content or "", name=agent, model=engine)


async def engine_request(execution: Execution) -> EngineRequest:
    """The request for an execution."""
    agent = execution.agent
    values = execution.values
    engine = execution.executor
    *history, asked = execution.messages
    keys = isinstance(engine, ExecutionEngine) and engine.spec.send_keys and not values.catalog.is_inline(engine.id)
    return EngineRequest(
        agent=AgentConfig(
            name=agent.name,
            namespace=agent.namespace,
            prompt=values.prompt(agent) or "",
            description=agent.spec.description or "",
            parameters=_parameters(agent, values),
            model=_model(agent, values, keys=keys),
            output_schema=execution.schema,
        ),
        user_input=_engine_message(asked),
        history=[_engine_message(each) for each in history if each.content],
        tools=[EngineTool(name=t.name, description=t.description, parameters=t.parameters) for t in execution.tools],
    )


def _engine_message(message: Message) -> EngineMessage:
    return EngineMessage(role=message.role, content=message.content, name=message.name)


def _parameters(agent: Agent, values: ValueResolver) -> list[NamedValue]:
    """The agent's parameters, without those from Secrets."""
    open_ones = [each for each in agent.parameters if not _is_secret(each)]
    return [NamedValue(name=each.name, value=values.resolve(each, agent) or "") for each in open_ones]


def _model(agent: Agent, values: ValueResolver, *, keys: bool) -> EngineModel | None:
    """The agent's model, with its connection; without ``keys`` nothing that comes from a Secret."""
    chained = model_chain(agent, values.catalog)[0]
    if chained.manifest is None:
        return EngineModel(name=chained.name, type="openai")
    model = chained.manifest
    connection = model.spec.connection
    config = {} if connection is None else _resolved(connection, model, values, keys=keys)
    name = values.resolve(model.spec.model, model) or chained.name
    return EngineModel(name=name, type=model.spec.server, config={model.spec.server: config})


def _is_secret(source: ValueSource) -> bool:
    return bool(source.value_from and source.value_from.secret_key_ref)


def _resolved(connection: JsonModel, model: Model, values: ValueResolver, *, keys: bool) -> dict[str, JsonValue]:
    """The fields of a connection with their values: headers and properties as mappings."""

    def value(given: object) -> JsonValue:
        if isinstance(given, ValueSource):
            return values.resolve(given, model) if keys or not _is_secret(given) else None
        if isinstance(given, dict):
            return {name: found for name, each in given.items() if (found := value(each)) is not None}
        if isinstance(given, tuple):
            return value({each.name: each.value for each in given})
        return given if isinstance(given, int | str) else None

    fields = type(connection).model_fields.items()
    return {field.alias or name: found for name, field in fields if (found := value(getattr(connection, name)))}


TURNED_AWAY = frozenset({425, 429, 503})
"""HTTP status codes by which a server says that it has not begun: the request may be sent again."""


class EngineExecutor:
    """An ``AgentExecutor``. An engine is asked once, unless its manifest says that it is idempotent."""

    def __init__(self) -> None:
        self._connections = SharedConnections()

    async def execute(self, execution: Execution, on_text: Callable[[str], None]) -> list[Message]:
        """The messages of the engine's response."""
        engine = execution.executor
        record = execution.record
        seconds = execution.seconds
        url, headers = endpoint_of(engine, execution.values)
        outbound = outbound_of(engine, url, execution.values)
        current = CurrentHeaders(engine, execution.values, headers)
        body = (await engine_request(execution)).model_dump_json(by_alias=True, exclude_none=True)
        if not engine.spec.idempotent:
            await record.begin_once(f"the execution of {execution.agent.name}")
        try:
            async with asyncio.timeout(seconds):
                response = await self._post(outbound, url, current, body, record.key)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            await record.not_sent()
            raise AgentUnavailable(f"{engine.id} can't be reached: {error or type(error).__name__}") from None
        except TimeoutError:
            raise _broken_off(engine, f"gave no answer in {seconds:g} s", CallTimeout) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            what = f"broke off its answer: {error or type(error).__name__}"
            raise _broken_off(engine, what, AgentUnavailable) from None
        if response.status_code in TURNED_AWAY:
            await record.not_sent()
        if not response.is_success:
            raise _refusal(engine, response)
        answer = EngineResponse.read(response.content, engine.name)
        return answer.messages_of(execution.agent.name, engine.name)

    async def cancel(self, execution: Execution) -> bool:
        """Nothing: an engine has no request for that."""
        return False

    async def describe(self, executor: Executor, values: ValueResolver) -> str | None:
        """Nothing: an engine executes whatever agent it is given."""
        return None

    async def check(self, executor: Executor, values: ValueResolver) -> str:
        """Whatever it answers to a GET shows that it is there."""
        url, headers = endpoint_of(executor, values)
        try:
            async with self._http(outbound_of(executor, url, values)).stream("GET", url, headers=headers):
                return f"{url} answers"
        except httpx.HTTPError as error:
            raise AgentUnavailable(f"{executor.id} can't be reached: {error or type(error).__name__}") from None

    async def _post(self, outbound: Outbound, url: str, headers: CurrentHeaders, body: str, key: str) -> httpx.Response:
        """The response, read to its end; redirects are not followed."""
        own = {"content-type": "application/json", "idempotency-key": key, **trace_headers()}
        return await self._http(outbound).post(f"{url}/execute", content=body, headers=own, auth=headers)

    def _http(self, outbound: Outbound) -> httpx.AsyncClient:
        """A client that shares the connections of all; so it need not be closed."""
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        return outbound.open(httpx.AsyncClient, transport=self._connections, timeout=timeout)

    async def close(self) -> None:
        """Closes the connections."""
        await self._connections.close()


def _broken_off(engine: Executor, what: str, repeatable: type[BatonError]) -> BatonError:
    """The error for an execution that may have been carried out; ``repeatable`` if that does not matter."""
    if engine.spec.idempotent:
        return repeatable(f"{engine.id} {what}")
    return OutcomeUnknown(f"{engine.id} {what}; whether it was carried out is unknown", outage=True)


def _refusal(engine: Executor, response: httpx.Response) -> BatonError:
    status = response.status_code
    words = " ".join(response.text.split())[:MAX_ERROR_TEXT]
    text = f"{engine.id} answered HTTP {status} {response.reason_phrase}".strip() + (f": {words}" if words else "")
    if status in (401, 403):
        return KeyRefused(text)
    if status in TURNED_AWAY or (engine.spec.idempotent and is_retryable(status)):
        return AgentUnavailable(text, retry_after=retry_after(response.headers), outage=status >= 500)
    return AgentFailed(text, outage=True) if status >= 500 else AgentRejected(text)
