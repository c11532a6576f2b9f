"""The spans of a run: open ones, and ended ones that are not reported yet."""

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime

from pydantic import JsonValue
from temporalio import workflow

from ...contracts.errors import Failure
from ...contracts.plan import QueryPlan
from ...contracts.requests import Pinned
from ...contracts.trace import OpenSpan, SpanData, TraceContext, derived_id, root_of
from .constants import MAX_ENDED_SPANS, REPORT_INTERVAL, TAKE_SPANS
from .stopping import ActivityFailed, ActivityInterrupted

_current: ContextVar[str] = ContextVar("span")

CANCELED = "canceled"
"""The ``error.type`` of a span that was canceled or stopped before its end."""


@dataclass
class RunSpan:
    """A span that is open. ``error`` is its ``error.type`` if it fails."""

    id: str
    name: str
    start: datetime
    attributes: dict[str, JsonValue] = field(default_factory=lambda: dict[str, JsonValue]())
    error: str | None = None
    message: str = ""

    def finish(self, reason: str | None, failure: Failure | None) -> None:
        """Records how a turn or a run has stopped."""
        self.attributes["baton.stop_reason"] = reason
        if failure:
            self.error = failure.type
            self.message = failure.message
        elif reason == CANCELED:
            self.error = CANCELED

    @property
    def open(self) -> OpenSpan:
        """The span as the next run needs it to end it."""
        return OpenSpan(id=self.id, start=self.start)


class RunTrace:
    """One run's part of a trace. Workflow code only collects spans; the worker exports them.

    Ids are derived from those of the run, so a span that is reported twice after a worker crash has the same id.
    """

    def __init__(self) -> None:
        info = workflow.info()
        self.run_id = info.run_id
        self._first_run = info.first_execution_run_id
        self._origin = TraceContext.in_headers(info.headers)
        self._root = self._origin or root_of(self._first_run)
        self._is_pinned = False
        self.is_on = False
        self._count = 0
        self._ended: list[SpanData] = []
        self._reported_at = info.start_time
        self.run_span: RunSpan | None = None

    def begin(self, pinned: Pinned, since: datetime) -> None:
        """Begins or continues the trace of a pinned run. A query has its own span."""
        self._is_pinned = True
        self.is_on = pinned.traced
        plan = pinned.plan
        if isinstance(plan, QueryPlan):
            conversation = plan.conversation.id if plan.conversation else workflow.info().workflow_id
            self._root = replace(self._root, conversation=conversation)
            self.run_span = self.new_span(f"invoke_workflow {plan.name or ''}".strip(), "query", since=since)
            name_attribute: dict[str, JsonValue] = {"gen_ai.workflow.name": plan.name} if plan.name else {}
            self.run_span.attributes = {"gen_ai.operation.name": "invoke_workflow", **name_attribute}

    @property
    def origin(self) -> TraceContext | None:
        """The trace context with which the run was started, for the run that continues it."""
        return self._origin

    @property
    def here(self) -> TraceContext | None:
        """The trace context for what the current task starts. Until a run is pinned, it may turn out to be untraced."""
        if not self._is_pinned:
            return self._origin
        span = _current.get(self.run_span.id if self.run_span else None)
        place = self._root.below(span) if span else self._root
        return replace(place, sampled=self.is_on, conversation=self._conversation)

    @property
    def _conversation(self) -> str:
        return self._root.conversation or workflow.info().workflow_id

    def new_span(
        self, name: str, *key: object, since: datetime | None = None, open_: OpenSpan | None = None
    ) -> RunSpan:
        """A span that begins now or at ``since``, or that an earlier run has begun (``open_``).

        With a ``key`` it has the same id in every run of the chain.
        """
        if open_:
            return RunSpan(open_.id, name, open_.start)
        self._count += 1
        span_id = derived_id(self._first_run, *key) if key else derived_id(self.run_id, self._count)
        return RunSpan(span_id, name, since or workflow.now())

    def new_wait(self, reason: str, *key: object, since: datetime | None = None) -> RunSpan:
        """The span of a wait, such as for ``approval``, ``question`` or ``budget``, or in a ``pause``."""
        span = self.new_span(f"wait {reason}", *key, since=since)
        span.attributes["baton.wait.reason"] = reason
        return span

    @contextlib.contextmanager
    def inside(self, span: RunSpan) -> Iterator[RunSpan]:
        """Makes the span the parent of what the block starts, and ends it after the block."""
        parent = self.here
        token = _current.set(span.id)
        leaves_memory = False
        try:
            yield span
        except GeneratorExit:  # the run is evicted from the worker's cache, in another context than its own
            leaves_memory = True
            raise
        except ActivityFailed as failed:
            span.error = failed.failure.type
            span.message = failed.failure.message
            self.end(span, parent)
            raise
        except (ActivityInterrupted, asyncio.CancelledError):
            span.error = CANCELED
            self.end(span, parent)
            raise
        else:
            self.end(span, parent)
        finally:
            if not leaves_memory:
                _current.reset(token)

    def end(self, span: RunSpan, parent: TraceContext | None = None) -> None:
        """Ends a span below ``parent``, by default the trace context with which the run was started."""
        if not self.is_on:
            return
        above = parent or self._origin
        self._ended.append(
            SpanData.model_construct(
                trace=self._root.trace,
                id=span.id,
                parent=above.span if above else None,
                state=self._root.state,
                name=span.name,
                start=span.start,
                end=workflow.now(),
                error=span.error,
                message=span.message,
                attributes={"gen_ai.conversation.id": self._conversation, **span.attributes},
            )
        )
        if len(self._ended) >= MAX_ENDED_SPANS or workflow.now() - self._reported_at >= REPORT_INTERVAL:
            self.report()

    def report(self) -> None:
        """Passes the ended spans to the worker, which exports them; during replay it has received them already."""
        ended = self._ended
        self._ended = []
        self._reported_at = workflow.now()
        take = workflow.extern_functions().get(TAKE_SPANS)
        if ended and take and not workflow.unsafe.is_replaying():
            take(ended)
