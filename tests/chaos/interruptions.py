"""Interrupts one of two workers during calls, and counts second effects: ``python -m tests.chaos.interruptions``.

Two workers share a task queue and a journal in PostgreSQL. During calls of tools, models and engines that take six
seconds, the first worker freezes, loses Temporal, the journal or the servers that it calls, gets another time of day,
or is killed and started again: ``--each 3`` times each. The lease of a call lasts for ten seconds.

A call that must not be made twice has a second effect if its server receives it again; a model call is paid twice if it
is sent again. The clock needs libfaketime, which Debian has a package of; without it the clock stays as it is.
"""

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url
from temporalio.client import Client

from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from tests.chaos.report import Report, arguments
from tests.harness.long_calls import RUNS, Calls, TwoWorkers, called_servers, is_unknown, running, until_started
from tests.harness.ports import own_ports
from tests.harness.postgres import PostgresServer
from tests.harness.processes import ROOT, WorkerProcess
from tests.harness.tcp_proxy import TcpProxy

KINDS = ("POST", "GET", "model", "engine", "idempotent engine")
LIBFAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


class ExecutedWorker(WorkerProcess):
    """A worker that is executed, not forked: only then the dynamic linker loads what LD_PRELOAD names."""

    _executed: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._executed
        return self._executed.pid

    def start(self) -> None:
        """Starts it, and does not wait until it polls."""
        self.started += 1
        with self.log.open("ab") as log:
            self._executed = subprocess.Popen(
                [sys.executable, str(ROOT / "worker.py")], env=self._env, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """Kills it as ``kill -9`` does."""
        assert self._executed
        self._executed.kill()
        self._executed.wait()

    async def stop(self) -> int:
        """Sends SIGTERM, and waits for its end; its exit code."""
        assert self._executed
        self._executed.terminate()
        return await asyncio.to_thread(self._executed.wait)


@dataclass
class Environment:
    """Two workers, and the connections and the clock of the first one. Both reach the tools through ``tools``."""

    two: TwoWorkers
    temporal: TcpProxy
    journal: TcpProxy
    model: TcpProxy
    tools: TcpProxy
    clock: Path

    @property
    def first(self) -> WorkerProcess:
        """The worker that is interrupted."""
        return self.two.workers[0]

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, folder: Path, server: EmbeddedServer, client: Client) -> AsyncIterator["Environment"]:
        """Runs both workers with a journal in PostgreSQL."""
        with PostgresServer.running() as postgres, called_servers() as (model, model_url, tools):
            journal = make_url(await postgres.database())
            async with contextlib.AsyncExitStack() as stack:
                ports = (port_of(f"http://{server.address}"), postgres.port, port_of(model_url), port_of(tools.url))
                proxies = [await stack.enter_async_context(TcpProxy(port)) for port in ports]
                to_temporal, to_journal, to_model, to_tools = proxies
                clock = folder / "clock"
                clock.write_text("+0")
                variables = {
                    "TEMPORAL_ADDRESS": server.address,
                    "BATON_JOURNAL_URL": journal.render_as_string(hide_password=False),
                    "OPENAI_BASE_URL": model_url,
                }
                proxied = journal.set(port=port_of(f"http://{to_journal.address}"))
                first = {
                    "TEMPORAL_ADDRESS": to_temporal.address,
                    "BATON_JOURNAL_URL": proxied.render_as_string(hide_password=False),
                    "OPENAI_BASE_URL": f"http://{to_model.address}/v1",
                }
                if LIBFAKETIME:
                    first |= {
                        "LD_PRELOAD": str(LIBFAKETIME),
                        "FAKETIME_TIMESTAMP_FILE": str(clock),
                        "FAKETIME_CACHE_DURATION": "1",
                        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                    }
                workers = await stack.enter_async_context(running(folder, variables, first, ExecutedWorker))
                two = TwoWorkers(client, model, tools, f"http://{to_tools.address}", workers)
                yield cls(two, to_temporal, to_journal, to_model, to_tools, clock)


def port_of(url: str) -> int:
    """The port of a URL."""
    port = make_url(url).port
    assert port
    return port


async def freeze(env: Environment, seconds: float) -> None:
    """Suspends the worker."""
    with env.first.frozen():
        await asyncio.sleep(seconds)


async def kill(env: Environment, seconds: float) -> None:
    """Kills the worker, and starts it again after a while."""
    env.first.kill()
    await asyncio.sleep(seconds)
    env.first.start()
    await until_started(env.two.workers)


async def cut_from_called_servers(env: Environment, seconds: float) -> None:
    """Cuts the worker from the model, and both workers from the tools and engines."""
    await asyncio.gather(env.model.cut(seconds), env.tools.cut(seconds))


async def set_clock(env: Environment, seconds: float) -> None:
    """Changes the worker's time of day by so many seconds, and sets it right once the calls are answered."""
    env.clock.write_text(f"{seconds:+.0f}")
    await asyncio.sleep(12)
    env.clock.write_text("+0")


@dataclass(frozen=True)
class Interruption:
    """What is done, for how many seconds, and whether calls may be made again since their outcome can't be known."""

    name: str
    interrupt: Callable[[Environment, float], Awaitable[None]]
    shortest: float
    longest: float
    may_repeat: bool = False


INTERRUPTIONS = [
    Interruption("frozen for less than a lease", freeze, 1, 8),
    Interruption("frozen for more than a lease", freeze, 12, 30, may_repeat=True),
    Interruption("killed", kill, 0, 5, may_repeat=True),
    Interruption("cut from Temporal", lambda env, seconds: env.temporal.cut(seconds), 1, 30),
    Interruption("cut from the journal for less than a lease", lambda env, seconds: env.journal.cut(seconds), 1, 8),
    Interruption(
        "cut from the journal for more than a lease",
        lambda env, seconds: env.journal.cut(seconds),
        12,
        30,
        may_repeat=True,
    ),
    Interruption("cut from the called servers", cut_from_called_servers, 1, 30, may_repeat=True),
    Interruption("clock set forward", set_clock, 60, 7_200),
    Interruption("clock set back", set_clock, -7_200, -60),
]


async def examine(calls: Calls, may_repeat: bool) -> Counter[str]:
    """What became of the calls of one kind."""
    turns = await calls.turns()
    extra = calls.requests() - RUNS
    unknown = sum(is_unknown(turn) for turn in turns)
    failed = sum(turn.message != "Because." and not is_unknown(turn) for turn in turns)
    found = Counter(
        {
            "calls": RUNS,
            "made again": extra,
            "second effects": extra if calls.must_not_repeat else 0,
            "paid twice": extra if calls.kind == "model" and not may_repeat else 0,
            "outcome unknown": unknown,
            "unknown without need": unknown if not (may_repeat and calls.must_not_repeat) else 0,
            "failed": failed,
        }
    )
    if failed:
        print(calls.kind, [turn.failure for turn in turns], flush=True)
    return found


async def interrupt_all(each: int, seed: int, report: Report) -> None:
    """Interrupts the worker in each way ``each`` times, and adds a row for each way."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="baton-proof-") as name, StateDir(Path(name)).lock("dev") as lock:
        assert lock
        server = EmbeddedServer(Path(name), lock, *own_ports())
        client = await server.start()
        try:
            async with Environment.running(Path(name), server, client) as env:
                for interruption in INTERRUPTIONS:
                    found: Counter[str] = Counter()
                    for _ in range(each):
                        seconds = chance.uniform(interruption.shortest, interruption.longest)
                        begun = await env.two.begin(*KINDS)
                        await interruption.interrupt(env, seconds)
                        for calls in begun:
                            found.update(await examine(calls, interruption.may_repeat))
                        print(f"{interruption.name}, {seconds:.0f} s: {dict(found)}", flush=True)
                    report.row({"worker": interruption.name, "times": each, **found})
        finally:
            await server.stop()


async def main() -> None:
    """Runs everything, prints the table and writes the results."""
    given = arguments(__doc__, each=3, seed=2026)
    report = Report("interruptions", given)
    await interrupt_all(given["each"], given["seed"], report)
    report.write(libfaketime=str(LIBFAKETIME))


if __name__ == "__main__":
    asyncio.run(main())
