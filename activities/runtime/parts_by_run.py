"""Executes Baton's activities with parts that are opened after the worker was created, or that differ by run."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ...contracts.errors import ProgramMissing
from ...temporal.activity import workflow_id

RETRY_INTERVAL = 1.0
"""Seconds after which a declined activity is attempted again, in a process that may have registered the run."""


def declined(run: str) -> ApplicationError:
    """The error for an activity that this process can't execute. The run waits, as for the end of an outage."""
    root = run.partition("/")[0]
    text = f"no running program executes {root}: attach to it with the functions and keys that it uses"
    return ProgramMissing(text).with_details({"wait": RETRY_INTERVAL})


@dataclass(frozen=True)
class ActivityParts:
    """Baton's activities by their types, and the interceptors around them, the outermost first."""

    by_type: Mapping[str, Callable[..., Any]]
    interceptors: Sequence[Interceptor]


class PartsByRun(Interceptor):
    """Dispatches activities to the parts of their run, and those of unregistered runs to ``others``.

    Unregistered runs of the task queue are those that another process has started. Without ``others`` their activities
    are declined, and wait until their run is registered. Activities that are not Baton's are executed as they are.
    """

    def __init__(self, others: ActivityParts | None = None) -> None:
        self.others = others
        self._by_run: dict[str, list[ActivityParts]] = {}

    @contextlib.contextmanager
    def registered(self, run: str, parts: ActivityParts) -> Iterator[None]:
        """While the block runs, ``parts`` execute the activities of a run, by its workflow id, and of its children."""
        of_run = self._by_run.setdefault(run, [])
        of_run.append(parts)
        try:
            yield
        finally:
            of_run.remove(parts)
            if not of_run:
                del self._by_run[run]

    def find(self, run: str) -> ActivityParts | None:
        """The parts of a run, or of its nearest ancestor: a child's workflow id begins with that of its parent."""
        steps = run.split("/")
        ancestors = ("/".join(steps[:count]) for count in range(len(steps), 0, -1))
        return next((self._by_run[ancestor][0] for ancestor in ancestors if ancestor in self._by_run), self.others)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        """The activities, dispatched to the parts of their runs."""
        return _ActivitiesOfRuns(super().intercept_activity(next), self)


class _ActivitiesOfRuns(ActivityInboundInterceptor):
    def __init__(self, next_interceptor: ActivityInboundInterceptor, runs: PartsByRun) -> None:
        super().__init__(next_interceptor)
        self._runs = runs

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        parts = self._runs.find(workflow_id())
        if parts is None:
            raise declined(workflow_id())
        function = parts.by_type.get(activity.info().activity_type)
        if function is None:
            return await super().execute_activity(input)
        input.fn = function
        inbound = self.next
        for interceptor in reversed(parts.interceptors):
            inbound = interceptor.intercept_activity(inbound)
        return await inbound.execute_activity(input)
