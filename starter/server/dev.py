"""Runs the embedded server and a worker in one process, and restarts the server when it dies."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import IO

from temporalio.client import Client

from ... import worker
from ...activities.runtime.redaction import log_to_stderr
from ...conversation.temporal.encryption import Codec, Keys
from ...resources.loader import Loaded
from ..http.thread_server import serve_in_thread
from ..runs.server_state import has_open_runs
from .codec_server import codec_app
from .embedded import PORTS, EmbeddedServer, ServerError, free_ports
from .state_dir import DevServer, StateDir, fingerprints

_log = logging.getLogger(__name__)


async def run_dev_server(state_dir: StateDir, linger: float | None, announce: Callable[[DevServer], None]) -> bool:
    """Runs a server and a worker until SIGINT or SIGTERM, or until nobody has needed them for ``linger`` seconds.

    False if they run already in this folder. Raises ServerError if the server doesn't start, and SettingsError.
    """
    keys = Keys.from_environment(os.environ)
    async with contextlib.AsyncExitStack() as stack:
        lock = stack.enter_context(state_dir.lock("dev", timeout=1))  # the server holds it, too
        if lock is None:
            return False
        make_server = partial(_make_server, state_dir, lock, keys, stack)
        server = make_server(*state_dir.last_ports(), PORTS)
        try:
            client = await server.start()
        except ServerError:  # another process may have taken a port meanwhile
            server = make_server()
            client = await server.start()
        await _serve(state_dir, server, client, linger, announce)
    return True


def _make_server(
    state_dir: StateDir, lock: IO[str], keys: Keys, stack: contextlib.AsyncExitStack, *ports: tuple[int, int]
) -> EmbeddedServer:
    """A server on the first free pair of these ports, or on any, with a codec server if there are keys."""
    server = EmbeddedServer(state_dir.folder, lock, *free_ports(*ports))
    if keys.ids:
        server.codec = stack.enter_context(serve_in_thread(codec_app(Codec(keys), server.ui_origins)))
    stack.push_async_callback(server.stop)
    return server


async def _serve(
    state_dir: StateDir,
    server: EmbeddedServer,
    client: Client,
    linger: float | None,
    announce: Callable[[DevServer], None],
) -> None:
    """Runs a worker for the server, and announces both to clients, until they are stopped or not needed."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    environment = {**os.environ, "BATON_HOME": str(state_dir.folder)}
    async with worker.run_worker(client, Loaded(), environment) as secrets:
        log_to_stderr(secrets.redact)
        dev = DevServer(os.getpid(), server.address, server.ui, fingerprints(os.environ), linger is not None)
        state_dir.write_dev_server(dev)
        announce(dev)
        with state_dir.lock("up"), contextlib.ExitStack() as locks:
            needed_at = time.time()
            while not await _wait_second(stopped):
                if not server.is_alive:
                    _log.warning("the Temporal server has died and is restarted")
                    await server.start()
                needed_at = max(needed_at, state_dir.last_shared("clients"))
                if linger is None or state_dir.is_held("clients") or await has_open_runs(client):
                    needed_at = time.time()
                elif time.time() - needed_at >= linger and locks.enter_context(state_dir.lock("clients", timeout=0)):
                    break  # a client that comes now waits for the lock, then starts a new server


async def _wait_second(stopped: asyncio.Event) -> bool:
    """Waits for a second, or until the event is set; whether it is set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopped.wait(), 1)
    return stopped.is_set()
