"""Exports a worker's metrics, Baton's and the SDK's: to Prometheus as text, and to an OpenTelemetry collector.

It needs the extra `otel`, so only ``exporting_metrics`` imports it.
"""

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_VERSION,
    OTELResourceDetector,
    Resource,
)
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from temporalio.runtime import (
    BUFFERED_METRIC_KIND_COUNTER,
    BUFFERED_METRIC_KIND_HISTOGRAM,
    BufferedMetric,
    MetricBuffer,
    MetricBufferDurationFormat,
)

from ..contracts.settings import SettingsError
from ..installation import version
from ..temporal.threads import COMPUTING
from .metrics import SECONDS

DRAIN_INTERVAL = 1.0
"""Seconds between two transfers of the SDK's metrics."""

BUFFERED = 100_000
"""Updates that the SDK buffers between two transfers; further ones are lost. An activity causes about ten."""

LAST_EXPORT = 2.0
"""Seconds for the final export of metrics when a worker shuts down."""

PROTOCOL = "http/protobuf"

_REPEATED = ("service_name",)
"""Labels of the SDK that duplicate resource attributes."""


class MetricsExport:
    """The metrics that are recorded with ``provider``, and by the SDK's runtime with ``buffer``."""

    def __init__(self, collectors: Iterable[MetricReader]) -> None:
        self._registry = CollectorRegistry()
        self._scraping = threading.Lock()
        ProcessCollector(registry=self._registry)
        to_prometheus = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)
        self.provider = MeterProvider([to_prometheus, *collectors], _resource(), shutdown_on_exit=False)
        self.buffer = MetricBuffer(BUFFERED, MetricBufferDurationFormat.SECONDS)
        self._bridge = _Bridge(self.buffer, self.provider)

    async def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the Prometheus format that the header ``accept`` requests, and its media type.

        Runs in a thread: there may be several thousand values.
        """
        return await COMPUTING.run(self._text, accept)

    def _text(self, accept: str) -> tuple[bytes, str]:
        with self._scraping:  # the reader does not support concurrent scrapes
            self._bridge.drain()
            encode, media_type = choose_encoder(accept)
            return encode(self._registry), media_type

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A context manager that transfers the SDK's metrics, and at its end exports the last ones."""
        task = asyncio.create_task(self._drain())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            last = threading.Thread(target=self._close, name="last metrics", daemon=True)  # doesn't block the exit
            last.start()
            await COMPUTING.run(last.join, LAST_EXPORT)

    async def _drain(self) -> None:
        while True:
            await asyncio.sleep(DRAIN_INTERVAL)
            await COMPUTING.run(self._bridge.drain)

    def _close(self) -> None:
        self._bridge.drain()
        self.provider.shutdown()


Recorder = Callable[[float, Mapping[str, str | int | float | bool]], None]
"""Records a value with its labels."""


class _Bridge:
    """Records the SDK's metrics in OpenTelemetry.

    The SDK's own class for this (``contrib.opentelemetry.MetricsExporter``, 1.35) mixes up the labels of different
    series: it caches them by the address of an object that may have been freed.
    """

    def __init__(self, buffer: MetricBuffer, provider: MeterProvider) -> None:
        self._buffer = buffer
        self._meter = provider.get_meter("temporalio")
        self._draining = threading.Lock()
        self._recorders: dict[str, Recorder] = {}

    def drain(self) -> None:
        """Transfers the updates since the last call."""
        with self._draining:
            for update in self._buffer.retrieve_updates():
                labels = {name: value for name, value in update.attributes.items() if name not in _REPEATED}
                if update.metric.name not in self._recorders:
                    self._recorders[update.metric.name] = self._recorder(update.metric)
                self._recorders[update.metric.name](update.value, labels)

    def _recorder(self, metric: BufferedMetric) -> Recorder:
        unit = metric.unit or ""
        description = metric.description or ""
        if metric.kind == BUFFERED_METRIC_KIND_COUNTER:
            return self._meter.create_counter(metric.name, unit, description).add
        if metric.kind == BUFFERED_METRIC_KIND_HISTOGRAM:
            buckets = SECONDS if unit == "s" else None
            return self._meter.create_histogram(
                metric.name, unit, description, explicit_bucket_boundaries_advisory=buckets
            ).record
        return self._meter.create_gauge(metric.name, unit, description).set


def configured_collector(environment: Mapping[str, str]) -> MetricReader:
    """The OTLP exporter that the environment configures. Raises SettingsError for an unsupported protocol."""
    variables = {name: value for name, value in environment.items() if value}
    for name in ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = variables.get(name, PROTOCOL)
        if protocol != PROTOCOL:
            raise SettingsError(f"{name}: {protocol} is not supported, use {PROTOCOL} (port 4318 of a collector)")
        if name in variables:  # the more specific one has precedence
            break
    return PeriodicExportingMetricReader(OTLPMetricExporter())


def _resource() -> Resource:
    """The resource of this process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have precedence."""
    attributes = {
        SERVICE_NAME: "baton-worker",
        SERVICE_VERSION: version(),
        SERVICE_INSTANCE_ID: str(uuid.uuid4()),
    }
    return Resource(attributes).merge(OTELResourceDetector().detect())
