"""The A2A server, versions 1.0 and 0.3: teams and agents as agents, runs as tasks. See docs/gateway-a2a.md."""

import asyncio
import contextlib
import functools
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from a2a.auth.user import User
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.server.routes import ServerCallContextBuilder, create_jsonrpc_routes, create_rest_routes
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
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
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ...resources.base import JsonObject
from ..runs.listing import MAX_SEARCHED, ChangePlace, ListedRun, change_of
from .a2a_cards import PREFIX, WELL_KNOWN, Cards, target_in
from .a2a_messages import (
    ApproveCommand,
    DeclineCommand,
    RejectCommand,
    ReplyCommand,
    command_of,
    input_of,
    options_of,
    text_of,
)
from .a2a_push import PushNotifications
from .a2a_tasks import CONTEXT, INTERRUPTED, MESSAGE, TARGET, TaskView, Update
from .access import Caller
from .errors import BadRequestError, ConflictError, GatewayError, NotFoundError, as_gateway_error
from .owners import PROTOCOL
from .protocol import Protocol, caller_of, unless_disconnected
from .question import TargetQuestion
from .run import Run
from .runs import Runs
from .settings import GatewaySettings
from .targets import ServedTarget, Targets

_log = logging.getLogger(__name__)

NAME = "a2a"
"""The name of the protocol in the memo of its runs."""

CANCEL_SECONDS = 20.0
"""Seconds for which the response to a cancellation waits for the end of the task."""

STATES: Mapping[str, TaskState] = {
    "Completed": TaskState.TASK_STATE_COMPLETED,
    "Canceled": TaskState.TASK_STATE_CANCELED,
    "Failed": TaskState.TASK_STATE_FAILED,
    "Terminated": TaskState.TASK_STATE_FAILED,
    "Timed out": TaskState.TASK_STATE_FAILED,
    "InputRequired": TaskState.TASK_STATE_INPUT_REQUIRED,
}
"""The states of tasks by those of listed runs; all others are working."""


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

    def __init__(self, runs: Runs, pushes: PushNotifications) -> None:
        self._runs = runs
        self._pushes = pushes

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
        """The tasks of a target that the caller may see, in pages: the one whose state has changed last first.

        ``total_size`` counts those among the newest MAX_SEARCHED runs of the caller.
        """
        with self._errors(context):
            validate_history_length(params)
            size = params.page_size if params.HasField("page_size") else DEFAULT_LIST_TASKS_PAGE_SIZE
            validate_page_size(size)
            call = _Call.of(context)
            matches = functools.partial(_is_listed, call, params)
            place = _place_in(params.page_token) if params.page_token else None
            listed, following = await self._runs.by_change(call.caller, MAX_SEARCHED, matches)
            total = len(listed)
            if place:
                listed = [run for run in listed if change_of(run) < place]
                if following and len(listed) < size:  # the page is not in what was searched
                    listed, following = await self._runs.by_change(call.caller, size, matches, place)
            if len(listed) > size:
                following = change_of(listed[size - 1])
            tasks = await self._tasks(call, listed[:size], params)
            return ListTasksResponse(
                tasks=tasks,
                next_page_token=_token_of(following) if following else "",
                page_size=len(tasks),
                total_size=total,
            )

    async def _tasks(self, call: _Call, listed: Sequence[ListedRun], params: ListTasksRequest) -> list[Task]:
        async def read(run: Run, each: ListedRun) -> Task | None:
            if each.end and (await run.describe()).start_time > each.start:
                return None  # a reset has ended this execution: the run is listed by its last one
            return (await TaskView.read(run, needs_worker=False)).task

        tasks = []
        for task in await self._runs.read_each(call.caller, listed, read, _known_task):
            if task is None or params.status not in (TaskState.TASK_STATE_UNSPECIFIED, task.status.state):
                continue
            if task.status.timestamp.ToNanoseconds() < params.status_timestamp_after.ToNanoseconds():
                continue
            if not params.include_artifacts:
                task.ClearField("artifacts")
            tasks.append(apply_history_length(task, params))
        return sorted(tasks, key=lambda task: task.status.timestamp.ToNanoseconds(), reverse=True)

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
        configures = params.configuration.HasField("task_push_notification_config")
        config = params.configuration.task_push_notification_config
        if params.message.task_id:
            view, is_repeated = await self._continue(call, params.message)
        else:
            is_repeated = configures and await self._is_started(call, params.message)
            if configures and not is_repeated:
                await self._pushes.check(config, call.caller)
            view = await TaskView.read(await self._start(call, params.message))
        if configures:
            configure = self._pushes.keep if is_repeated else self._pushes.create
            await configure(config, view, call.caller, context)
        return view

    async def _is_started(self, call: _Call, message: Message) -> bool:
        """Whether the message was sent before, and has a task."""
        try:
            await self._runs.find(call.caller, self._runs.id_of(call.caller, call.target, _key(call, message)))
        except NotFoundError:
            return False
        return True

    async def _start(self, call: _Call, message: Message) -> Run:
        key = _key(call, message)
        context = message.context_id or self._runs.id_of(call.caller, call.target, key)
        if len(context) > MAX_ID or len(message.message_id) > MAX_ID:
            raise InvalidParamsError(f"the ids of a message and its context have at most {MAX_ID} characters")
        options = options_of(message)
        question = TargetQuestion(
            input=input_of(message.parts),
            conversation=call.conversation(context),
            parameters=options.parameters,
            session=options.session,
            timeout=options.timeout,
            budget=options.budget,
        )
        memo = {TARGET: call.target.id, CONTEXT: context, MESSAGE: message.message_id}
        return await self._runs.start(call.caller, call.target, question, protocol=NAME, key=key, memo=memo)

    async def _continue(self, call: _Call, message: Message) -> tuple[TaskView, bool]:
        """Answers what the task waits for or, if it waits for nothing, sends the message into the discussion.

        Also returns whether an earlier request has done so with the same message.
        """
        view = await TaskView.read(await self._find(call, message.task_id))
        run = view.run
        if message.context_id and message.context_id != view.task.context_id:
            raise InvalidParamsError("the task belongs to another context")
        request = f"a2a-{_hash(f'{call.caller.account} {call.caller.name} {message.message_id}')}"
        if await run.has_taken(request):
            return view, True
        if view.is_terminal:
            raise UnsupportedOperationError(f"the task {run.id} has ended: send the message without a task id")
        match command_of(message.parts, view):
            case ApproveCommand() as command:
                decision = await run.decide(
                    command.approve,
                    approved=True,
                    arguments=command.arguments,
                    reason=command.reason,
                    remember=command.remember,
                    request=request,
                )
                view.take(command.approve, decision)
            case RejectCommand() as command:
                decision = await run.decide(
                    command.reject, approved=False, reason=command.reason, remember=command.remember, request=request
                )
                view.take(command.reject, decision)
            case ReplyCommand() as command:
                decision = await run.reply(command.text, command.reply, request=request)
                view.take(command.reply, decision)
            case DeclineCommand() as command:
                decision = await run.reply(command.reason, command.decline, declines=True, request=request)
                view.take(command.decline, decision)
            case None:
                await run.steer(text_of(message.parts), request=request)
        return view, False

    @contextlib.contextmanager
    def _errors(self, context: ServerCallContext) -> Iterator[None]:
        """Raises A2AErrors. An error that is not the request's is also noted, so that its HTTP status says so."""
        try:
            yield
        except A2AError:
            raise
        except Exception as error:
            failure = as_gateway_error(error)
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


def _key(call: _Call, message: Message) -> str:
    """The idempotency key of the task of a message."""
    return f"{NAME}/{call.target.id}/{_hash(message.message_id)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _is_listed(call: _Call, params: ListTasksRequest, run: ListedRun) -> bool:
    """Whether a run may be in a list, as far as Temporal's list of runs says."""
    if not call.is_task(run.memo) or (params.context_id and run.memo.get(CONTEXT) != params.context_id):
        return False
    status = TaskState.TASK_STATE_INPUT_REQUIRED if params.status in INTERRUPTED else params.status
    if status and _known_state(run) != status:
        return False
    return run.end is None or run.end >= params.status_timestamp_after.ToDatetime(UTC)


def _known_state(run: ListedRun) -> TaskState:
    return STATES.get(run.state, TaskState.TASK_STATE_WORKING)


def _known_task(run: ListedRun) -> Task:
    """What Temporal's list of runs knows of a task."""
    status = TaskStatus(state=_known_state(run), timestamp=run.end or run.start)
    return Task(id=run.id, context_id=str(run.memo.get(CONTEXT) or run.id), status=status)


EPOCH = datetime.fromtimestamp(0, UTC)

MAX_NANOSECONDS = 2**63
"""Nanoseconds since then that a page token may have: what Temporal can compare."""


def _token_of(place: ChangePlace) -> str:
    microseconds = (place.at - EPOCH) // timedelta(microseconds=1)
    return encode_list_tasks_cursor(ListTasksCursor(timestamp_ns=microseconds * 1_000, task_id=place.id))


def _place_in(token: str) -> ChangePlace:
    """The place in a page token. Raises InvalidParamsError."""
    cursor = decode_list_tasks_cursor(token)
    if cursor is None or cursor.timestamp_ns is None or not 0 <= cursor.timestamp_ns < MAX_NANOSECONDS:
        raise InvalidParamsError("the page token was not issued by this server")
    return ChangePlace(EPOCH + timedelta(microseconds=cursor.timestamp_ns // 1_000), cursor.task_id)


def protocol(targets: Targets, runs: Runs, settings: GatewaySettings, pushes: PushNotifications) -> Protocol:
    """The A2A protocol."""
    handler = TaskHandler(runs, pushes)
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
    inner: Callable[[Request], Coroutine[Any, Any, Response]] = route.endpoint

    async def endpoint(request: Request) -> Response:
        request.state.target = await targets.find(caller_of(request), target_in(request))
        request.state.failure = None
        await request.body()
        response = await unless_disconnected(request, inner(request))
        failure = request.state.failure
        if isinstance(failure, GatewayError):
            raise failure
        return response

    return Route(route.path, endpoint, methods=[*(route.methods or ())])


def error_form(error: GatewayError) -> Response:
    """The response for an error outside of a call, in the form of the HTTP binding; JSON-RPC tells it by its status."""
    status = int(error.status)
    body: JsonObject = {"code": status, "status": error.code.upper(), "message": error.message, "details": []}
    return JSONResponse({"error": body}, status)
