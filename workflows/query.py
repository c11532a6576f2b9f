"""The workflow ``query``: puts a question to its targets, each in a child run, and gathers what they answer."""

import asyncio
from datetime import datetime, timedelta

from pydantic import JsonValue
from temporalio import workflow

from ..conversation.contracts.continuation import Carried, QueryState
from ..conversation.contracts.inputs import QueryInput, TurnInput
from ..conversation.contracts.plan import QueryPlan, TargetPlan
from ..conversation.contracts.requests import Pinned, PinRequest
from ..conversation.contracts.status import Status, fitted, query_status
from ..conversation.errors import QueryTimeout
from ..conversation.failure import Failure
from ..conversation.messages.turn import Thread, Turn
from .base.base_workflow import Run, close
from .calls import effects
from .calls.execute_activity import Failed, Interrupted
from .state.cancellation import finish
from .state.continue_as_new import WIDTH, Rest, go_on
from .state.current_details import show_status


@workflow.defn(name="query")
class Query(Run[QueryInput]):
    """Asks all targets at once and closes with their status (seed 003, Detailed Sequence Diagram)."""

    takes = QueryInput

    @workflow.init
    def __init__(self, *given: JsonValue) -> None:
        self.plan = QueryPlan(kind="query", targets=())
        self.answers: dict[int, Turn] = {}
        self.shown = 0
        self.until: datetime | None = None
        self.failure: Failure | None = None
        super().__init__(*given)

    @workflow.run
    async def run(self, *given: JsonValue) -> Status:
        try:
            if not self.goes_on():
                self.begin(await self.stop.guard(effects.pin(_pin_request(self.given))))
            left = max(timedelta(), self.until - workflow.now()) if self.until else None
            await self.stop.guard(self._ask_all(self.pinned.thread), left)
        except Rest:
            state = QueryState(kind="query", answers=self.answers, until=self.until)
            go_on(self.given.going_on(self.carried(state)))
        except (Interrupted, asyncio.CancelledError):
            workflow.logger.info("stopped before anybody was asked")
        except Failed as failed:
            self.failure = failed.failure
        self.end = workflow.now()
        status = self.status()
        show_status(status)
        self.finish(status)
        close(status, status)
        return status

    def begin(self, pinned: Pinned) -> None:
        """Takes up what is asked of the query; its time begins."""
        super().begin(pinned)
        assert isinstance(pinned.plan, QueryPlan)
        self.plan = pinned.plan
        self.until = workflow.now() + timedelta(seconds=self.plan.timeout) if self.plan.timeout is not None else None

    def resume(self, carried: Carried) -> None:
        """Takes up what the run before this one was asked, and has heard."""
        super().resume(carried)
        assert isinstance(carried.pinned.plan, QueryPlan)
        assert isinstance(carried.state, QueryState)
        self.plan, self.answers, self.until = carried.pinned.plan, dict(carried.state.answers), carried.state.until

    async def _ask_all(self, thread: Thread) -> None:
        """Waits for every target; a failure with failFast, or an end of the query, gives up those still asked.

        Where the run becomes long it asks nobody else, waits for those who are asked, and goes on in a new one.
        """
        left = [each for each in enumerate(self.plan.targets) if each[0] not in self.answers]
        tasks = [asyncio.create_task(self._ask(index, target, thread)) for index, target in left]
        await finish(tasks, self._gives_up)
        for task in tasks:
            task.result()

    async def _ask(self, index: int, target: TargetPlan, thread: Thread) -> None:
        given = TurnInput.model_validate({target.type: target.name, "namespace": target.namespace, "thread": thread})
        turn = await self.children.take(target.workflow, given, f"target-{index + 1}", thread.head, rests=True)
        if turn.stop_reason == "canceled" and self.stop.reason:
            turn = turn.model_copy(update={"stop_reason": self.stop.reason, "failure": self._overdue()})
        self.answers[index] = fitted(self.plan, turn)

    def _gives_up(self) -> bool:
        """Whether an answer ends the query. Of thousands not each is shown by itself: that would take its time."""
        if len(self.answers) - self.shown > len(self.plan.targets) // WIDTH:
            self.shown = len(self.answers)
            show_status(self.status())
        return self.plan.fail_fast and any(turn.failure for turn in self.answers.values())

    def _overdue(self) -> Failure | None:
        if self.stop.reason != "timeout":
            return None
        return QueryTimeout(f"the query took longer than its timeout of {self.plan.timeout:g} s").as_failure()

    @workflow.query(description="How the query stands, or how it has ended.")
    def status(self) -> Status:
        """The status of seed 003, System Outputs."""
        times = self.since, self.end
        stop = self.stop
        return query_status(
            self.plan, self.answers, times, reason=stop.reason, note=stop.note, failure=self.failure or self._overdue()
        )


def _pin_request(given: QueryInput) -> PinRequest:
    return PinRequest(
        kind="query",
        workflow="query",
        name=given.name,
        namespace=given.namespace,
        spec=given.spec,
        resources=given.resources,
    )
