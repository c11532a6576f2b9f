"""The workflow ``query``: puts a question to its targets, each in a child run, and gathers what they answer."""

import asyncio
from datetime import timedelta

from pydantic import JsonValue
from temporalio import workflow

from conversation.errors import Failure, QueryTimeout
from conversation.plan import QueryPlan, TargetPlan
from conversation.requests import PinRequest
from conversation.status import Status, query_status
from conversation.turn import QueryInput, Thread, Turn, TurnInput
from workflows import effects
from workflows.details import show_status
from workflows.effects import Failed, Interrupted
from workflows.run import Run, close, received
from workflows.stopping import finish


@workflow.defn(name="query")
class Query(Run):
    """Asks all targets at once and closes with their status (seed 003, Detailed Sequence Diagram)."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = QueryPlan(kind="query", targets=())
        self.answers: dict[int, Turn] = {}
        self.failure: Failure | None = None

    @workflow.run
    async def run(self, *given: JsonValue) -> Status:
        try:
            request = received(given, QueryInput)
            self.session.put(request.session)
            pinned = await self.stop.guard(effects.pin(_pin_request(request)))
            self.begin(pinned)
            assert isinstance(pinned.plan, QueryPlan)
            self.plan = pinned.plan
            limit = None if self.plan.timeout is None else timedelta(seconds=self.plan.timeout)
            await self.stop.guard(self._ask_all(pinned.thread), limit)
        except (Interrupted, asyncio.CancelledError):
            workflow.logger.info("stopped before anybody was asked")
        except Failed as failed:
            self.failure = failed.failure
        self.end = workflow.now()
        status = self.status()
        self.finish(status)
        close(status, status)
        return status

    async def _ask_all(self, thread: Thread) -> None:
        """Waits for every target; a failure with failFast, or an end of the query, gives up those still asked."""
        tasks = [
            asyncio.create_task(self._ask(index, target, thread)) for index, target in enumerate(self.plan.targets)
        ]
        await finish(tasks, lambda: self.plan.fail_fast and any(turn.failure for turn in self.answers.values()))
        for task in tasks:
            task.result()

    async def _ask(self, index: int, target: TargetPlan, thread: Thread) -> None:
        given = TurnInput.model_validate({target.type: target.name, "namespace": target.namespace, "thread": thread})
        turn = await self.children.take(target.workflow, given, f"target-{index + 1}", thread.head)
        if turn.stop_reason == "canceled" and self.stop.reason:
            turn = turn.model_copy(update={"stop_reason": self.stop.reason, "failure": self._overdue()})
        self.answers[index] = turn
        show_status(self.status())

    def _overdue(self) -> Failure | None:
        if self.stop.reason != "timeout":
            return None
        return QueryTimeout(f"the query took longer than its timeout of {self.plan.timeout:g} s").as_failure()

    @workflow.query(description="How the query stands, or how it has ended.")
    def status(self) -> Status:
        """The status of seed 003, System Outputs."""
        times = workflow.info().start_time, self.end
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
