"""Which Temporal does the command line talk to? The one that the environment names, or the one on this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from temporalio.envconfig import ClientConfigProfile

from starter.home import Dev, Home, fingerprint

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


@contextmanager
def temporal(say: Callable[[str], None], *, start: bool) -> Iterator[Place]:
    """Where Temporal is; this machine's own server and worker stay up while the block runs.

    ``start`` starts them if they don't run. Raises UnreachableError where there is nothing to talk to.
    """
    if ClientConfigProfile.load().address:
        yield Place(None)
        return
    home = Home.of(os.environ)
    with home.lock("clients", shared=True):
        dev = _running(home, say) if start else home.read_dev()
        if dev is None:
            raise UnreachableError(
                f"nothing runs for {home.folder}: start it with 'baton dev', or set TEMPORAL_ADDRESS"
            )
        yield Place(dev.address, dev.ui, home)


def _running(home: Home, say: Callable[[str], None]) -> Dev:
    """The server and worker that run here, started if none do."""
    deadline = time.monotonic() + PATIENCE
    child: subprocess.Popen[bytes] | None = None
    ended: set[int] = set()
    while time.monotonic() < deadline:
        dev = home.read_dev()
        if dev and dev.pid not in ended:
            if _fits(dev, say):
                return dev
            os.kill(dev.pid, signal.SIGTERM)
            ended.add(dev.pid)
        elif child is None or child.poll() is not None:
            with home.lock("start", wait=False) as mine:
                if mine and not home.is_held("dev"):
                    child = _start(home)
        time.sleep(0.1)
    raise UnreachableError(f"the server and worker did not come up: see {home.folder / 'dev.log'}")


def _fits(dev: Dev, say: Callable[[str], None]) -> bool:
    """Whether the worker was started in an environment like ours; one that nobody started by hand is replaced."""
    ours = fingerprint(os.environ)
    if ours in ("", dev.environment):
        return True
    if dev.lingering:
        say("OPENAI_API_KEY, OPENAI_BASE_URL or OPENAI_MODEL has changed: the worker starts anew with them")
        return False
    say("note: 'baton dev' was started with another OPENAI_API_KEY, OPENAI_BASE_URL or OPENAI_MODEL, and keeps those")
    return True


def _start(home: Home) -> subprocess.Popen[bytes]:
    with home.file("dev.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "starter", "dev", "--linger", str(LINGER)],
            env={**os.environ, "BATON_HOME": str(home.folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
