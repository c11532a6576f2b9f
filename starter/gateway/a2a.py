"""The A2A server, versions 1.0 and 0.3: teams and agents as agents, runs as tasks. See docs/gateway-a2a.md."""

import asyncio
import contextlib
import hashlib
import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

from a2a.auth.user import User
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes import ServerCallContextBuilder, create_jsonrpc_routes, create_rest_routes
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    HTTPAuthSecurityScheme,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    SecurityRequirement,
    SecurityScheme,
    SendMessageRequest,
    StringList,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import (
    ListTasksCursor,
    apply_history_length,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
    validate_history_length,
    validate_page_size,
)
from google.protobuf.json_format import MessageToDict
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ...activities.agent.a2a import json_of
from ...contracts.decisions import MAX_REASON
from ...installation import version
from ...resources.base import JsonModel, JsonObject, Text
from ...resources.content import part_of_bytes, part_of_url
from ..runs.listing import ListedRun
from .a2a_push import PushNotifications
from .a2a_tasks import CONTEXT, MESSAGE, TARGET, TaskView, Update
from .access import Caller
from .errors import BadRequestError, ConflictError, GatewayError, NotFoundError
from .protocol import Protocol, caller_of
from .runs import PROTOCOL, Run, Runs, TargetQuestion
from .settings import GatewaySettings
from .targets import ServedTarget, Targets

_log = logging.getLogger(__name__)

NAME = "a2a"
"""The name of the protocol in the memo of its runs."""

PREFIX = "/a2a"

WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""The paths of an agent card: since version 0.3 of the protocol, and before."""

BINDINGS = (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"))
"""The bindings and versions that are served, all at the same URL."""

INPUT_MODES = (
    "text/plain",
    "application/json",
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "application/pdf",
)
OUTPUT_MODES = ("text/plain", "application/json")

SCHEME = "key"
"""The name of the security scheme in a card."""

CANCEL_SECONDS = 20.0
"""Seconds for which the response to a cancellation waits for the end of the task."""

MAX_LISTED = 1_000
"""The newest tasks of a caller, of which a list has pages."""

CONCURRENT_TASKS = 10
"""How many tasks of a list are read at once."""

STATES: Mapping[str, TaskState] = {
    "Completed": TaskState.TASK_STATE_COMPLETED,
    "Canceled": TaskState.TASK_STATE_CANCELED,
    "Failed": TaskState.TASK_STATE_FAILED,
    "Terminated": TaskState.TASK_STATE_FAILED,
    "Timed out": TaskState.TASK_STATE_FAILED,
    "InputRequired": TaskState.TASK_STATE_INPUT_REQUIRED,
}
"""The states of tasks by those of listed runs; all others are working."""

Translate = Callable[[Exception], GatewayError | None]
"""The error that clients see for an exception; None for a bug."""


class Options(JsonModel):
    """What a message may say about its run, as ``{"baton": {…}}`` in its metadata."""

    parameters: dict[str, str] = {}
    session: JsonObject = {}
    timeout: str | None = None
    budget: JsonObject | None = None


class ApproveCommand(JsonModel):
    """Data by which a message approves a call, optionally with other arguments."""

    approve: Text
    arguments: JsonObject | None = None
    reason: str = Field("", max_length=MAX_REASON)
    remember: bool = False


class RejectCommand(JsonModel):
    """Data by which a message rejects a call."""

    reject: Text
    reason: str = Field("", max_length=MAX_REASON)
    remember: bool = False


class ReplyCommand(JsonModel):
    """Data by which a message replies to a question."""

    reply: Text
    text: Text


class DeclineCommand(JsonModel):
    """Data by which a message declines the question of a server."""

    decline: Text
    reason: str = Field("", max_length=MAX_REASON)


COMMANDS: Mapping[str, type[ApproveCommand | RejectCommand | ReplyCommand | DeclineCommand]] = {
    "approve": ApproveCommand,
    "reject": RejectCommand,
    "reply": ReplyCommand,
    "decline": DeclineCommand,
}

Command = ApproveCommand | RejectCommand | ReplyCommand | DeclineCommand

_WRITTEN = re.compile(r"\s*(approve|reject) (\S+)(?:\s+(.*\S))?\s*", re.DOTALL)
"""A decision as text. It names the call: a mere yes could be meant for another one."""


class _Caller(User):
    """The caller, as the SDK knows it."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


class _Contexts(ServerCallContextBuilder):
    def build(self, request: Request) -> ServerCallContext:
        """The context of a call, which has its request in its state."""
        return ServerCallContext(
            user=_Caller(caller_of(request).name),
            state={"headers": dict(request.headers), "request": request},
            requested_extensions=get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER)),
        )


@dataclass(frozen=True)
class _Call:
    """A call: who makes it, and which team or agent it is for."""

    caller: Caller
    target: ServedTarget

    @classmethod
    def of(cls, context: ServerCallContext) -> "_Call":
        request: Request = context.state["request"]
        target = request.state.target
        assert isinstance(target, ServedTarget)
        return cls(caller_of(request), target)

    def conversation(self, context: str) -> str:
        """The id of the conversation of a context: it is another one for each caller, and for each target."""
        text = f"{self.caller.account}\n{self.caller.name}\n{self.target.id}\n{context}"
        return f"a2a-{hashlib.sha256(text.encode()).hexdigest()[:40]}"

    def is_task(self, memo: Mapping[str, object]) -> bool:
        """Whether a run with that memo is a task of the target."""
        return memo.get(PROTOCOL) == NAME and memo.get(TARGET) == self.target.id


class TaskHandler(RequestHandler):
    """The operations of the protocol, of both versions and bindings. It has no state."""

    def __init__(self, runs: Runs, pushes: PushNotifications, translate: Translate) -> None:
        self._runs = runs
        self._pushes = pushes
        self._translate = translate

    @validate_request_params
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        """Starts a task or continues one, and returns it once it has ended or waits for the client."""
        with self._errors(context):
            validate_history_length(params.configuration)
            view = await self._send(_Call.of(context), params, context)
            if not (params.configuration.return_immediately or view.is_settled):
                async with aclosing(view.follow(live=False)) as updates:
                    async for _ in updates:
                        if view.is_settled:
                            break
            return apply_history_length(view.task, params.configuration)

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Task | Update, None]:
        """Starts a task or continues one, and streams it until it has ended or waits for the client."""
        with self._errors(context):
            validate_history_length(params.configuration)
            view = await self._send(_Call.of(context), params, context)
            yield apply_history_length(view.task, params.configuration)
            if view.is_settled:
                return
            async with aclosing(view.follow(live=True)) as updates:
                async for update in updates:
                    yield update
                    if view.is_settled and isinstance(update, TaskStatusUpdateEvent):
                        return

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """A task."""
        with self._errors(context):
            validate_history_length(params)
            view = await TaskView.read(await self._find(_Call.of(context), params.id))
            return apply_history_length(view.task, params)

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Task | Update, None]:
        """A task as it is, and then what follows, to its end."""
        with self._errors(context):
            view = await TaskView.read(await self._find(_Call.of(context), params.id))
            if view.is_terminal:
                raise UnsupportedOperationError(f"the task {params.id} has ended: get it instead")
            yield view.task
            async with aclosing(view.follow(live=True)) as updates:
                async for update in updates:
                    yield update

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Cancels a task, and returns it once it has ended."""
        with self._errors(context):
            view = await TaskView.read(await self._find(_Call.of(context), params.id))
            if view.is_terminal:
                raise TaskNotCancelableError(f"the task {params.id} has ended")
            await view.run.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS), aclosing(view.follow(live=False)) as updates:
                    async for _ in updates:
                        pass
            return view.task

    @validate_request_params
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """The newest tasks of a target that the caller may see, in pages, the newest first."""
        with self._errors(context):
            validate_history_length(params)
            size = params.page_size if params.HasField("page_size") else DEFAULT_LIST_TASKS_PAGE_SIZE
            validate_page_size(size)
            listed = await self._listed(_Call.of(context), params)
            rest = listed
            if params.page_token:
                cursor = decode_list_tasks_cursor(params.page_token)
                if cursor is None:
                    raise InvalidParamsError("the page token is not one of this server")
                rest = [run for run in listed if _place(run).sort_key() < cursor.sort_key()]
            page = rest[:size]
            tasks = await self._tasks(_Call.of(context), page, params)
            following = encode_list_tasks_cursor(_place(page[-1])) if len(rest) > size else ""
            return ListTasksResponse(
                tasks=tasks, next_page_token=following, page_size=len(tasks), total_size=len(listed)
            )

    async def _listed(self, call: _Call, params: ListTasksRequest) -> list[ListedRun]:
        def matches(memo: Mapping[str, object]) -> bool:
            return call.is_task(memo) and (not params.context_id or memo.get(CONTEXT) == params.context_id)

        runs = await self._runs.newest(call.caller, MAX_LISTED, matches)
        if params.status:
            runs = [run for run in runs if STATES.get(run.state, TaskState.TASK_STATE_WORKING) == params.status]
        if params.HasField("status_timestamp_after"):
            after = params.status_timestamp_after.ToDatetime().astimezone()
            runs = [run for run in runs if run.end is None or run.end >= after]
        return sorted(runs, key=lambda run: _place(run).sort_key(), reverse=True)

    async def _tasks(self, call: _Call, listed: Sequence[ListedRun], params: ListTasksRequest) -> list[Task]:
        limit = asyncio.Semaphore(CONCURRENT_TASKS)

        async def read(run: ListedRun) -> Task | None:
            async with limit:
                try:
                    view = await TaskView.read(await self._runs.find(call.caller, run.id))
                except NotFoundError:  # it was deleted meanwhile
                    return None
            task = apply_history_length(view.task, params)
            if not params.include_artifacts:
                task.ClearField("artifacts")
            return task

        return [task for task in await asyncio.gather(*map(read, listed)) if task is not None]

    @validate_request_params
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Posts what happens to a task from now on."""
        with self._errors(context):
            call = _Call.of(context)
            view = await TaskView.read(await self._find(call, params.task_id))
            return await self._pushes.create(params, view, call.caller, context)

    @validate_request_params
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """A configuration, without its secrets."""
        with self._errors(context):
            run = await self._find(_Call.of(context), params.task_id)
            return await self._pushes.get(run.id, params.id)

    @validate_request_params
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """All configurations of a task."""
        with self._errors(context):
            run = await self._find(_Call.of(context), params.task_id)
            return ListTaskPushNotificationConfigsResponse(configs=await self._pushes.list(run.id))

    @validate_request_params
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Ends the notifications of a configuration."""
        with self._errors(context):
            run = await self._find(_Call.of(context), params.task_id)
            await self._pushes.delete(run.id, params.id)

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """There is no other card than that which needs the key already."""
        raise ExtendedAgentCardNotConfiguredError

    async def _find(self, call: _Call, task: str) -> Run:
        """The run of a task. Raises NotFoundError, also for a run that is not a task of the target."""
        run = await self._runs.find(call.caller, task)
        if not call.is_task(run.memo):
            raise NotFoundError(f"there is no task '{task[:200]}' here, or you may not see it")
        return run

    async def _send(self, call: _Call, params: SendMessageRequest, context: ServerCallContext) -> TaskView:
        """The task of a message, which is carried out when this returns; the same message again returns its task."""
        if params.message.task_id:
            view = await self._continue(call, params.message)
        else:
            view = await TaskView.read(await self._start(call, params.message))
        if params.configuration.HasField("task_push_notification_config"):
            await self._pushes.create(params.configuration.task_push_notification_config, view, call.caller, context)
        return view

    async def _start(self, call: _Call, message: Message) -> Run:
        key = f"{NAME}/{call.target.id}/{_hash(message.message_id)}"
        context = message.context_id or self._runs.id_of(call.caller, call.target, key)
        if len(context) > MAX_ID or len(message.message_id) > MAX_ID:
            raise InvalidParamsError(f"the ids of a message and its context have at most {MAX_ID} characters")
        options = _options_of(message)
        question = TargetQuestion(
            input=_input_of(message.parts),
            conversation=call.conversation(context),
            parameters=options.parameters,
            session=options.session,
            timeout=options.timeout,
            budget=options.budget,
        )
        memo = {TARGET: call.target.id, CONTEXT: context, MESSAGE: message.message_id}
        started = await self._runs.start(call.caller, call.target, question, protocol=NAME, key=key, memo=memo)
        return started.run

    async def _continue(self, call: _Call, message: Message) -> TaskView:
        """Answers what the task waits for or, if it waits for nothing, sends the message into the discussion."""
        view = await TaskView.read(await self._find(call, message.task_id))
        run = view.run
        if message.context_id and message.context_id != view.task.context_id:
            raise InvalidParamsError("the task belongs to another context")
        request = f"a2a-{_hash(f'{call.caller.account} {call.caller.name} {message.message_id}')}"
        if await run.has_taken(request):
            return view
        if view.is_terminal:
            raise UnsupportedOperationError(f"the task {run.id} has ended: send the message without a task id")
        match _command_of(message.parts, view):
            case ApproveCommand() as command:
                await run.decide(
                    command.approve,
                    approved=True,
                    arguments=command.arguments,
                    reason=command.reason,
                    remember=command.remember,
                    request=request,
                )
                view.take(command.approve)
            case RejectCommand() as command:
                await run.decide(
                    command.reject, approved=False, reason=command.reason, remember=command.remember, request=request
                )
                view.take(command.reject)
            case ReplyCommand() as command:
                await run.reply(command.text, command.reply, request=request)
                view.take(command.reply)
            case DeclineCommand() as command:
                await run.reply(command.reason, command.decline, declines=True, request=request)
                view.take(command.decline)
            case None:
                await run.steer(_text_of(message.parts), request=request)
        return view

    @contextlib.contextmanager
    def _errors(self, context: ServerCallContext) -> Iterator[None]:
        """Raises A2AErrors. An error that is not the request's is also noted, so that its HTTP status says so."""
        try:
            yield
        except A2AError:
            raise
        except Exception as error:
            failure = self._translate(error)
            if failure is None:
                _log.exception("a request failed")
                raise InternalError("internal error") from error
            if isinstance(failure, NotFoundError):
                raise TaskNotFoundError(failure.message) from error
            if isinstance(failure, ConflictError) or failure.status == BadRequestError.status:
                raise InvalidParamsError(failure.message) from error
            context.state["request"].state.failure = failure
            raise InternalError(failure.message) from error


MAX_ID = 255
"""Characters of the ids of messages and contexts."""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _place(run: ListedRun) -> ListTasksCursor:
    """The place of a task in a list: by its start, as that never changes."""
    return ListTasksCursor(timestamp_ns=_nanoseconds(run.start), task_id=run.id)


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1_000


def _options_of(message: Message) -> Options:
    metadata: JsonObject = MessageToDict(message.metadata) if message.HasField("metadata") else {}
    return Options.model_validate(metadata.get("baton") or {})


def _text_of(parts: Sequence[Part]) -> str:
    """The texts of parts, and their data as JSON. Raises BadRequestError for files."""
    texts = []
    for part in parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                texts.append(json.dumps(json_of(part), ensure_ascii=False))
            case _:
                raise BadRequestError("a message to a task that is working has texts and data only", param="parts")
    return "\n\n".join(texts)


def _input_of(parts: Sequence[Part]) -> str | list[JsonObject]:
    """The question of a message. Raises BadRequestError."""
    if all(part.WhichOneof("content") in ("text", "data") for part in parts):
        return _text_of(parts)
    content: list[JsonObject] = []
    for number, part in enumerate(parts):
        name = part.filename or None
        try:
            match part.WhichOneof("content"):
                case "raw":
                    made = part_of_bytes(part.raw, part.media_type or "application/octet-stream", name)
                case "url":
                    made = part_of_url(part.url, name)
                case _:
                    content.append({"type": "text", "text": _text_of([part])})
                    continue
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            reason = first["msg"].removeprefix("Value error, ")
            raise BadRequestError(f"parts.{number}: {reason}", param="parts") from None
        if made.kind == "image":
            made = made.as_image(None)
        content.append(made.model_dump(mode="json", exclude_none=True))
    return [{"role": "user", "content": [*content]}]


def _command_of(parts: Sequence[Part], view: TaskView) -> Command | None:
    """What a message decides of what its task waits for; None if the task waits for nothing.

    Raises InvalidParamsError for a message that is unclear.
    """
    data = [json_of(part) for part in parts if part.WhichOneof("content") == "data"]
    for value in data:
        names = [name for name in COMMANDS if isinstance(value, dict) and name in value]
        if not names:
            continue
        if len(names) > 1 or len(data) > 1:
            raise InvalidParamsError("a message decides one thing only")
        return COMMANDS[names[0]].model_validate(value)
    if not view.pending:
        return None
    text = _text_of(parts)
    if written := _WRITTEN.fullmatch(text):
        verb, call, reason = written.groups()
        if call in view.pending:
            return COMMANDS[verb].model_validate({verb: call, "reason": reason or ""})
    pending = [*view.pending.values()]
    if len(pending) == 1 and pending[0].kind == "question":
        return ReplyCommand(reply=pending[0].wait, text=text)
    waits = ", ".join(f"{wait.kind} {wait.wait}" for wait in pending)
    raise InvalidParamsError(
        f"it is not clear what the message decides; the task waits for: {waits}. Send one part with data: "
        '{"approve": ID, "arguments": {…}}, {"reject": ID, "reason": …}, {"reply": ID, "text": …} or {"decline": ID}, '
        "or the text 'approve ID' or 'reject ID REASON'"
    )


class Cards:
    """The agent cards."""

    def __init__(self, targets: Targets, settings: GatewaySettings) -> None:
        self._targets = targets
        self._settings = settings

    async def of_target(self, request: Request) -> Response:
        """The card of a team or an agent."""
        target = await self._targets.find(caller_of(request), _name_in(request))
        return self._response(request, target)

    async def of_gateway(self, request: Request) -> Response:
        """The card of the configured target, or of the only one. Raises NotFoundError that lists the cards."""
        caller = caller_of(request)
        if self._settings.a2a_agent:
            return self._response(request, await self._targets.find(caller, self._settings.a2a_agent))
        served = await self._targets.of(caller)
        if len(served) == 1:
            return self._response(request, served[0])
        listed = ", ".join(f"{self._url(request, target)}{WELL_KNOWN[0]}" for target in served) or "none"
        raise NotFoundError(
            f"this gateway serves several agents, each with a card of its own, and BATON_GATEWAY_A2A_AGENT names none "
            f"for this address: {listed}"
        )

    def _response(self, request: Request, target: ServedTarget) -> Response:
        return JSONResponse(agent_card_to_dict(self._card(request, target)), headers={"vary": "Authorization, Host"})

    def _url(self, request: Request, target: ServedTarget) -> str:
        base = self._settings.url or str(request.base_url)
        return f"{base.rstrip('/')}{PREFIX}/{target.id}"

    def _card(self, request: Request, target: ServedTarget) -> AgentCard:
        url = self._url(request, target)
        strategy = getattr(target.manifest.spec, "strategy", None)
        card = AgentCard(
            name=target.name,
            description=target.description,
            version=version(),
            supported_interfaces=[
                AgentInterface(url=url, protocol_binding=binding, protocol_version=number)
                for binding, number in BINDINGS
            ],
            capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=False),
            default_input_modes=INPUT_MODES,
            default_output_modes=OUTPUT_MODES,
            skills=[
                AgentSkill(
                    id=target.name,
                    name=target.name,
                    description=target.description,
                    tags=[target.kind, *([strategy] if strategy else [])],
                )
            ],
        )
        if self._settings.has_keys:
            bearer = HTTPAuthSecurityScheme(scheme="bearer", description="a key of this gateway, or a token")
            card.security_schemes[SCHEME].CopyFrom(SecurityScheme(http_auth_security_scheme=bearer))
            card.security_requirements.append(SecurityRequirement(schemes={SCHEME: StringList()}))
        return card


def _name_in(request: Request) -> str:
    """The id of the target in the path of a request."""
    names = ("kind", "namespace", "name")
    return "/".join(str(request.path_params[name]) for name in names if name in request.path_params)


def protocol(
    targets: Targets, runs: Runs, settings: GatewaySettings, pushes: PushNotifications, translate: Translate
) -> Protocol:
    """The A2A protocol. ``translate`` makes GatewayErrors of exceptions."""
    handler = TaskHandler(runs, pushes, translate)
    cards = Cards(targets, settings)
    routes: list[BaseRoute] = [Route(path, cards.of_gateway) for path in WELL_KNOWN]
    for place in (f"{PREFIX}/{{kind}}/{{name}}", f"{PREFIX}/{{kind}}/{{namespace}}/{{name}}"):
        routes += [Route(f"{place}{path}", cards.of_target) for path in WELL_KNOWN]
        of_sdk = [
            *create_jsonrpc_routes(handler, place, _Contexts(), enable_v0_3_compat=True),
            *create_rest_routes(handler, _Contexts(), enable_v0_3_compat=True, path_prefix=place),
        ]
        # The rest are routes of tenants, which would take all paths of other protocols.
        routes += [_guarded(route, targets) for route in of_sdk if isinstance(route, Route)]
    return Protocol(PREFIX, routes, error_form, lifespan=pushes.delivering)


def _guarded(route: Route, targets: Targets) -> Route:
    """A route of the SDK for the target in its path, which ends when its client disconnects."""
    inner: Callable[[Request], Awaitable[Response]] = route.endpoint

    async def endpoint(request: Request) -> Response:
        request.state.target = await targets.find(caller_of(request), _name_in(request))
        request.state.failure = None
        await request.body()
        response = await _while_connected(request, inner)
        failure = request.state.failure
        if isinstance(failure, GatewayError):
            raise failure
        return response

    return Route(route.path, endpoint, methods=[*(route.methods or ())])


async def _while_connected(request: Request, respond: Callable[[Request], Awaitable[Response]]) -> Response:
    """The response; the work for it ends when the client disconnects, which ends no run."""
    working = asyncio.ensure_future(respond(request))
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        return Response(status_code=499)  # nobody receives it
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def error_form(error: GatewayError) -> Response:
    """The response for an error outside of a call, in the form of the HTTP binding; JSON-RPC tells it by its status."""
    status = int(error.status)
    body: JsonObject = {"code": status, "status": error.code.upper(), "message": error.message, "details": []}
    return JSONResponse({"error": body}, status)
