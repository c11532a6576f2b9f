"""The workflow type ``query``: puts a question to its targets, and joins their answers.

Several targets, and teams, answer in child workflows; a single agent, model or tool takes its turn in the query's run.
"""

import asyncio

from pydantic import JsonValue
from temporalio import workflow

from ..conversation.contracts.continuation import Continuation, QueryState
from ..conversation.contracts.control_messages import TerminateRequest
from ..conversation.contracts.inputs import QueryInput, TurnInput
from ..conversation.contracts.plan import QueryPlan, TargetPlan
from ..conversation.contracts.requests import Pinned
from ..conversation.contracts.status import Status, query_status, truncated_for_status
from ..conversation.failure import Failure
from ..conversation.messages.message import Head, Span
from ..conversation.messages.turn import Thread, TurnResult
from ..resources.base import JsonObject
from .base.base_workflow import BaseWorkflow
from .base.client_status import for_client
from .base.pin_request import pin_request
from .calls import effects, run_traces
from .calls.expiry import start_expiry
from .query_memory import QueryMemory, error_message, said_by_targets
from .query_timeout import Deadline
from .query_turn import QueryTurn
from .state.cancellation import run_in_scope, take_up_cancellation, wait_all
from .state.constants import MAX_CONCURRENT_CHILDREN, MESSAGES_JOIN_QUERY
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
        self.turn = QueryTurn(self.run_state, self.children)
        self.shown = 0
        self.deadline = Deadline(self.run_state)
        self.failure: Failure | None = None
        self.unasked: Head | None = None
        self.memory = QueryMemory(self.run_state)

    @workflow.run
    async def run(self, *given: JsonValue) -> Status | JsonObject:
        try:
            await self._begin_and_ask()
            await self._join_messages_to_answer()
            await self._remember()
        except ContinueAsNew:
            await self.settle()
            await run_traces.end_trace(self.run_state)
            take_up_cancellation(self.run_state.stop)
            continue_as_new(self.given.continued_with(self.continuation(self._state())))
        except ActivityFailed as failed:
            self.failure = failed.failure
        self.ended_at = workflow.now()
        status = self._status()
        self.run_state.details.show_status(status)
        await start_expiry(self.plan.ttl)
        await run_traces.end_trace(self.run_state, status)
        self.close(status, result := for_client(status, self._pinned))
        return result

    async def _begin_and_ask(self) -> None:
        stop = self.run_state.stop
        try:
            if self.is_continued() and self.given.carried:
                self._restore_answers(self.given.carried)
            else:
                self.begin(await run_in_scope(stop, effects.pin(self.run_state, pin_request(self.given))))
            await run_in_scope(stop, self._recall_and_ask(), self.deadline.left, self._look_for_causes)
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
        self.deadline.begin(self.plan.timeout)
        if self.plan.cancel:
            self.run_state.stop.request("canceled", TerminateRequest(reason="spec.cancel is true", now=True))
            raise ActivityInterrupted

    def _state(self) -> QueryState:
        """What the next run needs."""
        state = QueryState(kind="query", answers=self.answers, until=self.deadline.at, recalled=self.memory.recalled)
        return state.model_copy(update={"turn": self.turn.state} if self.turn.begun else {})

    def _restore_answers(self, continuation: Continuation) -> None:
        plan, state = continuation.pinned.plan, continuation.state
        assert isinstance(plan, QueryPlan)
        assert isinstance(state, QueryState)
        self.plan, self.answers = plan, dict(state.answers)
        self.turn.restore(state.turn)
        self.deadline.begin(plan.timeout, state.until)
        self.memory.restore(plan, state.recalled)

    async def _recall_and_ask(self) -> None:
        await self._ask_all(await self.memory.recall(self.pinned.thread))

    async def _ask_all(self, thread: Thread) -> None:
        """Waits for every target; a failure with failFast, or the end of the query, cancels those still running. A long
        run asks no further target, waits for those that are asked, and continues as new."""
        waiting = [each for each in enumerate(self.plan.targets) if each[0] not in self.answers]
        tasks = [asyncio.create_task(self._ask(index, target, thread)) for index, target in waiting]
        await wait_all(tasks, self._gives_up)
        for task in tasks:
            task.result()

    async def _ask(self, index: int, target: TargetPlan, thread: Thread) -> None:
        stop = self.run_state.stop
        turn = await (self.turn.take(target.turn, thread) if target.turn else self._ask_child(index, target, thread))
        if turn.stop_reason in ("canceled", "timeout") and stop.reason:
            failure = self.deadline.failure(self._run_of(index, target))
            turn = turn.model_copy(update={"stop_reason": stop.reason, "failure": failure})
        self.answers[index] = truncated_for_status(self.plan, turn)

    async def _ask_child(self, index: int, target: TargetPlan, thread: Thread) -> TurnResult:
        given = TurnInput.model_validate({target.type: target.name, "namespace": target.namespace, "thread": thread})
        return await self.children.execute(target.workflow, given, _place(index), thread.head, continues=True)

    async def _join_messages_to_answer(self) -> None:
        """What people said too late for any target joins the conversation of the last one; if no target was asked, or
        no manifest was found, it begins a conversation of its own."""
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
        """The id of the run in which a target answers."""
        return workflow.info().workflow_id if target.turn else self.children.id_of(_place(index), target.name)

    def _gives_up(self) -> bool:
        """Whether an answer ends the query. With thousands of targets, not each answer is shown by itself."""
        if len(self.answers) - self.shown > len(self.plan.targets) // MAX_CONCURRENT_CHILDREN:
            self.shown = len(self.answers)
            self.run_state.details.show_status(self._status())
        return self.plan.fail_fast and any(turn.failure for turn in self.answers.values())

    async def _look_for_causes(self) -> None:
        await self.deadline.look_for_causes([workflow.info().workflow_id] if self.turn.begun else self.children.running)

    @workflow.query(description="How the query stands, or how it has ended.")
    def status(self) -> Status | JsonObject:
        """The status of the query (ARK: queries)."""
        return for_client(self._status(), self._pinned)

    def _status(self) -> Status:
        times, stop = (self.run_state.started_at, self.ended_at), self.run_state.stop
        failure = self.failure or self.deadline.failure()
        runs = [self._run_of(index, target) for index, target in enumerate(self.plan.targets)]
        owner = f"Query/{self.plan.namespace}/{self.plan.name}"
        plan = self.plan.model_copy(update={"budget": self.run_state.decisions.raised(owner, self.plan.budget)})
        status = query_status(plan, self.answers, times, reason=stop.reason, note=stop.note, failure=failure, runs=runs)
        notices = self._pinned.notices if self._pinned else ()
        status = self.memory.in_status(status.model_copy(update={"notices": notices or None}))
        status = status if self.answers else self.turn.in_status(status)
        return status if self.ended_at else self.run_state.with_requests(status)


def _place(index: int) -> str:
    """The place of a target's child workflow."""
    return f"target-{index + 1}"
