"""ARK's HTTP API: queries by name, what they may ask, and the streams of their answers.

All paths are below ``/ark``; those that no other protocol uses are at the root as well. The forms are those of
``ark-api``: flat objects with ``items`` and ``count`` in lists, and ``{"detail": …}`` for errors.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, Field, JsonValue
from pydantic_core import to_json as as_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from temporalio.client import Client
from temporalio.service import RPCError

from ...contracts.ark_status import ark_status
from ...contracts.status import ARK_PHASES, Status
from ...contracts.text import format_time, is_cut_from
from ...resources.agent import Agent
from ...resources.base import API_VERSION, JsonObject, walk
from ...resources.catalog import Catalog
from ...resources.labels import LabelSelector
from ...resources.manifest import Metadata
from ...resources.model import Model
from ...resources.query import Query, QuerySpec
from ...resources.team import Team
from ...resources.tool import Tool
from ...resources.values import Header, sources
from ...temporal.search_attributes import describe_namespace
from ..history.events import (
    Event,
    MessageEvent,
    ModelAnsweredEvent,
    ModelCalledEvent,
    RunEndedEvent,
    TextDeltaEvent,
    TextRetractedEvent,
    ToolReturnedEvent,
)
from ..runs.listing import ListedRun
from ..runs.start import to_json
from .access import Caller
from .errors import BadRequestError, ConflictError, ForbiddenError, GatewayError, NotFoundError, as_gateway_error
from .protocol import Protocol, caller_of, number_in, read_body, unless_disconnected
from .question import QuestionInput
from .run import Run
from .runs import Runs
from .sse import EventStream, encode
from .targets import DEFAULT_NAMESPACE, ServedTarget, Targets

PROTOCOL = "ark"
"""The protocol in the memos of its runs."""

MAX_QUERIES = 1_000
"""The most queries that a list counts."""

MAX_PAGE = 100
"""The most queries of a page; ARK's clients may ask for 500, and get so many."""

MAX_WAIT = 300.0
"""Seconds for which a stream waits for its query to be created, at most."""

DEFAULT_WAIT = 30.0

POLL_SECONDS = 0.2
"""Seconds between the first two looks for a query that a stream waits for; each further pause is twice as long."""

MAX_POLL_SECONDS = 2.0


Served = Agent | Team | Model | Tool
"""The kinds of manifests that are listed."""


class ArkTargetRef(BaseModel):
    """The target of a query. Only teams and agents are served."""

    name: str
    type: str


class ArkQueryRequest(BaseModel):
    """The body that creates a query, as ``ark-api`` takes it; other fields are ignored, as there.

    ``metadata`` is ignored: its labels and annotations would be those of a worker's manifest.
    """

    name: str
    type: Literal["user", "messages"] | None = None
    input: QuestionInput
    target: ArkTargetRef | None = None
    selector: JsonObject | None = None
    parameters: list[JsonObject] | None = None
    memory: JsonObject | None = None
    session_id: str | None = Field(None, alias="sessionId")
    conversation_id: str | None = Field(None, alias="conversationId")
    service_account: str | None = Field(None, alias="serviceAccount")
    timeout: str | None = None
    ttl: str | None = None
    cancel: bool | None = None
    overrides: list[JsonObject] | None = None

    def query(self, namespace: str, target: ServedTarget, caller: Caller, conversation: str | None) -> Query:
        """The query in a ``conversation`` of the caller, with the caller's rights. Raises ValidationError."""
        fields: dict[str, Any] = {
            "type": self.type or ("user" if isinstance(self.input, str) else "messages"),
            "input": _without_nulls(self.input),
            "target": {"type": target.kind, "name": target.name},
            "serviceAccount": {"name": caller.account.name, "namespace": caller.account.namespace},
            "parameters": _without_nulls(self.parameters),
            "memory": _without_nulls(self.memory),
            "sessionId": self.session_id,
            "conversationId": conversation,
            "timeout": self.timeout,
            "ttl": self.ttl,
            "cancel": self.cancel,
            "overrides": _without_nulls(self.overrides),
        }
        given = {name: value for name, value in fields.items() if value is not None}
        metadata = Metadata(name=self.name, namespace=namespace)
        spec = QuerySpec.model_validate(given)
        return Query(api_version=API_VERSION, kind="Query", metadata=metadata, spec=spec)


class ArkQueryUpdate(BaseModel):
    """The body that changes a query; other fields are ignored, as in ``ark-api``. A null leaves the field as it is."""

    type: Literal["user", "messages"] | None = None
    input: str | list[JsonObject] | None = None
    target: ArkTargetRef | None = None
    selector: JsonObject | None = None
    parameters: list[JsonObject] | None = None
    memory: JsonObject | None = None
    sessionId: str | None = None  # noqa: N815  # as in a query's spec
    conversationId: str | None = None  # noqa: N815
    serviceAccount: str | None = None  # noqa: N815
    timeout: str | None = None
    ttl: str | None = None
    cancel: bool | None = None
    overrides: list[JsonObject] | None = None


def check_trust(query: Query, target: ServedTarget, catalog: Catalog) -> None:
    """Raises BadRequestError for what a client of the gateway may not do, however the workers treat inline manifests.

    It has no Secrets or ConfigMaps of the workers, and sends only those headers that their manifests allow. A key in
    its query would be stored in the run's history.
    """
    for path, source in sources(query):
        if source.value_from:
            place = ".".join(map(str, path))
            raise BadRequestError(f"{place}.valueFrom: a client can only give values", param=place)
    for path, item in walk(query):
        if isinstance(item, Header) and item.is_secret:
            place = ".".join(map(str, path))
            raise BadRequestError(f"{place}: a client can't send the key {item.name}", param=place)
    needed, _ = catalog.needed_by(target.manifest)
    for override in query.spec.overrides:
        for manifest in needed.manifests:
            if forbidden := override.forbidden_for(manifest):
                names = ", ".join(forbidden)
                text = f"overrides: {manifest.id} does not allow a client to send {names}"
                raise BadRequestError(text, param="spec.overrides")


def error_form(error: GatewayError) -> Response:
    """The response for an error: that of FastAPI, with which ``ark-api`` is written. An invalid request has 422."""
    status = 422 if isinstance(error, BadRequestError) or error.status == 400 else int(error.status)
    return JSONResponse({"detail": error.message}, status)


@dataclass
class _Speech:
    """What a speaker is saying: its ``text`` that was streamed, and the chunks' id.

    ``taken_back`` is what was streamed of an attempt that has failed.
    """

    id: str
    text: str = ""
    taken_back: str = ""

    def take_back(self) -> None:
        """Takes note that the attempt has failed whose text was streamed."""
        self.taken_back = self.taken_back or self.text
        self.text = ""

    def add(self, text: str) -> str:
        """The part of the next text that has to be streamed."""
        self.text += text
        if not self.taken_back:
            return text
        if self.taken_back.startswith(self.text):
            return ""
        new = self.text.removeprefix(self.taken_back)
        self.taken_back = ""
        return new


@dataclass
class ChunkStream:
    """Derives the chunks of a query's stream from the events of its run.

    Text is streamed as the models send it; whoever comes later, or reads the message of a function or a person, gets
    the message at once. Chunks can't take back text of an attempt that has failed: the next attempt goes on after it if
    it says the same, as the same call does after missed heartbeats; otherwise all of its text is sent.
    """

    run: str
    query: str
    session: str | None
    target: str
    _speeches: dict[tuple[str, str], _Speech] = field(default_factory=dict)
    _models: dict[tuple[str, str], str] = field(default_factory=dict)
    _answered: dict[tuple[str, str], str] = field(default_factory=dict)
    _count: int = 0

    def chunks(self, event: Event) -> Iterator[JsonObject]:
        """The chunks for the next event."""
        if isinstance(event, ModelCalledEvent):
            self._models[event.run, event.speaker] = event.model
            self._speeches.pop((event.run, event.speaker), None)
        elif isinstance(event, TextDeltaEvent | TextRetractedEvent) and event.tool:  # of its progress
            return
        elif isinstance(event, TextDeltaEvent):
            yield from self._say(event, event.speaker, event.text)
        elif isinstance(event, TextRetractedEvent):
            if said := self._speeches.get((event.run, event.speaker)):
                said.take_back()
        elif isinstance(event, ModelAnsweredEvent) and event.tool_calls:
            self._answered[event.run, event.speaker] = event.text or ""
            yield from self._complete(event, event.speaker, event.text or "")
            calls: list[JsonValue] = [
                {
                    "index": index,
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(event.tool_calls)
            ]
            yield self._chunk(event, event.speaker, {"role": "assistant", "tool_calls": calls})
            yield from self._end(event, event.speaker, "tool_calls")
        elif isinstance(event, MessageEvent):
            if self._answered.pop((event.run, event.name), None) != event.text:
                yield from self._complete(event, event.name, event.text)
                yield from self._end(event, event.name, event.finish_reason or "stop")
        elif (
            isinstance(event, ToolReturnedEvent) and event.ends and event.text
        ):  # such as terminate's: it is the answer
            yield from self._complete(event, event.speaker, event.text)
            yield from self._end(event, event.speaker, "stop")

    def end(self, event: RunEndedEvent, query: JsonObject) -> JsonObject:
        """The last chunk: it has no text, but the whole query with its status."""
        ark: JsonObject = {"query": self.query, "target": self.target, "completedQuery": query}
        return {
            "id": f"chatcmpl-{self.run}",
            "object": "chat.completion.chunk",
            "created": int(event.at.timestamp()),
            "model": self.target,
            "choices": [{"index": 0, "delta": {}, "finish_reason": None}],
            "ark": ark | ({"session": self.session} if self.session else {}),
        }

    def _complete(self, event: Event, speaker: str, text: str) -> Iterator[JsonObject]:
        """What was not streamed of a text."""
        said = self._speeches.get((event.run, speaker))
        streamed = said.text if said else ""
        if is_cut_from(text, streamed) and not text.startswith(streamed):
            return  # the event only has the beginning of a long text, of which more was streamed
        if rest := text.removeprefix(streamed):
            yield from self._say(event, speaker, rest)

    def _say(self, event: Event, speaker: str, text: str) -> Iterator[JsonObject]:
        begins = (event.run, speaker) not in self._speeches
        new = self._speech(event, speaker).add(text)
        if new or begins:
            role = "user" if isinstance(event, MessageEvent) and event.from_person else "assistant"
            delta: JsonObject = {"role": role, "content": new} if begins else {"content": new}
            yield self._chunk(event, speaker, delta)

    def _end(self, event: Event, speaker: str, reason: str) -> Iterator[JsonObject]:
        yield self._chunk(event, speaker, {}, reason)
        self._speeches.pop((event.run, speaker), None)

    def _speech(self, event: Event, speaker: str) -> _Speech:
        key = (event.run, speaker)
        if key not in self._speeches:
            self._count += 1
            self._speeches[key] = _Speech(f"chatcmpl-{self.run}-{self._count}")
        return self._speeches[key]

    def _chunk(self, event: Event, speaker: str, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
        model = self._models.get((event.run, speaker))
        ark: JsonObject = {"query": self.query, "target": self.target, "agent": speaker}
        ark |= {"session": self.session} if self.session else {}
        ark |= {"team": event.team} if event.team else {}
        ark |= {"model": model} if model else {}
        return {
            "id": self._speech(event, speaker).id,
            "object": "chat.completion.chunk",
            "created": int(event.at.timestamp()),
            "model": model or self.target,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
            "ark": ark,
        }


class ArkApi:
    """The operations of ARK's API."""

    def __init__(self, targets: Targets, runs: Runs) -> None:
        self._targets = targets
        self._runs = runs

    async def create(self, request: Request) -> Response:
        """Creates a query and starts its run."""
        body = await read_body(request, ArkQueryRequest)
        caller = caller_of(request)
        namespace = _namespace(request)
        target = await self._target(caller, namespace, body)
        _check_account(caller, namespace, body.service_account)
        conversation = body.conversation_id or body.session_id
        if conversation:
            conversation = await self._runs.conversation(caller, conversation)
        query = body.query(namespace, target, caller, conversation)
        check_trust(query, target, await self._targets.catalog())
        run = await self._runs.create(caller, query, protocol=PROTOCOL)
        started = {**to_json(query), "metadata": _metadata(query.name, namespace, run.id)}
        return JSONResponse(query_detail(started))

    async def list_queries(self, request: Request) -> Response:
        """The queries of the caller in a namespace, the newest first, in pages; ``search`` finds words of inputs."""
        page = number_in(request, "page", 1)
        size = min(number_in(request, "page_size", 25, most=500), MAX_PAGE)
        caller = caller_of(request)
        namespace = _namespace(request)
        search = request.query_params.get("search", "").lower()

        async def listed() -> Response:
            found = await self._runs.named_queries(caller, namespace, PROTOCOL, MAX_QUERIES)
            if search:
                texts = await self._runs.read_each(caller, found, _question, lambda each: (each, each.question.lower()))
                found = [each for each, text in texts if search in text]
            shown = found[(page - 1) * size : page * size]
            items = await self._runs.read_each(caller, shown, _query_item, _known_item)
            return JSONResponse(
                {"items": items, "count": len(items), "total": len(found), "page": page, "page_size": size}
            )

        return await unless_disconnected(request, listed())

    async def get(self, request: Request) -> Response:
        """A query with its status in ARK's dialect."""
        return JSONResponse(query_detail(await _manifest(await self._run(request))))

    async def cancel(self, request: Request) -> Response:
        """Cancels a query at once; one that has ended is left as it is."""
        run = await self._run(request)
        await run.cancel()
        return JSONResponse(query_detail(await _manifest(run)))

    async def update(self, request: Request) -> Response:
        """Cancels a query, if that is the change. Raises ConflictError for others: its run has read all the rest."""
        body = await read_body(request, ArkQueryUpdate)
        run = await self._run(request)
        current = query_detail(await run.manifest())
        wanted = _without_nulls(body.model_dump(exclude={"cancel"}))
        if conversation := body.conversationId:
            wanted["conversationId"] = await self._runs.conversation(caller_of(request), conversation)
        if changed := next((name for name, value in wanted.items() if _without_nulls(current[name]) != value), None):
            text = f"{changed}: a query can only be canceled once it has started; delete it, and create another one"
            raise ConflictError(text, param=changed)
        if body.cancel:
            await run.cancel()
        return JSONResponse(query_detail(await _manifest(run)))

    async def delete(self, request: Request) -> Response:
        """Ends a query and deletes it; its name may be used again."""
        run = await self._run(request)
        await unless_disconnected(request, run.delete())
        return Response(status_code=204)

    async def stream(self, request: Request) -> Response:
        """The chunks of a query's answers as server-sent events: all of them, or those from now on."""
        run = await unless_disconnected(request, self._awaited_run(request))
        name = request.path_params["name"]
        manifest = await run.manifest()
        spec = manifest.get("spec")
        detail = query_detail(manifest) if isinstance(spec, dict) else {}
        target = detail.get("target")
        label = f"{target['type']}/{target['name']}" if isinstance(target, dict) else ""
        session = detail.get("sessionId")
        chunks = ChunkStream(run.id, name, session if isinstance(session, str) else None, label)
        after: str | None = None
        if request.query_params.get("from-beginning") != "true":
            async for event in run.events(wait=False, live=False):
                after = event.cursor

        async def encoded() -> AsyncGenerator[bytes, None]:
            try:
                async with contextlib.aclosing(run.events(after)) as events:
                    async for event in events:
                        for chunk in chunks.chunks(event):
                            yield encode(as_json(chunk).decode())
                        if isinstance(event, RunEndedEvent) and event.run == run.id:
                            if event.phase != "Completed":
                                yield encode(as_json({"error": _error_of(event)}).decode())
                            yield encode(as_json(chunks.end(event, await _manifest(run))).decode())
            except Exception as error:
                translated = as_gateway_error(error)
                if translated is None:
                    raise
                failed = {"message": translated.message, "type": "server_error", "code": translated.code}
                yield encode(as_json({"error": failed}).decode())
            yield encode("[DONE]")

        return EventStream(encoded())

    async def resources(self, request: Request, kind: type[Served]) -> Response:
        """The served resources of a kind that the caller may use."""
        items = [_listed(resource) for resource in await self._served(request, kind)]
        return JSONResponse({"items": items, "count": len(items), "total": len(items)})

    async def resource(self, request: Request, kind: type[Served]) -> Response:
        """One of them, without its prompt, its address and its headers."""
        name = request.path_params["name"]
        for resource in await self._served(request, kind):
            if resource.name == name:
                return JSONResponse(_detail(resource, await self._targets.catalog()))
        self._targets.check_known()
        raise NotFoundError(f"{kind.__name__} '{name[:200]}' not found in namespace {_namespace(request)[:200]}")

    async def namespaces(self, request: Request) -> Response:
        """The namespaces with something that the caller may ask."""
        names = sorted({target.namespace for target in await self._targets.of(caller_of(request))})
        return JSONResponse({"items": [{"name": name} for name in names], "count": len(names)})

    async def _served(self, request: Request, kind: type[Served]) -> list[Served]:
        served = await self._targets.resources_of(caller_of(request), (kind,))
        namespace = _namespace(request)
        return [one for one in served if isinstance(one, kind) and one.namespace == namespace]

    async def _target(self, caller: Caller, namespace: str, body: ArkQueryRequest) -> ServedTarget:
        """The target that a request names, or the first that its selector matches: agents are before teams."""
        if (body.target is None) == (body.selector is None):
            raise BadRequestError("a query has either a target or a selector", param="target")
        if body.target:
            return await self._targets.find(caller, f"{body.target.type}/{namespace}/{body.target.name}")
        selector = LabelSelector.model_validate(_without_nulls(body.selector))
        for target in await self._targets.of(caller):  # in this order by their ids
            if target.namespace == namespace and selector.matches(target.manifest.metadata.labels):
                return target
        self._targets.check_known()
        raise NotFoundError("the selector matches nothing here that you may use", param="selector")

    async def _run(self, request: Request) -> Run:
        return await self._runs.find_named(caller_of(request), _namespace(request), request.path_params["name"])

    async def _awaited_run(self, request: Request) -> Run:
        """The run of a query, which may be created a moment later: ``wait-for-query=30s``."""
        given = request.query_params.get("wait-for-query")
        until = time.monotonic() + (_wait_seconds(given) if given else 0.0)
        pause = POLL_SECONDS
        while True:
            try:
                return await self._run(request)
            except NotFoundError:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
            pause = min(2 * pause, MAX_POLL_SECONDS)


def protocols(targets: Targets, runs: Runs, client: Client) -> Sequence[Protocol]:
    """ARK's API, once for each beginning of its paths. ``/v1/models`` at the root is OpenAI's."""
    api = ArkApi(targets, runs)
    prefixes = ("/ark/", "/v1/queries", "/v1/namespaces", "/v1/agents", "/v1/teams", "/v1/tools", "/stream/")
    by_prefix: dict[str, list[BaseRoute]] = {prefix: [] for prefix in prefixes}
    for route in (*_routes(api, client, "/ark"), *_routes(api, client, "")):
        prefix = next((each for each in prefixes if route.path.startswith(each)), None)
        if prefix:
            by_prefix[prefix].append(route)
    health = [route for route in _routes(api, client, "") if route.path in ("/health", "/ready")]
    by_prefix["/ark/"] += health
    return [Protocol(prefix, routes, error_form) for prefix, routes in by_prefix.items()]


KINDS: Mapping[str, type[Served]] = {"agents": Agent, "teams": Team, "models": Model, "tools": Tool}


def _routes(api: ArkApi, client: Client, root: str) -> list[Route]:
    routes = [
        Route(f"{root}/health", _health),
        Route(f"{root}/ready", _ready_of(client)),
        Route(f"{root}/stream/{{name}}", api.stream),
        Route(f"{root}/v1/namespaces", api.namespaces),
    ]
    for base in (f"{root}/v1", f"{root}/v1/namespaces/{{namespace}}"):
        query = f"{base}/queries/{{name}}"
        routes += [
            Route(f"{base}/queries", api.create, methods=["POST"]),
            Route(f"{base}/queries", api.list_queries, methods=["GET"]),
            Route(query, api.get, methods=["GET"]),
            Route(query, api.update, methods=["PUT"]),
            Route(query, api.delete, methods=["DELETE"]),
            Route(f"{query}/cancel", api.cancel, methods=["PUT", "PATCH"]),
        ]
        for plural, kind in KINDS.items():
            routes += [
                Route(f"{base}/{plural}", _of_kind(api.resources, kind)),
                Route(f"{base}/{plural}/{{name}}", _of_kind(api.resource, kind)),
            ]
    return routes


def _error_of(event: RunEndedEvent) -> JsonObject:
    """The error of a query that has failed or was canceled."""
    phase = event.phase.lower()
    text = event.error or event.note or phase
    return {"message": text, "type": "server_error", "code": event.error_type or phase}


def _of_kind(
    handle: Callable[[Request, type[Served]], Awaitable[Response]], kind: type[Served]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handle(request, kind)

    return endpoint


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "healthy", "service": "baton"})


def _ready_of(client: Client) -> Callable[[Request], Awaitable[Response]]:
    async def ready(_: Request) -> Response:
        try:
            await describe_namespace(client)
        except RPCError as error:
            return JSONResponse({"status": "not ready", "service": "baton", "error": error.status.name}, 503)
        return JSONResponse({"status": "ready", "service": "baton"})

    return ready


async def _manifest(run: Run, status: Status | None = None) -> JsonObject:
    """The manifest of a run's query, with its status in ARK's dialect: the current one, unless it is given."""
    status = status or await run.status()
    manifest = await run.manifest()
    description = await run.describe()
    metadata = manifest["metadata"] if isinstance(manifest["metadata"], dict) else {}
    created = {"uid": run.id, "creationTimestamp": format_time(description.start_time)}
    status_json = ark_status(status).model_dump(mode="json", exclude_none=True)
    return {**manifest, "metadata": {**metadata, **created}, "status": status_json}


SPEC_FIELDS = (
    "parameters",
    "sessionId",
    "conversationId",
    "timeout",
    "ttl",
    "cancel",
    "overrides",
)
"""The fields of a query's ``spec`` that are shown as they are."""


def query_detail(manifest: JsonObject) -> JsonObject:
    """A query in the flat form of ``ark-api``, with null for what it does not have."""
    spec = _mapping(manifest.get("spec"))
    metadata = _mapping(manifest.get("metadata"))
    account = spec.get("serviceAccount")
    memory = spec.get("memory")
    return {
        "name": metadata.get("name"),
        "namespace": metadata.get("namespace", DEFAULT_NAMESPACE),
        "type": spec.get("type", "user"),
        "input": spec.get("input", ""),
        "memory": {"name": memory} if isinstance(memory, str) else memory,
        "selector": None,
        "serviceAccount": account.get("name") if isinstance(account, dict) else account,
        "target": spec.get("target"),
        **{name: spec.get(name) for name in SPEC_FIELDS},
        "metadata": metadata,
        "status": manifest.get("status"),
    }


async def _question(run: Run, listed: ListedRun) -> tuple[ListedRun, str]:
    return listed, _text_of(await run.question())


async def _query_item(run: Run, listed: ListedRun) -> JsonObject:
    """A query in a list: no worker is asked for it, as that of a single query may be away."""
    return _item(await _manifest(run, await run.stored_status() or _known_status(listed)), listed)


def _known_item(listed: ListedRun) -> JsonObject:
    """The same for a query that can't be read, as far as Temporal's list of runs knows it."""
    metadata: JsonObject = {"name": listed.name, "namespace": listed.namespace}
    status = ark_status(_known_status(listed)).model_dump(mode="json", exclude_none=True)
    return _item({"metadata": metadata, "spec": {"input": listed.question}, "status": status}, listed)


def _known_status(listed: ListedRun) -> Status:
    """What Temporal's list of runs knows of the status of a query."""
    phase = listed.state if listed.state in ARK_PHASES else "Failed" if listed.end else "Running"
    return Status.model_validate(
        {
            "phase": phase,
            "tokenUsage": {},
            "startTime": format_time(listed.start),
            "completionTime": format_time(listed.end) if listed.end else None,
        }
    )


def _item(manifest: JsonObject, listed: ListedRun) -> JsonObject:
    detail = query_detail(manifest)
    names = ("name", "namespace", "type", "input", "memory", "sessionId", "conversationId", "status")
    return {**{name: detail[name] for name in names}, "creationTimestamp": format_time(listed.start)}


def _metadata(name: str, namespace: str, uid: str) -> JsonObject:
    return {"name": name, "namespace": namespace, "uid": uid}


def _listed(resource: Served) -> JsonObject:
    """A resource in a list."""
    common: JsonObject = {"name": resource.name, "namespace": resource.namespace}
    match resource:
        case Team():
            strategy: JsonObject = {"strategy": resource.spec.strategy, "members_count": len(resource.spec.members)}
            return {**common, "description": resource.spec.description, **strategy, "status": None}
        case Model():
            provider = resource.spec.provider or resource.spec.type
            called: JsonObject = {"provider": provider, "model": resource.spec.model.value or ""}
            return {**common, "type": "completions", **called, "available": None}
        case Tool():
            return {**common, "description": resource.spec.description, "type": resource.spec.type}
        case Agent():
            model = _model_of(resource)
            return {**common, "description": resource.spec.description, "model_ref": model, "available": None}


def _detail(resource: Served, catalog: Catalog) -> JsonObject:
    """A resource by itself: what a client needs in order to ask or to show it."""
    listed = _listed(resource)
    match resource:
        case Team():
            members: list[JsonValue] = [
                {"name": member.name_in_team, "type": member.type or _type_of(member.name, resource, catalog)}
                for member in resource.spec.members
            ]
            return {**listed, "members": members, "maxTurns": resource.spec.max_turns, "status": None}
        case Model():
            return {**listed, "config": {}}
        case Tool():
            schema: JsonObject = {"inputSchema": resource.spec.input_schema, "type": resource.spec.type}
            return {**listed, "spec": {"description": resource.spec.description, **schema}, "status": None}
        case Agent():
            model = _model_of(resource)
            return {**listed, "modelRef": {"name": model} if model else None, "isA2A": False, "status": None}


def _type_of(name: str | None, team: Team, catalog: Catalog) -> str:
    """The type of a member whose team does not say it."""
    is_team = name and not catalog.get("Agent", team.namespace, name) and catalog.get("Team", team.namespace, name)
    return "team" if is_team else "agent"


def _model_of(resource: Agent) -> str | None:
    reference = getattr(resource.spec, "model_ref", None)
    return reference if isinstance(reference, str) else getattr(reference, "name", None)


def _check_account(caller: Caller, namespace: str, account: str | None) -> None:
    """Raises ForbiddenError if a query is to have the rights of another account than its caller's."""
    own = caller.account
    if account is not None and (account, namespace) != (own.name, own.namespace):
        raise ForbiddenError(f"serviceAccount: your queries have the rights of {own}", param="serviceAccount")


def _namespace(request: Request) -> str:
    named = request.path_params.get("namespace") or request.query_params.get("namespace")
    return str(named) if named else DEFAULT_NAMESPACE


def _wait_seconds(text: str) -> float:
    """Whole seconds, as in ``30s`` or ``30``, at most MAX_WAIT; ARK takes 30 for anything else."""
    digits = text.removesuffix("s")
    return min(float(digits), MAX_WAIT) if digits.isascii() and digits.isdecimal() else DEFAULT_WAIT


def _text_of(value: object) -> str:
    """All texts of an input in lower case, for a search."""
    if isinstance(value, str):
        return value.lower()
    if isinstance(value, list):
        return " ".join(map(_text_of, value))
    if isinstance(value, dict):
        return " ".join(_text_of(value[name]) for name in ("content", "text") if name in value)
    return ""


def _without_nulls(value: Any) -> Any:
    """JSON without the null fields that ARK's clients send for what they don't set."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _mapping(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}
