"""The workflow type ``query``: puts a question to its targets, each in a child workflow, and joins their answers."""

import asyncio
from datetime import datetime, timedelta

from pydantic import JsonValue
from temporalio import workflow

from ..conversation.contracts.continuation import Continuation, QueryState
from ..conversation.contracts.inputs import QueryInput, TurnInput
from ..conversation.contracts.plan import QueryPlan, TargetPlan
from ..conversation.contracts.requests import Pinned, PinRequest
from ..conversation.contracts.status import Status, query_status, truncated_for_status
from ..conversation.errors import QueryTimeout
from ..conversation.failure import Cause, Failure
from ..conversation.messages.message import Head, Span
from ..conversation.messages.turn import Thread, TurnResult
from .base.base_workflow import BaseWorkflow
from .calls import effects
from .calls.expiry import start_expiry
from .calls.run_traces import end_trace
from .query_memory import QueryMemory, error_message, said_by_targets
from .state.cancellation import run_in_scope, wait_all
from .state.constants import MAX_CONCURRENT_CHILDREN, MESSAGES_JOIN_QUERY, TIMEOUT_CAUSE
from .state.continue_as_new import continue_as_new
from .state.errors import ActivityFailed, ActivityInterrupted, ContinueAsNew


@workflow.defn(name="query")
class QueryWorkflow(BaseWorkflow[QueryInput]):
    """Asks all targets at once and closes with their status (ARK: queries)."""

    input_type = QueryInput

    @workflow.init
    def __init__(self, *given: JsonValue) -> None:
        super().__init__(*given)
        self.plan = QueryPlan(kind="query", targets=())
        self.answers: dict[int, TurnResult] = {}
        self.shown = 0
        self.deadline: datetime | None = None
        self.failure: Failure | None = None
        self.unasked: Head | None = None
        self.causes: dict[str, Cause] = {}
        self.memory = QueryMemory(self.run_state)

    @workflow.run
    async def run(self, *given: JsonValue) -> Status:
        try:
            await self._begin_and_ask()
            await self._join_messages_to_answer()
            await self._remember()
        except ContinueAsNew:
            await self.settle()
            await end_trace(self.run_state)
            recalled = self.memory.recalled
            state = QueryState(kind="query", answers=self.answers, until=self.deadline, recalled=recalled)
            continue_as_new(self.given.continued_with(self.continuation(state)))
        except ActivityFailed as failed:
            self.failure = failed.failure
        self.ended_at = workflow.now()
        status = self.status()
        self.run_state.details.show_status(status)
        await start_expiry(self.plan.ttl)
        await end_trace(self.run_state, status)
        self.close(status, status)
        return status

    async def _begin_and_ask(self) -> None:
        stop = self.run_state.stop
        try:
            if self.is_continued() and self.given.carried:
                self._restore_answers(self.given.carried)
            else:
                self.begin(await run_in_scope(stop, effects.pin(self.run_state, _pin_request(self.given))))
            left = max(timedelta(), self.deadline - workflow.now()) if self.deadline else None
            await run_in_scope(stop, self._recall_and_ask(), left, self._look_for_causes)
        except (ActivityInterrupted, asyncio.CancelledError):
            workflow.logger.info("stopped before any target was asked")
        except ActivityFailed as failed:
            self.failure = failed.failure

    def begin(self, pinned: Pinned) -> None:
        """Takes up the plan; the timeout of the query begins."""
        super().begin(pinned)
        assert isinstance(pinned.plan, QueryPlan)
        self.plan = pinned.plan
        self.memory.begin(pinned)
        if self.plan.timeout is not None:
            self.deadline = workflow.now() + timedelta(seconds=self.plan.timeout)

    def _restore_answers(self, continuation: Continuation) -> None:
        plan, state = continuation.pinned.plan, continuation.state
        assert isinstance(plan, QueryPlan)
        assert isinstance(state, QueryState)
        self.plan, self.answers, self.deadline = plan, dict(state.answers), state.until
        self.memory.restore(plan, state.recalled)

    async def _recall_and_ask(self) -> None:
        await self._ask_all(await self.memory.recall(self.pinned.thread))

    async def _ask_all(self, thread: Thread) -> None:
        """Waits for every target; a failure with failFast, or the end of the query, cancels those still running.

        A long run asks no further target, waits for those that are asked, and continues as new.
        """
        waiting = [each for each in enumerate(self.plan.targets) if each[0] not in self.answers]
        tasks = [asyncio.create_task(self._ask(index, target, thread)) for index, target in waiting]
        await wait_all(tasks, self._gives_up)
        for task in tasks:
            task.result()

    async def _ask(self, index: int, target: TargetPlan, thread: Thread) -> None:
        given = TurnInput.model_validate({target.type: target.name, "namespace": target.namespace, "thread": thread})
        place, stop = f"target-{index + 1}", self.run_state.stop
        turn = await self.children.execute(target.workflow, given, place, thread.head, continues=True)
        if turn.stop_reason == "canceled" and stop.reason:
            failure = self._overdue(self.causes.get(self._run_of(index, target)))
            turn = turn.model_copy(update={"stop_reason": stop.reason, "failure": failure})
        self.answers[index] = truncated_for_status(self.plan, turn)

    async def _join_messages_to_answer(self) -> None:
        """What people said too late for any target joins the conversation of the last one.

        If no target was asked, or no manifest was found, it begins a conversation of its own.
        """
        unread, index = await self.close_inbox(), max(self.answers, default=None)
        if index is None and unread and workflow.patched(MESSAGES_JOIN_QUERY):
            self.unasked = await self.join(unread, self.memory.question)
        elif index is not None:
            head = await self.join(unread, self.answers[index].head)
            self.answers[index] = self.answers[index].model_copy(update={"head": head})

    async def _remember(self) -> None:
        """Keeps what was said in the conversation that the query goes on with, also if the query has failed."""
        if self._pinned is None:
            return
        said = [*said_by_targets(self.plan.targets, self.answers, self.memory.question)]
        if self.unasked:
            said.append(Span(after=self.memory.question, to=self.unasked))
        if self.failure:
            said.append(error_message(self.failure.message))
        await self.memory.remember(said, self.pinned.thread.catalog)

    def _run_of(self, index: int, target: TargetPlan) -> str:
        return self.children.id_of(f"target-{index + 1}", target.name)

    def _gives_up(self) -> bool:
        """Whether an answer ends the query. With thousands of targets, not each answer is shown by itself."""
        if len(self.answers) - self.shown > len(self.plan.targets) // MAX_CONCURRENT_CHILDREN:
            self.shown = len(self.answers)
            self.run_state.details.show_status(self.status())
        return self.plan.fail_fast and any(turn.failure for turn in self.answers.values())

    async def _look_for_causes(self) -> None:
        """What has failed last in the runs that the timeout ends, which nobody can tell afterwards."""
        if self.children.running and workflow.patched(TIMEOUT_CAUSE):
            self.causes = await effects.last_failures(self.run_state, self.children.running)

    def _overdue(self, cause: Cause | None) -> Failure | None:
        if self.run_state.stop.reason != "timeout":
            return None
        text = f"the query took longer than its timeout of {self.plan.timeout:g} s"
        if cause is None:
            return QueryTimeout(text).as_failure()
        last = f"{text}; attempt {cause.attempts} failed with {cause.type}: {cause.message}"
        return QueryTimeout(last).as_failure().model_copy(update={"cause": cause})

    @workflow.query(description="How the query stands, or how it has ended.")
    def status(self) -> Status:
        """The status of the query (ARK: queries)."""
        times, stop = (self.run_state.started_at, self.ended_at), self.run_state.stop
        failure = self.failure or self._overdue(next(iter(self.causes.values()), None))
        runs = [self._run_of(index, target) for index, target in enumerate(self.plan.targets)]
        owner = f"Query/{self.plan.namespace}/{self.plan.name}"
        plan = self.plan.model_copy(update={"budget": self.run_state.decisions.raised(owner, self.plan.budget)})
        status = query_status(plan, self.answers, times, reason=stop.reason, note=stop.note, failure=failure, runs=runs)
        notices = self._pinned.notices if self._pinned else ()
        status = self.memory.in_status(status.model_copy(update={"notices": notices or None}))
        return status if self.ended_at else self.run_state.with_requests(status)


def _pin_request(given: QueryInput) -> PinRequest:
    return PinRequest(
        kind="query",
        workflow="query",
        name=given.name,
        namespace=given.namespace,
        spec=given.spec,
        resources=given.resources,
    )
