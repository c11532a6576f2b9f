"""The SDK's runtime of a worker, the metrics of its process, and the gauges of what it depends on."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

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
from ..temporal.client import HEARTBEAT_INTERVAL
from ..temporal.search_attributes import PHASE, backlog_of, quoted, registered, root_runs
from ..temporal.threads import COMPUTING
from .metrics import BACKLOG, BACKLOG_AGE, CHECK_OK, JOURNAL_FREE, RUNS_STUCK, RUNS_WAITING


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
"""Seconds between two counts of the runs and tasks that wait."""

CHECK_INTERVAL = 15.0
"""Seconds between two checks of the worker's readiness."""

FIRST_CHECK = 1.0
"""Seconds after the start of the first check: a worker that has just started does not poll yet."""

PHASES = ("InputRequired", "Waiting", "Paused")

Queues = Mapping[str, Sequence[str]]
"""The kinds of tasks (``workflow``, ``activity``) whose backlog a worker reports, by task queue."""


@contextlib.asynccontextmanager
async def watch_surroundings(
    client: Client,
    task_queue: str,
    queues: Queues,
    check: Callable[[], Awaitable[Mapping[str, str]]],
    free_space: Callable[[], int | None],
) -> AsyncIterator[None]:
    """A context manager that records the gauges of what a worker depends on.

    They are the runs that wait or are stuck on the ``task_queue``, the backlogs of the ``queues``, the results of
    ``check`` (``ok`` or an error by name), and the ``free_space`` of the journal's disk in bytes, if known.
    """
    tasks = [
        asyncio.create_task(_repeat(INTERVAL, lambda: _count_waiting(client, task_queue, queues))),
        asyncio.create_task(_repeat(CHECK_INTERVAL, lambda: _check(check, free_space), first=FIRST_CHECK)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _repeat(seconds: float, work: Callable[[], Awaitable[None]], first: float = 0.0) -> None:
    await asyncio.sleep(first)
    while True:
        with contextlib.suppress(RPCError, OSError):  # the last value stays until Temporal is reachable again
            await work()
        await asyncio.sleep(seconds)


async def _check(check: Callable[[], Awaitable[Mapping[str, str]]], free_space: Callable[[], int | None]) -> None:
    for name, result in (await check()).items():
        CHECK_OK.record(float(result == "ok"), check=name)
    free = await COMPUTING.run(free_space)
    if free is not None:
        JOURNAL_FREE.record(free)


async def _count_waiting(client: Client, task_queue: str, queues: Queues) -> None:
    for queue, kinds in queues.items():
        for kind in kinds:
            backlog = await backlog_of(client, queue, kind)
            BACKLOG.record(backlog.count, task_queue=queue, kind=kind)
            BACKLOG_AGE.record(backlog.age, task_queue=queue, kind=kind)
    open_here = f"TaskQueue = {quoted(task_queue)} AND ExecutionStatus = 'Running'"
    with contextlib.suppress(RPCError):  # an older server does not have this search attribute
        RUNS_STUCK.record((await client.count_workflows(f"{open_here} AND TemporalReportedProblems IS NOT NULL")).count)
    if await registered(client):
        roots = f"{open_here} AND {await root_runs(client)}"  # one whose child waits is in that phase, too
        for phase in PHASES:
            waiting = await client.count_workflows(f"{roots} AND {PHASE.name} = '{phase}'")
            RUNS_WAITING.record(waiting.count, phase=phase)
