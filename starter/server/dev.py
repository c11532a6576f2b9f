"""How do a server and a worker live together on one machine? Side by side, the server restarted when it dies."""

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
from ...conversation.temporal.encryption import Codec, Keys
from ...resources.loader import Loaded
from ..http.thread_server import serve_in_thread
from ..runs.runs import has_open_runs
from .codec_server import codec_app
from .embedded import PORTS, EmbeddedServer, ServerError, free_ports
from .state_dir import Dev, Home, fingerprint

_log = logging.getLogger(__name__)


async def run_dev(home: Home, linger: float | None, announce: Callable[[Dev], None]) -> bool:
    """Runs a server and a worker until SIGINT or SIGTERM, or until nobody has needed them for ``linger`` seconds.

    False if they run already. Raises ServerError if the server doesn't start, and SettingsError.
    """
    keys = Keys.of(os.environ)
    async with contextlib.AsyncExitStack() as beside:
        lock = beside.enter_context(home.lock("dev", patience=1))  # the server holds it, too
        if lock is None:
            return False
        on = partial(_server, home, lock, keys, beside)
        server = on(*home.last_ports(), PORTS)
        try:
            client = await server.start()
        except ServerError:  # another may have taken a port in the meantime
            server = on()
            client = await server.start()
        await _serve(home, server, client, linger, announce)
    return True


def _server(
    home: Home, lock: IO[str], keys: Keys, beside: contextlib.AsyncExitStack, *ports: tuple[int, int]
) -> EmbeddedServer:
    """A server on the first of these ports that are free, or else on any, with a codec server where there are keys."""
    server = EmbeddedServer(home.folder, lock, *free_ports(*ports))
    if keys.ids:
        server.codec = beside.enter_context(serve_in_thread(codec_app(Codec(keys), server.ui_origins)))
    beside.push_async_callback(server.stop)
    return server


async def _serve(
    home: Home, server: EmbeddedServer, client: Client, linger: float | None, announce: Callable[[Dev], None]
) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    environment = {**os.environ, "BATON_HOME": str(home.folder)}
    async with worker.running(client, Loaded(), environment) as vault:
        worker.log_to_stderr(vault)
        dev = Dev(os.getpid(), server.address, server.ui, fingerprint(os.environ), linger is not None)
        home.write_dev(dev)
        announce(dev)
        with home.lock("up"), contextlib.ExitStack() as unneeded:
            since = time.time()
            while not stopped.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), 1)
                if not server.is_alive and not stopped.is_set():
                    _log.warning("the Temporal server has died, and is started again")
                    await server.start()
                since = max(since, home.last_shared("clients"))
                if linger is None or home.is_held("clients") or await has_open_runs(client):
                    since = time.time()
                elif time.time() - since >= linger and unneeded.enter_context(home.lock("clients", patience=0)):
                    break  # a client that comes now waits for the lock, and starts a server of its own
