"""Exports a worker's metrics, Baton's and the SDK's: to Prometheus as text, and to an OpenTelemetry collector."""

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import set_meter_provider
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
from temporalio.client import Client
from temporalio.runtime import (
    BUFFERED_METRIC_KIND_COUNTER,
    BUFFERED_METRIC_KIND_HISTOGRAM,
    BufferedMetric,
    LogForwardingConfig,
    LoggingConfig,
    MetricBuffer,
    MetricBufferDurationFormat,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import RPCError

from ..contracts.settings import SettingsError
from ..temporal.search_attributes import HEARTBEAT_INTERVAL, PHASE, registered, root_runs
from ..temporal.threads import COMPUTING
from .metrics import RUNS_WAITING, SECONDS


def set_worker_runtime(metrics: MetricBuffer | None = None) -> None:
    """Sets the SDK's default runtime, for all clients and workers that this process creates from now on.

    Its metrics go to the buffer ``metrics``, which must be drained.
    """
    forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio.core"), prepend_target_on_message=False)
    log = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)
    telemetry = TelemetryConfig(logging=log, metrics=metrics)
    runtime = Runtime(telemetry=telemetry, worker_heartbeat_interval=HEARTBEAT_INTERVAL)
    Runtime.set_default(runtime, error_if_already_set=False)


MetricsText = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Takes the header ``accept`` of a request; returns all metrics as text, and its media type."""

DRAIN_INTERVAL = 1.0
"""Seconds between two transfers of the SDK's metrics."""

BUFFERED = 100_000
"""Updates that the SDK buffers between two transfers; further ones are lost. An activity causes about ten."""

LAST_EXPORT = 2.0
"""Seconds for the final export of metrics when a worker shuts down."""

PROTOCOL = "http/protobuf"

_REPEATED = ("service_name",)
"""Labels of the SDK that duplicate resource attributes."""


@contextlib.asynccontextmanager
async def exporting_metrics(served: bool, environment: Mapping[str, str]) -> AsyncIterator[MetricsText | None]:
    """A context manager that collects the metrics of this process, if they are ``served`` or exported with OTLP.

    Enter it before any client is created, as it sets the SDK's default runtime. Raises SettingsError for an unsupported
    OTLP protocol.
    """
    collectors = _collectors(environment)
    if not (served or collectors):
        set_worker_runtime()
        yield None
        return
    export = MetricsExport(collectors)
    set_meter_provider(export.provider)
    set_worker_runtime(export.buffer)
    async with export.running():
        yield export.text


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


def _collectors(environment: Mapping[str, str]) -> list[MetricReader]:
    """The OTLP exporter, if the environment configures one."""
    variables = {name: value for name, value in environment.items() if value}
    endpoints = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    default = "otlp" if any(name in variables for name in endpoints) else "none"
    exporters = {name.strip() for name in variables.get("OTEL_METRICS_EXPORTER", default).split(",")}
    if "otlp" not in exporters or variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return []
    for name in ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = variables.get(name, PROTOCOL)
        if protocol != PROTOCOL:
            raise SettingsError(f"{name}: {protocol} is not supported, use {PROTOCOL} (port 4318 of a collector)")
        if name in variables:  # the more specific one has precedence
            break
    return [PeriodicExportingMetricReader(OTLPMetricExporter())]


def _resource() -> Resource:
    """The resource of this process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have precedence."""
    attributes = {
        SERVICE_NAME: "baton-worker",
        SERVICE_VERSION: version("baton"),
        SERVICE_INSTANCE_ID: str(uuid.uuid4()),
    }
    return Resource(attributes).merge(OTELResourceDetector().detect())


INTERVAL = 30.0
"""Seconds between two counts of the waiting runs."""

PHASES = ("InputRequired", "Waiting", "Paused")


@contextlib.asynccontextmanager
async def watch_waiting_runs(client: Client, task_queue: str) -> AsyncIterator[None]:
    """A context manager that records RUNS_WAITING, as soon as the server has Baton's search attributes."""
    task = asyncio.create_task(_watch(client, task_queue))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _watch(client: Client, task_queue: str) -> None:
    while True:
        for phase in PHASES if await registered(client) else ():
            with contextlib.suppress(RPCError):  # the last value stays until Temporal is reachable again
                RUNS_WAITING.record(await _count(client, task_queue, phase), phase=phase)
        await asyncio.sleep(INTERVAL)


async def _count(client: Client, task_queue: str, phase: str) -> int:
    """The number of root runs in a phase: a run whose child waits is in that phase, too."""
    of_queue = f"TaskQueue = '{task_queue}' AND ExecutionStatus = 'Running' AND {await root_runs(client)}"
    return (await client.count_workflows(f"{of_queue} AND {PHASE.name} = '{phase}'")).count
