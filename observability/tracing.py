"""Tracing of a worker: which spans it exports, and the interceptors that trace its activities."""

import asyncio
import contextlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ..temporal.activity import is_last_attempt, is_withdrawn
from .spans import CallSpans, collecting

if TYPE_CHECKING:
    from .span_export import SpanExport

_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WANTED = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

log = logging.getLogger("baton")


def tracing_of(environment: Mapping[str, str], folder: Path, redact: Callable[[str], str]) -> "Tracing":
    """What reports the spans of a worker, if they are asked for. Raises SettingsError.

    ``folder`` has what is not exported yet. ``redact`` removes secrets from every text.
    """
    if not _is_wanted(environment):
        return Tracing(None)
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        log.warning("no traces are reported, though OTEL_… asks for them: install opentelemetry-sdk")
        return Tracing(None)
    from .span_export import SpanExport  # noqa: PLC0415  # of the extra `otel`

    return Tracing(SpanExport.of(environment, folder, redact), captures_content=_captures(environment))


class Tracing:
    """Reports spans; without an ``export`` it does nothing. No call and no run fails because of that."""

    def __init__(self, export: "SpanExport | None", *, captures_content: bool = False) -> None:
        self._export, self.captures_content = export, captures_content

    @property
    def is_on(self) -> bool:
        """Whether spans are reported."""
        return self._export is not None

    def samples(self, place: TraceContext) -> bool:
        """Whether the sampler takes a run that begins at this place."""
        return self._export is not None and self._export.exporter.samples(place)

    @contextlib.contextmanager
    def attached(self, place: TraceContext) -> Iterator[None]:
        """Makes it the place of whatever libraries do in the block."""
        with self._export.exporter.attached(place) if self._export else contextlib.nullcontext():
            yield

    def headers(self, place: TraceContext) -> dict[str, str]:
        """The headers that hand a place on."""
        return self._export.exporter.headers(place) if self._export else {}

    async def report(self, spans: Sequence[SpanData]) -> None:
        """Takes spans over. When it returns, not even the death of this process loses them."""
        if self._export and spans:
            await self._export.add(spans)

    def take(self, spans: Sequence[SpanData]) -> None:
        """The same in a thread that is not the event loop's: that of a workflow."""
        if self._export:
            self._export.take(spans)

    async def close(self) -> None:
        """Exports what is left."""
        if self._export:
            await self._export.close()


def _is_wanted(environment: Mapping[str, str]) -> bool:
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and environment.get("OTEL_TRACES_EXPORTER") != "none" and any(map(environment.get, _WANTED))


def _captures(environment: Mapping[str, str]) -> bool:
    return environment.get(_CAPTURE, "").lower() in ("true", "1", "span_only", "span_and_event")


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
