"""The timeout of a query: when it is over, and what it has ended."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from temporalio import workflow

from ..conversation.errors import QueryTimeout
from ..conversation.failure import Cause, Failure
from .calls import effects
from .state.constants import TIMEOUT_CAUSE
from .state.run_state import RunState


class Deadline:
    """The time ``at`` which a query is over; None without a timeout."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.at: datetime | None = None
        self._timeout = 0.0
        self._causes: dict[str, Cause] = {}

    def begin(self, timeout: float | None, at: datetime | None = None) -> None:
        """The timeout in seconds begins now, or in a run that continues another ends ``at`` the time that is known."""
        self._timeout = timeout or 0.0
        self.at = at if timeout is None or at else workflow.now() + timedelta(seconds=timeout)

    @property
    def left(self) -> timedelta | None:
        """The time until then; None without a timeout."""
        return max(timedelta(), self.at - workflow.now()) if self.at else None

    async def look_for_causes(self, runs: Sequence[str]) -> None:
        """What has failed last in the runs that the timeout ends, which nobody can tell afterwards."""
        if runs and workflow.patched(TIMEOUT_CAUSE):
            self._causes = await effects.last_failures(self._run, tuple(runs))

    def failure(self, run: str | None = None) -> Failure | None:
        """The failure of a target that answered in ``run``, or of the query, if the timeout has ended it."""
        if self._run.stop.reason != "timeout":
            return None
        cause = self._causes.get(run) if run else next(iter(self._causes.values()), None)
        text = f"the query took longer than its timeout of {self._timeout:g} s"
        if cause is None:
            return QueryTimeout(text).as_failure()
        last = f"{text}; attempt {cause.attempts} failed with {cause.type}: {cause.message}"
        return QueryTimeout(last).as_failure().model_copy(update={"cause": cause})
