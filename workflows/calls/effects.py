"""The activities that workflows call, with their names, options and summaries."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

from pydantic_core import to_json
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

from ...contracts.decisions import (
    BUDGET_RULE,
    AskPersonRequest,
    AskPersonResult,
    CheckIdentityRequest,
    CheckIdentityResult,
    CheckReplyRequest,
    CheckReplyResult,
    GrantRequest,
    GrantResult,
    PendingDecision,
)
from ...contracts.errors import (
    CallTimeout,
    Cause,
    CircuitOpen,
    Failure,
    InvalidInput,
    JournalLost,
    JournalUnavailable,
    ProgramMissing,
    QuotaReached,
    ToolFailed,
)
from ...contracts.inputs import ForkedRun, QueryInput, ReadForkRequest, TurnInput
from ...contracts.message import MESSAGE_OVERHEAD, Head, Message, PersonDecision, TokenUsage
from ...contracts.panel import BriefRequest, ConcludeRequest, PerformRequest, PerformResult
from ...contracts.plan import ActivityPlan, AgentPlan, RetryPlan, SelectorPlan, ToolPlan
from ...contracts.requests import (
    MISSED_HEARTBEATS,
    AdmitRequest,
    AdmitResult,
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    AuditRequest,
    AuditResult,
    Bookmark,
    CallRequest,
    CancelAgentRequest,
    CancelAgentResult,
    CheckedArguments,
    ConversationItem,
    EvaluateRequest,
    EvaluateResult,
    LastFailures,
    LastFailuresRequest,
    Pinned,
    PinRequest,
    ReadFailedRunRequest,
    RecallRequest,
    RecallResult,
    ReleaseRequest,
    ReleaseResult,
    RememberRequest,
    RememberResult,
    ReviewResult,
    SelectRequest,
    SelectResult,
    UseToolRequest,
    UseToolResult,
)
from ...contracts.text import truncate
from ...contracts.turn import Thread
from ...resources.base import JsonModel
from ...resources.budget import Budget
from ..state.constants import (
    APPEND_BYTES,
    FALLBACK_FAMILIES,
    UNNOTICED_ABSENCE,
    WAIT_FOR_WORKERS,
    WAIT_FOR_WORKERS_AFTER_FAILURES,
    WAIT_FOR_WORKERS_OF_FUNCTIONS,
)
from ..state.decisions import WaitKind, recorded_wait
from ..state.run_state import RunState
from ..state.stopping import ActivityFailed, ActivityInterrupted, uncancelled
from .activities import (
    CALL,
    CANCEL,
    JOURNAL,
    LOCAL_TIMEOUT,
    LOOK,
    MEMORY,
    MEMORY_TIMEOUT,
    PERFORM,
    STORING,
    WHILE_STOPPING,
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
    """The options of a call with that many attempts, not counting those that only miss a heartbeat."""
    policy = replace(CALL["retry_policy"], maximum_attempts=number + MISSED_HEARTBEATS)
    return {**CALL, "retry_policy": policy}


def retried(options: ActivityOptions, retries: RetryPlan | None) -> ActivityOptions:
    """The options with the attempts and intervals of a manifest, if it has them."""
    if retries is None:
        return options
    policy = options["retry_policy"]
    allowed = policy.maximum_attempts if retries.attempts is None else retries.attempts + MISSED_HEARTBEATS
    retry_policy = replace(
        policy,
        maximum_attempts=allowed,
        initial_interval=timedelta(seconds=retries.initial),
        maximum_interval=timedelta(seconds=retries.maximum),
    )
    longest = allowed * (options["start_to_close_timeout"] + timedelta(seconds=retries.maximum))
    total = max(options["schedule_to_close_timeout"], longest)
    return {**options, "retry_policy": retry_policy, "schedule_to_close_timeout": total}


def model_options(models: tuple[str, ...], index: int, seconds: float | None) -> ActivityOptions:
    """The options of a call of the model at ``index`` of the fallback chain, whose answer may take so many seconds."""
    # Temporal waits 0.5, 1, 2, … 30 s between attempts: 15 s in all before a fallback, and two minutes for the last
    # model of a run that does not wait for the end of outages.
    number = 10 if index == len(models) - 1 else 6
    return {**attempts(number), **call_timeouts(seconds)}


def has_fallback(failed: ActivityFailed, models: tuple[str, ...], index: int) -> bool:
    """Whether the next model of the fallback chain is called after the one at ``index`` has failed."""
    return index < len(models) - 1 and failed.failure.family in FALLBACK_FAMILIES


def latest_wait(run: RunState, failure: Failure, begun: datetime, until: datetime) -> datetime:
    """Until when a call waits. Even a call that otherwise gives up waits for the journal, its rows, and its program."""
    return begun + run.max_outage if failure.type in INEVITABLE_OUTAGES else until


INEVITABLE_OUTAGES = (JournalLost.__name__, JournalUnavailable.__name__, ProgramMissing.__name__)
"""The types of failures after which no call has another way out."""


async def options_after_wait(
    run: RunState, failure: Failure, options: ActivityOptions, until: datetime, activity: str, summary: str
) -> ActivityOptions:
    """Waits for an open circuit breaker, the end of an outage or a Quota, and while the run is paused.

    Returns the options of the next attempts. An attempt that the circuit breaker or the Quota prevented does not count.

    Raises:
        ActivityFailed: the wait would take longer than ``until``; but a run waits for a Quota as long as that says.
        ActivityInterrupted: the run is to stop; with the id of the activity, which may have started a remote task.
    """
    is_circuit = failure.type == CircuitOpen.__name__
    is_quota = failure.type == QuotaReached.__name__
    is_outage = not (is_circuit or is_quota)
    longest = until - workflow.now()
    if is_circuit:
        wait = run.outages.begin_of_circuit(activity, failure, longest)
    else:
        wait = run.outages.begin(activity, summary, failure, longest)
    if workflow.now() + wait > until and not is_quota:
        raise ActivityFailed(failure.without_wait())
    kind: WaitKind = "quota" if is_quota else "circuit_breaker" if is_circuit else "outage"

    def ends_early() -> bool:
        return is_quota and run.outages.asks_again

    try:
        with recorded_wait(kind, workflow.now(), about={"subject": summary, "error": failure.type}) as recorded:
            with run.trace.inside(run.trace.new_wait(kind)), contextlib.suppress(TimeoutError):
                # The call may have begun work that only its id identifies, so the run can't continue as new.
                await run.stop.wait(ends_early, continues=False, limit=wait, summary=truncate(failure.message, 200))
            if run.stop.is_requested:  # also a graceful stop: the turn could not end before the server is back
                raise ActivityInterrupted
            recorded.outcome = "over"
        run.outages.asks_again = False
        await run.ready(continues=False)
    except (asyncio.CancelledError, ActivityInterrupted):
        raise ActivityInterrupted(activity) from None
    policy = options["retry_policy"]
    once = options.get("start_to_close_timeout", timedelta())
    left = policy.maximum_attempts and policy.maximum_attempts - (failure.attempts or 1) + 1
    number = ATTEMPTS_IN_OUTAGE + MISSED_HEARTBEATS if is_outage and policy.maximum_attempts else left
    again: ActivityOptions = {**options, "retry_policy": replace(policy, maximum_attempts=number)}
    return {**again, "schedule_to_close_timeout": max(until - workflow.now(), once)}


async def attempts_after_wait(
    run: RunState,
    name: str,
    failure: Failure,
    options: ActivityOptions,
    until: datetime,
    activity: str,
    summary: str,
) -> ActivityOptions:
    """As ``options_after_wait``, and ends the outage if the call is not attempted again."""
    try:
        return await options_after_wait(run, failure, options, until, activity, summary)
    except (ActivityFailed, ActivityInterrupted):
        run.outages.end(activity)
        if name in STORING:
            raise ActivityFailed(failure.without_wait()) from None
        raise


FIRST_ATTEMPTS = 5
"""Attempts of a call, within eight seconds, before its run waits for the end of an outage and says so."""

ATTEMPTS_IN_OUTAGE = 2
"""Attempts of a call after each wait for the end of an outage: one that fails otherwise may be repeated once."""


async def ask_for_more(run: RunState, failed: ActivityFailed, *, continues: bool) -> GrantRequest:
    """Waits for an approval to raise a budget, and returns the grant. ``continues`` is that of ``StopState.wait``.

    Raises ActivityFailed after a rejection, and ``failed`` itself if it is not about a budget with ``onExceeded: ask``.
    One decision applies to all runs that wait for the same budget: its rule contains the number of the grant.
    """
    failure = failed.failure
    reached = failed.failure.budget
    if not (reached and reached.on_exceeded == "ask" and reached.account and reached.more):
        raise failed
    limits = reached.more.model_copy(update={"on_exceeded": "stop", "approvers": ()})  # defaults are not shown
    number = reached.grants or 0
    rule = f"{BUDGET_RULE}{reached.owner}/{number}"
    here = workflow.info().workflow_id
    pending = PendingDecision(
        id=run.decisions.free_id(here, rule),
        kind="budget",
        run=here,
        speaker=reached.owner,
        since=workflow.now(),
        tool="budget",
        arguments=limits.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True),
        rule=rule,
        question=failure.message,
        approvers=reached.more.approvers,
    )

    async def check(decision: PersonDecision) -> None:
        if decision.arguments is not None and reached.limit not in _granted(decision.arguments).model_dump(
            mode="json", by_alias=True, exclude_none=True
        ):
            raise ActivityFailed.of(InvalidInput(f"the granted amounts must include {reached.limit}"))

    decision = await run.decisions.wait(pending, check, continues=continues)
    if not decision.approved:
        raise ActivityFailed(failure.declined(decision.reason))
    more = _granted(decision.arguments) if decision.arguments else limits
    return GrantRequest(account=reached.account, number=number, more=more)


def _granted(arguments: str) -> Budget:
    """The amounts that a person grants instead of the budget's own. Raises ActivityFailed."""
    try:
        return Budget.model_validate_json(arguments)
    except ValueError:
        text = 'the granted amounts must have the form of a budget, such as {"tokens": 5000}'
        raise ActivityFailed.of(InvalidInput(text)) from None


Result = TypeVar("Result", bound=JsonModel)


async def pin(run: RunState, request: PinRequest) -> Pinned:
    """Resolves the manifests that the run needs, and its place in the conversation.

    A root run uses a local activity. A child run uses a regular one, so that it receives the signals of its parent
    before its first call.
    """
    summary = "resolve and pin the manifests"
    if not request.thread:
        with contextlib.suppress(LocalActivityTooLong):
            return await execute_local_activity("pin", request, Pinned, LOCAL_TIMEOUT, summary)
    return await execute_activity(run, "pin", request, Pinned, JOURNAL, summary)


async def admit_run(run: RunState, tenant: str) -> None:
    """Waits until the tenant has room for one more open run."""
    request = AdmitRequest(tenant=tenant, run=workflow.info().first_execution_run_id, since=workflow.now())
    await execute_activity(run, "admit_run", request, AdmitResult, JOURNAL, f"a place among the runs of {tenant}")


async def release_run() -> None:
    """Gives the place of this run to the next one. If that fails, waiting runs find out that this one has ended."""
    request = ReleaseRequest(run=workflow.info().first_execution_run_id)
    with contextlib.suppress(ActivityFailed, ActivityInterrupted, LocalActivityTooLong):
        await execute_local_activity("release_run", request, ReleaseResult, LOCAL_TIMEOUT, "wake the next run")


async def ask_model(run: RunState, request: AskModelRequest, agent: AgentPlan) -> AskModelResult:
    """Calls an agent's model, and if that fails its fallback models, for the next message."""
    place = f"round {request.brief.round}" if request.brief else f"turn {request.turn}"
    speaker = request.speaker.rpartition("/")[2]
    spent = TokenUsage()
    for index, model in enumerate(agent.models):
        is_last = index == len(agent.models) - 1
        try:
            result = await execute_activity(
                run,
                "ask_model",
                request.for_fallback(index).giving_up(not is_last),
                AskModelResult,
                model_options(agent.models, index, agent.model_timeout),
                f"{place} · {speaker} · {model}",  # the model's name, for people: 16 bytes per call
                run.task_queues.for_model(model),
                continues=True,
                retries=agent.retries[index] if agent.retries else None,
            )
            return result.after_failures(spent)
        except ActivityFailed as failed:
            spent = failed.usage = failed.usage + spent
            if not has_fallback(failed, agent.models, index):
                raise
    raise AssertionError("an agent has a model")


async def select(run: RunState, request: SelectRequest, selector: SelectorPlan) -> SelectResult:
    """Calls a team's selector, and if that fails its fallback models, to choose the next speaker."""
    team = request.team.rpartition("/")[2]
    seconds = selector.model_timeout and 2 * selector.model_timeout  # the model may be called twice
    spent = TokenUsage()
    for index, model in enumerate(selector.models):
        is_last = index == len(selector.models) - 1
        try:
            result = await execute_activity(
                run,
                "select",
                request.for_fallback(index).giving_up(not is_last),
                SelectResult,
                model_options(selector.models, index, seconds),
                f"select turn {request.turn} · {team} · {model}",
                run.task_queues.for_model(model),
                retries=selector.retries[index] if selector.retries else None,
            )
            return result.after_failures(spent)
        except ActivityFailed as failed:
            spent = failed.usage = failed.usage + spent
            if not has_fallback(failed, selector.models, index):
                raise
    raise AssertionError("a selector has a model")


async def use_tool(run: RunState, request: UseToolRequest, name: str, tool: ToolPlan) -> UseToolResult:
    """Executes a tool call, within the tool's timeout. The tool decides which failures are retried.

    With an ``answer``, it only stores that.
    """
    options: ActivityOptions = {**attempts(4), **call_timeouts(tool.timeout)}
    summary = f"{request.speaker.rpartition('/')[2]} uses {name}"
    queue = run.task_queues.tools
    retries = tool.retries if request.answer is None else None
    return await execute_activity(run, "use_tool", request, UseToolResult, options, summary, queue, retries=retries)


async def review(run: RunState, request: UseToolRequest, tool: str) -> ReviewResult:
    """Whether a call needs human approval. Fails if its arguments are invalid, as the call itself would."""
    request = request.giving_up(True)  # no server is called
    return await execute_activity(run, "review", request, ReviewResult, JOURNAL, f"does {tool} need approval?")


async def delegate(run: RunState, request: UseToolRequest, name: str) -> Thread:
    """Begins a conversation for the agent or team that a tool delegates to, with the arguments as the question."""
    request = request.giving_up(True)  # no server is called
    return await execute_activity(run, "delegate", request, Thread, JOURNAL, f"question for {name}")


async def check_arguments(run: RunState, request: UseToolRequest, name: str) -> CheckedArguments:
    """The arguments of the application's activity that a tool calls."""
    request = request.giving_up(True)  # no server is called
    return await execute_activity(run, "check_arguments", request, CheckedArguments, JOURNAL, f"arguments of {name}")


APPLICATION = RetryPolicy(
    initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30), maximum_attempts=4
)
"""The retry policy of an application's activity, unless the tool has one."""

MAX_RESULT = 256_000
"""Bytes of the result of an application's activity; a longer one is truncated."""


async def call_application(
    run: RunState,
    request: UseToolRequest,
    name: str,
    tool: ToolPlan,
    activity: ActivityPlan,
    arguments: Sequence[object],
) -> RawValue | None:
    """The result of an application's activity; None if it has none.

    Temporal retries it with the tool's policy. The run doesn't wait for the end of an outage.

    Raises:
        ActivityFailed: it failed, timed out, or was started by no worker in time.
        ActivityInterrupted: it was canceled, or the run is to stop now.
    """
    once = timedelta(seconds=tool.timeout) if tool.timeout else CALL["start_to_close_timeout"]
    policy = APPLICATION
    if tool.retries:
        policy = RetryPolicy(
            initial_interval=timedelta(seconds=tool.retries.initial),
            maximum_interval=timedelta(seconds=tool.retries.maximum),
            maximum_attempts=tool.retries.attempts or APPLICATION.maximum_attempts,
        )
    try:
        async with run.activity_slots:
            run.stop.checkpoint()
            result: RawValue | None = await workflow.execute_activity(
                activity.type,
                args=arguments,
                result_type=RawValue,
                summary=f"{request.speaker.rpartition('/')[2]} uses {name}",
                task_queue=activity.task_queue,
                priority=run.priority,
                start_to_close_timeout=once,
                schedule_to_start_timeout=timedelta(seconds=activity.schedule_to_start),
                heartbeat_timeout=timedelta(seconds=activity.heartbeat) if activity.heartbeat else None,
                retry_policy=policy,
            )
    except ActivityError as error:
        if isinstance(error.cause, CancelledError):
            raise ActivityInterrupted(error.activity_id) from None
        queue = activity.task_queue or workflow.info().task_queue
        failure = application_activity_failure(error.cause, activity.type, queue, activity.schedule_to_start)
        raise ActivityFailed.of(failure) from None
    return result


def application_activity_failure(
    cause: BaseException | None, activity: str, queue: str, schedule_to_start: float
) -> ToolFailed | CallTimeout:
    """The failure of a tool call whose activity has failed: on a task queue, where it might wait that many seconds."""
    if isinstance(cause, ActivityTimeout) and cause.type is TimeoutType.SCHEDULE_TO_START:
        waited = f"within {schedule_to_start:g} s"
        return ToolFailed(f"no worker of the task queue '{queue}' has started the activity '{activity}' {waited}")
    if isinstance(cause, ActivityTimeout):
        return CallTimeout(f"the activity '{activity}' took too long: {cause.message}")
    kind = cause.type if isinstance(cause, ApplicationError) else None
    message = cause.message if isinstance(cause, FailureError) else ""
    return ToolFailed(message or kind or f"the activity '{activity}' failed")


def result_text(result: RawValue | None, name: str) -> str:
    """The result of an application's activity for a model: a text unchanged, any other value as JSON.

    Raises ActivityFailed if it can't be read, such as because the application encrypts it.
    """
    if result is None:  # such as of an activity in Go that returns only an error
        return "null"
    try:
        value: object = workflow.payload_converter().from_payload(result.payload)
        text = value if isinstance(value, str) else to_json(value, by_alias=True, fallback=str).decode()
    except Exception:  # a converter may raise any
        encoding = result.payload.metadata.get("encoding", b"").decode(errors="replace")
        problem = f"{name} was executed, but its result can't be read: its encoding is '{encoding}'"
        raise ActivityFailed.of(ToolFailed(problem)) from None
    return truncate(text, MAX_RESULT)


async def evaluate(run: RunState, request: EvaluateRequest) -> EvaluateResult:
    """Evaluates a team's conditions after a turn, or lets its selector choose."""
    summary = f"conditions after turn {request.turn}" if request.candidates is None else f"select turn {request.turn}"
    return await execute_activity(run, "evaluate", request, EvaluateResult, JOURNAL, summary)


Input = TypeVar("Input", QueryInput, TurnInput)


async def read_failed_run(run: RunState, failed: str, input_type: type[Input]) -> Input:
    """The input with which a run resumes a failed run of its own workflow id."""
    request = ReadFailedRunRequest(run=failed)
    return await execute_activity(run, "read_failed_run", request, input_type, JOURNAL, "read the failed run")


async def read_fork(run: RunState, request: ReadForkRequest) -> ForkedRun:
    """The state from which a fork goes on."""
    return await execute_activity(run, "read_fork", request, ForkedRun, JOURNAL, "read the forked run")


async def last_failures(run: RunState, runs: tuple[str, ...]) -> dict[str, Cause]:
    """The latest failures in other runs, by their ids; empty if they can't be read immediately."""
    request = LastFailuresRequest(runs=runs)
    try:
        failures = await execute_activity(run, "last_failures", request, LastFailures, LOOK, "latest failures")
    except (ActivityFailed, ActivityInterrupted):
        return {}
    return failures.by_run


async def append(
    run: RunState, head: Head, items: tuple[ConversationItem, ...], bookmark: Bookmark | None = None
) -> Head:
    """Appends items to the conversation after ``head``, in as many activities as needed, and moves the bookmark."""
    for portion in portions(items) or [()]:
        request = AppendRequest(head=head, items=portion, bookmark=bookmark)
        head = await execute_activity(run, "append", request, Head, JOURNAL, f"append {len(portion)}")
    return head


async def execute_activity(
    run: RunState,
    name: str,
    request: JsonModel,
    result_type: type[Result],
    options: ActivityOptions,
    summary: str,
    task_queue: str | None = None,
    *,
    continues: bool = False,
    retries: RetryPlan | None = None,
    awaits_worker: bool = False,
) -> Result:
    """The result of an activity on a task queue, by default the run's own.

    A call prevented by an open circuit breaker waits and is tried again, and so does one whose server is away, or that
    no worker has finished in time, unless the request or the run ``gives_up``. A call refused by a budget with
    ``onExceeded: ask`` is repeated after an approval by a person, any number of times. With ``continues``, a long run
    continues as new while it waits for that approval, and the next run makes the call from the beginning. ``retries``
    are the attempts that a manifest sets. With ``awaits_worker``, a call waits only for the journal, and for a worker.

    Raises:
        ActivityFailed: it fails and is not retried.
        ActivityInterrupted: it was canceled, or the run is to stop now.
        ContinueAsNew: with ``continues``.
    """
    waits_out = isinstance(request, CallRequest) and not request.gives_up and not run.gives_up
    if isinstance(request, CallRequest):
        request = request.giving_up(not waits_out)
    waits_for_workers = waits_out or awaits_worker or "schedule_to_close_timeout" not in options
    longest = run.max_outage if waits_for_workers else options["schedule_to_close_timeout"]
    options = {"schedule_to_close_timeout": longest, **options}
    if waits_out:
        options = {**options, "retry_policy": attempts(FIRST_ATTEMPTS)["retry_policy"]}
    options = retried(options, retries)
    patience = _Patience(longest)
    attempt = options
    activity_id: str | None = None
    while True:
        try:
            async with run.activity_slots:
                if name not in WHILE_STOPPING:
                    run.stop.checkpoint()
                result: Result = await workflow.execute_activity(
                    name,
                    request.without_defaults,
                    result_type=result_type,
                    summary=summary,
                    task_queue=task_queue,
                    priority=run.priority,
                    activity_id=activity_id,
                    **attempt,
                )
                run.outages.end(activity_id)
                return result
        except (asyncio.CancelledError, ActivityInterrupted):  # it waited for a slot, or the run is to stop
            run.outages.end(activity_id)
            raise
        except ActivityError as error:
            add_lost_call(run, name, error, patience.begun)
            failed = _read_failure(error, name, waits_for_workers=waits_for_workers, waits_out=waits_out)
            activity_id = error.activity_id
        if isinstance(failed, ActivityFailed) and failed.failure.wait is not None:
            patience.note_failure()
            latest = latest_wait(run, failed.failure, patience.begun, patience.until)
            # The next attempt has the same id, by which the activity recognizes calls that it has already started.
            attempt = await attempts_after_wait(run, name, failed.failure, attempt, latest, activity_id, summary)
            if failed.failure.type == QuotaReached.__name__:  # its server has not been called yet
                patience = _Patience(longest)
                attempt = {**attempt, "schedule_to_close_timeout": longest}
            continue
        run.outages.end(activity_id)
        if isinstance(failed, ActivityInterrupted):
            raise failed
        grant = await ask_for_more(run, failed, continues=continues)
        await execute_activity(run, "grant", grant, GrantResult, JOURNAL, "raise a budget")
        # The call is a new activity; late writes of the rejected one become orphan rows that readers ignore.
        patience = _Patience(longest)
        attempt = options
        activity_id = None


@dataclass
class _Patience:
    """For how long a call waits for the end of an outage: ``longest`` after its start, or after its first failure.

    A call may be without a worker for days before its first attempt: that was no outage of its server.
    """

    longest: timedelta
    begun: datetime = field(default_factory=workflow.now)
    _has_failed: bool = False

    @property
    def until(self) -> datetime:
        """When the call fails."""
        return self.begun + self.longest

    def note_failure(self) -> None:
        """Notes that the call has failed, and will be made again."""
        is_first = not self._has_failed
        self._has_failed = True
        if is_first and workflow.now() - self.begun > UNNOTICED_ABSENCE and workflow.patched(WAIT_FOR_WORKERS):
            self.begun = workflow.now()


def _read_failure(
    error: ActivityError, name: str, *, waits_for_workers: bool, waits_out: bool
) -> ActivityFailed | ActivityInterrupted:
    """The failure of a call. One that no worker has finished in time is made again, after a wait.

    If its latest attempt before that had failed, it is only if it also waits for the end of outages: the attempts of
    other calls may have failed for as long as they may take.
    """
    failed = read_failure(error.cause, name, error.activity_id)
    if not (waits_for_workers and isinstance(error.cause, ActivityTimeout) and isinstance(failed, ActivityFailed)):
        return failed
    patch = WAIT_FOR_WORKERS_OF_FUNCTIONS if name == "perform" else WAIT_FOR_WORKERS
    if isinstance(error.cause.cause, ApplicationError):
        if not waits_out:
            return failed
        patch = WAIT_FOR_WORKERS_AFTER_FAILURES
    return ActivityFailed(failed.failure.waiting(0)) if workflow.patched(patch) else failed


async def brief(run: RunState, request: BriefRequest, member: str) -> Thread:
    """Begins a separate conversation for a team in a panel, with that team's briefing as the question."""
    summary = f"round {request.brief.round} · briefing for {member}"
    return await execute_activity(run, "brief", request, Thread, JOURNAL, summary)


async def perform(run: RunState, request: PerformRequest) -> PerformResult:
    """Calls a registered function that is a member."""
    place = f"round {request.brief.round}" if request.turn is None else f"turn {request.turn}"
    summary = f"{place} · {request.name} · {request.function}"
    queue = run.task_queues.tools
    # A function has no server whose outage would be waited for, but its worker may be away.
    awaits_worker = not run.gives_up
    return await execute_activity(
        run, "perform", request, PerformResult, PERFORM, summary, queue, awaits_worker=awaits_worker
    )


async def conclude(run: RunState, request: ConcludeRequest) -> AskModelResult:
    """Writes the result of a panel that has no synthesizer."""
    summary = f"result after {request.brief.round} rounds"
    return await execute_activity(run, "conclude", request, AskModelResult, JOURNAL, summary)


async def ask_person(run: RunState, request: AskPersonRequest) -> AskPersonResult:
    """Composes the question for a member that is a person."""
    place = f"round {request.brief.round}" if request.brief else f"turn {request.turn}"
    summary = f"{place} · question for {request.member}"
    return await execute_activity(run, "ask_person", request, AskPersonResult, JOURNAL, summary)


async def check_reply(run: RunState, request: CheckReplyRequest) -> CheckReplyResult:
    """Checks a person's reply against its schema."""
    return await execute_activity(run, "check_reply", request, CheckReplyResult, JOURNAL, "check the reply")


async def check_identity(run: RunState, request: CheckIdentityRequest) -> CheckIdentityResult:
    """Checks whether a gateway has verified who decides."""
    summary = f"check that {truncate(request.identity.name, 64)} may decide"
    return await execute_activity(run, "check_identity", request, CheckIdentityResult, JOURNAL, summary)


async def audit(run: RunState, request: AuditRequest) -> AuditResult:
    """Writes into the audit log what clients have done to the run."""
    return await execute_activity(run, "audit", request, AuditResult, JOURNAL, "write the audit log")


def _memory_options(run: RunState) -> ActivityOptions:
    return {**MEMORY, "schedule_to_close_timeout": max(run.max_outage, MEMORY_TIMEOUT)}


async def recall(run: RunState, request: RecallRequest) -> RecallResult:
    """Reads a query's conversation from a Memory's service, and appends the question to it."""
    options = _memory_options(run)
    return await execute_activity(run, "recall", request, RecallResult, options, "recall the conversation")


async def remember(run: RunState, request: RememberRequest) -> RememberResult:
    """Adds a query's messages to its conversation."""
    options = _memory_options(run) if request.conversation.remote else JOURNAL
    return await execute_activity(run, "remember", request, RememberResult, options, "remember the conversation")


async def execute_agent(run: RunState, request: AskModelRequest, agent: AgentPlan) -> AskModelResult:
    """Executes an agent elsewhere, for its ``timeout`` at most; the call itself times out before Temporal's timeout."""
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
            await uncancelled(asyncio.create_task(_cancel_agent(run, request, interrupted.activity)))
        raise


async def _cancel_agent(run: RunState, request: AskModelRequest, activity: str) -> None:
    """Cancels the remote task of a canceled call: the worker that should have canceled it may have crashed."""
    summary = f"cancel the remote task of {request.speaker.rpartition('/')[2]}"
    cancellation = CancelAgentRequest(thread=request.thread, speaker=request.speaker, activity=activity)
    queue = run.task_queues.models
    with contextlib.suppress(ActivityFailed, ActivityInterrupted):  # the run does not wait for the answer any more
        await execute_activity(run, "cancel_agent", cancellation, CancelAgentResult, CANCEL, summary, queue)
