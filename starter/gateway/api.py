"""Baton's own protocol: ``/targets``, ``/runs`` and ``/inbox``. ``/openapi.json`` describes it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote

from pydantic import BaseModel, JsonValue, TypeAdapter
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from ...contracts.message import PersonDecision
from ...contracts.scope import CALLER
from ...contracts.status import Phase, Status
from ...contracts.text import format_time, truncate
from ...installation import version
from ...resources.problems import did_you_mean
from ..history.difference import Difference
from ..history.events import EVENTS
from ..history.follow import CursorError
from ..runs.listing import ListedRun, RunFilter
from ..runs.start import to_json
from .api_messages import (
    ApproveMessage,
    ConsoleInfo,
    Decided,
    Empty,
    ErrorBody,
    ErrorInfo,
    EventPage,
    ForkInfo,
    ForkMessage,
    ForkTree,
    InboxList,
    ListedRunInfo,
    MemberInfo,
    MemberList,
    PendingInfo,
    ProgressInfo,
    ProgressList,
    ReasonMessage,
    RejectMessage,
    ReplyMessage,
    RunList,
    RunOutline,
    StartedRunInfo,
    StartRequest,
    SteerMessage,
    StopMessage,
    TargetInfo,
    TargetList,
    Waiting,
)
from .errors import BadRequestError, GatewayError
from .owners import PROTOCOL
from .protocol import IDEMPOTENCY_KEY, Protocol, caller_of, number_in, read_body, unless_disconnected
from .question import TargetQuestion
from .run import Run
from .runs import Runs
from .settings import GatewaySettings
from .sse import EventStream, encode
from .targets import ServedTarget, Targets

MAX_LISTED = 1_000
"""The most runs that are listed at once."""

MAX_PROGRESS = 100
"""The most runs of which the progress is listed at once."""

CONCURRENT_COMPARISONS = 2
"""The number of pairs of runs that are read and compared at once."""

MAX_FILTER = 500
"""Characters of a value by which runs are filtered."""

MAX_SHOWN_MESSAGE = 300
"""Bytes of a message in a list."""

PHASES = (*get_args(Phase), "Paused")
"""The phases by which runs are filtered."""

FILTERS = ("team", "strategy", "phase", "text", "caller", "startedAfter", "startedBefore")
"""The parameters by which runs are filtered."""


MAX_PAGE = 5_000
"""The most events of a page."""

MAX_TURN = 1_000_000_000


def error_form(error: GatewayError) -> Response:
    """The response for an error."""
    body = ErrorInfo(error=ErrorBody(code=error.code, message=error.message, param=error.param))
    return JSONResponse(body.model_dump(mode="json", exclude_none=True), int(error.status))


class _EncodedRoute(Route):
    """A route whose parameters may have slashes, encoded as %2F: ids of runs that applications have started do."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Matches the parts of the path as the client has sent them; Starlette's path is decoded as a whole."""
        if raw := scope.get("raw_path"):
            parts = [quote(unquote(part), safe="") for part in raw.decode("ascii").split("/")]
            scope = {**scope, "path": "/".join(parts)}
        match, found = super().matches(scope)
        if match is not Match.NONE:
            found["path_params"] = {name: unquote(value) for name, value in found["path_params"].items()}
        return match, found


@dataclass(frozen=True)
class ApiOperation:
    """An operation of the protocol: its route, and what ``/openapi.json`` says about it."""

    method: Literal["GET", "POST", "PUT"]
    path: str
    summary: str
    handle: Callable[[Request], Awaitable[BaseModel | Response]]
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    """The model of the response; None for a stream of events."""

    created: bool = False
    once: bool = False
    """Whether it is carried out once for an Idempotency-Key, as is each that creates something."""

    query: Sequence[str] = ()

    @property
    def route(self) -> Route:
        """The route of Starlette."""

        async def endpoint(request: Request) -> Response:
            answer = await self.handle(request)
            if isinstance(answer, Response):
                return answer
            return JSONResponse(answer.model_dump(mode="json", exclude_none=True), 201 if self.created else 200)

        return _EncodedRoute(self.path, endpoint, methods=[self.method], name=self.summary)


class Api:
    """The operations of Baton's own protocol."""

    def __init__(self, targets: Targets, runs: Runs, settings: GatewaySettings) -> None:
        self._targets = targets
        self._runs = runs
        self._settings = settings
        self._comparing = asyncio.Semaphore(CONCURRENT_COMPARISONS)

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """All of them."""
        run = "/runs/{run}"
        return [
            ApiOperation("GET", "/targets", "List what may be asked", self.list_targets, answer=TargetList),
            ApiOperation(
                "GET",
                "/runs",
                "List the newest runs",
                self.list_runs,
                answer=RunList,
                query=("limit", "before", *FILTERS),
            ),
            ApiOperation(
                "GET", "/progress", "List how far runs are", self.progress, answer=ProgressList, query=("runs",)
            ),
            ApiOperation(
                "POST", "/runs", "Start a run", self.start, body=StartRequest, answer=StartedRunInfo, created=True
            ),
            ApiOperation("GET", run, "Get the status of a run", self.get, answer=StartedRunInfo),
            ApiOperation("GET", f"{run}/events", "Stream the events of a run", self.events, query=("after", "wait")),
            ApiOperation("GET", f"{run}/outline", "Get what a run was asked", self.outline, answer=RunOutline),
            ApiOperation(
                "GET",
                f"{run}/history",
                "Get a page of the events of a run",
                self.history,
                answer=EventPage,
                query=("limit", "before", "after", "turn", "round"),
            ),
            ApiOperation(
                "GET", f"{run}/members", "Get what the members of a run have used", self.members, answer=MemberList
            ),
            ApiOperation("GET", f"{run}/forks", "Get the forks of a run", self.forks, answer=ForkTree),
            ApiOperation(
                "POST",
                f"{run}/fork",
                "Continue from a turn in a new run",
                self.fork,
                body=ForkMessage,
                answer=StartedRunInfo,
                created=True,
            ),
            ApiOperation(
                "GET", f"{run}/diff/{{other}}", "Get the difference between two runs", self.diff, answer=Difference
            ),
            ApiOperation(
                "POST", f"{run}/steer", "Send a message into a run", self.steer, SteerMessage, Empty, once=True
            ),
            ApiOperation("POST", f"{run}/pause", "Pause a run", self.pause, answer=Empty),
            ApiOperation("POST", f"{run}/resume", "Resume a run", self.resume, answer=Empty),
            ApiOperation("POST", f"{run}/terminate", "End a run", self.terminate, StopMessage, Empty),
            ApiOperation("POST", f"{run}/cancel", "Cancel a run", self.cancel, ReasonMessage, Empty),
            ApiOperation("POST", f"{run}/approve", "Approve a call", self.approve, ApproveMessage, Decided),
            ApiOperation("POST", f"{run}/reject", "Reject a call", self.reject, RejectMessage, Decided),
            ApiOperation("POST", f"{run}/reply", "Reply to a question", self.reply, ReplyMessage, Decided),
            ApiOperation(
                "GET",
                f"{run}/decisions/{{decision}}",
                "Get what waits for a decision",
                self.decision,
                answer=PendingInfo,
            ),
            ApiOperation("GET", "/inbox", "List what waits for people", self.inbox, answer=InboxList),
            ApiOperation("GET", "/console", "Get what the console links to", self.console, answer=ConsoleInfo),
        ]

    async def list_targets(self, request: Request) -> BaseModel:
        """The teams and agents that the caller may ask."""
        catalog = await self._targets.catalog()
        targets = await self._targets.of(caller_of(request))
        return TargetList(targets=[_target_info(target, target.parameters(catalog)) for target in targets])

    async def list_runs(self, request: Request) -> BaseModel:
        """The newest runs that the caller may see, and that fit all filters; with a cursor, those ``before`` it."""
        limit = number_in(request, "limit", 100, most=MAX_LISTED)
        ends = [end for name in ("startedBefore", "before") if (end := _time(request, name))]
        chosen = RunFilter(
            team=_filter(request, "team"),
            strategy=_filter(request, "strategy"),
            phase=_phase(request),
            text=_filter(request, "text"),
            caller=_filter(request, "caller"),
            started_after=_time(request, "startedAfter"),
            started_before=min(ends, default=None),
        )
        page = await self._runs.page(caller_of(request), limit, chosen)
        before = page.before.astimezone(UTC).isoformat().replace("+00:00", "Z") if page.before else None
        return RunList(runs=[_listed_run(run) for run in page.runs], before=before)

    async def progress(self, request: Request) -> BaseModel:
        """How far the runs are whose ids are in ``runs``, separated by commas."""
        ids = [part for part in request.query_params.get("runs", "").split(",") if part]
        if len(ids) > MAX_PROGRESS:
            raise BadRequestError(f"runs may have at most {MAX_PROGRESS} ids", param="runs")
        statuses = await self._runs.progress(caller_of(request), ids)
        return ProgressList(runs=[_progress(run, status) for run, status in statuses])

    async def start(self, request: Request) -> BaseModel:
        """Starts a run; the same Idempotency-Key again returns the run that it has started."""
        body = await read_body(request, StartRequest)
        caller = caller_of(request)
        target = await self._targets.find(caller, body.target, "target")
        question = TargetQuestion.model_validate(body.model_dump(exclude={"target"}, exclude_unset=True))
        key = request.headers.get(IDEMPOTENCY_KEY)
        run = await self._runs.start(caller, target, question, protocol="runs", key=key)
        has_ended = key is not None and not await run.is_open()
        return StartedRunInfo(id=run.id, status=to_json(await run.result()) if has_ended else {"phase": "Running"})

    async def get(self, request: Request) -> BaseModel:
        """The status of a run."""
        run = await self._run(request)
        return StartedRunInfo(id=run.id, status=to_json(await run.status()))

    async def events(self, request: Request) -> Response:
        """The events after the cursor in ``Last-Event-ID`` or ``after``; with ``wait=false`` those that exist."""
        run = await self._run(request)
        after = request.headers.get("last-event-id") or request.query_params.get("after")
        wait = request.query_params.get("wait") != "false"

        async def encoded() -> AsyncGenerator[bytes, None]:
            async with contextlib.aclosing(run.events(after, wait=wait)) as events:
                async for event in events:
                    yield encode(EVENTS.dump_json(event).decode(), event=event.type, id=event.cursor)

        try:
            return await EventStream(encoded()).begun()
        except CursorError as error:
            raise BadRequestError(str(error), param="after") from None

    async def outline(self, request: Request) -> BaseModel:
        """What a run was asked, and whom."""
        run = await self._run(request)
        started = (await run.starts())[-1]
        return RunOutline(
            id=run.id,
            question=await run.question(),
            path=started.run,
            kind=started.kind,
            name=started.name,
            namespace=started.namespace,
            strategy=started.strategy,
        )

    async def history(self, request: Request) -> BaseModel:
        """The newest events; or those ``before`` or ``after`` a cursor, or from a ``turn`` or a ``round`` on."""
        run = await self._run(request)
        limit = number_in(request, "limit", 200, most=MAX_PAGE)
        named = [name for name in ("before", "after", "turn", "round") if name in request.query_params]
        if len(named) > 1:
            raise BadRequestError(f"pass only one of {' and '.join(named)}", param=named[1])
        try:
            page = await run.page(
                limit,
                before=request.query_params.get("before"),
                after=request.query_params.get("after"),
                turn=number_in(request, "turn", 1, most=MAX_TURN) if "turn" in named else None,
                round_=number_in(request, "round", 1, most=MAX_TURN) if "round" in named else None,
            )
        except CursorError as error:
            raise BadRequestError(str(error), param=named[0]) from None
        return EventPage(
            events=[EVENTS.dump_python(event, mode="json") for event in page.events],
            before=page.before,
            after=page.after,
            more=page.more,
        )

    async def members(self, request: Request) -> BaseModel:
        """What each speaker of a run has used."""
        sums, is_complete = await self._runs.member_sums(await self._run(request))
        members = [MemberInfo(name=m.name, turns=m.turns, seconds=round(m.seconds, 3), usage=m.usage) for m in sums]
        return MemberList(members=members, is_complete=is_complete)

    async def forks(self, request: Request) -> BaseModel:
        """The tree of forks in which a run is, as far as the caller may see it."""
        tree, has_more = await self._runs.fork_tree(caller_of(request), await self._run(request))
        infos = [
            ForkInfo(id=run.id, source=run.source, at=run.at, state=run.state, start_time=format_time(run.start))
            for run in tree
        ]
        return ForkTree(runs=infos, more=has_more)

    async def fork(self, request: Request) -> BaseModel:
        """Goes on from a place in a run in a new run, which belongs to the caller.

        The same Idempotency-Key again returns the run that it has started.
        """
        run = await self._run(request)
        body = await read_body(request, ForkMessage)
        key = request.headers.get(IDEMPOTENCY_KEY)
        forked = await self._runs.fork(caller_of(request), run, body.at, body.say, body.session, key=key)
        return StartedRunInfo(id=forked.id, status={"phase": "Running"})

    async def diff(self, request: Request) -> BaseModel:
        """Where a run and another one part, and their steps from there on, as ``baton diff -o json`` prints them."""
        caller = caller_of(request)
        run = await self._run(request)
        other = await self._runs.find(caller, request.path_params["other"])

        async def compare() -> Difference:
            async with self._comparing:
                return await run.difference(other, partial(self._runs.may_read, caller))

        return await unless_disconnected(request, compare())

    async def steer(self, request: Request) -> BaseModel:
        """Sends a message into the discussion; with the same Idempotency-Key again, only once."""
        run = await self._run(request)
        body = await read_body(request, SteerMessage)
        key = request.headers.get(IDEMPOTENCY_KEY)
        await run.steer(body.text, request=f"steer-{caller_of(request).digest_with(key)}" if key else None)
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

    async def decision(self, request: Request) -> BaseModel:
        """A pending decision with all its arguments, which a list may truncate."""
        run = await self._run(request)
        decision = await run.decision(request.path_params["decision"])
        return PendingInfo(decision=to_json(decision), refusal=self._runs.refusal(caller_of(request), decision))

    async def inbox(self, request: Request) -> BaseModel:
        """All that waits for people in runs that the caller may see."""
        caller = caller_of(request)
        waiting = [
            Waiting(root=root, decision=to_json(decision), refusal=self._runs.refusal(caller, decision))
            for root, decision in await self._runs.inbox(caller)
        ]
        return InboxList(waiting=waiting)

    async def console(self, request: Request) -> BaseModel:
        """The name of the caller, and what the console links to."""
        ui = self._settings.temporal_ui
        return ConsoleInfo(
            caller=caller_of(request).name,
            version=version(),
            temporal_ui=f"{ui.rstrip('/')}/namespaces/{quote(self._runs.namespace, safe='')}" if ui else None,
            trace_link=self._settings.trace_link,
        )

    async def _run(self, request: Request) -> Run:
        return await self._runs.find(caller_of(request), request.path_params["run"])


def protocol(targets: Targets, runs: Runs, settings: GatewaySettings, more: Sequence[ApiOperation] = ()) -> Protocol:
    """Baton's own protocol, with ``more`` operations than those of this module."""
    operations = [*Api(targets, runs, settings).operations, *more]
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
        if each.created or each.once:
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


def _target_info(target: ServedTarget, parameters: list[str]) -> TargetInfo:
    strategy = getattr(target.manifest.spec, "strategy", None)
    return TargetInfo(
        id=target.id,
        kind="team" if target.kind == "team" else "agent",
        name=target.name,
        namespace=target.namespace,
        description=target.description,
        strategy=strategy,
        parameters=parameters,
    )


def _listed_run(run: ListedRun) -> ListedRunInfo:
    """The fields of a listed run that clients see."""
    value = {name: item for name, item in run.value.items() if name not in ("type", "parent")}
    caller, protocol = run.memo.get(CALLER), run.memo.get(PROTOCOL)
    return ListedRunInfo.model_validate(
        {
            **value,
            "team": run.team,
            "strategy": run.strategy,
            "question": run.question or None,
            "caller": caller if isinstance(caller, str) else None,
            "protocol": protocol if isinstance(protocol, str) else None,
            "cost": run.cost,
        }
    )


def _progress(run: str, status: Status) -> ProgressInfo:
    usage = status.token_usage
    turns = status.turns if status.turns is not None else sum(response.turns or 0 for response in status.responses)
    return ProgressInfo(
        id=run,
        phase="Paused" if status.paused and status.phase == "Running" else status.phase,
        turns=turns,
        tokens=usage.total_tokens,
        cost=usage.cost,
        waits=len(status.pending_decisions or ()) + len(status.waiting_runs or ()),
        message=truncate(status.message, MAX_SHOWN_MESSAGE),
    )


def _filter(request: Request, name: str) -> str | None:
    text = request.query_params.get(name) or None
    if text is not None and len(text) > MAX_FILTER:
        raise BadRequestError(f"{name} may have at most {MAX_FILTER} characters", param=name)
    return text


def _phase(request: Request) -> str | None:
    phase = _filter(request, "phase")
    if phase is None or phase in PHASES:
        return phase
    raise BadRequestError(f"phase: '{phase}' is unknown; {did_you_mean(phase, PHASES)}", param="phase")


def _time(request: Request, name: str) -> datetime | None:
    text = _filter(request, name)
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequestError(f"{name} has to be a time as in 2026-01-31T12:00:00Z", param=name) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _decided(decision: PersonDecision) -> Decided:
    return Decided(decision=to_json(decision))
