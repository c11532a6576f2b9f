"""The state that all parts of a run share: stop request, inbox, decisions, session, and where activities run."""

import asyncio

from temporalio import workflow
from temporalio.common import Priority

from ...conversation.contracts.decisions import shown
from ...conversation.contracts.inputs import QueryInput, TurnInput
from ...conversation.contracts.requests import TaskQueues
from ...conversation.contracts.status import Status
from .cancellation import StopState
from .constants import MAX_CONCURRENT_ACTIVITIES
from .current_details import CurrentDetails
from .decisions import Decisions
from .errors import ActivityInterrupted
from .inbox import Inbox
from .metrics import wait_begins, wait_ends
from .run_trace import RunTrace
from .session_state import SessionState


class RunState:
    """Made once for each run, and handed to whatever acts for it.

    ``task_queues`` and the beginning of the ``question`` are known as soon as the run is pinned; ``started_at`` is when
    the first run of the chain began.
    """

    def __init__(self) -> None:
        self.stop, self.inbox, self.session = StopState(), Inbox(), SessionState()
        self.details, self.task_queues = CurrentDetails(), TaskQueues()
        self.trace = RunTrace()
        self.decisions = Decisions(self.stop, self.trace)
        self.activity_slots = asyncio.Semaphore(MAX_CONCURRENT_ACTIVITIES)
        self.started_at = workflow.info().start_time
        self.question = ""

    def begin(self, given: QueryInput | TurnInput) -> None:
        """Takes up what the run was given at its start, before any signal or update."""
        self.session.update(given.session)
        if isinstance(given, TurnInput):
            self.stop.restore(given.stop)
            self.inbox.pause = given.pause

    def check_stop(self) -> None:
        """Raises ActivityInterrupted if the run is to stop now."""
        if self.stop.now:
            raise ActivityInterrupted

    async def ready(self) -> None:
        """Waits while the run is paused; raises ActivityInterrupted if it is to stop now."""
        if self.inbox.pause and not self.stop.reason:
            with self.trace.inside(self.trace.new_wait("pause")):
                await self.trace.report()
                await self._resumed()
        else:
            await self._resumed()
        self.check_stop()

    async def _resumed(self) -> None:
        held, since = bool(self.inbox.pause and not self.stop.reason), workflow.now()
        if held:
            wait_begins("pause")
        try:
            await workflow.wait_condition(lambda: self.stop.reason is not None or not self.inbox.pause)
        finally:
            if held:
                wait_ends("pause", since, "stopped" if self.inbox.pause else "resumed")

    def with_requests(self, status: Status) -> Status:
        """The status of a run that goes on, with what people asked for: a pause, a session, messages that wait."""
        session, waiting = self.session.values or None, self.inbox.waiting or None
        asked = {"paused": self.inbox.pause, "session": session, "waiting": waiting}
        pending, below = shown(self.decisions.pending), self.decisions.waiting_below
        phase = {"phase": "InputRequired"} if pending or below else {}
        return status.model_copy(
            update={**asked, **phase, "pending_decisions": pending or None, "waiting_runs": below or None}
        )

    @property
    def priority(self) -> Priority:
        """The priority of the run's activities and children; what it leaves open is inherited from the run.

        A run without a tenant shares fairly with others under the end of its run id, which its children inherit.
        """
        info = workflow.info()
        own = None if info.priority.fairness_key else info.first_execution_run_id[-8:]
        return Priority(priority_key=self.task_queues.priority, fairness_key=self.task_queues.tenant or own)
