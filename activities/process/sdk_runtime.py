"""The runtime of Temporal's SDK in a worker's process: its heartbeats, and its log as a part of the process's own."""

import logging

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from ...conversation.settings_error import SettingsError
from ...conversation.temporal.live_workers import HEARTBEAT_INTERVAL


def set_worker_runtime(metrics_address: str | None = None) -> None:
    """Makes it the runtime of all clients and workers that this process makes from now on.

    ``metrics_address`` is the ``HOST:PORT`` at which Prometheus reads the metrics of the SDK and of Baton, if given.
    Raises SettingsError where nothing can be served there.
    """
    metrics = PrometheusConfig(bind_address=metrics_address) if metrics_address else None
    forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio.core"), prepend_target_on_message=False)
    log = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)
    telemetry = TelemetryConfig(logging=log, metrics=metrics)
    try:
        runtime = Runtime(telemetry=telemetry, worker_heartbeat_interval=HEARTBEAT_INTERVAL)
    except (RuntimeError, ValueError) as error:
        raise SettingsError(f"BATON_METRICS_ADDRESS: {error}") from None
    Runtime.set_default(runtime, error_if_already_set=False)
