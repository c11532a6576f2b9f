"""The activities that workflows call: the name, timeouts, retries and summary of each."""

import contextlib
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from ...conversation.contracts.panel_requests import BriefRequest, ConcludeRequest, PerformRequest, PerformResult
from ...conversation.contracts.requests import (
    MISSED_HEARTBEATS,
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
    UseToolRequest,
    UseToolResult,
)
from ...conversation.messages.message import MESSAGE_OVERHEAD, Head, Message
from ...conversation.messages.turn import Thread
from ..state.constants import APPEND_BYTES, FALLBACK_FAMILIES, PIN_IN_TASK
from ..state.errors import ActivityFailed
from ..state.run_state import RunState
from .execute_activity import ActivityOptions, LocalActivityTooLong, Result, execute_activity, execute_local_activity

HEARTBEAT_TIMEOUT = timedelta(seconds=2.5)
"""After this long without a heartbeat an activity is tried again: its worker has died."""

LOCAL_TIMEOUT = timedelta(seconds=1)
"""How long a local activity may hold up a workflow task, of which a worker runs only some at a time."""

JOURNAL = ActivityOptions(
    start_to_close_timeout=timedelta(seconds=30),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30)),
)
"""Options of activities that read and write the journal alone."""

CALL = ActivityOptions(
    start_to_close_timeout=timedelta(minutes=5),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30), maximum_attempts=4
    ),
)
"""Options of activities that call a model, a tool or a function."""


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


async def ask_model(run: RunState, request: AskModelRequest, models: tuple[str, ...]) -> AskModelResult:
    """Asks an agent's model, and if that fails its fallbacks, for the next message."""
    speaker, brief = request.speaker.rpartition("/")[2], request.brief
    place = f"round {brief.round}" if brief else f"turn {request.turn}"
    return await _ask(run, "ask_model", request, AskModelResult, models, f"{place} · {speaker}")


async def select(run: RunState, request: SelectRequest, models: tuple[str, ...]) -> SelectResult:
    """Asks a team's selector who speaks next."""
    summary = f"who takes turn {request.turn}? · {request.team.rpartition('/')[2]}"
    return await _ask(run, "select", request, SelectResult, models, summary)


async def _ask(
    run: RunState,
    name: str,
    request: AskModelRequest | SelectRequest,
    result_type: type[Result],
    models: tuple[str, ...],
    summary: str,
) -> Result:
    """The answer of the first of ``models`` that does not fail."""
    for index, model in enumerate(models):
        asked = request.model_copy(update={"fallback": index})
        is_last = index == len(models) - 1
        queue = run.task_queues.for_model(model)
        try:
            return await execute_activity(
                run, name, asked, result_type, _model_options(is_last), f"{summary} · {model}", queue
            )
        except ActivityFailed as failed:
            if is_last or failed.failure.family not in FALLBACK_FAMILIES:
                raise
    raise AssertionError("there is always a model")


def _model_options(is_last: bool) -> ActivityOptions:
    """The last model is tried for a minute and a half at least, any other for 15 seconds, then its fallback."""
    attempts = 10 if is_last else 6
    policy = replace(CALL["retry_policy"], maximum_attempts=attempts + MISSED_HEARTBEATS)
    return {**CALL, "retry_policy": policy}


async def use_tool(run: RunState, request: UseToolRequest, tool: str, seconds: float | None = None) -> UseToolResult:
    """Carries out a tool call, for ``seconds`` at most. The tool decides which failures are tried again."""
    once = max(CALL["start_to_close_timeout"], timedelta(seconds=(seconds or 0) + 10))  # the tool itself gives up first
    options: ActivityOptions = {**CALL, "start_to_close_timeout": once, "schedule_to_close_timeout": 6 * once}
    summary = f"{request.speaker.rpartition('/')[2]} uses {tool}"
    return await execute_activity(run, "use_tool", request, UseToolResult, options, summary, run.task_queues.tools)


async def evaluate(run: RunState, request: EvaluateRequest) -> EvaluateResult:
    """Evaluates a team's conditions after a turn."""
    return await execute_activity(
        run, "evaluate", request, EvaluateResult, JOURNAL, f"conditions after turn {request.turn}"
    )


async def brief(run: RunState, request: BriefRequest, member: str) -> Thread:
    """Begins a conversation of its own for a team in a panel, with what that team is told as the question."""
    summary = f"round {request.brief.round} · what {member} is told"
    return await execute_activity(run, "brief", request, Thread, JOURNAL, summary)


async def perform(run: RunState, request: PerformRequest) -> PerformResult:
    """Calls a registered function that is a member of a panel."""
    summary = f"round {request.brief.round} · {request.name} · {request.function}"
    return await execute_activity(run, "perform", request, PerformResult, CALL, summary, run.task_queues.tools)


async def conclude(run: RunState, request: ConcludeRequest) -> AskModelResult:
    """Writes the result of a panel that has no synthesizer."""
    summary = f"after {request.brief.round} rounds"
    return await execute_activity(run, "conclude", request, AskModelResult, JOURNAL, summary)


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


def portions(items: tuple[ConversationItem, ...]) -> list[tuple[ConversationItem, ...]]:
    """The items in their order, in groups of at most APPEND_BYTES, or of one item that is larger."""
    groups: list[tuple[ConversationItem, ...]] = []
    space = 0
    for item in items:
        size = MESSAGE_OVERHEAD + (item.byte_size if isinstance(item, Message) else 0)
        if size > space:
            groups.append(())
            space = APPEND_BYTES
        groups[-1] += (item,)
        space -= size
    return groups
