"""What an MCP server asks a person in the middle of a call (elicitation), in both eras of the protocol."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    URL_ELICITATION_REQUIRED,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import JsonValue, TypeAdapter, ValidationError

from ....contracts.errors import ToolFailed
from ....contracts.message import PersonDecision
from ....contracts.text import byte_size, parse_json, truncate
from ....resources.base import JsonObject
from ..tool import Answered, AsksPerson

NEEDS_INPUT = frozenset({MISSING_REQUIRED_CLIENT_CAPABILITY, URL_ELICITATION_REQUIRED})
"""The codes of errors by which a server says that it needs an answer."""

MAX_REQUESTS = 10
MAX_MESSAGE = 2_000
MAX_SCHEMA = 4_000
"""Bytes of what a server asks, and of the schema of the answer."""

Requests = Mapping[str, ElicitRequestParams]
"""What a server asks at once, by keys of its own."""

_PARAMS: TypeAdapter[dict[str, ElicitRequestParams]] = TypeAdapter(dict[str, ElicitRequestParams])
_RESULTS: TypeAdapter[dict[str, ElicitResult]] = TypeAdapter(dict[str, ElicitResult])


def needs_input(label: str, questions: list[str]) -> ToolFailed:
    """The failure of a call that needs answers, where nobody is asked."""
    asked = "; ".join(truncate(each, MAX_MESSAGE) for each in questions[:MAX_REQUESTS])
    return ToolFailed(f"{label} needs an answer of a person, which only 'questions' of its MCPServer allows: {asked}")


class Elicitation:
    """What is asked in one call: the answers until now, and the next question.

    ``known`` are the answers by what was asked; ``responses`` and ``state`` are what a server of 2026-07-28 needs to go
    on. A server of 2025-11-25 asks while the call is under way, and can't wait for long: it is told ``cancel``, and
    the call is made again as soon as there is an answer.
    """

    def __init__(self, label: str, answered: Answered | None) -> None:
        self.label = label
        self.known: dict[str, ElicitResult] = {}
        self.responses: dict[str, ElicitResult] = {}
        self.state: str | None = None
        self.asked: dict[str, ElicitRequestParams] = {}
        if answered:
            requests = _PARAMS.validate_python(answered.state["requests"])
            self.responses = _results(requests, answered.decision)
            earlier = _RESULTS.validate_python(answered.state["known"])
            self.known = earlier | {_mark(requests[key]): each for key, each in self.responses.items()}
            state = answered.state["requestState"]
            self.state = state if isinstance(state, str) else None

    def reply(self, params: ElicitRequestParams) -> ElicitResult:
        """The known answer; else the question is kept, and cancelled for now."""
        if known := self.known.get(_mark(params)):
            return known
        self.asked[str(len(self.asked) + 1)] = params
        return ElicitResult(action="cancel")

    def check(self, result: CallToolResult | InputRequiredResult) -> CallToolResult:
        """A result that is complete. Raises AsksPerson where an answer is missing, ToolFailed for other requests."""
        if isinstance(result, InputRequiredResult):
            requests = (result.input_requests or {}).items()
            asked = {key: each.params for key, each in requests if isinstance(each, ElicitRequest)}
            if not asked or len(asked) < len(requests):
                raise needs_input(self.label, [each.method for _, each in requests] or ["(it does not say what)"])
            raise self.question(asked, result.request_state)
        if self.asked:
            raise self.question(self.asked)
        return result

    def required(self, data: object) -> Exception:
        """What to raise for the error by which a server of 2025-11-25 says that a person has to open an address."""
        try:
            found = TypeAdapter(list[ElicitRequestURLParams]).validate_python(
                data.get("elicitations") if isinstance(data, dict) else None
            )
        except ValidationError:
            return ToolFailed(f"{self.label} broke the protocol in its answer")
        refused = [each for each in found if (known := self.known.get(_mark(each))) and known.action != "accept"]
        if refused or not found:
            return ToolFailed(f"{self.label} can't continue without a person: {refused[0].message if refused else ''}")
        return self.question({str(number): each for number, each in enumerate(found, 1)})

    def question(self, requests: Requests, request_state: str | None = None) -> AsksPerson | ToolFailed:
        """What a person is to read, with what the next call needs."""
        schema = _schema(requests)
        if len(requests) > MAX_REQUESTS or byte_size(json.dumps(schema)) > MAX_SCHEMA:
            return ToolFailed(f"{self.label} asks for more than a person can be asked at once")
        lines = [f"{self.label} asks:", *(_line(each) for each in requests.values())]
        if schema:
            lines.append(f"Reply with JSON that fits this schema: {json.dumps(schema, ensure_ascii=False)}")
        state: dict[str, JsonValue] = {
            "requests": _PARAMS.dump_python(dict(requests), mode="json", by_alias=True, exclude_none=True),
            "known": _RESULTS.dump_python(self.known, mode="json", by_alias=True, exclude_none=True),
            "requestState": request_state,
        }
        return AsksPerson("\n".join(lines), schema, state)


class Elicitations:
    """Answers what a server of 2025-11-25 asks over one connection, which makes one call at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._current: Elicitation | None = None

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return self._current.reply(params) if self._current else ElicitResult(action="cancel")

    @asynccontextmanager
    async def during(self, elicitation: Elicitation) -> AsyncIterator[None]:
        """Answers what is asked while the block runs."""
        async with self._lock:
            self._current = elicitation
            try:
                yield
            finally:
                self._current = None


def answering(client: Client, elicitation: Elicitation | None) -> AbstractAsyncContextManager[None]:
    """Answers what the server asks while the block runs, in the era in which it does so by requests of its own.

    Then it waits until no other call is answered over the connection.
    """
    answers = client.elicitation_callback
    modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
    if modern or elicitation is None or not isinstance(answers, Elicitations):
        return nullcontext()
    return answers.during(elicitation)


def _mark(params: ElicitRequestParams) -> str:
    """The same for the same question: its message, and the schema of the answer."""
    schema = params.requested_schema if isinstance(params, ElicitRequestFormParams) else None
    return hashlib.sha256(json.dumps([params.message, schema], sort_keys=True).encode()).hexdigest()


def _schema(requests: Requests) -> JsonObject | None:
    """What the reply to all requests has to fit: that of the only one, or an object with one property for each."""
    forms = {key: each.requested_schema for key, each in requests.items() if isinstance(each, ElicitRequestFormParams)}
    if len(requests) == 1:
        return next(iter(forms.values()), None)
    return {"type": "object", "properties": {**forms}, "required": [*forms]} if forms else None


def _line(params: ElicitRequestParams) -> str:
    message = truncate(params.message, MAX_MESSAGE)
    if isinstance(params, ElicitRequestURLParams):
        return f"{message}\nOpen {truncate(params.url, MAX_MESSAGE)} and reply when it is done."
    return message


def _results(requests: Requests, decision: PersonDecision) -> dict[str, ElicitResult]:
    """What the server is told of a person's decision."""
    if not decision.approved:
        refused = ElicitResult(action="cancel" if decision.how == "timeout" else "decline")
        return dict.fromkeys(requests, refused)
    forms = [key for key, each in requests.items() if isinstance(each, ElicitRequestFormParams)]
    value = parse_json(decision.text or "{}") if forms else {}
    given = {forms[0]: value} if forms and len(requests) == 1 else value
    assert isinstance(given, dict)
    return {key: _accepted(given.get(key) if key in forms else None) for key in requests}


def _accepted(content: JsonValue) -> ElicitResult:
    try:
        return ElicitResult.model_validate({"action": "accept", "content": content})
    except ValidationError:
        raise ToolFailed("the answer has values that the protocol does not know") from None
