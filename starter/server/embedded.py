"""Runs the embedded Temporal server: the official binary with a database file, tuned for a single machine."""

import asyncio
import contextlib
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO

from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
from temporalio.client import Client

from ...contracts.settings import private_file
from ...installation import install_hint
from ...temporal.client import connect
from ...temporal.search_attributes import ALL, COST, register
from ..errors import UsageError
from .state_dir import DATABASE

PORTS = (7233, 8233)
"""The ports of the server and its UI, if they are free."""

START_TIMEOUT = 120.0
"""Seconds in which the server has to be ready: a busy machine may take more than half a minute."""

RETENTION = timedelta(days=30)

TUNING = (
    ("history.transferProcessorMaxPollRPS", "1000"),  # otherwise every workflow task waits 50 ms
    ("history.timerProcessorMaxPollRPS", "1000"),  # otherwise timers are up to 20 s late under a hundred teams
    ("history.timerProcessorMaxTimeShift", '"1ms"'),  # otherwise every timer is rounded up to a second
    ("history.workflowIdReuseMinimalInterval", '"0s"'),
    ("matching.enableFairness", "true"),  # otherwise a team with many members delays all others
    ("matching.numTaskqueueReadPartitions", "1"),  # otherwise fairness holds only within each partition
    ("matching.numTaskqueueWritePartitions", "1"),
    ("frontend.httpAllowedHosts", '["closed.invalid"]'),  # otherwise a web page could start runs by the HTTP API
)

# The server ends when its standard input closes, which happens when its parent process ends, even if it is killed.
_LEASH = """umask 077; trap "" INT; exec 3<&0
"$@" </dev/null 3<&- & server=$!; (read -r _ <&3; kill $server) & wait $server"""


ATTEMPTS = 3
"""How often the server is started if it exits at once."""

READY_TEXT = b"Server:"
"""The server's output once it listens. A connection to its port is not sufficient: it may be another server's."""


class ServerError(Exception):
    """The embedded server can't be started."""


@dataclass
class EmbeddedServer:
    """A Temporal server in its own process. It inherits ``lock``, so that no other process opens its database.

    ``codec`` is the address of the codec server for its UI, if any.
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
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def ui(self) -> str:
        """The address of its UI."""
        return f"http://127.0.0.1:{self.ui_port}"

    @property
    def ui_origins(self) -> tuple[str, str]:
        """The origins under which a browser may load its UI."""
        return self.ui, f"http://localhost:{self.ui_port}"

    @property
    def is_alive(self) -> bool:
        """Whether its process is running."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """The id of the process above the server; None if it isn't started."""
        return self._process.pid if self._process else None

    async def start(self) -> Client:
        """Starts it and waits until it is ready; raises ServerError if it isn't within START_TIMEOUT.

        If it exits at once, it is started again: another process may have bound one of its ports.
        """
        for _ in range(ATTEMPTS):
            if client := await self._start_once():
                return client
            if self.is_alive:
                break
        await self.stop()
        raise ServerError(f"the Temporal server did not start: see {self.folder / 'server.log'}")

    async def _start_once(self) -> Client | None:
        with open(self.folder / "server.log", "ab", opener=private_file) as log:  # noqa: ASYNC230  # it is quick
            before = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _LEASH, "sh", *self._command()),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[self.lock.fileno()],
            )
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if READY_TEXT in (self.folder / "server.log").read_bytes()[before:]:
                with contextlib.suppress(RuntimeError):
                    client = await connect(self.address)
                    await _set_retention(client)
                    await register(client)  # for a database created by an older release
                    return client
            if not self.is_alive:
                break
            await asyncio.sleep(0.2)
        return None

    async def stop(self) -> None:
        """Stops it and waits until it has ended."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            await self._process.wait()

    def _command(self) -> list[str]:
        binary = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
        if binary is None:
            if sys.platform == "win32":
                raise ServerError("there is no embedded server for Windows: set TEMPORAL_ADDRESS to a running server")
            hint = install_hint("server", "a local server")
            raise ServerError(f"{hint}, or set TEMPORAL_ADDRESS to a running server")
        tuning = (part for key, value in self.tuning for part in ("--dynamic-config-value", f"{key}={value}"))
        database = ("--db-filename", str(self.folder / DATABASE))
        pragmas = ("--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL")
        ports = ("--ip", "127.0.0.1", "--port", str(self.port), "--ui-port", str(self.ui_port))
        codec = ("--ui-codec-endpoint", self.codec) if self.codec else ()
        quiet = ("--ui-disable-news-fetch", "--log-level", "warn", "--log-format", "json")
        types = [*(f"{key.name}=Keyword" for key in ALL), f"{COST.name}=Double"]
        known = (part for attribute_type in types for part in ("--search-attribute", attribute_type))
        return [binary, "server", "start-dev", *database, *pragmas, *ports, *codec, *quiet, *tuning, *known]


async def _set_retention(client: Client) -> None:
    """Sets the retention to 30 days; the default of a development server is one day."""
    days = Duration()
    days.FromTimedelta(RETENTION)
    config = NamespaceConfig(workflow_execution_retention_ttl=days)
    request = UpdateNamespaceRequest(namespace=client.namespace, config=config)
    await client.workflow_service.update_namespace(request, retry=True)


def free_ports(*preferred: tuple[int, int]) -> tuple[int, int]:
    """The first preferred pair of ports that is free, or otherwise any two free ports."""
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


def choose_ports(port: int | None, ui_port: int | None, preferred: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The requested ports; a missing one is from the first preferred pair that is free, or any free port.

    Raises UsageError if a requested port is in use.
    """
    for number, option in ((port, "--port"), (ui_port, "--ui-port")):
        if number and not _is_free(number):
            raise UsageError(
                f"port {number} is in use, perhaps by another Temporal server: choose another one with {option}"
            )
    return free_ports(*((port or first, ui_port or second) for first, second in (*preferred, (0, 0))))


def taken_of(ports: tuple[int, int]) -> list[int]:
    """The ports that are in use by another process."""
    return [port for port in ports if port and not _is_free(port)]


def _is_free(port: int) -> bool:
    return port in free_ports((port, 0))
