"""MCP: each served team and agent is a tool, over streamable HTTP and over stdio.

Both eras of the protocol are spoken: 2025-11-25 with its handshake, and the stateless 2026-07-28. No session is kept,
so that any replica serves any request: a call is a durable run, and its id is the ``requestState`` of a call that needs
input, and the ``taskId`` of the tasks extension (https://modelcontextprotocol.io/seps/2663-tasks-extension).
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field, JsonValue, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...contracts.decisions import PendingDecision
from ...contracts.status import Status
from ...contracts.text import format_time
from ...installation import version
from ...resources.base import JsonModel, JsonObject, Text
from ...resources.catalog import Catalog
from ..history.events import TurnStartedEvent
from ..runs.start import to_json
from .access import LOCAL, Caller
from .errors import BadRequestError, ConflictError, GatewayError, NotFoundError, as_gateway_error
from .protocol import Protocol, caller_of
from .question import TargetQuestion
from .run import Run, RunWaits, prompt_of
from .runs import Runs
from .settings import GatewaySettings
from .targets import DEFAULT_NAMESPACE, ServedTarget, Targets

_log = logging.getLogger(__name__)

PATH = "/mcp"

TASKS = "io.modelcontextprotocol/tasks"
"""The identifier of the tasks extension."""

IDEMPOTENCY_KEY = "baton/idempotencyKey"
"""The entry of a call's ``_meta`` by which a repeated call joins the run of the first one."""

RUN = "baton/run"
"""The entry of a result's ``_meta`` with the id of the run."""

RESULT_TOOL = "baton_result"
REPLY_TOOL = "baton_reply"
"""Tools that are not targets. No name of a target has their form: see ``tool_name``."""

POLL_MILLISECONDS = 1_000
"""After how many milliseconds a client should look at a task again."""

CANCEL_SECONDS = 600.0
"""Seconds for which it is tried to cancel a run whose client has left."""

CANCEL_PAUSE = 2.0
"""Seconds between two attempts."""

INSTRUCTIONS = (
    "Each tool asks a team or an agent, which may take minutes. If a result says that its run waits for a person, "
    f"do not call the tool again: get the answer of that run with {RESULT_TOOL}."
)

Context = ServerRequestContext[Any, Any]
P = TypeVar("P", bound=BaseModel | None)
Result = BaseModel | dict[str, Any]


class AskArguments(JsonModel):
    """The arguments of a tool that asks a target. ``parameters`` are the values for its templates."""

    input: Text
    parameters: dict[str, str] = {}


class ResultArguments(JsonModel):
    """The arguments of RESULT_TOOL."""

    run: Text = Field(description="the id of the run, from the result of an earlier call")


class ReplyArguments(JsonModel):
    """The arguments of REPLY_TOOL."""

    run: Text = Field(description="the id of the run that waits")
    question: Text = Field(description="the id of the question")
    text: Text = Field(description="the reply of the person, in the person's own words")


class TaskParams(types.RequestParams):
    """The parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of ``tasks/update``: the responses to the task's input requests, by their keys."""

    input_responses: dict[str, JsonValue]


def tool_name(target: ServedTarget) -> str:
    """``team_NAME``, in another namespace than the default one ``team_NAMESPACE_NAME``. Names have no underscores."""
    if target.namespace == DEFAULT_NAMESPACE:
        return f"{target.kind}_{target.name}"
    return f"{target.kind}_{target.namespace}_{target.name}"


class McpServer:
    """The requests of MCP. ``caller`` is who makes all of them over stdio; over HTTP each has its own."""

    def __init__(self, targets: Targets, runs: Runs, caller: Caller | None = None) -> None:
        self._targets = targets
        self._runs = runs
        self._caller = caller
        self._calls: dict[types.RequestId, asyncio.Future[tuple[Run, ServedTarget | None]]] = {}
        """The runs of calls in progress over stdio, which the client may cancel, once each is started."""

        self._cancellations: set[asyncio.Task[None]] = set()
        """Those in progress of runs whose clients have closed the connection."""

        private = CacheHint(ttl_ms=2_000, scope="private")
        self.server: Server[Any] = Server(
            "baton",
            title="Baton",
            version=version(),
            instructions=INSTRUCTIONS,
            cache_hints={"tools/list": private, "server/discover": private},
            on_list_tools=_translating(self.list_tools),
            on_call_tool=_translating(self.call_tool),
        )
        self.server.extensions = {TASKS: {}}
        self.server.add_request_handler("tasks/get", TaskParams, _translating(self.get_task))
        self.server.add_request_handler("tasks/update", UpdateParams, _translating(self.update_task))
        self.server.add_request_handler("tasks/cancel", TaskParams, _translating(self.cancel_task))
        self.server.add_notification_handler(
            "notifications/cancelled", types.CancelledNotificationParams, self.cancel_call
        )

    async def list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """The teams and agents that the caller may ask, and the two tools for their runs."""
        catalog = await self._targets.catalog()
        targets = await self._targets.of(self._caller_of(context))
        return types.ListToolsResult(tools=[*(_tool(target, catalog) for target in targets), *RUN_TOOLS])

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> Result:
        """Asks a target; or goes on with its run, once the client has the input that it needed."""
        asking = asyncio.ensure_future(self._ask(context, params))
        if context.request is None and context.request_id is not None:
            self._calls[context.request_id] = asking
        try:
            result = await self._answered(context, params, asking)
        except asyncio.CancelledError:
            request = _bound_request(context, params)
            if request and await request.is_disconnected():
                self._cancel_soon(asking)
            raise
        except Exception:  # after a cancellation, which is no Exception, cancel_call needs the run
            self._ended(context)
            raise
        self._ended(context)
        return result

    async def _ask(self, context: Context, params: types.CallToolRequestParams) -> tuple[Run, ServedTarget | None]:
        """The run of a call, and the target if the call is the question to it."""
        caller = self._caller_of(context)
        arguments = params.arguments or {}
        if params.name == RESULT_TOOL:
            return await self._runs.find(caller, ResultArguments.model_validate(arguments).run), None
        if params.name == REPLY_TOOL:
            reply = ReplyArguments.model_validate(arguments)
            run = await self._runs.find(caller, reply.run)
            await run.reply(reply.text, reply.question)
            return run, None
        target = await self._find(caller, params.name)
        return await self._run_of(context, target, params), target

    async def _answered(
        self,
        context: Context,
        params: types.CallToolRequestParams,
        asking: asyncio.Future[tuple[Run, ServedTarget | None]],
    ) -> Result:
        try:
            # A run that is being started when its call is canceled is started nevertheless, and then canceled.
            run, target = await asyncio.shield(asking)
        except _UnknownToolError:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name[:100]}") from None
        except (GatewayError, ValueError) as error:  # the model can correct its arguments
            translated = as_gateway_error(error)
            if translated is None or translated.status >= 429 or params.request_state is not None:
                raise
            return _error_result(translated.message)
        if target and _supports_tasks(context):
            return {"resultType": "task", **await _task(run)}
        dismissed = await self._answer(run, params.input_responses or {})
        return await self._until_result(context, run, target, dismissed)

    async def get_task(self, context: Context, params: TaskParams) -> Result:
        """The state of a run, with its result or what it needs of the client."""
        run = await self._task_run(context, params)
        return {"resultType": "complete", **await _task(run, detailed=True, inputs=_supports_forms(context))}

    async def update_task(self, context: Context, params: UpdateParams) -> Result:
        """Applies decisions and replies; those that were made already are ignored."""
        run = await self._task_run(context, params)
        responses: dict[str, types.ElicitResult] = {}
        for key, response in params.input_responses.items():
            with contextlib.suppress(ValidationError):  # of something that was not asked: it is ignored
                responses[key] = types.ElicitResult.model_validate(response)
        await self._answer(run, responses)
        return {"resultType": "complete"}

    async def cancel_task(self, context: Context, params: TaskParams) -> Result:
        """Cancels the run, if it is open."""
        await (await self._task_run(context, params)).cancel("canceled by an MCP client")
        return {"resultType": "complete"}

    async def cancel_call(self, context: Context, params: types.CancelledNotificationParams) -> None:
        """Cancels the run of a call over stdio.

        Over HTTP a notification arrives in a request of its own, and nothing but a number, which other clients use
        too, says which call it means.
        """
        if (
            context.request is None
            and params.request_id is not None
            and (asking := self._calls.pop(params.request_id, None))
        ):
            await _cancel_run(asking, params.reason or "canceled by an MCP client")

    def _cancel_soon(self, asking: "asyncio.Future[tuple[Run, ServedTarget | None]]") -> None:
        """Cancels the run of a call whose request is already canceled, and so can't wait for it."""
        cancellation = asyncio.create_task(_cancel_run(asking, "an MCP client has closed the connection of the call"))
        self._cancellations.add(cancellation)
        cancellation.add_done_callback(self._cancellations.discard)

    def _ended(self, context: Context) -> None:
        if context.request_id is not None:
            self._calls.pop(context.request_id, None)

    def _caller_of(self, context: Context) -> Caller:
        if self._caller:
            return self._caller
        assert context.request is not None
        return caller_of(context.request)

    async def _find(self, caller: Caller, name: str) -> ServedTarget:
        for target in await self._targets.of(caller):
            if tool_name(target) == name:
                return target
        self._targets.check_known()
        raise _UnknownToolError(name)

    async def _run_of(self, context: Context, target: ServedTarget, params: types.CallToolRequestParams) -> Run:
        """The run of a call: a new one, that of the first call with its key, or the one that it goes on with."""
        caller = self._caller_of(context)
        if params.request_state is not None:  # what the client sends is no proof of anything: it has to be its own run
            run = await self._runs.find(caller, params.request_state)
            if (run.memo.get("query"), run.memo.get("namespace")) != (target.name, target.namespace):
                raise NotFoundError("the requestState belongs to another tool")
            return run
        asked = AskArguments.model_validate(params.arguments or {})
        known = target.parameters(await self._targets.catalog())
        if unknown := sorted(asked.parameters.keys() ^ set(known)):
            raise BadRequestError(f"parameters: exactly {known} are needed; these are missing or unknown: {unknown}")
        key = (context.meta or {}).get(IDEMPOTENCY_KEY)
        if key is not None and not isinstance(key, str):
            raise BadRequestError(f"{IDEMPOTENCY_KEY} must be a string")
        question = TargetQuestion(input=asked.input, parameters=asked.parameters)
        return await self._runs.start(caller, target, question, protocol="mcp", key=key)

    async def _until_result(
        self, context: Context, run: Run, target: ServedTarget | None, dismissed: frozenset[str]
    ) -> Result:
        """Follows a run to its end, and reports who speaks; what it waits for is asked of the client's user."""
        progress = _Progress(context)
        while (waiting := await progress.follow(run)) is not None:
            requests = _input_requests(waiting.decisions) if _supports_forms(context) else {}
            if not requests or dismissed & requests.keys():
                return _waiting_result(run, waiting.decisions, is_error=_output_schema(target) is not None)
            if not context.session.can_send_request:
                return types.InputRequiredResult(input_requests=requests, request_state=run.id)
            dismissed = await self._answer(run, await _elicit(context, requests))
        return _result(run, await run.result(), has_schema=_output_schema(target) is not None)

    async def _answer(self, run: Run, responses: Mapping[str, object]) -> frozenset[str]:
        """Applies a client's responses. Those returned have no effect, and are not to be asked for again."""
        if not responses:
            return frozenset()
        open_decisions = {decision.id: decision for decision in await run.undecided_with(responses)}
        dismissed = set()
        for key, response in responses.items():
            decision = open_decisions.get(key)
            if decision is None or not isinstance(response, types.ElicitResult):
                continue  # it was decided before, perhaps by this response
            if not await _apply(run, decision, response):
                dismissed.add(key)
        return frozenset(dismissed)

    async def _task_run(self, context: Context, params: TaskParams) -> Run:
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found", data=context.method)
        if not _supports_tasks(context):
            needed: JsonObject = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            message = f"{context.method} needs the client capability {TASKS}"
            raise MCPError(code=types.MISSING_REQUIRED_CLIENT_CAPABILITY, message=message, data=needed)
        if context.request is not None and context.request.headers.get("mcp-name") != params.task_id:
            message = "Mcp-Name header does not match the request body's 'taskId' parameter"
            raise MCPError(code=types.HEADER_MISMATCH, message=message)
        return await self._runs.find(self._caller_of(context), params.task_id)


class _UnknownToolError(Exception):
    pass


def _bound_request(context: Context, params: types.CallToolRequestParams) -> Request | None:
    """The HTTP request of a call whose client cancels the run by disconnecting, as MCP requires since 2026-07-28.

    The same call with a key joins the run, so such a run goes on. The end of the gateway cancels requests, too, but
    then the client has not disconnected.
    """
    is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    asks_target = params.name not in (RESULT_TOOL, REPLY_TOOL)
    has_key = IDEMPOTENCY_KEY in (context.meta or {})
    request: Request | None = context.request
    return request if is_modern and asks_target and not has_key else None


async def _cancel_run(asking: "asyncio.Future[tuple[Run, ServedTarget | None]]", reason: str) -> None:
    """Cancels the run of a call, for CANCEL_SECONDS again and again while that fails: nobody waits for it."""
    try:
        run, _ = await asking
    except (_UnknownToolError, ValueError):
        return  # nothing was started
    except Exception as error:
        if as_gateway_error(error) is None:
            raise
        return  # nothing was started, as far as is known
    until = time.monotonic() + CANCEL_SECONDS
    while True:
        try:
            await run.cancel(reason)
            return
        except Exception as error:
            if as_gateway_error(error) is None:
                raise
            if time.monotonic() >= until:
                _log.error("the run %s goes on without its client: it can't be canceled", run.id)
                return
        await asyncio.sleep(CANCEL_PAUSE)


def _translating(
    handler: Callable[[Context, P], Awaitable[Result]],
) -> Callable[[Context, P], Awaitable[Any]]:
    """The same handler, whose errors are those of JSON-RPC."""

    async def translating(context: Context, params: P) -> Result:
        try:
            return await handler(context, params)
        except MCPError:
            raise
        except Exception as error:
            translated = as_gateway_error(error)
            if translated is None:
                raise
            raise MCPError(code=_code(translated), message=translated.message) from error

    return translating


def _code(error: GatewayError) -> int:
    return types.INTERNAL_ERROR if error.status >= 500 else types.INVALID_PARAMS


def _tool(target: ServedTarget, catalog: Catalog) -> types.Tool:
    properties: JsonObject = {"input": {"type": "string", "minLength": 1, "description": "what it is asked"}}
    schema: JsonObject = {
        "type": "object",
        "properties": properties,
        "required": ["input"],
        "additionalProperties": False,
    }
    if names := target.parameters(catalog):
        properties["parameters"] = {
            "type": "object",
            "properties": {name: {"type": "string"} for name in names},
            "required": [*names],
            "additionalProperties": False,
            "description": "values for its templates",
        }
        schema["required"] = ["input", "parameters"]
    return types.Tool(
        name=tool_name(target),
        title=target.name,
        description=target.description,
        input_schema=schema,
        output_schema=_output_schema(target),
    )


def _output_schema(target: ServedTarget | None) -> JsonObject | None:
    """The schema that the results of a tool have to match. Until 2026 the protocol permits only objects."""
    schema = target.output_schema if target else None
    return dict(schema) if schema and schema.get("type") == "object" else None


def _run_tool(name: str, description: str, arguments: type[JsonModel], *, read_only: bool) -> types.Tool:
    schema = arguments.model_json_schema()
    schema["additionalProperties"] = False
    annotations = types.ToolAnnotations(read_only_hint=read_only, destructive_hint=False, open_world_hint=False)
    return types.Tool(name=name, description=description, input_schema=schema, annotations=annotations)


RUN_TOOLS = (
    _run_tool(
        RESULT_TOOL,
        "Waits for a run that an earlier call started, and returns its answer, or what it is waiting for.",
        ResultArguments,
        read_only=True,
    ),
    _run_tool(
        REPLY_TOOL,
        "Passes on a person's reply to a question of a run, and waits for the answer of the run. Approvals can't be "
        "given with it.",
        ReplyArguments,
        read_only=False,
    ),
)


def _supports_tasks(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    return is_modern and capabilities is not None and TASKS in (capabilities.extensions or {})


def _supports_forms(context: Context) -> bool:
    """Whether the client's user can be asked: with a response of this request, or with a request to the client."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS or context.session.can_send_request


class _Progress:
    """Reports to a client who speaks. Its run may be followed several times: each turn is reported once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reported = 0

    async def follow(self, run: Run) -> RunWaits | None:
        """Follows a run from its beginning until it has ended, or waits for people."""
        turns = 0
        async with contextlib.aclosing(run.events_until_waiting(live=False)) as events:
            async for event in events:
                if isinstance(event, RunWaits):
                    return event
                if isinstance(event, TurnStartedEvent):
                    turns += 1
                    await self._report(turns, event.speaker)
        return None

    async def _report(self, turns: int, speaker: str) -> None:
        if turns > self._reported:  # the protocol demands that the number grows
            self._reported = turns
            await self._context.session.report_progress(turns, message=f"{speaker} speaks")


async def _elicit(context: Context, requests: types.InputRequests) -> Mapping[str, types.ElicitResult]:
    """Asks the user of a client with a handshake, one request after the other.

    A form that fails counts as dismissed: an error would not tell the client which run waits, and it would start
    another one.
    """
    responses = {}
    for key, request in requests.items():
        assert isinstance(request, types.ElicitRequest)
        assert isinstance(request.params, types.ElicitRequestFormParams)
        try:
            responses[key] = await context.session.elicit_form(
                request.params.message, request.params.requested_schema, context.request_id
            )
        except (MCPError, ValidationError) as error:
            _log.warning("a client could not ask its user: %s", error)
            responses[key] = types.ElicitResult(action="cancel")
    return responses


def _input_requests(decisions: Iterable[PendingDecision]) -> types.InputRequests:
    """The forms for decisions and questions, by their ids. What a client's own tool has to do is no question."""
    forms: types.InputRequests = {}
    for decision in decisions:
        if decision.kind in ("approval", "budget"):
            schema: JsonObject = {
                "type": "object",
                "properties": {
                    "decision": {"type": "string", "title": "Decision", "enum": ["approve", "reject"]},
                    "reason": {"type": "string", "title": "Reason"},
                },
                "required": ["decision"],
            }
        elif decision.kind == "question":
            reply: JsonObject = {"type": "string", "title": "Reply", "minLength": 1}
            schema = decision.reply_schema or {"type": "object", "properties": {"reply": reply}, "required": ["reply"]}
        else:
            continue
        params = types.ElicitRequestFormParams(message=prompt_of(decision), requested_schema=schema)
        forms[decision.id] = types.ElicitRequest(params=params)
    return forms


async def _apply(run: Run, decision: PendingDecision, response: types.ElicitResult) -> bool:
    """Decides as the user has.

    False if the user has not decided, or the run refuses the decision, or waits for other people to approve as well:
    then the same user is not to be asked again.
    """
    content = response.content or {}
    if response.action == "cancel":
        return False
    try:
        if decision.kind == "question":
            if response.action == "decline":
                if not decision.asked_by:  # a member of a team can't decline its turn
                    return False
                await run.reply("", decision.id, declines=True)
            else:
                text = json.dumps(content) if decision.reply_schema else str(content.get("reply") or "")
                await run.reply(text, decision.id)
            return True
        if response.action == "accept" and content.get("decision") not in ("approve", "reject"):
            return False
        approved = response.action == "accept" and content.get("decision") == "approve"
        made = await run.decide(decision.id, approved=approved, reason=str(content.get("reason") or ""))
    except ConflictError:
        return False
    return not made.missing


def _result(run: Run, status: Status, *, has_schema: bool = False) -> types.CallToolResult:
    """The result of a call whose run has ended.

    If the tool ``has_schema``, a completed run without structured content is an error: clients refuse it otherwise.
    An answer of more than 64,000 bytes has none, as only its beginning is known.
    """
    structured = status.value if isinstance(status.value, dict) else None
    return types.CallToolResult(
        content=[types.TextContent(text=status.message)],
        structured_content=structured,
        is_error=status.phase != "Completed" or (has_schema and structured is None),
        _meta={RUN: run.id},
    )


def _error_result(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=message)], is_error=True)


def _waiting_result(run: Run, decisions: Sequence[PendingDecision], *, is_error: bool) -> types.CallToolResult:
    """The result of a call whose run waits, for a client that can't ask its user.

    It is an error only for a tool whose results have to match a schema.
    """
    lines = [f"The run {run.id} is not done: it is waiting for people, and continues once they have decided."]
    for decision in decisions:
        lines.append(f"- {decision.kind} {decision.id}: {prompt_of(decision)}")
        if decision.kind == "question":
            lines.append(f"  Reply with {REPLY_TOOL}, or: baton reply {run.id} --to {decision.id} TEXT")
        else:
            lines.append(f"  A person decides with: baton approve {run.id} {decision.id} (or reject)")
    lines.append(f"Do not call this tool again. Get the answer with {RESULT_TOOL}.")
    return types.CallToolResult(
        content=[types.TextContent(text="\n".join(lines))],
        is_error=is_error,
        _meta={RUN: run.id, "baton/waiting": [to_json(decision) for decision in decisions]},
    )


TASK_STATES = {
    "Running": "working",
    "Waiting": "working",
    "InputRequired": "input_required",
    "Completed": "completed",
    "Failed": "completed",  # as the error of a tool: "failed" is for errors of the protocol
    "Canceled": "cancelled",
}


async def _task(run: Run, *, detailed: bool = False, inputs: bool = False) -> dict[str, Any]:
    """A run as a task; ``detailed`` with its result, and with ``inputs`` with the forms for what it waits for."""
    description = await run.describe()
    started = format_time(description.start_time)
    task: dict[str, Any] = {
        "taskId": run.id,
        "status": "working",
        "createdAt": started,
        "lastUpdatedAt": started,
        "ttlMs": None,
        "pollIntervalMs": POLL_MILLISECONDS,
    }
    if not detailed:
        return task
    status = await run.status()
    task["status"] = TASK_STATES[status.phase]
    if status.completion_time:
        task["lastUpdatedAt"] = status.completion_time
    if task["status"] == "completed":
        task["result"] = _result(run, status).model_dump(by_alias=True, mode="json", exclude_none=True)
    elif task["status"] == "input_required":
        undecided = await run.undecided()
        if not undecided:  # it was decided just now
            return {**task, "status": "working"}
        task["lastUpdatedAt"] = format_time(max(decision.since for decision in undecided))
        task["statusMessage"] = "\n".join(map(prompt_of, undecided))
        requests = _input_requests(undecided) if inputs else {}
        task["inputRequests"] = {
            key: request.model_dump(by_alias=True, mode="json", exclude_none=True) for key, request in requests.items()
        }
    elif status.message:
        task["statusMessage"] = status.message
    return task


def error_form(error: GatewayError) -> Response:
    """The response for an error of the HTTP request."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": _code(error), "message": error.message}}
    return JSONResponse(body, int(error.status))


def protocol(targets: Targets, runs: Runs, settings: GatewaySettings) -> Protocol:
    """MCP over streamable HTTP. The guard checks hosts and origins."""
    manager = StreamableHTTPSessionManager(
        McpServer(targets, runs).server, stateless=True, max_request_body_size=settings.max_body
    )
    # Without sessions there is nothing to GET or to DELETE.
    return Protocol(PATH, [Route(PATH, StreamableHTTPASGIApp(manager), methods=["POST"])], error_form, manager.run)


async def serve_stdio(targets: Targets, runs: Runs) -> None:
    """Serves one client over stdin and stdout until it closes them. It acts as who has started this process."""
    server = McpServer(targets, runs, LOCAL).server
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
