"""How does the embedded Temporal server run? The official binary, tuned for one machine, on a file that survives."""

import asyncio
import contextlib
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO

from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
from temporalio.client import Client

from ...conversation.temporal.search_attributes import ALL, register
from ...conversation.temporal.temporal_client import connect

PORTS = (7233, 8233)
"""Where the server and its UI are found, if nobody else is there."""

RETENTION = timedelta(days=30)

TUNING = (
    ("history.transferProcessorMaxPollRPS", "1000"),  # or every step takes 50 ms
    ("history.timerProcessorMaxPollRPS", "1000"),  # or timers are late by up to 20 s under a hundred teams
    ("history.timerProcessorMaxTimeShift", '"1ms"'),  # or every timer is rounded up to a second
    ("history.workflowIdReuseMinimalInterval", '"0s"'),
    ("matching.enableFairness", "true"),  # or a wide team makes all others wait
    ("matching.numTaskqueueReadPartitions", "1"),  # or that is so in each part of a task queue by itself
    ("matching.numTaskqueueWritePartitions", "1"),
)

# The server ends when its standard input closes, which it does when whoever started it dies, in whatever way.
_LEASH = 'trap "" INT; exec 3<&0; "$@" </dev/null 3<&- & server=$!; (read -r _ <&3; kill $server) & wait $server'


ATTEMPTS = 3
"""How often a server is started that ends at once."""

SERVES = b"Server:"
"""What it writes once it listens. That something answers there says nothing: it may be another one's server."""


class ServerError(Exception):
    """The embedded server can't be run."""


@dataclass
class EmbeddedServer:
    """A Temporal server of one's own. It holds ``lock``, too, so that nobody opens its file before it has ended.

    ``codec`` is where its UI has decrypted what it shows, if anywhere.
    """

    folder: Path
    lock: IO[str]
    port: int
    ui_port: int
    tuning: Sequence[tuple[str, str]] = TUNING
    codec: str = ""
    _process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def ui(self) -> str:
        """Where its UI is."""
        return f"http://127.0.0.1:{self.ui_port}"

    @property
    def ui_origins(self) -> tuple[str, str]:
        """How a browser may call where its UI comes from."""
        return self.ui, f"http://localhost:{self.ui_port}"

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> Client:
        """Starts it and waits until it serves; raises ServerError if it doesn't within 30 seconds.

        It is started anew where it ends at once: of the ports that it picks by itself another may have taken one.
        """
        for _ in range(ATTEMPTS):
            if client := await self._started():
                return client
            if self.is_alive:
                break
        await self.stop()
        raise ServerError(f"the Temporal server did not start: see {self.folder / 'server.log'}")

    async def _started(self) -> Client | None:
        with (self.folder / "server.log").open("ab") as log:
            before = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _LEASH, "sh", *self._command()),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[self.lock.fileno()],
            )
        for _ in range(150):
            if SERVES in (self.folder / "server.log").read_bytes()[before:]:
                with contextlib.suppress(RuntimeError):
                    client = await connect(self.address)
                    await _set_retention(client)
                    await register(client)  # for a database that an older version has made
                    return client
            if not self.is_alive:
                break
            await asyncio.sleep(0.2)
        return None

    async def stop(self) -> None:
        """Ends it and waits until it has ended."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            await self._process.wait()

    def _command(self) -> list[str]:
        binary = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
        if binary is None:
            raise ServerError("there is no embedded server for this platform: set TEMPORAL_ADDRESS to one that runs")
        tuning = (part for key, value in self.tuning for part in ("--dynamic-config-value", f"{key}={value}"))
        database = ("--db-filename", str(self.folder / "temporal.db"))
        pragmas = ("--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL")
        ports = ("--ip", "127.0.0.1", "--port", str(self.port), "--ui-port", str(self.ui_port))
        codec = ("--ui-codec-endpoint", self.codec) if self.codec else ()
        quiet = ("--ui-disable-news-fetch", "--log-level", "warn", "--log-format", "json")
        known = (part for key in ALL for part in ("--search-attribute", f"{key.name}=Keyword"))
        return [binary, "server", "start-dev", *database, *pragmas, *ports, *codec, *quiet, *tuning, *known]


async def _set_retention(client: Client) -> None:
    """Closed runs stay for 30 days; a development server would forget them after one."""
    days = Duration()
    days.FromTimedelta(RETENTION)
    config = NamespaceConfig(workflow_execution_retention_ttl=days)
    request = UpdateNamespaceRequest(namespace=client.namespace, config=config)
    await client.workflow_service.update_namespace(request, retry=True)


def free_ports(*preferred: tuple[int, int]) -> tuple[int, int]:
    """The first pair of ports that is free: a preferred one, or any two."""
    for pair in preferred:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            return _bound(stack, pair[0]), _bound(stack, pair[1])
    with contextlib.ExitStack() as stack:
        return _bound(stack, 0), _bound(stack, 0)


def _bound(stack: contextlib.ExitStack, port: int) -> int:
    listener = stack.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    number: int = listener.getsockname()[1]
    return number
