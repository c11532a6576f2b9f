"""Serves the gateway over HTTP until it is stopped."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping

import uvicorn
from starlette.types import ASGIApp
from temporalio.client import Client

from ...contracts.settings import SettingsError, on_signal
from .access import is_loopback
from .app import Gateway, create_app
from .limits import GatewayConnection
from .settings import GatewaySettings

DEFAULT_PORT = 8080

GRACE_SECONDS = 10
"""Seconds for which requests in progress may go on when the gateway is stopped; streams are continued elsewhere."""

MAX_CONNECTIONS = 10_000
"""Connections of one process; further requests get 503."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves SIGINT and SIGTERM to the process."""
        yield


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """Serves an application at a listening socket while the block runs."""
    config = uvicorn.Config(
        app,
        lifespan="on",
        ws="none",
        http=GatewayConnection,
        log_config=None,
        log_level="error",
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        backlog=2_048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve([listener]))
    try:
        while not (server.started or task.done()):
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await task


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError if the port is in use, or the host is not local."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


def check_address(host: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raises SettingsError if a gateway without keys would be reachable from other machines."""
    if not GatewaySettings.of(environ).has_keys and not is_loopback(host):
        raise SettingsError(
            f"a gateway at {host} needs keys: set BATON_GATEWAY_KEYS to a file of keys (baton gateway-key NAME makes "
            "one), or BATON_GATEWAY_OIDC_ISSUER"
        )


async def run_gateway(client: Client, host: str, listener: socket.socket, environ: Mapping[str, str]) -> None:
    """Serves the gateway until SIGINT or SIGTERM. Raises SettingsError."""
    check_address(host, environ)
    app = create_app(Gateway.of(client, environ))
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        on_signal(number, stopped.set)
    async with serving(app, listener):
        await stopped.wait()
