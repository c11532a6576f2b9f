"""The activities that workflows call: the name, timeouts, retries and summary of each."""

import contextlib
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

from ...conversation.contracts.grants import GrantResult
from ...conversation.contracts.last_failures import LastFailures, LastFailuresRequest
from ...conversation.contracts.requests import (
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    Bookmark,
    ConversationItem,
    EvaluateRequest,
    EvaluateResult,
    Pinned,
    PinRequest,
    SelectRequest,
    SelectResult,
)
from ...conversation.contracts.tool_requests import ReviewResult, UseToolRequest, UseToolResult
from ...conversation.failure import Cause
from ...conversation.messages.message import Head
from ...conversation.messages.turn import Thread
from ...resources.base import JsonModel
from ..state.constants import CIRCUIT_WAITS, PIN_IN_TASK
from ..state.errors import ActivityFailed, ActivityInterrupted
from ..state.run_state import RunState
from .activity_failure import read_failure
from .budget_decision import ask_for_more
from .circuit_wait import options_after_wait
from .fallback_chain import attempts, fallback_chain
from .local_activity import LocalActivityTooLong, execute_local_activity
from .options import JOURNAL, LOCAL_TIMEOUT, LOOK, ActivityOptions, call_timeouts
from .portions import portions
from .run_traces import add_lost_call

Result = TypeVar("Result", bound=JsonModel)


async def pin(run: RunState, request: PinRequest) -> Pinned:
    """Resolves the manifests that the run needs, and finds its place in the conversation.

    Within the workflow task where the run has no parent. A child takes an ordinary activity, in which the signals of
    its parent reach it before it calls anybody.
    """
    summary = "resolve and pin the manifests"
    if not request.thread and workflow.patched(PIN_IN_TASK):
        with contextlib.suppress(LocalActivityTooLong):
            return await execute_local_activity("pin", request, Pinned, LOCAL_TIMEOUT, summary)
    return await execute_activity(run, "pin", request, Pinned, JOURNAL, summary)


async def ask_model(
    run: RunState, request: AskModelRequest, models: tuple[str, ...], seconds: float | None
) -> AskModelResult:
    """Asks an agent's model, and if that fails its fallbacks, for the next message; each for ``seconds`` at most."""
    place = f"round {request.brief.round}" if request.brief else f"turn {request.turn}"
    summary = f"{place} · {request.speaker.rpartition('/')[2]} · {{}}"
    for model in fallback_chain(run, models, seconds):
        with model:
            asked = request.model_copy(update={"fallback": model.index})
            options, queue = model.options, model.task_queue
            return await execute_activity(
                run, "ask_model", asked, AskModelResult, options, summary.format(model.name), queue
            )
    raise AssertionError("there is always a model")


async def select(run: RunState, request: SelectRequest, models: tuple[str, ...], seconds: float | None) -> SelectResult:
    """Asks a team's selector, and if that fails its fallbacks, who speaks next; each for ``seconds`` at most."""
    summary = f"who takes turn {request.turn}? · {request.team.rpartition('/')[2]} · {{}}"
    for model in fallback_chain(run, models, seconds and 2 * seconds):  # it may be asked twice
        with model:
            asked = request.model_copy(update={"fallback": model.index})
            options, queue = model.options, model.task_queue
            return await execute_activity(
                run, "select", asked, SelectResult, options, summary.format(model.name), queue
            )
    raise AssertionError("there is always a model")


async def use_tool(run: RunState, request: UseToolRequest, tool: str, seconds: float | None = None) -> UseToolResult:
    """Carries out a tool call, for ``seconds`` at most. The tool decides which failures are tried again."""
    options: ActivityOptions = {**attempts(4), **call_timeouts(seconds)}
    summary = f"{request.speaker.rpartition('/')[2]} uses {tool}"
    return await execute_activity(run, "use_tool", request, UseToolResult, options, summary, run.task_queues.tools)


async def review(run: RunState, request: UseToolRequest, tool: str) -> ReviewResult:
    """Whether a call needs a person's yes. Fails where its arguments don't fit, as the call itself would."""
    return await execute_activity(run, "review", request, ReviewResult, JOURNAL, f"does {tool} need a yes?")


async def delegate(run: RunState, request: UseToolRequest, asked: str) -> Thread:
    """Begins a conversation of its own for whom a tool asks, with the call's arguments as the question."""
    return await execute_activity(run, "delegate", request, Thread, JOURNAL, f"what {asked} is asked")


async def evaluate(run: RunState, request: EvaluateRequest) -> EvaluateResult:
    """Evaluates a team's conditions after a turn."""
    return await execute_activity(
        run, "evaluate", request, EvaluateResult, JOURNAL, f"conditions after turn {request.turn}"
    )


async def last_failures(run: RunState, runs: tuple[str, ...]) -> dict[str, Cause]:
    """What has failed last in other runs, by their ids; nothing if that can't be found out at once."""
    request = LastFailuresRequest(runs=runs)
    try:
        found = await execute_activity(run, "last_failures", request, LastFailures, LOOK, "what has failed last")
    except (ActivityFailed, ActivityInterrupted):
        return {}
    return found.by_run


async def append(
    run: RunState, head: Head, items: tuple[ConversationItem, ...], bookmark: Bookmark | None = None
) -> Head:
    """Adds items to the conversation after ``head``, in as many requests as that takes, and moves the bookmark."""
    for portion in portions(items) or [()]:
        request = AppendRequest(head=head, items=portion)
        if bookmark:
            request = request.model_copy(update={"bookmark": bookmark})
        head = await execute_activity(run, "append", request, Head, JOURNAL, f"{len(portion)} more")
    return head


async def execute_activity(
    run: RunState,
    name: str,
    request: JsonModel,
    result_type: type[Result],
    options: ActivityOptions,
    summary: str,
    task_queue: str | None = None,
) -> Result:
    """The result of an activity on a task queue, by default the run's own.

    A call that is refused by a budget which asks is made again after a person's yes, as often as that takes. Raises
    ActivityFailed when it fails and is not tried again, ActivityInterrupted when it was cancelled.
    """
    while True:
        try:
            return await _attempt(run, name, request, result_type, options, summary, task_queue)
        except ActivityFailed as failed:
            grant = await ask_for_more(run, failed)
        await _attempt(run, "grant", grant, GrantResult, JOURNAL, "more for a budget", None)


async def _attempt(
    run: RunState,
    name: str,
    request: JsonModel,
    result_type: type[Result],
    options: ActivityOptions,
    summary: str,
    task_queue: str | None = None,
) -> Result:
    begun = workflow.now()
    until, same_id = begun + options["schedule_to_close_timeout"], None
    while True:
        try:
            async with run.activity_slots:
                result: Result = await workflow.execute_activity(
                    name,
                    request.without_defaults,
                    result_type=result_type,
                    summary=summary,
                    task_queue=task_queue,
                    priority=run.priority,
                    activity_id=same_id,  # by which the activity knows what it has begun
                    **options,
                )
                return result
        except ActivityError as error:
            same_id = error.activity_id
            add_lost_call(run, name, error, begun)
            failed = read_failure(error.cause, name, same_id)
        if (
            isinstance(failed, ActivityInterrupted)
            or failed.failure.wait is None
            or not workflow.patched(CIRCUIT_WAITS)
        ):
            raise failed
        options = await options_after_wait(run, failed.failure, options, until, same_id)
