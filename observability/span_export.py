"""Exports spans with OpenTelemetry's SDK in the background: no call waits for a collector."""

import asyncio
import contextlib
import importlib.metadata
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path

from opentelemetry import context as otel_context
from opentelemetry import propagate
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SpanExporter as SdkExporter
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
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

from ..contracts.settings import SettingsError
from ..contracts.trace import SpanData, TraceContext
from ..temporal.activity import in_thread_if_long
from ..temporal.encryption import Keys
from .span_queue import SpanQueue

_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc", "http/json": "otlp_json_http"}
_KINDS = {"client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_ids: ContextVar[tuple[int, int]] = ContextVar("ids")


class _GivenIds(IdGenerator):
    """Gives the ids of the span that is being made."""

    def generate_trace_id(self) -> int:
        return _ids.get()[0]

    def generate_span_id(self) -> int:
        return _ids.get()[1]


class _Ended(SpanProcessor):
    """Keeps the spans of the SDK that have ended."""

    def __init__(self) -> None:
        self.spans = list[ReadableSpan]()

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class SpanExporter:
    """Makes spans of the SDK and exports them. Raises SettingsError for an exporter that is not installed."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self._provider = TracerProvider(
            sampler=sampling.ALWAYS_ON,  # what is not sampled does not come here
            resource=Resource.create({} if _is_named(environment) else {SERVICE_NAME: "baton"}),
            id_generator=_GivenIds(),
            shutdown_on_exit=False,
        )
        names = (environment.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")
        self._exporters = [_exporter(name.strip(), environment) for name in names]
        self._provider.add_span_processor(ended := _Ended())
        self._ended = ended
        self._tracer = self._provider.get_tracer("baton", importlib.metadata.version("baton"))

    def samples(self, place: TraceContext) -> bool:
        """Whether the sampler takes what begins at this place."""
        trace, parent = int(place.trace, 16), _parent(place)
        decision = self._sampler.should_sample(parent, trace, "invoke_workflow").decision
        return decision is sampling.Decision.RECORD_AND_SAMPLE

    @contextlib.contextmanager
    def attached(self, place: TraceContext) -> Iterator[None]:
        """Makes it OpenTelemetry's current place in the block."""
        token = otel_context.attach(_parent(place) or otel_context.Context())
        try:
            yield
        finally:
            otel_context.detach(token)

    def headers(self, place: TraceContext) -> dict[str, str]:
        """The place as headers."""
        carrier = dict[str, str]()
        propagate.inject(carrier, _parent(place))
        return carrier

    def export(self, spans: Sequence[SpanData]) -> bool:
        """Exports spans, and waits for that; whether an exporter has taken them. For one thread at a time."""
        self._ended.spans = []
        for each in spans:
            self._make(each)
        # a program that traces its requests, and in which a worker runs, is not to trace these
        token = otel_context.attach(otel_context.set_value(otel_context._SUPPRESS_INSTRUMENTATION_KEY, True))
        try:
            return SpanExportResult.SUCCESS in [each.export(self._ended.spans) for each in self._exporters]
        finally:
            otel_context.detach(token)

    def _make(self, data: SpanData) -> None:
        """Makes a span that has ended."""
        token = _ids.set((int(data.trace, 16), int(data.id, 16)))
        try:
            span = self._tracer.start_span(
                data.name,
                _parent(TraceContext(data.trace, data.parent, state=data.state)) or otel_context.Context(),
                _KINDS[data.kind],
                {name: _value(value) for name, value in data.attributes.items() if value is not None},
                start_time=_nanoseconds(data.start),
            )
        finally:
            _ids.reset(token)
        if data.error:
            span.set_attribute("error.type", data.error)
            span.set_status(Status(StatusCode.ERROR, data.message or None))
        span.end(max(_nanoseconds(data.end), _nanoseconds(data.start)))

    def close(self) -> None:
        """Ends an export that is under way, and the exporters."""
        for each in self._exporters:
            each.shutdown()


def _exporter(name: str, environment: Mapping[str, str]) -> SdkExporter:
    variable = "OTEL_TRACES_EXPORTER"
    if name == "otlp":
        variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
        wanted = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(variable) or "http/protobuf"
        name = _PROTOCOLS.get(wanted, wanted)
    found = importlib.metadata.entry_points(group="opentelemetry_traces_exporter", name=name)
    if not found:
        raise SettingsError(f"{variable}: the exporter '{name}' is not installed")
    exporter: SdkExporter = next(iter(found)).load()()
    return exporter


def _is_named(environment: Mapping[str, str]) -> bool:
    """Whether the environment gives the service a name."""
    resource = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(environment.get("OTEL_SERVICE_NAME")) or f"{SERVICE_NAME}=" in resource


def _parent(place: TraceContext) -> otel_context.Context | None:
    """The place as a context of OpenTelemetry's API; None for the root of a trace."""
    if place.span is None:
        return None
    flags = TraceFlags(TraceFlags.SAMPLED if place.sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([place.state]) if place.state else None
    span = SpanContext(int(place.trace, 16), int(place.span, 16), is_remote=True, trace_flags=flags, trace_state=state)
    return set_span_in_context(NonRecordingSpan(span), otel_context.Context())


def _value(value: JsonValue) -> str | bool | int | float | list[str]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return [str(each) for each in value]
    return value if isinstance(value, str | bool | int | float) else json.dumps(value, ensure_ascii=False)


def _nanoseconds(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000) * 1_000


CLOSE_SECONDS = 5.0
"""For how long a worker that ends exports what is left; another one takes the rest over."""

LONGEST_PAUSE = 30.0
"""Seconds between two tries to export, where the collector takes nothing."""

DEFAULTS = {"OTEL_BSP_SCHEDULE_DELAY": 1_000, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": 512, "OTEL_BSP_MAX_QUEUE_SIZE": 2_048}
"""Milliseconds between two exports, and spans: in one export, and that wait at most."""

log = logging.getLogger("baton")


class SpanExport:
    """Takes spans, and exports them with an ``exporter`` every ``interval`` seconds, at most ``batch`` at once.

    ``redact`` removes secrets from every text.
    """

    def __init__(
        self, exporter: SpanExporter, queue: SpanQueue, redact: Callable[[str], str], interval: float, batch: int
    ) -> None:
        self.exporter, self._queue, self._interval, self._batch = exporter, queue, interval, batch
        self._redact, self._loop = redact, asyncio.get_running_loop()
        self._pause, self._size = interval, batch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="export-spans")
        self._is_due, self._is_closing = asyncio.Event(), False
        self._task = asyncio.create_task(self._run())

    @classmethod
    def of(cls, environment: Mapping[str, str], folder: Path, redact: Callable[[str], str]) -> "SpanExport":
        """As OpenTelemetry's variables say. Raises SettingsError."""
        delay, batch, most = (_number(environment, name) for name in DEFAULTS)
        queue = SpanQueue(folder, Keys.from_environment(environment), most)
        return cls(SpanExporter(environment), queue, redact, delay / 1_000, min(batch, most))

    async def add(self, spans: Sequence[SpanData]) -> None:
        """Takes spans over: when it returns, they will be exported, by this process or by another one."""
        size = sum(len(value) for each in spans for value in each.attributes.values() if isinstance(value, str))
        await in_thread_if_long(size, self.take, spans)

    def take(self, spans: Sequence[SpanData]) -> None:
        """The same, in any thread."""
        try:
            self._queue.add([self._clean(each) for each in spans])
            if len(self._queue) >= self._batch == self._size:
                self._loop.call_soon_threadsafe(self._is_due.set)
        except Exception:  # whatever it is, calls and runs go on
            log.exception("spans are lost")

    def _clean(self, span: SpanData) -> SpanData:
        whole = json.dumps([span.name, span.message, span.attributes], ensure_ascii=False)
        if self._redact(whole) == whole:  # which is nearly always so, and quicker than each text by itself
            return span
        attributes = {name: self._clean_value(value) for name, value in span.attributes.items()}
        texts = {"name": self._redact(span.name), "message": self._redact(span.message)}
        return span.model_copy(update={**texts, "attributes": attributes})

    def _clean_value(self, value: JsonValue) -> JsonValue:
        if isinstance(value, list):
            return [self._clean_value(each) for each in value]
        return self._redact(value) if isinstance(value, str) else value

    async def close(self) -> None:
        """Exports what is left, in CLOSE_SECONDS at most."""
        self._is_closing = True
        self._is_due.set()
        await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        self._task.cancel()
        self.exporter.close()
        await asyncio.to_thread(self._queue.close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        ends = False
        while not ends:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._is_due.wait()
            self._is_due.clear()
            ends = self._is_closing
            try:
                await self._loop.run_in_executor(self._thread, self._export_waiting)
            except Exception:  # whatever it is, the next spans are exported
                log.exception("spans could not be exported")

    def _export_waiting(self) -> None:
        """Exports the spans that wait now, and those that processes have left which live no more.

        After spans that are not taken, fewer are tried at once. One that is refused by itself, while others are taken,
        is dropped.
        """
        self._queue.take_over()
        if self._size == self._batch:
            self._queue.begin_file()
        left, taken, refused = len(self._queue), False, list[SpanData]()
        while left > 0 and (spans := self._queue.first(min(self._size, left))):
            left -= len(spans)
            if self._is_taken(spans):
                self._queue.remove(spans)
                taken, self._size, self._pause = True, min(self._size * 2, self._batch), self._interval
                continue
            self._queue.put_last(spans)
            if len(spans) > 1:
                self._size = len(spans) // 2
                break
            refused += spans
            if len(refused) > 1 and not taken:
                break
        if taken:
            self._drop(refused)
        elif refused:
            self._pause = min(max(self._pause, 0.5) * 2, LONGEST_PAUSE)

    def _drop(self, refused: Sequence[SpanData]) -> None:
        for each in refused:
            log.warning("a span was dropped, as the collector of traces refuses it: %s", each.name)
        self._queue.remove(refused)

    def _is_taken(self, spans: Sequence[SpanData]) -> bool:
        try:
            return self.exporter.export(spans)
        except Exception:  # whatever it is, the next spans are exported
            log.exception("spans could not be exported")
            return False


def _number(environment: Mapping[str, str], name: str) -> int:
    given = environment.get(name) or str(DEFAULTS[name])
    if not given.isdecimal() or not 0 < int(given) <= 10_000_000:
        raise SettingsError(f"{name} is '{given}', and not a number from 1 to 10,000,000")
    return int(given)
