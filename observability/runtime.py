"""The SDK's runtime of a worker, the metrics of its process, and the gauge of waiting runs."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from opentelemetry.metrics import set_meter_provider
from temporalio.client import Client
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    MetricBuffer,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import RPCError

from ..installation import missing_extra, require
from ..temporal.search_attributes import HEARTBEAT_INTERVAL, PHASE, registered, root_runs
from .metrics import RUNS_WAITING


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


@contextlib.asynccontextmanager
async def exporting_metrics(served: bool, environment: Mapping[str, str]) -> AsyncIterator[MetricsText | None]:
    """A context manager that collects the metrics of this process, if they are ``served`` or exported with OTLP.

    Enter it before any client is created, as it sets the SDK's default runtime. Without the extra `otel` none are
    served. Raises MissingExtraError if they are to be exported without it, and SettingsError for an unsupported OTLP
    protocol.
    """
    collected = _are_collected(environment)
    if collected:
        require("otel", "the export of metrics")
    if not collected and not (served and missing_extra("otel", "/metrics") is None):
        set_worker_runtime()
        yield None
        return
    from .metrics_export import MetricsExport, configured_collector  # noqa: PLC0415  # of the extra `otel`

    export = MetricsExport([configured_collector(environment)] if collected else [])
    set_meter_provider(export.provider)
    set_worker_runtime(export.buffer)
    async with export.running():
        yield export.text


def _are_collected(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's variables configure a collector for metrics."""
    variables = {name: value for name, value in environment.items() if value}
    endpoints = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    default = "otlp" if any(name in variables for name in endpoints) else "none"
    exporters = {name.strip() for name in variables.get("OTEL_METRICS_EXPORTER", default).split(",")}
    return "otlp" in exporters and variables.get("OTEL_SDK_DISABLED", "").lower() != "true"


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
