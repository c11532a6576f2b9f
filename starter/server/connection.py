"""Which Temporal does the command line talk to? The one that the environment names, or the one on this machine."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from temporalio.client import Client

from ...activities.journal.external_storage import stores
from ...activities.journal.storage_driver import Blobs
from ...conversation.temporal.temporal_client import connect, settings, storing
from ..runs.runs import has_open_runs
from .state_dir import ENVIRONMENT, Dev, Home, fingerprint

if TYPE_CHECKING:
    from ...activities.journal import Database

LINGER = 30.0
"""Seconds that a server and worker stay after the last client has gone and the last run is over."""

PATIENCE = 60.0
"""Seconds to wait for a server and worker to come up."""


class UnreachableError(Exception):
    """Temporal can't be reached; the text says how to start it."""


@dataclass(frozen=True)
class Place:
    """Where Temporal is: ``home`` is set where it is this machine's own."""

    address: str | None
    ui: str | None = None
    home: Home | None = None

    async def connect(self) -> Client:
        """A client that also finds what is kept elsewhere, where that can be reached; raises SettingsError."""
        client = await connect(self.address)
        journal = os.environ.get("BATON_JOURNAL_URL") or (self.home and f"sqlite:///{self.home.file('journal.db')}")
        kept = stores(os.environ, *([Blobs(partial(_reach, journal))] if journal else []))
        return storing(client, *kept) if kept else client


def _reach(journal: str) -> "AbstractAsyncContextManager[Database]":
    from ...activities.journal import Database  # noqa: PLC0415  # it takes a quarter of a second to import, and few need it

    return Database.at(journal)


def is_elsewhere() -> bool:
    """Whether the environment names a Temporal server, rather than leaving it to this machine's own."""
    return "target_host" in settings()


@contextmanager
def temporal(say: Callable[[str], None], *, start: bool) -> Iterator[Place]:
    """Where Temporal is; this machine's own server and worker stay up while the block runs.

    ``start`` starts them if they don't run. Raises UnreachableError where there is nothing to talk to.
    """
    if is_elsewhere():
        yield Place(None)
        return
    home = Home.of(os.environ)
    with ExitStack() as held:
        if start:
            with home.lock("start"):  # one client at a time looks whether they run, and starts them
                _make_way(home, say)
                held.enter_context(home.lock("clients", shared=True))
                dev: Dev | None = _running(home)
        else:
            held.enter_context(home.lock("clients", shared=True))
            dev = home.read_dev()
        if dev is None:
            raise UnreachableError(f"nothing runs in {home.folder}: start it with 'baton dev', or set TEMPORAL_ADDRESS")
        yield Place(dev.address, dev.ui, home)


def _make_way(home: Home, say: Callable[[str], None]) -> None:
    """Ends a worker that was started with other settings than ours, if nobody needs it."""
    dev = home.read_dev()
    if dev is None or fingerprint(os.environ) in ("", dev.environment):
        return
    if not dev.lingering or home.is_held("clients") or asyncio.run(_has_open_runs(dev)):
        say(f"note: the worker here was started with other values of {', '.join(ENVIRONMENT)}, and keeps those")
        return
    say(f"{', '.join(ENVIRONMENT[:-1])} or {ENVIRONMENT[-1]} has changed: the worker starts anew")
    os.kill(dev.pid, signal.SIGTERM)
    with home.lock("dev"):  # until it has ended
        return


async def _has_open_runs(dev: Dev) -> bool:
    return await has_open_runs(await connect(dev.address))


def _running(home: Home) -> Dev:
    """The server and worker that run here, started if none do."""
    deadline = time.monotonic() + PATIENCE
    child: subprocess.Popen[bytes] | None = None
    while time.monotonic() < deadline:
        if dev := home.read_dev():
            return dev
        if child is None and not home.is_held("dev"):
            child = _start(home)
        if child and child.poll():
            break
        time.sleep(0.1)
    log = home.file("dev.log")
    last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1]
    raise UnreachableError(f"the server and worker did not come up: {last} (see {log})")


def _start(home: Home) -> subprocess.Popen[bytes]:
    with home.file("dev.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "baton.starter", "dev", "--linger", str(LINGER)],
            env={**os.environ, "BATON_HOME": str(home.folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
