"""Finds the Temporal server to use: the configured one, or this machine's local server, started on demand."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from temporalio.client import Client
from temporalio.converter import StorageDriver
from temporalio.service import RPCError

from ...installation import require
from ...temporal.client import EXTERNAL_STORAGE_URL, connect, connect_config, for_baton, with_external_storage
from ..account import client_identity
from ..errors import START_HINT, UnreachableError
from ..runs.listing import open_runs
from .state_dir import DevServer, StateDir

if TYPE_CHECKING:
    from ...journal.database import Database

DEFAULT_NAMESPACE = "default"
"""The Temporal namespace of the local server, and of clients without a configured one."""

LINGER = 30.0
"""Seconds that a local server and worker keep running after the last client and the last run have ended."""

START_TIMEOUT = 300.0
"""Seconds to wait for a server and worker to start: two attempts to start the server, and the worker."""


@dataclass(frozen=True)
class ServerLocation:
    """The location of a Temporal server; ``state_dir`` is set for the local one. No address: the configured one.

    ``ui`` is the address of Temporal's UI, and ``console`` that of Baton's own page.

    ``client`` is that of a program, which is used instead of a connection of one's own. ``environment`` are the
    settings of clients and of workers in this process, by default its environment variables.
    """

    address: str | None
    ui: str | None = None
    state_dir: StateDir | None = None
    client: Client | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    console: str | None = None

    async def connect(self, *, typed: bool = True) -> Client:
        """A client that also reads values in external storage; raises ConnectionFailed and SettingsError.

        One that is not ``typed`` reads JSON alone: attributes and memos.
        """
        client = await self.connect_as(client_identity(), typed=typed)
        if not typed:
            return client
        drivers = self._storage_drivers(client.namespace)
        return with_external_storage(client, *drivers) if drivers else client

    async def connect_as(self, identity: str | None = None, *, typed: bool = True) -> Client:
        """A client with that identity, by default that of the process; raises ConnectionFailed and SettingsError."""
        if self.client:
            return for_baton(self.client, self.environment)
        is_local = self.state_dir is not None
        return await connect(self.address, self.environment, identity=identity, is_local=is_local, typed=typed)

    def _storage_drivers(self, namespace: str) -> Sequence[StorageDriver]:
        """The drivers for the configured external storage, and for this machine's journal."""
        local = self.state_dir and f"sqlite:///{self.state_dir.file('journal.db')}"
        journal = self.environment.get("BATON_JOURNAL_URL") or local
        if not (journal or self.environment.get(EXTERNAL_STORAGE_URL)):
            return ()
        from ...journal.external_storage import JournalStorageDriver, storage_drivers  # noqa: PLC0415  # few need them

        in_journal = [JournalStorageDriver(partial(_open_journal, journal, namespace))] if journal else []
        return storage_drivers(self.environment, *in_journal)


def _open_journal(url: str, namespace: str) -> "AbstractAsyncContextManager[Database]":
    require("worker", "a value in the journal")
    from ...journal.database import Database  # noqa: PLC0415  # takes 0.25 s, and large values are rare

    return Database.open(url, namespace)


def uses_remote_server() -> bool:
    """Whether another Temporal server than this machine's local one is configured."""
    host, _, port = connect_config().get("target_host", "").rpartition(":")
    if not port or host not in ("localhost", "127.0.0.1"):
        return bool(port)
    state_dir = StateDir.of(os.environ)
    dev = state_dir.read_dev_server() if state_dir.was_used else None
    return dev is None or dev.address != f"127.0.0.1:{port}"


def temporal_namespace() -> str:
    """The Temporal namespace of commands without a client: the configured one, or that of the local server."""
    if not uses_remote_server() and StateDir.of(os.environ).was_used:
        return DEFAULT_NAMESPACE
    return connect_config().get("namespace", DEFAULT_NAMESPACE)


@contextmanager
def use_server(report: Callable[[str], None], *, start: bool, own_settings: bool = True) -> Iterator[ServerLocation]:
    """A context manager that yields the server to use. The local server and worker keep running meanwhile.

    With ``start`` they are started if necessary and, with ``own_settings``, restarted if their settings differ from
    those of this process; ``report`` receives warnings. Raises UnreachableError if there is no server.
    """
    if uses_remote_server():
        yield ServerLocation(None)
        return
    state_dir = StateDir.of(os.environ)
    with ExitStack() as locks:
        if start:
            with state_dir.lock("start"):  # one client at a time checks whether they run, and starts them
                if own_settings:
                    _stop_outdated(state_dir, report)
                locks.enter_context(state_dir.lock("clients", shared=True))
                dev: DevServer | None = _find_or_start(state_dir)
        else:
            locks.enter_context(state_dir.lock("clients", shared=True))
            dev = state_dir.read_dev_server()
        if dev is None:
            raise UnreachableError(f"no server is running in {state_dir.folder}", START_HINT)
        yield ServerLocation(dev.address, dev.ui, state_dir, console=dev.gateway)


def _stop_outdated(state_dir: StateDir, report: Callable[[str], None]) -> None:
    """Stops a server and worker whose settings differ from those of this process, if they are unused."""
    dev = state_dir.read_dev_server()
    differing = dev.differing(os.environ) if dev else []
    if dev is None or not differing:
        return
    names = " and ".join(differing)
    if user := _user_of(dev, state_dir):
        report(f"note: the local worker was started with a different {names} and keeps it, because {user}")
        return
    report(f"{names} {'has' if len(differing) == 1 else 'have'} changed: restarting the worker")
    _stop(dev, state_dir)


def stop_idle(state_dir: StateDir) -> bool:
    """Stops an unused server and worker that a client has started; returns whether they were stopped."""
    dev = state_dir.read_dev_server()
    if dev is None or _user_of(dev, state_dir):
        return False
    _stop(dev, state_dir)
    return True


def _stop(dev: DevServer, state_dir: StateDir) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(dev.pid, signal.SIGTERM)
    with state_dir.lock("dev"):  # free once it has ended
        return


def _user_of(dev: DevServer, state_dir: StateDir) -> str:
    """The reason why a running worker is needed, as the end of a sentence; empty if it is unused."""
    if not dev.lingering:
        return "it was started by 'baton dev': stop that to use the new value"
    try:
        runs = asyncio.run(_open_runs(dev))
    except RPCError:
        return "its server did not report whether runs are open"
    if runs:
        return f"{' and '.join(runs)} {'is' if len(runs) == 1 else 'are'} still open"
    return "another command uses it" if state_dir.is_held("clients") else ""


async def _open_runs(dev: DevServer) -> list[str]:
    return await open_runs(await connect(dev.address))


def _find_or_start(state_dir: StateDir) -> DevServer:
    """The local server and worker, started if necessary; raises UnreachableError if they don't start."""
    deadline = time.monotonic() + START_TIMEOUT
    child: subprocess.Popen[bytes] | None = None
    while time.monotonic() < deadline:
        if dev := state_dir.read_dev_server():
            return dev
        if child is None and not state_dir.is_held("dev"):
            child = _start(state_dir)
        if child and child.poll():
            break
        time.sleep(0.1)
    log = state_dir.file("dev.log")
    last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1]
    raise UnreachableError(f"the server and worker did not start: {last} (see {log})")


def _start(state_dir: StateDir) -> subprocess.Popen[bytes]:
    require("worker", "a local worker")
    require("cli", "a local worker")
    state_dir.rotate_log("dev.log", 0)
    with state_dir.open("dev.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "baton.starter", "dev", "--linger", str(LINGER)],
            env={**os.environ, "BATON_HOME": str(state_dir.folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
