"""Questions of an MCP server to a person during a call (elicitation), in both generations of the protocol."""

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
"""The error codes of servers that need a person's answer."""

MAX_REQUESTS = 10
MAX_MESSAGE = 2_000
MAX_SCHEMA = 4_000
"""Limits of one question: requests, bytes of a message, and bytes of the schema of the answer."""

Requests = Mapping[str, ElicitRequestParams]
"""Concurrent elicitation requests of a server, by its keys."""

_PARAMS: TypeAdapter[dict[str, ElicitRequestParams]] = TypeAdapter(dict[str, ElicitRequestParams])
_RESULTS: TypeAdapter[dict[str, ElicitResult]] = TypeAdapter(dict[str, ElicitResult])


def needs_input(label: str, questions: list[str]) -> ToolFailed:
    """The failure of a call that needs a person's answers, if the MCPServer does not allow questions."""
    texts = "; ".join(truncate(text, MAX_MESSAGE) for text in questions[:MAX_REQUESTS])
    return ToolFailed(f"{label} asks for a person's input, which requires 'questions' in its MCPServer: {texts}")


class Elicitation:
    """The elicitations of one call: the answers until now, and the pending question.

    ``known`` are the answers by question; ``responses`` and ``state`` are what a server of 2026-07-28 needs to
    continue. A server of 2025-11-25 asks during the call, and can't wait for long: the response is ``cancel``, and the
    call is repeated once there is an answer.
    """

    def __init__(self, label: str, answered: Answered | None) -> None:
        self.label = label
        self.known: dict[str, ElicitResult] = {}
        self.responses: dict[str, ElicitResult] = {}
        self.state: str | None = None
        self.pending: dict[str, ElicitRequestParams] = {}
        if answered:
            requests = _PARAMS.validate_python(answered.state["requests"])
            self.responses = _results(requests, answered.decision)
            earlier = _RESULTS.validate_python(answered.state["known"])
            self.known = earlier | {_mark(requests[key]): result for key, result in self.responses.items()}
            state = answered.state["requestState"]
            self.state = state if isinstance(state, str) else None

    def reply(self, params: ElicitRequestParams) -> ElicitResult:
        """The known answer; else adds the question to the pending ones, and cancels it for now."""
        if known := self.known.get(_mark(params)):
            return known
        self.pending[str(len(self.pending) + 1)] = params
        return ElicitResult(action="cancel")

    def check(self, result: CallToolResult | InputRequiredResult) -> CallToolResult:
        """A complete result. Raises AsksPerson if an answer is missing, ToolFailed for other requests."""
        if isinstance(result, InputRequiredResult):
            requests = (result.input_requests or {}).items()
            elicitations = {key: request.params for key, request in requests if isinstance(request, ElicitRequest)}
            if not elicitations or len(elicitations) < len(requests):
                raise needs_input(self.label, [request.method for _, request in requests] or ["(no details)"])
            raise self.question(elicitations, result.request_state)
        if self.pending:
            raise self.question(self.pending)
        return result

    def required(self, data: object) -> Exception:
        """The exception for the error of a server of 2025-11-25 that requires a person to open a URL."""
        try:
            elicitations = TypeAdapter(list[ElicitRequestURLParams]).validate_python(
                data.get("elicitations") if isinstance(data, dict) else None
            )
        except ValidationError:
            return ToolFailed(f"{self.label} sent an invalid response")
        declined = [
            elicitation
            for elicitation in elicitations
            if (known := self.known.get(_mark(elicitation))) and known.action != "accept"
        ]
        if declined or not elicitations:
            return ToolFailed(
                f"{self.label} can't continue without a person: {declined[0].message if declined else ''}"
            )
        return self.question({str(number): elicitation for number, elicitation in enumerate(elicitations, 1)})

    def question(self, requests: Requests, request_state: str | None = None) -> AsksPerson | ToolFailed:
        """The question for a person, with the state that the next call needs."""
        schema = _schema(requests)
        if len(requests) > MAX_REQUESTS or byte_size(json.dumps(schema)) > MAX_SCHEMA:
            return ToolFailed(f"{self.label} asks for more than one question may contain")
        lines = [f"{self.label} asks:", *(_line(params) for params in requests.values())]
        if schema:
            lines.append(f"Reply with JSON that matches this schema: {json.dumps(schema, ensure_ascii=False)}")
        state: dict[str, JsonValue] = {
            "requests": _PARAMS.dump_python(dict(requests), mode="json", by_alias=True, exclude_none=True),
            "known": _RESULTS.dump_python(self.known, mode="json", by_alias=True, exclude_none=True),
            "requestState": request_state,
        }
        opens = all(isinstance(params, ElicitRequestURLParams) for params in requests.values())
        return AsksPerson("\n".join(lines), schema, state, authorizes=opens)


class Elicitations:
    """Answers the elicitations of a server of 2025-11-25 on one connection, for one call at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._current: Elicitation | None = None

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return self._current.reply(params) if self._current else ElicitResult(action="cancel")

    @asynccontextmanager
    async def during(self, elicitation: Elicitation) -> AsyncIterator[None]:
        """Answers elicitations while the block runs."""
        async with self._lock:
            self._current = elicitation
            try:
                yield
            finally:
                self._current = None


def answering(client: Client, elicitation: Elicitation | None) -> AbstractAsyncContextManager[None]:
    """Answers the server's elicitations while the block runs, if its protocol version sends them as requests.

    In that case, it first waits until no other call uses the connection for elicitations.
    """
    answers = client.elicitation_callback
    modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
    if modern or elicitation is None or not isinstance(answers, Elicitations):
        return nullcontext()
    return answers.during(elicitation)


def _mark(params: ElicitRequestParams) -> str:
    """A hash that identifies a question by its message and the schema of the answer."""
    schema = params.requested_schema if isinstance(params, ElicitRequestFormParams) else None
    return hashlib.sha256(json.dumps([params.message, schema], sort_keys=True).encode()).hexdigest()


def _schema(requests: Requests) -> JsonObject | None:
    """The schema of the reply: that of a single request, or an object with a property for every request."""
    forms = {
        key: params.requested_schema for key, params in requests.items() if isinstance(params, ElicitRequestFormParams)
    }
    if len(requests) == 1:
        return next(iter(forms.values()), None)
    return {"type": "object", "properties": {**forms}, "required": [*forms]} if forms else None


def _line(params: ElicitRequestParams) -> str:
    message = truncate(params.message, MAX_MESSAGE)
    if isinstance(params, ElicitRequestURLParams):
        return f"{message}\nOpen {truncate(params.url, MAX_MESSAGE)} and reply when it is done."
    return message


def _results(requests: Requests, decision: PersonDecision) -> dict[str, ElicitResult]:
    """The responses to the server for a person's decision."""
    if not decision.approved:
        result = ElicitResult(action="cancel" if decision.how == "timeout" else "decline")
        return dict.fromkeys(requests, result)
    forms = [key for key, params in requests.items() if isinstance(params, ElicitRequestFormParams)]
    value = parse_json(decision.text or "{}") if forms else {}
    contents = {forms[0]: value} if forms and len(requests) == 1 else value
    assert isinstance(contents, dict)
    return {key: _accepted(contents.get(key) if key in forms else None) for key in requests}


def _accepted(content: JsonValue) -> ElicitResult:
    try:
        return ElicitResult.model_validate({"action": "accept", "content": content})
    except ValidationError:
        raise ToolFailed("the answer has values that the protocol does not support") from None
