"""Tracing of a worker: whether it exports spans, and the interceptors that trace its activities."""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ..contracts.errors import BatonError
from ..contracts.requests import PinRequest
from ..contracts.trace import SpanData, TraceContext, derived_id, root_of
from ..installation import require
from ..temporal.activity import is_last_attempt, is_withdrawn, key_of
from ..temporal.personal_data import PersonalData
from ..temporal.threads import COMPUTING
from .spans import CallSpans, collecting

if TYPE_CHECKING:
    from .span_export import SpanProcessor

_ENABLING = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables, any of which enables traces."""


def span_processor(
    environment: Mapping[str, str],
    folder: Path,
    redact: Callable[[str], str],
    personal_data: PersonalData | None = None,
) -> "SpanProcessor | None":
    """The span processor of a worker; None if OpenTelemetry's variables disable traces. Raises SettingsError,
    and MissingExtraError without the extra `otel`.

    ``folder`` stores spans that are not exported yet. ``redact`` removes secrets from every text, and
    ``personal_data`` is redacted in contents of messages and in errors.
    """
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_disabled or environment.get("OTEL_TRACES_EXPORTER") == "none" or not any(map(environment.get, _ENABLING)):
        return None
    require("otel", "the export of traces")
    from .span_export import SpanProcessor  # noqa: PLC0415  # slow to import, and most workers don't need it

    return SpanProcessor(environment, folder, redact, personal_data)


_place: ContextVar[TraceContext | None] = ContextVar("place", default=None)


class TracedActivities(Interceptor):
    """Reports the spans of calls before the activity completes.

    If the worker crashes before that, the next attempt finds the result in the journal and reports the span itself,
    with the same id.
    """

    def __init__(self, processor: "SpanProcessor") -> None:
        self._processor = processor

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        return _TracedCalls(super().intercept_activity(next), self._processor)


class _TracedCalls(ActivityInboundInterceptor):
    def __init__(self, next_interceptor: ActivityInboundInterceptor, processor: "SpanProcessor") -> None:
        super().__init__(next_interceptor)
        self._processor = processor

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        place = TraceContext.in_headers(input.headers)
        _place.set(place)
        if activity.info().activity_type == "pin":
            return await self._pin(input)
        if place is None or not place.sampled or activity.info().is_local:
            return await super().execute_activity(input)
        calls = CallSpans(place, self._processor)
        try:
            with collecting(calls):
                result = await super().execute_activity(input)
        except (Exception, asyncio.CancelledError) as error:
            await self._report(calls, final=_is_final(error))
            raise
        await self._report(calls, final=True)
        return result

    async def _pin(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        """Pins a run, with the spans of what it calls; if that fails, the run has a span with the error."""
        request = input.args[0]
        if not isinstance(request, PinRequest) or request.thread or not run_is_sampled(self._processor):
            return await super().execute_activity(input)
        place = _place_of_run()
        query = derived_id(activity.info().workflow_run_id, request.kind)
        # A local activity that takes too long is followed by a regular one with another id, which makes the same calls.
        calls = CallSpans(place.below(query) if request.kind == "query" else place, self._processor, key_of("pin"))
        try:
            with collecting(calls):
                result = await super().execute_activity(input)
        except (Exception, asyncio.CancelledError) as error:
            await self._report(calls, final=_is_final(error))
            if isinstance(error, BatonError) and error.non_retryable:
                await self._processor.add([_refused(request, error)])
            raise
        await self._report(calls, final=True)
        return result

    async def _report(self, calls: CallSpans, *, final: bool) -> None:
        if any(call.content for call in calls.calls):  # contents may be long
            spans = await COMPUTING.run(calls.spans, final=final)
        else:
            spans = calls.spans(final=final)
        if spans:
            await self._processor.add(spans)


def run_is_sampled(processor: "SpanProcessor | None") -> bool:
    """Whether the run that the current activity pins is sampled (OTEL_TRACES_SAMPLER)."""
    return processor is not None and processor.exporter.samples(_place_of_run())


def _place_of_run() -> TraceContext:
    return _place.get() or root_of(activity.info().workflow_run_id or "")


def _refused(request: PinRequest, error: BatonError) -> SpanData:
    """The span of a run that could not be pinned."""
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
    """Whether no further attempt follows."""
    if isinstance(error, asyncio.CancelledError):
        return is_withdrawn()
    info = activity.info()
    ended = is_last_attempt(info.attempt, info.retry_policy) and not info.is_local  # a regular activity follows
    return isinstance(error, ApplicationError) and (error.non_retryable or ended)
