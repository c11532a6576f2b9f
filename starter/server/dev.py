"""Runs ``baton dev``, the embedded server and a worker in one process, and ``baton worker``, only a worker."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO

from temporalio.client import Client
from temporalio.converter import PayloadCodec
from temporalio.service import RPCError

from ... import worker
from ...activities.runtime.settings import Settings
from ...activities.runtime.worker_process import leave_out_loaded_objects
from ...contracts.settings import SettingsError, importable_from_here, on_signal
from ...observability.log import log_to_stderr
from ...observability.runtime import MetricsText, exporting_metrics
from ...resources.loader import Loaded
from ...temporal.converter import codec_for_ui
from ...worker import log_before_start as log_before_start
from ...worker import logs_json as logs_json
from ..errors import UnreachableError
from ..runs.runs import catalogs_of_open_runs, has_open_runs
from ..runs.schedules import catalogs_of_schedules, has_active_schedules
from ..scripted_model import serve_in_thread
from .codec_server import codec_app
from .connection import use_server, uses_remote_server
from .embedded import PORTS, RETENTION, EmbeddedServer, ServerError, choose_ports, taken_of
from .state_dir import LOGS, DevServer, StateDir, fingerprints

CLEANING_INTERVAL = 3_600.0
"""Seconds between two removals of old records in the state folder."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DevOptions:
    """The worker's manifests, the requested ports, and when to end.

    Without ``linger``, the server and the worker run until they are stopped, and ``gateway`` beside them: a context
    manager that serves teams over HTTP, with the worker's settings, and yields its address.
    """

    own: Loaded = field(default_factory=Loaded)
    port: int | None = None
    ui_port: int | None = None
    linger: float | None = None
    gateway: Callable[[Client, Mapping[str, str]], AbstractAsyncContextManager[str]] | None = None


Announce = Callable[[DevServer, list[int]], None]
"""Receives the location of the server, and the default ports that are in use."""


async def run_dev_server(state_dir: StateDir, options: DevOptions, announce: Announce) -> bool:
    """Runs a server and a worker until SIGINT or SIGTERM, or until they are unused for ``linger`` seconds.

    Returns False if they are already running in this folder. Raises ServerError if the server doesn't start, UsageError
    if a requested port is in use, and SettingsError.
    """
    codec = codec_for_ui(os.environ)
    served = bool(Settings.of(os.environ).http_addresses)
    async with exporting_metrics(served, os.environ) as metrics, contextlib.AsyncExitStack() as stack:
        lock = stack.enter_context(state_dir.lock("dev", timeout=1))  # the server inherits it
        if lock is None:
            return False
        make_server = partial(_make_server, state_dir, lock, codec, stack)
        preferred = [*state_dir.last_ports(), PORTS]
        taken = [] if options.port or options.ui_port else taken_of(preferred[0])
        server = make_server(choose_ports(options.port, options.ui_port, preferred))
        try:
            client = await server.start()
        except ServerError:  # another process may have bound a port meanwhile
            server = make_server(choose_ports(options.port, options.ui_port, []))
            client = await server.start()
        await _serve(state_dir, server, client, options, lambda dev: announce(dev, taken), metrics)
    return True


def _make_server(
    state_dir: StateDir,
    lock: IO[str],
    codec: PayloadCodec | None,
    stack: contextlib.AsyncExitStack,
    ports: tuple[int, int],
) -> EmbeddedServer:
    """A server on these ports, with a codec server if payloads are encoded."""
    server = EmbeddedServer(state_dir.folder, lock, *ports)
    if codec:
        server.codec = stack.enter_context(serve_in_thread(codec_app(codec, server.ui_origins)))
    stack.push_async_callback(server.stop)
    return server


async def _serve(
    state_dir: StateDir,
    server: EmbeddedServer,
    client: Client,
    options: DevOptions,
    announce: Callable[[DevServer], None],
    metrics: MetricsText | None,
) -> None:
    """Runs a worker for the server, and publishes both to clients, until they are stopped or unused."""
    stopped = asyncio.Event()
    linger = options.linger
    for number in (signal.SIGINT, signal.SIGTERM):
        on_signal(number, stopped.set)
    environment = {**os.environ, "BATON_HOME": str(state_dir.folder)}
    async with worker.run_worker(client, options.own, environment, metrics=metrics) as parts:
        settings = Settings.of(environment)
        log_to_stderr(parts.secrets.redact, settings.log_format, settings.log_level, calls=settings.log_calls)
        await worker.warn_of_missing(options.own, parts, settings)
        leave_out_loaded_objects()
        served = {"BATON_GATEWAY_TEMPORAL_UI_URL": server.ui, **environment}
        gateway = options.gateway(client, served) if options.gateway else contextlib.nullcontext()
        async with gateway as served_at:
            dev = DevServer(
                pid=os.getpid(),
                address=server.address,
                ui=server.ui,
                environment=fingerprints(os.environ),
                lingering=linger is not None,
                gateway=served_at,
            )
            state_dir.write_dev_server(dev)
            with state_dir.lock("up"):  # before it is announced: without the lock, clients find no server
                announce(dev)
                await _until_stopped(state_dir, server, client, linger, stopped)


async def _until_stopped(
    state_dir: StateDir, server: EmbeddedServer, client: Client, linger: float | None, stopped: asyncio.Event
) -> None:
    """Looks after the server and the folder until both are stopped, or unused for ``linger`` seconds."""
    with contextlib.ExitStack() as locks:
        needed_at = time.time()
        cleaned_at = 0.0
        while not await _wait_second(stopped):
            if not server.is_alive:
                _log.warning("the Temporal server exited unexpectedly and is being restarted")
                await server.start()
            if time.time() - cleaned_at >= CLEANING_INTERVAL:
                cleaned_at = time.time()
                await remove_old_sources(state_dir, client)
            for log in LOGS:
                await asyncio.to_thread(state_dir.rotate_log, log)
            if linger is None or await _is_needed(state_dir, client):
                needed_at = time.time()
                continue
            needed_at = max(needed_at, state_dir.last_shared("clients"))  # also of one that came and went meanwhile
            if time.time() - needed_at >= linger and locks.enter_context(state_dir.lock("clients", timeout=0)):
                break  # a new client waits for the lock, then starts another server


async def remove_old_sources(state_dir: StateDir, client: Client) -> None:
    """Removes the records of catalogs that no run of this machine's server can need any more.

    Open runs and schedules name their catalogs. A closed run may be reset as long as Temporal keeps it; its record was
    last renewed by the client that started it, or by the worker that executed it.
    """
    with contextlib.suppress(RPCError, SettingsError):
        needed = await catalogs_of_open_runs(client) | await catalogs_of_schedules(client)
        await asyncio.to_thread(state_dir.remove_sources, datetime.now(UTC) - RETENTION, needed)


async def _is_needed(state_dir: StateDir, client: Client) -> bool:
    """Whether a command is attached, a run is open, or a schedule will start one.

    The lock is checked in a thread, as the worker's event loop must not block.
    """
    if await asyncio.to_thread(state_dir.is_held, "clients") or await has_open_runs(client):
        return True
    return await has_active_schedules(client)


async def _wait_second(stopped: asyncio.Event) -> bool:
    """Waits for a second, or until the event is set; returns whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await stopped.wait()
    return stopped.is_set()


def run_worker_process(paths: Sequence[Path], announce: Callable[[str], None], *, recursive: bool) -> int:
    """Runs a worker with these manifests until SIGINT or SIGTERM, and returns the exit code of ``worker.main``.

    ``announce`` receives messages about this machine's server.

    If no server is configured and none is running here, the worker uses the one at localhost:7233.
    """
    importable_from_here()
    with contextlib.ExitStack() as stack:
        address = None
        if not uses_remote_server():
            with contextlib.suppress(UnreachableError):
                address = stack.enter_context(use_server(announce, start=False)).address
        return asyncio.run(worker.main(paths, recursive=recursive, address=address))
