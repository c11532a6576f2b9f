"""The activities that workflows call: the name, options and summary of each."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

from ...contracts.decisions import (
    BUDGET_RULE,
    AskPersonRequest,
    AskPersonResult,
    CheckReplyRequest,
    CheckReplyResult,
    GrantRequest,
    GrantResult,
    PendingDecision,
)
from ...contracts.errors import Cause, Failure, InvalidInput
from ...contracts.message import MESSAGE_OVERHEAD, Head, Message, PersonDecision
from ...contracts.panel import BriefRequest, ConcludeRequest, PerformRequest, PerformResult
from ...contracts.plan import AgentPlan
from ...contracts.requests import (
    MISSED_HEARTBEATS,
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    Bookmark,
    CancelAgentRequest,
    CancelAgentResult,
    ConversationItem,
    EvaluateRequest,
    EvaluateResult,
    LastFailures,
    LastFailuresRequest,
    Pinned,
    PinRequest,
    RecallRequest,
    RecallResult,
    RememberRequest,
    RememberResult,
    ReviewResult,
    SelectRequest,
    SelectResult,
    UseToolRequest,
    UseToolResult,
)
from ...contracts.turn import Thread
from ...resources.base import JsonModel
from ...resources.budget import Budget
from ..state.constants import APPEND_BYTES, FALLBACK_FAMILIES
from ..state.decisions import wait_begins, wait_ends
from ..state.run_state import RunState
from ..state.stopping import ActivityFailed, ActivityInterrupted, uncancelled
from .activities import (
    CALL,
    CANCEL,
    JOURNAL,
    LOCAL_TIMEOUT,
    LOOK,
    MEMORY,
    ActivityOptions,
    LocalActivityTooLong,
    call_timeouts,
    execute_local_activity,
    read_failure,
)
from .traces import add_lost_call


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


def attempts(number: int) -> ActivityOptions:
    """The options of a call that is tried so often; attempts that only miss a heartbeat come on top."""
    policy = replace(CALL["retry_policy"], maximum_attempts=number + MISSED_HEARTBEATS)
    return {**CALL, "retry_policy": policy}


class FallbackModel:
    """One model of a chain, as a context: an error after which the next one is to be asked is suppressed."""

    def __init__(self, run: RunState, models: tuple[str, ...], index: int, seconds: float | None) -> None:
        self.name, self.index = models[index], index
        self.task_queue = run.task_queues.for_model(self.name)
        self._is_last = index == len(models) - 1
        tried = attempts(10 if self._is_last else 6)  # a minute and a half at least, or 15 seconds
        self.options: ActivityOptions = {**tried, **call_timeouts(seconds)}

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _traceback: object) -> bool:
        return isinstance(error, ActivityFailed) and not self._is_last and error.failure.family in FALLBACK_FAMILIES


def fallback_chain(run: RunState, models: tuple[str, ...], seconds: float | None) -> Iterator[FallbackModel]:
    """The model and its fallbacks, in their order. An answer of each may take so many seconds."""
    return (FallbackModel(run, models, index, seconds) for index in range(len(models)))


async def options_after_wait(
    run: RunState, failure: Failure, options: ActivityOptions, until: datetime, activity: str
) -> ActivityOptions:
    """Waits as long as the failure says, and while the run is paused; then the call's options for the next time.

    The attempt that did not begin the call does not count: the next time it has as many attempts left as before it.

    Raises:
        ActivityFailed: it would take longer than ``until``.
        ActivityInterrupted: the run is to stop; with the id of the activity, which may have begun something before.
    """
    wait = timedelta(seconds=failure.wait or 0)
    if workflow.now() + wait > until:
        raise ActivityFailed(failure.model_copy(update={"wait": None}))
    since, outcome = workflow.now(), "stopped"
    wait_begins("circuit_breaker")
    try:
        with run.trace.inside(run.trace.new_wait("circuit_breaker")):
            await workflow.sleep(wait, summary=failure.message)
        outcome = "over"
        await run.ready()
    except (asyncio.CancelledError, ActivityInterrupted):
        raise ActivityInterrupted(activity) from None
    finally:
        wait_ends("circuit_breaker", since, outcome)
    policy, once = options["retry_policy"], options.get("start_to_close_timeout", timedelta())
    left = policy.maximum_attempts and policy.maximum_attempts - (failure.attempts or 1) + 1
    again: ActivityOptions = {**options, "retry_policy": replace(policy, maximum_attempts=left)}
    return {**again, "schedule_to_close_timeout": max(until - workflow.now(), once)}


async def ask_for_more(run: RunState, failed: ActivityFailed) -> GrantRequest:
    """Waits until a person has said yes, and what is granted then. Raises ActivityFailed after a no, and ``failed``
    itself if it is not about a budget that asks.

    One decision holds for all runs that wait for the same budget: its rule has the number of the grant.
    """
    failure, reached = failed.failure, failed.failure.budget
    if not (reached and reached.on_exceeded == "ask" and reached.account and reached.more):
        raise failed
    limits = reached.more.model_copy(update={"on_exceeded": "stop"})  # the default, which is not shown
    number = reached.grants or 0
    rule = f"{BUDGET_RULE}{reached.owner}/{number}"
    here = workflow.info().workflow_id
    asked = PendingDecision(
        id=workflow.uuid4().hex[:10],  # several calls of a run may wait at once
        kind="budget",
        run=here,
        speaker=reached.owner,
        since=workflow.now(),
        tool="budget",
        arguments=limits.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True),
        rule=rule,
        question=failure.message,
    )

    async def check(decision: PersonDecision) -> None:
        if decision.arguments is not None and reached.limit not in _granted(decision.arguments).model_dump(
            by_alias=True, exclude_none=True
        ):
            raise ActivityFailed.of(InvalidInput(f"the budget needs more {reached.limit}"))

    decision = await run.decisions.wait(asked, check)
    if not decision.approved:
        stopped = reached.model_copy(update={"on_exceeded": "stop"})
        text = f"{failure.message}; more was not granted. {decision.reason}".rstrip()
        raise ActivityFailed(failure.model_copy(update={"budget": stopped, "message": text}))
    more = _granted(decision.arguments) if decision.arguments else limits
    return GrantRequest(account=reached.account, number=number, more=more)


def _granted(arguments: str) -> Budget:
    """What a person has granted in place of the same amounts. Raises ActivityFailed."""
    try:
        return Budget.model_validate_json(arguments)
    except ValueError:
        text = 'write what is granted as a budget has it, such as {"tokens": 5000}'
        raise ActivityFailed.of(InvalidInput(text)) from None


Result = TypeVar("Result", bound=JsonModel)


async def pin(run: RunState, request: PinRequest) -> Pinned:
    """Resolves the manifests that the run needs, and finds its place in the conversation.

    Within the workflow task where the run has no parent. A child takes an ordinary activity, in which the signals of
    its parent reach it before it calls anybody.
    """
    summary = "resolve and pin the manifests"
    if not request.thread:
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
        if isinstance(failed, ActivityInterrupted) or failed.failure.wait is None:
            raise failed
        options = await options_after_wait(run, failed.failure, options, until, same_id)


async def brief(run: RunState, request: BriefRequest, member: str) -> Thread:
    """Begins a conversation of its own for a team in a panel, with that team's briefing as the question."""
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


async def ask_person(run: RunState, request: AskPersonRequest) -> AskPersonResult:
    """What a member that is a person gets to read."""
    place = f"round {request.brief.round}" if request.brief else f"turn {request.turn}"
    summary = f"{place} · {request.member} is asked"
    return await execute_activity(run, "ask_person", request, AskPersonResult, JOURNAL, summary)


async def check_reply(run: RunState, request: CheckReplyRequest) -> CheckReplyResult:
    """What is wrong with a person's reply."""
    return await execute_activity(run, "check_reply", request, CheckReplyResult, JOURNAL, "does the reply fit?")


async def recall(run: RunState, request: RecallRequest) -> RecallResult:
    """Puts a query's question after what a Memory's service has of its conversation."""
    return await execute_activity(run, "recall", request, RecallResult, MEMORY, "what was said before")


async def remember(run: RunState, request: RememberRequest) -> RememberResult:
    """Adds to a conversation what a query has added."""
    options = MEMORY if request.conversation.remote else JOURNAL
    return await execute_activity(run, "remember", request, RememberResult, options, "what was said now")


async def ask_agent(run: RunState, request: AskModelRequest, agent: AgentPlan) -> AskModelResult:
    """Asks an agent for its next message: by its model, or where it is executed."""
    if agent.engine:
        return await _execute_agent(run, request, agent)
    return await ask_model(run, request, agent.models, agent.model_timeout)


async def _execute_agent(run: RunState, request: AskModelRequest, agent: AgentPlan) -> AskModelResult:
    """Lets an agent be executed elsewhere, for its ``timeout`` at most; that call itself gives up first."""
    place = f"round {request.brief.round}" if request.brief else f"turn {request.turn}"
    summary = f"{place} · {request.speaker.rpartition('/')[2]} · {agent.engine}"
    once = timedelta(seconds=(agent.timeout or 0) + 10)
    options: ActivityOptions = {
        **attempts(10),
        "start_to_close_timeout": once,
        "schedule_to_close_timeout": 6 * max(CALL["start_to_close_timeout"], once),
    }
    queue = run.task_queues.models
    try:
        return await execute_activity(run, "execute_agent", request, AskModelResult, options, summary, queue)
    except ActivityInterrupted as interrupted:
        if interrupted.activity:
            canceling = _cancel_agent(run, request, interrupted.activity)
            await uncancelled(asyncio.create_task(canceling))
        raise


async def _cancel_agent(run: RunState, request: AskModelRequest, activity: str) -> None:
    """Cancels what a canceled call has left open at its server: the worker that would have done it may be dead."""
    summary = f"cancel what {request.speaker.rpartition('/')[2]} has begun"
    asked = CancelAgentRequest(thread=request.thread, speaker=request.speaker, activity=activity)
    queue = run.task_queues.models
    with contextlib.suppress(ActivityFailed, ActivityInterrupted):  # nobody waits for the answer any more
        await execute_activity(run, "cancel_agent", asked, CancelAgentResult, CANCEL, summary, queue)
