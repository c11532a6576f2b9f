"""Notifications about a query's run: each event is delivered by a child workflow that may outlive the run."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ChildWorkflowError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from ...contracts.decisions import PendingDecision
from ...contracts.plan import QueryPlan
from ...contracts.requests import NotifyInput, NotifyRequest, NotifyResult, Pinned
from ...contracts.status import Status
from ...contracts.text import format_time, truncate
from ...resources.base import JsonObject
from ...resources.query import NotifyEvent
from ...temporal.client import WORKFLOW_TASK_TIMEOUT
from ..state.stopping import uncancelled
from .activities import HEARTBEAT_TIMEOUT

MAX_TEXT = 16_000
"""Bytes of an answer, an error or a question in an event."""

ENDED = ("phase", "stopReason", "note", "error", "message", "startTime", "completionTime", "tokenUsage")
"""The fields of a status that ``ended`` has."""

DELIVERY_TIME = timedelta(hours=20)
"""How long a delivery is attempted: less than a day, the shortest time for which Temporal keeps the run."""


class Notifications:
    """Sends events about a query's run to the webhooks of its manifest. Without any it adds nothing to the history."""

    def __init__(self) -> None:
        self._plan = QueryPlan(kind="query", targets=())
        self._catalog = ""
        self._starting: list[asyncio.Task[None]] = []

    def begin(self, pinned: Pinned) -> None:
        """Takes the webhooks from the plan."""
        assert isinstance(pinned.plan, QueryPlan)
        self._plan = pinned.plan
        self._catalog = pinned.thread.catalog

    def send(self, kind: NotifyEvent, data: Callable[[], JsonObject]) -> None:
        """Begins to deliver an event, for which the run does not wait. A failure does not concern the run.

        ``data`` is called only if a webhook receives the event.
        """
        hooks = tuple(index for index, events in enumerate(self._plan.notify) if kind in events)
        if hooks:
            event = self._event(kind, data())
            query = f"Query/{self._plan.namespace}/{self._plan.name}"
            given = NotifyInput(catalog=self._catalog, query=query, hooks=hooks, event=event)
            self._starting.append(asyncio.create_task(_start(given, kind)))

    async def settle(self) -> None:
        """Waits until the child workflows have started, even during cancellation: then no event is lost."""
        for task in self._starting:
            await uncancelled(task)
        self._starting.clear()

    def _event(self, kind: NotifyEvent, data: JsonObject) -> JsonObject:
        """A CloudEvent 1.0. Its id is that of the message to each webhook, at all attempts."""
        info = workflow.info()
        run: JsonObject = {"run": info.workflow_id, "query": self._plan.name, "namespace": self._plan.namespace}
        return {
            "specversion": "1.0",
            "id": str(workflow.uuid4()),
            "source": f"/namespaces/{self._plan.namespace}/queries/{self._plan.name}",
            "type": f"baton.run.{kind}",
            "subject": info.workflow_id,
            "time": format_time(workflow.now()),
            "datacontenttype": "application/json",
            "data": {**run, **data},
        }


def waiting_data(pending: Sequence[PendingDecision], runs: Sequence[str]) -> JsonObject:
    """The data of ``waiting``: the decisions that the run itself waits for, and its child runs that wait."""
    decisions: list[JsonObject] = []
    for decision in pending:
        known = {"tool": decision.tool, "question": truncate(decision.question or "", MAX_TEXT)}
        own: JsonObject = {"id": decision.id, "kind": decision.kind, "speaker": decision.speaker}
        decisions.append({**own, **{name: value for name, value in known.items() if value}})
    return {"phase": "InputRequired", "decisions": [*decisions], "runs": [*runs]}


def ended_data(status: Status) -> JsonObject:
    """The data of ``ended``: the end of the status, with a long answer truncated."""
    data = {
        name: value for name, value in status.model_dump(mode="json").items() if name in ENDED and value is not None
    }
    return {name: truncate(value, MAX_TEXT) if isinstance(value, str) else value for name, value in data.items()}


async def _start(given: NotifyInput, kind: NotifyEvent) -> None:
    try:
        child = await workflow.start_child_workflow(
            "notify",
            given,
            id=f"notify/{given.event['id']}",  # not the run's id, which a reset changes
            result_type=NotifyResult,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            cancellation_type=ChildWorkflowCancellationType.ABANDON,
            parent_close_policy=ParentClosePolicy.ABANDON,
            static_summary=f"{kind} · {workflow.info().workflow_id}"[:400],
        )
    except ChildWorkflowError as error:
        workflow.logger.warning("a notification was not sent: %s", error)
        return
    child.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else reads it


async def notify(request: NotifyRequest) -> NotifyResult:
    """Sends an event to a webhook, with retries until it has accepted it or DELIVERY_TIME is over."""
    result: NotifyResult = await workflow.execute_activity(
        "notify",
        request,
        result_type=NotifyResult,
        summary=f"webhook {request.hook + 1}",
        start_to_close_timeout=timedelta(minutes=1),
        schedule_to_close_timeout=DELIVERY_TIME,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=30)),
    )
    return result
