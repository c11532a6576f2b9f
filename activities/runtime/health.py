"""The HTTP endpoints of a worker: ``/healthz`` (liveness), ``/readyz`` (readiness), ``/circuits`` and ``/metrics``.

They run in the worker's event loop, so a worker whose loop is blocked does not respond. Only ``/readyz`` checks
Temporal and the journal: a restart of the worker would not repair those.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from temporalio.client import Client
from temporalio.worker import Worker
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...contracts.settings import SettingsError
from ...installation import missing_extra
from ...observability.runtime import MetricsText
from ...temporal.search_attributes import describe_namespace

Check = Callable[[], Awaitable[object]]
"""Raises an exception, or exceeds CHECK_TIMEOUT, if something is unhealthy."""

Checks = Mapping[str, Check]
"""Checks by name."""

CHECK_TIMEOUT = 2.0
"""Seconds after which a check has failed."""

FRESH = 1.0
"""Seconds for which the results are cached."""


class WorkerEnding(Exception):
    """The worker does not poll: it is shutting down, or has not started."""


def checks_of(workers: Sequence[Worker], client: Client, journal: Check) -> Checks:
    """The readiness checks of a worker: the SDK's workers, Temporal, and the journal."""

    async def is_polling() -> None:
        if not all(worker.is_running for worker in workers):
            raise WorkerEnding

    return {"worker": is_polling, "temporal": lambda: describe_namespace(client), "journal": journal}


class Readiness:
    """The results of all checks, which run at most once a second."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._lock = asyncio.Lock()
        self._checked_at = -FRESH
        self._results: dict[str, str] = {}

    async def results(self) -> dict[str, str]:
        """``ok`` or the type of the error, by check. Error messages are left out: they may contain secrets."""
        async with self._lock:
            if time.monotonic() - self._checked_at >= FRESH:
                results = await asyncio.gather(*map(_result, self._checks.values()))
                self._results = dict(zip(self._checks, results, strict=True))
                self._checked_at = time.monotonic()
            return self._results


async def _result(check: Check) -> str:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            await check()
    except Exception as error:
        return type(error).__name__
    return "ok"


LONGEST_CONNECTION = 5.0
"""Seconds after which a connection is closed, even if its request is incomplete."""


class _Connection(H11Protocol):
    """A connection for one request. A client that never completes its request can't hold it open."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base does
        super().connection_made(transport)
        self._limit = self.loop.call_later(LONGEST_CONNECTION, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves SIGINT and SIGTERM to the worker."""
        yield


@contextlib.asynccontextmanager
async def serve_health(
    addresses: Mapping[tuple[str, int], str],
    checks: Checks,
    circuits: Callable[[], Mapping[str, str]] = dict,
    metrics: MetricsText | None = None,
) -> AsyncIterator[None]:
    """Serves the endpoints at these hosts and ports while the block runs; does nothing without addresses.

    The host ``*`` means all addresses of the machine. Raises SettingsError, which names the settings of an address, if
    its port is in use, or its host is not local.

    ``/readyz`` responds with 200 if all ``checks`` pass, else with 503; the body has the result of every check.
    ``/circuits`` lists the ``circuits`` that are not closed; they do not affect readiness. ``/metrics`` serves
    ``metrics``.
    """
    if not addresses:
        yield
        return
    readiness = Readiness(checks)

    async def healthz(_: Request) -> PlainTextResponse:
        return PlainTextResponse("alive\n")

    async def readyz(_: Request) -> JSONResponse:
        results = await readiness.results()
        return JSONResponse(results, 200 if {*results.values()} <= {"ok"} else 503)

    async def open_circuits(_: Request) -> JSONResponse:
        return JSONResponse({**circuits()})

    async def all_metrics(request: Request) -> Response:
        if metrics is None:
            reason = missing_extra("otel", "/metrics") or "this process has no metrics"
            return PlainTextResponse(f"{reason}\n", 404)
        text, media_type = await metrics(request.headers.get("accept", ""))
        return Response(text, media_type=media_type)

    endpoints = {"/healthz": healthz, "/readyz": readyz, "/circuits": open_circuits, "/metrics": all_metrics}
    app = Starlette(routes=[Route(path, endpoint) for path, endpoint in endpoints.items()])
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        http=_Connection,
        headers=[("connection", "close")],
        log_config=None,
        log_level="error",
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    sockets = [_listening(address, names) for address, names in addresses.items()]
    task = asyncio.create_task(server.serve(sockets))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def _listening(address: tuple[str, int], settings: str) -> socket.socket:
    try:
        return _listen(*address)
    except OSError as error:
        host, port = address
        raise SettingsError(f"{settings}: {host}:{port} can't be served: {error.strerror or error}") from None


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; for the host ``*`` on all IPv4 addresses, and all IPv6 ones if the machine supports IPv6."""
    if host != "*":
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
