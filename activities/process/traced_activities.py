"""Reports the calls of each activity as spans, before the activity's result goes to Temporal."""

import asyncio
from contextvars import ContextVar
from datetime import UTC, datetime

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ...conversation.contracts.requests import PinRequest
from ...conversation.contracts.traces import SpanData
from ...conversation.failure import BatonError
from ...conversation.temporal.trace_context import TraceContext, derived_id, root_of
from ..runtime.call_spans import CallSpans, collecting
from ..runtime.heartbeat import is_withdrawn
from ..runtime.retry import is_last_attempt
from .tracing import Tracing

_place: ContextVar[TraceContext | None] = ContextVar("place", default=None)


class TracedActivities(Interceptor):
    """Reports a call before its result can be lost with the worker: an attempt that dies before that is followed by
    another one, which finds the result in the journal and reports the span itself, with the same id."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        return _TracedCalls(super().intercept_activity(next), self._tracing)


class _TracedCalls(ActivityInboundInterceptor):
    def __init__(self, next_interceptor: ActivityInboundInterceptor, tracing: Tracing) -> None:
        super().__init__(next_interceptor)
        self._tracing = tracing

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        place = TraceContext.in_headers(input.headers)
        _place.set(place)
        if activity.info().activity_type == "pin":
            return await self._pin(input)
        if place is None or not place.sampled or activity.info().is_local:
            return await super().execute_activity(input)
        made = CallSpans(place, self._tracing)
        try:
            with collecting(made):
                result = await super().execute_activity(input)
        except (Exception, asyncio.CancelledError) as error:
            await self._report(made, final=_is_final(error))
            raise
        await self._report(made, final=True)
        return result

    async def _pin(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        """Pins a run; one that can't be pinned has no other span than this one, which says why."""
        try:
            return await super().execute_activity(input)
        except BatonError as error:
            request = input.args[0]
            if error.non_retryable and isinstance(request, PinRequest) and run_is_sampled(self._tracing):
                await self._tracing.report([_refused(request, error)])
            raise

    async def _report(self, made: CallSpans, *, final: bool) -> None:
        if any(each.content for each in made.calls):
            spans = await asyncio.to_thread(made.spans, final=final)
        else:
            spans = made.spans(final=final)
        await self._tracing.report(spans)


def run_is_sampled(tracing: Tracing) -> bool:
    """Whether the run that the running activity pins is to report its spans (OTEL_TRACES_SAMPLER)."""
    return tracing.samples(_place_of_run())


def _place_of_run() -> TraceContext:
    return _place.get() or root_of(activity.info().workflow_run_id or "")


def _refused(request: PinRequest, error: BatonError) -> SpanData:
    """The span of a run that did not begin."""
    info, place = activity.info(), _place_of_run()
    operation = "invoke_agent" if request.kind in ("agent", "model") else "invoke_workflow"
    return SpanData(
        trace=place.trace,
        id=derived_id(info.workflow_run_id, request.kind),
        parent=place.span,
        state=place.state,
        name=f"{operation} {request.name or ''}".strip(),
        start=info.scheduled_time,
        end=datetime.now(UTC),
        error=error.type,
        message=error.message,
        attributes={"gen_ai.operation.name": operation},
    )


def _is_final(error: BaseException) -> bool:
    """Whether no attempt follows."""
    if isinstance(error, asyncio.CancelledError):
        return is_withdrawn()
    info = activity.info()
    ended = is_last_attempt(info.attempt, info.retry_policy)
    return isinstance(error, ApplicationError) and (error.non_retryable or ended)
