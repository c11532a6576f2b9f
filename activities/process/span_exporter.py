"""Spans with given ids, by OpenTelemetry's SDK: sampler, resource, limits and exporters are those of its variables."""

import contextlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime

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

from ...conversation.contracts.traces import SpanData
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.trace_context import TraceContext

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
