"""The runtime of Temporal's SDK in a worker's process: its heartbeats, and its log as a part of the process's own."""

import logging

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    MetricBuffer,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from ...conversation.temporal.live_workers import HEARTBEAT_INTERVAL


def set_worker_runtime(metrics: MetricBuffer | None = None) -> None:
    """Makes it the runtime of all clients and workers that this process makes from now on.

    Its metrics go to the buffer ``metrics``, if there is one, from which somebody has to take them.
    """
    forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio.core"), prepend_target_on_message=False)
    log = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)
    telemetry = TelemetryConfig(logging=log, metrics=metrics)
    runtime = Runtime(telemetry=telemetry, worker_heartbeat_interval=HEARTBEAT_INTERVAL)
    Runtime.set_default(runtime, error_if_already_set=False)
