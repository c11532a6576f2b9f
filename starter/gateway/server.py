"""Serves the gateway over HTTP until it is stopped."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from temporalio.client import Client

from ...contracts.settings import SettingsError, on_signal
from ...observability.log import log_to_stderr_as_set as log_to_stderr_as_set
from ...resources.rights import may_be_named
from .access import is_loopback, read_keys, refused_account
from .app import Gateway, create_app
from .errors import GatewayError
from .limits import GatewayConnection
from .settings import GatewaySettings

DEFAULT_PORT = 8080

MAX_NAMED = 10
"""The most targets that are named at the start."""

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
async def serving(app: ASGIApp, listener: socket.socket, settings: GatewaySettings) -> AsyncIterator[None]:
    """Serves an application at a listening socket while the block runs."""
    # uvicorn makes a connection by calling this with named arguments.
    connection: Any = partial(
        GatewayConnection, request_timeout=settings.request_timeout, send_timeout=settings.send_timeout
    )
    config = uvicorn.Config(
        app,
        lifespan="on",
        ws="none",
        http=connection,
        log_config=None,
        log_level="error",
        server_header=False,
        proxy_headers=False,
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
            f"a gateway at {host} needs keys: set BATON_GATEWAY_KEYS to a file of keys (baton gateway-key NAME "
            "-f FILE makes one), or BATON_GATEWAY_OIDC_ISSUER"
        )


async def run_gateway(
    client: Client,
    host: str,
    listener: socket.socket,
    environ: Mapping[str, str],
    announce: Callable[[str], None],
) -> None:
    """Serves the gateway until SIGINT or SIGTERM. ``announce`` receives where, and what is served.

    Raises SettingsError.
    """
    check_address(host, environ)
    gateway = Gateway.of(client, environ)
    app = create_app(gateway)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        on_signal(number, stopped.set)
    async with serving(app, listener, gateway.settings):
        address = address_of(host, listener)
        announce(f"Serving teams and agents at {address}, and the console at {address}/. Press Ctrl-C to stop.")
        for note in await notes_at_start(gateway):
            announce(note)
        await stopped.wait()


@contextlib.asynccontextmanager
async def dev_gateway(client: Client, environ: Mapping[str, str]) -> AsyncIterator[str]:
    """Serves the gateway of ``baton dev`` while the block runs, and yields its address: on this machine only.

    It serves all namespaces, unless a setting names some. Its port is another one if the usual one is in use.
    """
    host = "127.0.0.1"
    listener = free_listener(host, DEFAULT_PORT)
    gateway = Gateway.of(client, {"BATON_GATEWAY_NAMESPACES": "*", **environ})
    async with serving(create_app(gateway), listener, gateway.settings):
        yield address_of(host, listener)


def address_of(host: str, listener: socket.socket) -> str:
    """The address of a gateway as programs on this machine use it."""
    port = listener.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def notes_at_start(gateway: Gateway) -> Sequence[str]:
    """What is served, or how to serve something; and the accounts of keys whose runs workers would refuse."""
    try:
        served = await gateway.targets.served()
        catalog = await gateway.targets.catalog()
    except GatewayError as error:
        return [f"note: {error.message}"]
    keys = read_keys(gateway.settings.keys) if gateway.settings.keys else {}
    accounts = sorted({caller.account for caller in keys.values() if not may_be_named(catalog, caller.account)})
    return [
        _what_is_served([target.id for target in served]),
        *(f"note: {refused_account(account)}" for account in accounts),
    ]


def _what_is_served(names: Sequence[str]) -> str:
    if not names:
        return (
            'note: nothing is served yet: pass -n NAMESPACE, or label teams and agents with baton/serve: "true", and '
            "start a worker with them"
        )
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"Served: {', '.join(names[:MAX_NAMED])}{more}"


def free_listener(host: str, port: int) -> socket.socket:
    """A socket that listens at the port, or at another one if it is in use."""
    try:
        return listen(host, port)
    except OSError:
        return listen(host, 0)
