"""Baton's own protocol: ``/targets``, ``/runs`` and ``/inbox``. ``/openapi.json`` describes it."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, JsonValue, TypeAdapter
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...contracts.decisions import MAX_REASON
from ...contracts.message import PersonDecision
from ...contracts.text import MAX_MESSAGE
from ...installation import version
from ...resources.base import JsonModel, JsonObject, Text
from ..history.events import EVENTS
from ..history.follow import CursorError
from ..runs.start import to_json
from .errors import BadRequestError, GatewayError
from .protocol import IDEMPOTENCY_KEY, Protocol, caller_of, read_body
from .runs import Run, Runs, TargetQuestion
from .sse import encode, event_stream
from .targets import ServedTarget, Targets

MAX_LISTED = 1_000
"""The most runs that are listed at once."""


class _RequestBody(JsonModel, extra="forbid"):
    """A body of a request. An unknown field is refused: it may be a misspelled one."""


class TargetInfo(JsonModel):
    """A team or an agent that may be asked. ``strategy`` is that of a team."""

    id: str
    kind: Literal["team", "agent"]
    name: str
    namespace: str
    description: str
    strategy: str | None = None


class StartRequest(_RequestBody):
    """Asks a target: ``team/NAME``, ``agent/NAME``, or a name that only one of them has.

    ``input`` is a text, or a list of messages with texts, images and files, as in a Query.
    """

    target: Text
    input: str | list[JsonObject]
    parameters: dict[str, str] = {}
    session: JsonObject = {}
    conversation: str | None = None
    timeout: str | None = None
    budget: JsonObject | None = None


class StartedRunInfo(JsonModel):
    """A run: its id, its target, and its status."""

    id: str
    status: JsonObject


class ListedRunInfo(JsonModel):
    """A run in a list."""

    id: str
    name: str | None = None
    namespace: str | None = None
    state: str
    start_time: str
    completion_time: str | None = None
    duration_seconds: float


class RunList(JsonModel):
    """The newest runs that the caller may see."""

    runs: list[ListedRunInfo]


class TargetList(JsonModel):
    """What the caller may ask."""

    targets: list[TargetInfo]


class Waiting(JsonModel):
    """A decision or a question that waits for a person; ``root`` is the id of the run by which it is decided."""

    root: str
    decision: JsonObject


class InboxList(JsonModel):
    """All that waits for people, the oldest first."""

    waiting: list[Waiting]


class SteerMessage(_RequestBody):
    """A message into the discussion, which all later speakers read."""

    text: Text = Field(max_length=MAX_MESSAGE)


class StopMessage(_RequestBody):
    """Why a run is to end. It ends after the current turn or, with ``now``, at once."""

    reason: str = Field("", max_length=MAX_REASON)
    now: bool = False


class ReasonMessage(_RequestBody):
    """Why a run is canceled."""

    reason: str = Field("", max_length=MAX_REASON)


class ApproveMessage(_RequestBody):
    """Approves a call, with its own or with other ``arguments``; ``remember`` applies it to later calls of the tool."""

    call: Text
    arguments: JsonObject | None = None
    reason: str = Field("", max_length=MAX_REASON)
    remember: bool = False


class RejectMessage(_RequestBody):
    """Rejects a call; the model receives the reason."""

    call: Text
    reason: str = Field("", max_length=MAX_REASON)
    remember: bool = False


class ReplyMessage(_RequestBody):
    """Replies to the question ``to``, or to the only one; ``declines`` refuses the question of a server."""

    text: str = Field(max_length=MAX_MESSAGE)
    to: str | None = None
    declines: bool = False


class Decided(JsonModel):
    """The decision as it was carried out."""

    decision: JsonObject


class Empty(JsonModel):
    """Nothing."""


class ErrorBody(JsonModel):
    """An error: a ``code`` for programs, a ``message`` for people, and the wrong field of the request."""

    code: str
    message: str
    param: str | None = None


class ErrorInfo(JsonModel):
    """The body of each response that is not successful."""

    error: ErrorBody


def error_form(error: GatewayError) -> Response:
    """The response for an error."""
    body = ErrorInfo(error=ErrorBody(code=error.code, message=error.message, param=error.param))
    return JSONResponse(body.model_dump(mode="json", exclude_none=True), int(error.status))


@dataclass(frozen=True)
class ApiOperation:
    """An operation of the protocol: its route, and what ``/openapi.json`` says about it."""

    method: Literal["GET", "POST"]
    path: str
    summary: str
    handle: Callable[[Request], Awaitable[BaseModel | Response]]
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    """The model of the response; None for a stream of events."""

    created: bool = False
    query: Sequence[str] = ()

    @property
    def route(self) -> Route:
        """The route of Starlette."""

        async def endpoint(request: Request) -> Response:
            answer = await self.handle(request)
            if isinstance(answer, Response):
                return answer
            return JSONResponse(answer.model_dump(mode="json", exclude_none=True), 201 if self.created else 200)

        return Route(self.path, endpoint, methods=[self.method], name=self.summary)


class Api:
    """The operations of Baton's own protocol."""

    def __init__(self, targets: Targets, runs: Runs) -> None:
        self._targets = targets
        self._runs = runs

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """All of them."""
        run = "/runs/{run}"
        return [
            ApiOperation("GET", "/targets", "List what may be asked", self.list_targets, answer=TargetList),
            ApiOperation("GET", "/runs", "List the newest runs", self.list_runs, answer=RunList, query=("limit",)),
            ApiOperation(
                "POST", "/runs", "Start a run", self.start, body=StartRequest, answer=StartedRunInfo, created=True
            ),
            ApiOperation("GET", run, "Get the status of a run", self.get, answer=StartedRunInfo),
            ApiOperation("GET", f"{run}/events", "Stream the events of a run", self.events, query=("after", "wait")),
            ApiOperation("POST", f"{run}/steer", "Send a message into a run", self.steer, SteerMessage, Empty),
            ApiOperation("POST", f"{run}/pause", "Pause a run", self.pause, answer=Empty),
            ApiOperation("POST", f"{run}/resume", "Resume a run", self.resume, answer=Empty),
            ApiOperation("POST", f"{run}/terminate", "End a run", self.terminate, StopMessage, Empty),
            ApiOperation("POST", f"{run}/cancel", "Cancel a run", self.cancel, ReasonMessage, Empty),
            ApiOperation("POST", f"{run}/approve", "Approve a call", self.approve, ApproveMessage, Decided),
            ApiOperation("POST", f"{run}/reject", "Reject a call", self.reject, RejectMessage, Decided),
            ApiOperation("POST", f"{run}/reply", "Reply to a question", self.reply, ReplyMessage, Decided),
            ApiOperation("GET", "/inbox", "List what waits for people", self.inbox, answer=InboxList),
        ]

    async def list_targets(self, request: Request) -> BaseModel:
        """The teams and agents that the caller may ask."""
        return TargetList(targets=[_target_info(target) for target in await self._targets.of(caller_of(request))])

    async def list_runs(self, request: Request) -> BaseModel:
        """The newest runs that the caller may see."""
        limit = _number(request, "limit", 100, MAX_LISTED)
        listed = await self._runs.newest(caller_of(request), limit)
        return RunList(runs=[ListedRunInfo.model_validate(_known(run.value)) for run in listed])

    async def start(self, request: Request) -> BaseModel:
        """Starts a run; the same Idempotency-Key again returns the run that it has started."""
        body = await read_body(request, StartRequest)
        caller = caller_of(request)
        target = await self._targets.find(caller, body.target)
        question = TargetQuestion.model_validate(body.model_dump(exclude={"target"}, exclude_unset=True))
        key = request.headers.get(IDEMPOTENCY_KEY)
        started = await self._runs.start(caller, target, question, protocol="runs", key=key)
        return StartedRunInfo(id=started.run.id, status={"phase": "Running"})

    async def get(self, request: Request) -> BaseModel:
        """The status of a run."""
        run = await self._run(request)
        return StartedRunInfo(id=run.id, status=to_json(await run.status()))

    async def events(self, request: Request) -> Response:
        """The events after the cursor in ``Last-Event-ID`` or ``after``; with ``wait=false`` those that exist."""
        run = await self._run(request)
        after = request.headers.get("last-event-id") or request.query_params.get("after")
        events = run.events(after, wait=request.query_params.get("wait") != "false")
        try:
            first = await anext(events, None)
        except CursorError as error:
            raise BadRequestError(str(error), param="after") from None

        async def encoded() -> AsyncGenerator[bytes, None]:
            if first is not None:
                yield encode(EVENTS.dump_json(first).decode(), event=first.type, id=first.cursor)
            async for event in events:
                yield encode(EVENTS.dump_json(event).decode(), event=event.type, id=event.cursor)

        return event_stream(encoded())

    async def steer(self, request: Request) -> BaseModel:
        """Sends a message into the discussion."""
        run = await self._run(request)
        body = await read_body(request, SteerMessage)
        await run.steer(body.text)
        return Empty()

    async def pause(self, request: Request) -> BaseModel:
        """Pauses a run before its next model call."""
        await (await self._run(request)).pause()
        return Empty()

    async def resume(self, request: Request) -> BaseModel:
        """Resumes a paused run."""
        await (await self._run(request)).resume()
        return Empty()

    async def terminate(self, request: Request) -> BaseModel:
        """Ends a run; its phase is then Completed."""
        run = await self._run(request)
        body = await read_body(request, StopMessage)
        await run.terminate(body.reason, now=body.now)
        return Empty()

    async def cancel(self, request: Request) -> BaseModel:
        """Cancels a run at once."""
        run = await self._run(request)
        body = await read_body(request, ReasonMessage)
        await run.cancel(body.reason)
        return Empty()

    async def approve(self, request: Request) -> BaseModel:
        """Approves a call; the same request again has no further effect."""
        run = await self._run(request)
        body = await read_body(request, ApproveMessage)
        decision = await run.decide(
            body.call, approved=True, arguments=body.arguments, reason=body.reason, remember=body.remember
        )
        return _decided(decision)

    async def reject(self, request: Request) -> BaseModel:
        """Rejects a call; the same request again has no further effect."""
        run = await self._run(request)
        body = await read_body(request, RejectMessage)
        return _decided(await run.decide(body.call, approved=False, reason=body.reason, remember=body.remember))

    async def reply(self, request: Request) -> BaseModel:
        """Replies to a question; the same request again has no further effect if it names the question."""
        run = await self._run(request)
        body = await read_body(request, ReplyMessage)
        return _decided(await run.reply(body.text, body.to, declines=body.declines))

    async def inbox(self, request: Request) -> BaseModel:
        """All that waits for people in runs that the caller may see."""
        waiting = await self._runs.inbox(caller_of(request))
        return InboxList(waiting=[Waiting(root=root, decision=to_json(decision)) for root, decision in waiting])

    async def _run(self, request: Request) -> Run:
        return await self._runs.find(caller_of(request), request.path_params["run"])


def protocol(targets: Targets, runs: Runs) -> Protocol:
    """Baton's own protocol."""
    operations = Api(targets, runs).operations
    description = openapi(operations)

    async def describe(_: Request) -> Response:
        return JSONResponse(description)

    routes = [operation.route for operation in operations]
    return Protocol("/", [*routes, Route("/openapi.json", describe)], error_form)


def openapi(operations: Sequence[ApiOperation]) -> dict[str, Any]:
    """The description of the operations: https://spec.openapis.org/oas/v3.1.1.html."""
    models = {model for each in operations for model in (each.body, each.answer) if model} | {ErrorInfo}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation") for model in ordered], ref_template="#/components/schemas/{model}"
    )
    event = TypeAdapter(JsonValue).json_schema()
    paths: dict[str, Any] = {}
    for each in operations:
        names = [part.strip("{}") for part in each.path.split("/") if part.startswith("{")]
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ] + [{"name": name, "in": "query", "schema": {"type": "string"}} for name in each.query]
        if each.created:
            parameters.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}})
        content = (
            {"application/json": {"schema": _reference(each.answer)}} if each.answer else {"text/event-stream": event}
        )
        described: dict[str, Any] = {
            "summary": each.summary,
            "operationId": each.summary.lower().replace(" ", "_"),
            "parameters": parameters,
            "responses": {
                "201" if each.created else "200": {"description": "carried out", "content": content},
                "default": {
                    "description": "refused",
                    "content": {"application/json": {"schema": _reference(ErrorInfo)}},
                },
            },
        }
        if each.body:
            body = {"application/json": {"schema": _reference(each.body)}}
            described["requestBody"] = {"required": True, "content": body}
        paths.setdefault(each.path, {})[each.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": version()},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _target_info(target: ServedTarget) -> TargetInfo:
    strategy = getattr(target.manifest.spec, "strategy", None)
    return TargetInfo(
        id=target.id,
        kind="team" if target.kind == "team" else "agent",
        name=target.name,
        namespace=target.namespace,
        description=target.description,
        strategy=strategy,
    )


def _known(value: JsonObject) -> JsonObject:
    """The fields of a listed run that clients see."""
    return {name: item for name, item in value.items() if name not in ("type", "parent")}


def _decided(decision: PersonDecision) -> Decided:
    return Decided(decision=to_json(decision))


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= most):
        raise BadRequestError(f"{name} has to be a number from 1 to {most:,}", param=name)
    return int(text)
