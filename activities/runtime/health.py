"""What a worker answers over HTTP: ``/healthz``, whether it lives, ``/readyz``, whether it can work, ``/metrics``.

They run in the worker's event loop, so a worker whose loop is blocked answers neither. Only ``/readyz`` asks Temporal
and the journal: to restart the worker would not bring those back.
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

from ...observability.metrics_export import MetricsText
from ...temporal.search_attributes import describe_namespace

Check = Callable[[], Awaitable[object]]
"""Raises, or takes too long, if something is not well."""

Checks = Mapping[str, Check]
"""What has to be well, by its name."""

CHECK_TIMEOUT = 2.0
"""Seconds after which a check has failed."""

FRESH = 1.0
"""Seconds for which the result of the checks is given again, however often somebody asks."""


class WorkerEnding(Exception):
    """The worker does not poll: it has been asked to end, or has not begun."""


def must_hold(condition: Callable[[], bool]) -> Check:
    """A check that fails with WorkerEnding unless the condition holds."""

    async def check() -> None:
        if not condition():
            raise WorkerEnding

    return check


def checks_of(workers: Sequence[Worker], client: Client, journal: Check) -> Checks:
    """What must be well for a worker to work."""
    is_running = must_hold(lambda: all(each.is_running for each in workers))
    return {"worker": is_running, "temporal": lambda: describe_namespace(client), "journal": journal}


class Readiness:
    """The results of all checks, made at most once in a second."""

    def __init__(self, checks: Checks) -> None:
        self._checks, self._lock, self._at = checks, asyncio.Lock(), -FRESH
        self._results: dict[str, str] = {}

    async def results(self) -> dict[str, str]:
        """``ok``, or the name of the error, for each check. The text of an error may hold what is secret."""
        async with self._lock:
            if time.monotonic() - self._at >= FRESH:
                found = await asyncio.gather(*map(_result, self._checks.values()))
                self._results, self._at = dict(zip(self._checks, found, strict=True)), time.monotonic()
            return self._results


async def _result(check: Check) -> str:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            await check()
    except Exception as error:
        return type(error).__name__
    return "ok"


LONGEST_CONNECTION = 5.0
"""Seconds after which a connection is closed, whether a client has sent its request or not."""


class _Connection(H11Protocol):
    """A connection for one request, which a client that sends nothing, or not all of it, does not hold open."""

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
    addresses: Sequence[tuple[str, int]],
    checks: Checks,
    circuits: Callable[[], Mapping[str, str]] = dict,
    metrics: MetricsText | None = None,
) -> AsyncIterator[None]:
    """Answers at hosts and ports while the block runs; does nothing without them.

    The host ``*`` stands for all addresses of the machine. Raises OSError if the port is taken, or the host not here.

    ``/readyz`` answers 200 if all ``checks`` are well, else 503; both with the result of each. ``/circuits`` answers
    which ``circuits`` are not closed: a worker is ready all the same. ``/metrics`` answers with ``metrics``.
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
            return PlainTextResponse("this process keeps no metrics\n", 404)
        text, media_type = await metrics(request.headers.get("accept", ""))
        return Response(text, media_type=media_type)

    answers = {"/healthz": healthz, "/readyz": readyz, "/circuits": open_circuits, "/metrics": all_metrics}
    app = Starlette(routes=[Route(path, answer) for path, answer in answers.items()])
    async with _serving(app, addresses):
        yield


@contextlib.asynccontextmanager
async def _serving(app: Starlette, addresses: Sequence[tuple[str, int]]) -> AsyncIterator[None]:
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
    task = asyncio.create_task(server.serve([_listen(*each) for each in addresses]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; on all addresses, IPv4 and, where the machine has it, IPv6, if the host is ``*``."""
    if host != "*":
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
