"""The workflow type ``query``: sends a question to its targets and joins their answers.

Several targets, and teams, run as child workflows; a single agent, model or tool takes its turn in the query's run.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from pydantic import JsonValue
from temporalio import workflow

from ..contracts.control_messages import SteerRequest, TerminateRequest
from ..contracts.errors import Cause, Failure, QueryTimeout
from ..contracts.inputs import AgentState, Continuation, QueryInput, QueryState, TurnInput
from ..contracts.message import Head, Message, RowRange
from ..contracts.plan import AgentPlan, ConversationPlan, QueryPlan, TargetPlan, ToolTarget
from ..contracts.requests import ConversationItem, Pinned, RecallRequest, RecallResult, RememberRequest
from ..contracts.status import Status, query_status, truncated_for_status
from ..contracts.text import truncate
from ..contracts.turn import Thread, TurnResult
from ..resources.base import JsonObject
from ..resources.query import named_targets
from .agent import ToolTurn, single_turn
from .calls import effects, traces
from .calls.children import ChildWorkflows, start_expiry
from .calls.notifications import Notifications, ended_data, waiting_data
from .discussion.agent_turn import AgentTurn
from .discussion.member_turn import MemberTurn
from .run.base import BaseWorkflow, pin_request, workflow_type
from .run.turn import for_client
from .state.constants import MAX_CONCURRENT_CHILDREN
from .state.run_state import RunState
from .state.stopping import (
    ActivityFailed,
    ActivityInterrupted,
    ContinueAsNew,
    run_in_scope,
    uncancelled,
    wait_all,
)

MAX_ERROR_BYTES = 1_000
"""Bytes of an error that is stored in a conversation as the answer of a failed target."""


class QueryMemory:
    """Reads and stores the conversation that a query continues; does nothing if it continues none."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.recalled: RecallResult | None = None
        self.added: tuple[Head, ...] = ()
        self._plan: ConversationPlan | None = None
        self._lost: str | None = None

    def begin(self, pinned: Pinned) -> None:
        """Stores the plan. In a conversation of the journal, ``pin`` has appended the question already."""
        assert isinstance(pinned.plan, QueryPlan)
        self._plan = pinned.plan.conversation
        if self._plan and not self._plan.remote:
            self.recalled = RecallResult(thread=pinned.thread, before=pinned.before or Head())

    def restore(self, plan: QueryPlan, recalled: RecallResult | None, added: tuple[Head, ...]) -> None:
        """Restores the result of ``recall`` in the previous run, and up to where it has added its messages."""
        self._plan = plan.conversation
        self.recalled = recalled
        self.added = added

    async def recall(self, thread: Thread) -> Thread:
        """The thread after the earlier messages. Raises ActivityFailed if they can't be read and must be."""
        if self._plan and not self.recalled:
            try:
                self.recalled = await effects.recall(
                    self._run,
                    RecallRequest(thread=thread, conversation=self._plan, gives_up=self._plan.on_error != "fail"),
                )
            except ActivityFailed as failed:
                if self._plan.on_error == "fail":
                    raise
                notice = f"the conversation could not be read: {failed.failure.message}"
                self.recalled = RecallResult(thread=thread, notice=notice)
        return self.recalled.thread if self.recalled else thread

    @property
    def question(self) -> Head:
        """The place of the question in the conversation; an empty head if it is not there."""
        return self.recalled.thread.head if self.recalled else Head()

    async def remember(self, items: Iterable[ConversationItem], catalog: str) -> None:
        """Appends items to the conversation, even during cancellation."""
        if not (self._plan and self.recalled):
            return
        question = RowRange(after=self.recalled.before, to=self.question)
        request = RememberRequest(
            conversation=self._plan,
            catalog=catalog,
            before=self.recalled.before,
            items=(question, *items),
            known=self.recalled.known,
            added=self.added,
        )
        try:
            await uncancelled(asyncio.create_task(effects.remember(self._run, request)))
        except ActivityFailed as failed:
            self._lost = f"the conversation could not be saved: {failed.failure.message}"
            workflow.logger.warning("%s", self._lost)
        else:
            places = (*self.added, *(item.to for item in request.items if isinstance(item, RowRange)))
            self.added = tuple({place.id: place for place in places}.values())

    def in_status(self, status: Status) -> Status:
        """The status with the conversation, and with problems that did not fail the query."""
        if not self._plan:
            return status
        memory_notices = (notice for notice in (self.recalled and self.recalled.notice, self._lost) if notice)
        notices = (*(status.notices or ()), *memory_notices)
        return status.in_conversation(self._plan.id).with_notices(notices)


def said_by_targets(
    targets: Iterable[TargetPlan], answers: Mapping[int, TurnResult], question: Head
) -> Iterable[ConversationItem]:
    """The messages of all targets after the question, in the order of the targets, with their errors as answers.

    Results of tools are not part of a conversation. (ARK: queries, memory)
    """
    for index, target in enumerate(targets):
        turn = answers.get(index)
        if turn is None or target.type == "tool":
            continue
        if turn.head != question:
            yield RowRange(after=question, to=turn.head)
        if error := turn.failure.message if turn.failure else "canceled" if turn.stop_reason == "canceled" else None:
            yield error_message(error, target.name)


def error_message(error: str, name: str | None = None) -> Message:
    """An error as an answer in a conversation."""
    return Message(role="assistant", content=f"Error: {truncate(error, MAX_ERROR_BYTES)}", name=name)


class Deadline:
    """The time ``at`` which a query times out; None without a timeout."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.at: datetime | None = None
        self._timeout = 0.0
        self._causes: dict[str, Cause] = {}

    def begin(self, timeout: float | None, at: datetime | None = None) -> None:
        """Starts the timeout in seconds; a run that continues another passes the deadline as ``at``."""
        self._timeout = timeout or 0.0
        self.at = at if timeout is None or at else workflow.now() + timedelta(seconds=timeout)

    @property
    def left(self) -> timedelta | None:
        """The remaining time; None without a timeout."""
        return max(timedelta(), self.at - workflow.now()) if self.at else None

    async def look_for_causes(self, runs: Sequence[str]) -> None:
        """Reads the latest failures of the runs that the timeout cancels; closed runs no longer show them."""
        if runs:
            self._causes = await effects.last_failures(self._run, tuple(runs))

    def failure(self, run: str | None = None) -> Failure | None:
        """The failure of the target in ``run``, or of the query; None if the query has not timed out."""
        if self._run.stop.reason != "timeout":
            return None
        cause = self._causes.get(run) if run else next(iter(self._causes.values()), None)
        text = f"the query took longer than its timeout of {self._timeout:g} s"
        if cause is None:
            return QueryTimeout(text).as_failure()
        last = f"{text}; attempt {cause.attempts} failed with {cause.type}: {cause.message}"
        return QueryTimeout(last).as_failure().caused_by(cause)


class QueryTurn:
    """The turn of a query's only target; ``begun`` is False before it, and for queries that take no turn."""

    def __init__(self, run: RunState, children: ChildWorkflows) -> None:
        self._run = run
        self._children = children
        self._turn: AgentTurn | ToolTurn | None = None
        self._restored: AgentState | None = None

    @property
    def begun(self) -> bool:
        """Whether the turn has begun."""
        return self._turn is not None

    @property
    def state(self) -> AgentState | None:
        """The state from which the next run resumes the turn of an agent; None for a tool, which needs none."""
        return self._turn.state if isinstance(self._turn, AgentTurn) else None

    def restore(self, state: AgentState | None) -> None:
        """Restores the turn where the previous run left it."""
        self._restored = state

    async def take(self, plan: AgentPlan | ToolTarget, thread: Thread) -> TurnResult:
        """Runs the turn, within the budget of its agent if there is one."""
        turn_thread = (
            thread.under(plan.speaker) if isinstance(plan, AgentPlan) and plan.budget and thread.account else thread
        )
        place = MemberTurn(plan.name, number=1, of=1, thread=turn_thread, state=self._restored)
        self._turn = single_turn(plan, place, self._run, self._children)
        turn = await self._turn.execute()
        return turn.of_run(self._run.stop.note)

    def in_status(self, status: Status) -> Status:
        """The status of the query during its turn, with the turn's result so far."""
        if not self._turn:
            return status
        return status.in_turn(self._turn.so_far).with_runs(self._children.running, self._children.of_application)


@workflow_type("query")
class QueryWorkflow(BaseWorkflow[QueryInput]):
    """Runs all targets concurrently and closes with their status (ARK: queries)."""

    input_type = QueryInput

    @workflow.init
    def __init__(self, *payloads: JsonValue) -> None:
        super().__init__(*payloads)
        self.plan = QueryPlan(kind="query", targets=())
        self.answers: dict[int, TurnResult] = {}
        self.turn = QueryTurn(self.run_state, self.children)
        self.shown = 0
        self.deadline = Deadline(self.run_state)
        self.failure: Failure | None = None
        self.unread: Head | None = None
        self.late: tuple[SteerRequest, ...] = ()
        self.memory = QueryMemory(self.run_state)
        self.notifications = Notifications()
        self._phase.on_input_required = self._notify_waiting

    @workflow.run
    async def run(self, *payloads: JsonValue) -> Status | JsonObject:
        try:
            await self._begin_and_ask()
            await self._join_messages_to_answer()
            await self._remember()
        except ContinueAsNew:
            await self.notifications.settle()
            await self.continue_as_new()
        except ActivityFailed as failed:
            self.failure = failed.failure
        self.ended_at = workflow.now()
        await self.audit.end(lambda: self._status().phase, is_root=True)
        await start_expiry(self.plan.ttl)
        self.notifications.send("ended", lambda: ended_data(self._status()))
        await self.notifications.settle()
        await self.release()
        await self.settle_again()
        self.late = self.take_unread()
        status = self._status()
        self.run_state.details.show_status(status)
        traces.end_trace(self.run_state, status)
        self.close(status, result := for_client(status, self._pinned))
        return result

    async def _begin_and_ask(self) -> None:
        stop = self.run_state.stop
        try:
            if self.run_input.retries:
                await run_in_scope(stop, self.continue_failed())
            elif self.run_input.fork:
                await run_in_scope(stop, self.continue_fork())
            if self.run_input.carried:
                self._restore_answers(self.run_input.carried)
            else:
                self.begin(await run_in_scope(stop, effects.pin(self.run_state, pin_request(self.run_input))))
            if await run_in_scope(stop, self.admitted()):
                self.deadline.begin(self.plan.timeout)  # the time of waiting does not count
            await run_in_scope(stop, self._recall_and_ask(), self.deadline.left, self._look_for_causes)
        except (ActivityInterrupted, asyncio.CancelledError):
            workflow.logger.info("stopped before any target was started")
        except ActivityFailed as failed:
            self.failure = failed.failure

    def begin(self, pinned: Pinned) -> None:
        """Stores the plan; the timeout of the query begins."""
        super().begin(pinned)
        assert isinstance(pinned.plan, QueryPlan)
        self.plan = pinned.plan
        self.memory.begin(pinned)
        self.deadline.begin(self.plan.timeout)
        self.notifications.begin(pinned)
        self.notifications.send("started", lambda: {"phase": "Running"})
        if self.plan.cancel:
            self.run_state.stop.request("canceled", TerminateRequest(reason="spec.cancel is true", now=True))
            raise ActivityInterrupted

    def state(self) -> QueryState:
        """The state for the next run."""
        return QueryState(
            kind="query",
            answers=self.answers,
            until=self.deadline.at,
            recalled=self.memory.recalled,
            turn=self.turn.state,
            added=self.memory.added,
        )

    def retry_state(self) -> QueryState:
        """The state without the targets that have failed or were canceled, and without the deadline."""
        return QueryState(
            kind="query",
            answers={index: turn for index, turn in self.answers.items() if not turn.is_unfinished},
            recalled=self.memory.recalled,
            turn=self.turn.state,
            added=self.memory.added,
        )

    def _restore_answers(self, continuation: Continuation) -> None:
        plan = continuation.pinned.plan
        state = continuation.state
        assert isinstance(plan, QueryPlan)
        assert isinstance(state, QueryState)
        self.plan = plan
        self.notifications.begin(continuation.pinned)
        self.answers = dict(state.answers)
        self.turn.restore(state.turn)
        self.deadline.begin(plan.timeout, state.until)
        self.memory.restore(plan, state.recalled, state.added)

    async def _recall_and_ask(self) -> None:
        await self._ask_all(await self.memory.recall(self.pinned.thread))

    async def _ask_all(self, thread: Thread) -> None:
        """Waits for all targets. A failure with failFast, or the end of the query, cancels those still running.

        A long run starts no further target, waits for the running ones, and continues as new.
        """
        waiting = [(index, target) for index, target in enumerate(self.plan.targets) if index not in self.answers]
        tasks = [asyncio.create_task(self._ask(index, target, thread)) for index, target in waiting]
        await wait_all(tasks, self._gives_up)
        for task in tasks:
            if not (isinstance(task.exception(), ContinueAsNew) and self._gives_up()):  # else the next run would ask it
                task.result()

    async def _ask(self, index: int, target: TargetPlan, thread: Thread) -> None:
        stop = self.run_state.stop
        turn = await (self.turn.take(target.turn, thread) if target.turn else self._ask_child(index, target, thread))
        if turn.stop_reason in ("canceled", "timeout") and stop.is_requested:
            failure = self.deadline.failure(self._run_of(index, target))
            turn = turn.because(stop.interruption).because_of(failure)
        self.answers[index] = truncated_for_status(self.plan, turn)

    async def _ask_child(self, index: int, target: TargetPlan, thread: Thread) -> TurnResult:
        turn_input = TurnInput.model_validate(
            {target.type: target.name, "namespace": target.namespace, "thread": thread}
        )
        return await self.children.execute(target.workflow, turn_input, _place(index), thread.head, continues=True)

    async def _join_messages_to_answer(self) -> None:
        """Appends messages that came too late for any target to the conversation of the last one.

        If no target was started, they begin a conversation of their own.
        """
        unread = await self.close_inbox()
        self.run_state.inbox.keep(unread)
        index = max(self.answers, default=None)
        if index is None and unread:
            self.unread = await self.join(unread, self.memory.question)
        elif index is not None:
            head = await self.join(unread, self.answers[index].head)
            self.answers[index] = self.answers[index].at(head)

    async def _remember(self) -> None:
        """Appends the messages of the query to the conversation that it continues, even if the query failed."""
        if self._pinned is None:
            return
        entries = [*said_by_targets(self.plan.targets, self.answers, self.memory.question)]
        if self.unread:
            entries.append(RowRange(after=self.memory.question, to=self.unread))
        if self.failure:
            entries.append(error_message(self.failure.message))
        await self.memory.remember(entries, self.pinned.thread.catalog)

    def _named_targets(self) -> Iterable[TargetPlan]:
        """The targets in the input of a query that was rejected, or stopped before it had a plan."""
        refusal = self.failure.refusal if self.failure else None
        targets = refusal.targets if refusal else ()
        namespace = "default"
        if not isinstance(self._run_input, ActivityFailed):
            run_input = self._run_input
            namespace = run_input.namespace
            targets = targets or named_targets(run_input.name, run_input.namespace, run_input.spec, run_input.resources)
        for target in targets:
            yield TargetPlan(
                type=target.type, name=target.name, namespace=target.namespace or namespace, workflow=target.type
            )

    def _run_of(self, index: int, target: TargetPlan) -> str:
        """The id of the run of a target."""
        return workflow.info().workflow_id if target.turn else self.children.id_of(_place(index), target.name)

    def _gives_up(self) -> bool:
        """Whether a failed target ends the query. With thousands of targets, current details are updated in batches."""
        if len(self.answers) - self.shown > len(self.plan.targets) // MAX_CONCURRENT_CHILDREN:
            self.shown = len(self.answers)
            self.run_state.details.show_status(self._status())
        return self.plan.fail_fast and any(turn.failure for turn in self.answers.values())

    def _notify_waiting(self) -> None:
        decisions = self.run_state.decisions
        self.notifications.send("waiting", lambda: waiting_data(decisions.pending, decisions.waiting_below))

    async def _look_for_causes(self) -> None:
        await self.deadline.look_for_causes([workflow.info().workflow_id] if self.turn.begun else self.children.running)

    @workflow.query(description="The status of the query, open or closed.")
    def status(self) -> Status | JsonObject:
        """The status of the query (ARK: queries)."""
        return for_client(self._status(), self._pinned)

    def _status(self) -> Status:
        times = (self.run_state.started_at, self.ended_at)
        stop = self.run_state.stop
        failure = self.failure or self.deadline.failure()
        runs = [self._run_of(index, target) for index, target in enumerate(self.plan.targets)]
        owner = f"Query/{self.plan.namespace}/{self.plan.name}"
        plan = self.plan.under(self.run_state.decisions.raised(owner, self.plan.budget))
        if self.ended_at and not self._pinned:
            plan = plan.with_targets(self._named_targets())
        status = query_status(plan, self.answers, times, reason=stop.reason, note=stop.note, failure=failure, runs=runs)
        notices = (*self._pinned.notices, *self._pinned.ineffective) if self._pinned else ()
        status = self.memory.in_status(status.with_notices(notices))
        status = status if self.answers else self.turn.in_status(status)
        return status.with_unread(self.late) if self.ended_at else self.run_state.with_requests(status)


def _place(index: int) -> str:
    """The place of a target's child workflow."""
    return f"target-{index + 1}"
