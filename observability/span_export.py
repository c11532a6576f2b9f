"""Exports spans with OpenTelemetry's SDK in the background, so that no call waits for a collector."""

import asyncio
import contextlib
import importlib.metadata
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from opentelemetry import context as otel_context
from opentelemetry import propagate
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SpanExporter as SdkExporter
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from pydantic import JsonValue

from ..contracts.settings import SettingsError, check_private_names
from ..contracts.trace import SpanData, TraceContext
from ..installation import version
from ..temporal.activity import in_thread_if_long
from ..temporal.encryption import Keys
from ..temporal.personal_data import PersonalData
from ..temporal.threads import COMPUTING
from .span_queue import SpanQueue

_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc", "http/json": "otlp_json_http"}
_KINDS = {"client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}


class SpanExporter:
    """Exports spans with OpenTelemetry's exporters; samples runs, and propagates trace contexts.

    Raises SettingsError for an exporter that is not installed, and for a version of the SDK that can't be used.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        check_private_names("opentelemetry-api", otel_context, ["_SUPPRESS_INSTRUMENTATION_KEY"])
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler  # only it knows the configured one
        self._resource = Resource.create({} if _is_named(environment) else {SERVICE_NAME: "baton"})
        self._scope = InstrumentationScope("baton", version())
        self._limits = SpanLimits()
        names = (environment.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")
        self._exporters = [_exporter(name.strip(), environment) for name in names]

    def samples(self, place: TraceContext) -> bool:
        """Whether a trace at this place is sampled (OTEL_TRACES_SAMPLER)."""
        result = self._sampler.should_sample(_context(place), int(place.trace, 16), "invoke_workflow")
        return result.decision is sampling.Decision.RECORD_AND_SAMPLE

    @contextlib.contextmanager
    def attached(self, place: TraceContext) -> Iterator[None]:
        """A context manager that makes the place OpenTelemetry's current context, for instrumented libraries."""
        token = otel_context.attach(_context(place) or otel_context.Context())
        try:
            yield
        finally:
            otel_context.detach(token)

    def headers(self, place: TraceContext) -> dict[str, str]:
        """The headers that propagate the place in a request (OTEL_PROPAGATORS)."""
        carrier = dict[str, str]()
        propagate.inject(carrier, _context(place))
        return carrier

    def export(self, spans: Sequence[SpanData]) -> bool:
        """Exports spans synchronously; whether an exporter has accepted them. Not thread-safe."""
        ended = [self._readable(span) for span in spans]
        # Instrumentation of the embedding program must not trace these requests.
        token = otel_context.attach(otel_context.set_value(otel_context._SUPPRESS_INSTRUMENTATION_KEY, True))
        try:
            return SpanExportResult.SUCCESS in [exporter.export(ended) for exporter in self._exporters]
        finally:
            otel_context.detach(token)

    def _readable(self, span: SpanData) -> ReadableSpan:
        """The span as an object of the SDK. It is not created by a tracer, which would choose its own ids."""
        attributes = {name: _value(value) for name, value in span.attributes.items() if value is not None}
        status = Status()
        if span.error:
            attributes["error.type"] = span.error
            status = Status(StatusCode.ERROR, span.message or None)
        place = TraceContext(span.trace, span.id, state=span.state)
        return ReadableSpan(
            name=span.name,
            context=_span_context(place, is_remote=False),
            parent=_span_context(place.below(span.parent), is_remote=True) if span.parent else None,
            resource=self._resource,
            attributes=BoundedAttributes(
                self._limits.max_span_attributes, attributes, max_value_len=self._limits.max_span_attribute_length
            ),
            kind=_KINDS[span.kind],
            status=status,
            start_time=_nanoseconds(span.start),
            end_time=max(_nanoseconds(span.end), _nanoseconds(span.start)),
            instrumentation_scope=self._scope,
        )

    def close(self) -> None:
        """Ends the running export, and shuts the exporters down."""
        for exporter in self._exporters:
            exporter.shutdown()


def _exporter(name: str, environment: Mapping[str, str]) -> SdkExporter:
    variable = "OTEL_TRACES_EXPORTER"
    if name == "otlp":
        variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
        protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(variable) or "http/protobuf"
        name = _PROTOCOLS.get(protocol, protocol)
    entry_points = importlib.metadata.entry_points(group="opentelemetry_traces_exporter", name=name)
    if not entry_points:
        raise SettingsError(f"{variable}: the exporter '{name}' is not installed")
    exporter: SdkExporter = next(iter(entry_points)).load()()
    return exporter


def _is_named(environment: Mapping[str, str]) -> bool:
    """Whether the environment names the service."""
    resource = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(environment.get("OTEL_SERVICE_NAME")) or f"{SERVICE_NAME}=" in resource


def _context(place: TraceContext) -> otel_context.Context | None:
    """The place as a context of OpenTelemetry's API; None for the root of a trace."""
    if place.span is None:
        return None
    return set_span_in_context(NonRecordingSpan(_span_context(place, is_remote=True)), otel_context.Context())


def _span_context(place: TraceContext, *, is_remote: bool) -> SpanContext:
    """The place as a span context of OpenTelemetry's API."""
    return SpanContext(
        trace_id=int(place.trace, 16),
        span_id=int(place.span or "0", 16),
        is_remote=is_remote,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if place.sampled else TraceFlags.DEFAULT),
        trace_state=TraceState.from_header([place.state]) if place.state else None,
    )


def _value(value: JsonValue) -> str | bool | int | float | list[str]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [str(item) for item in value]
    return value if isinstance(value, str | bool | int | float) else json.dumps(value, ensure_ascii=False)


def _nanoseconds(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000) * 1_000


_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

CLOSE_SECONDS = 5.0
"""Seconds for which a worker that shuts down exports remaining spans; another worker takes over the rest."""

LONGEST_PAUSE = 30.0
"""The maximum seconds between two export attempts while the collector rejects everything."""

DEFAULTS = {"OTEL_BSP_SCHEDULE_DELAY": 1_000, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": 512, "OTEL_BSP_MAX_QUEUE_SIZE": 2_048}
"""Milliseconds between two exports; maximum spans per export, and maximum queued spans."""

log = logging.getLogger("baton")


class SpanProcessor:
    """Queues the spans of a worker and exports them in the background, as OpenTelemetry's batch processor does.

    That processor loses its spans if the process crashes; this one also stores them in files in ``folder``. Failures
    never affect calls or runs. ``redact`` removes secrets from every text. Raises SettingsError.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        redact: Callable[[str], str],
        personal_data: PersonalData | None = None,
    ) -> None:
        max_spans = _number(environment, "OTEL_BSP_MAX_QUEUE_SIZE")
        self._batch = min(_number(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"), max_spans)
        self._size = self._batch  # smaller while the collector rejects spans
        self._interval = _number(environment, "OTEL_BSP_SCHEDULE_DELAY") / 1_000
        self._pause = self._interval  # longer while the collector rejects everything
        self.exporter = SpanExporter(environment)
        self.captures_content = environment.get(_CAPTURE, "").lower() in ("true", "1", "span_only", "span_and_event")
        self._queue = SpanQueue(folder, Keys.from_environment(environment), max_spans)
        self._redact = redact
        self._personal_data = personal_data
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="export-spans")
        self._loop = asyncio.get_running_loop()
        self._is_due = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._run())

    async def add(self, spans: Sequence[SpanData]) -> None:
        """Queues spans: once it returns, they will be exported by this process or by another one."""
        if self._personal_data:
            spans = [await self._personal_data.span(span) for span in spans]
        size = sum(len(value) for span in spans for value in span.attributes.values() if isinstance(value, str))
        await in_thread_if_long(size, self.take, spans)

    def take(self, spans: Sequence[SpanData]) -> None:
        """Queues spans; callable from any thread, such as a workflow thread."""
        try:
            self._queue.add([self._redacted(span) for span in spans])
            if len(self._queue) >= self._batch == self._size:
                self._loop.call_soon_threadsafe(self._is_due.set)
        except Exception:  # tracing must not affect calls and runs
            log.exception("spans are lost")

    def _redacted(self, span: SpanData) -> SpanData:
        all_texts = json.dumps([span.name, span.message, span.attributes], ensure_ascii=False)
        if self._redact(all_texts) == all_texts:  # nearly always true, and faster than redacting text by text
            return span
        return span.with_texts(self._redact)

    async def close(self) -> None:
        """Exports the remaining spans, within CLOSE_SECONDS."""
        self._is_closing = True
        self._is_due.set()
        await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        self._task.cancel()
        self.exporter.close()
        await COMPUTING.run(self._queue.close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        is_last = False
        while not is_last:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._is_due.wait()
            self._is_due.clear()
            is_last = self._is_closing
            try:
                await self._loop.run_in_executor(self._thread, self._export_waiting)
            except Exception:  # the next spans are exported regardless
                log.exception("spans could not be exported")

    def _export_waiting(self) -> None:
        """Exports the queued spans, and those left behind by processes that have ended.

        After a rejected batch, smaller batches are tried. A span that is rejected alone, while others are accepted, is
        dropped.
        """
        self._queue.take_over()
        if self._size == self._batch:
            self._queue.begin_file()
        remaining, accepted, rejected = len(self._queue), False, list[SpanData]()
        while remaining > 0 and (spans := self._queue.first(min(self._size, remaining))):
            remaining -= len(spans)
            if self._is_accepted(spans):
                self._queue.remove(spans)
                accepted, self._size, self._pause = True, min(self._size * 2, self._batch), self._interval
                continue
            self._queue.put_last(spans)
            if len(spans) > 1:
                self._size = len(spans) // 2
                break
            rejected += spans
            if len(rejected) > 1 and not accepted:
                break
        if accepted:
            self._drop(rejected)
        elif rejected:
            self._pause = min(max(self._pause, 0.5) * 2, LONGEST_PAUSE)

    def _drop(self, rejected: Sequence[SpanData]) -> None:
        for span in rejected:
            log.warning("a span was dropped because the trace collector rejects it: %s", span.name)
        self._queue.remove(rejected)

    def _is_accepted(self, spans: Sequence[SpanData]) -> bool:
        try:
            return self.exporter.export(spans)
        except Exception:  # the next spans are exported regardless
            log.exception("spans could not be exported")
            return False


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name) or str(DEFAULTS[name])
    if not text.isdecimal() or not 0 < int(text) <= 10_000_000:
        raise SettingsError(f"{name} is '{text}', but must be a number from 1 to 10,000,000")
    return int(text)
