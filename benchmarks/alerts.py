"""Breaks what each alert is about, with real processes and Prometheus: ``python -m benchmarks.alerts [NAME …]``.

Each case has a Temporal server, a worker and Prometheus of its own, with the shipped rules. Their times are shortened:
``for`` is 2 s, and rates are taken over 30 s. Prometheus is the program ``prometheus`` (Debian's package of that name).
Cases with a full disk mount a small file system, which needs root. Prints a table: what was broken, which alerts fired,
and after how many seconds.
"""

import argparse
import asyncio
import contextlib
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import yaml
from temporalio.client import Client

from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT, connect
from baton.testing import Reply, Request, ScriptedModel
from tests.harness.environment import KEY, Handle, Json, agent, call, manifest
from tests.harness.killable import wait_until
from tests.harness.ports import own_port, own_ports
from tests.harness.postgres import PostgresServer
from tests.harness.processes import ROOT, WorkerProcess, process_env, server_process
from tests.harness.tool_server import Answer, ToolServer
from tests.workflows.test_approval import approve, pending, tool

RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
PATIENCE = 150.0
"""Seconds after which an alert that has not fired is missing."""

NEW_KEYS = {"BATON_ENCRYPTION_KEYS": "new:" + "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}


def shortened_rules() -> Json:
    """The shipped rules, which fire sooner."""
    rules: Json = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["for"] = "2s"
        rule["expr"] = re.sub(r"\[\w+\]", "[30s]", rule["expr"])
    return rules


class Prometheus:
    """Prometheus with the shortened rules, which scrapes workers at ports of this machine every second."""

    def __init__(self, program: str, folder: Path, *ports: int) -> None:
        self._folder = folder
        self._program = program
        self._ports = ports
        self._port = own_port()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Runs it while the block runs."""
        self._folder.mkdir()
        (self._folder / "rules.yaml").write_text(yaml.safe_dump(shortened_rules()))
        targets = [f"127.0.0.1:{port}" for port in self._ports]
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "baton", "static_configs": [{"targets": targets}]}],
        }
        (self._folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        options = {
            "config.file": self._folder / "prometheus.yaml",
            "storage.tsdb.path": self._folder / "data",
            "web.listen-address": f"127.0.0.1:{self._port}",
        }
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [self._program, *(f"--{name}={value}" for name, value in options.items())], stdout=log, stderr=log
            )
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    async def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        async with httpx.AsyncClient() as client:
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.get(f"http://127.0.0.1:{self._port}/api/v1/alerts")
                alerts = answer.json()["data"]["alerts"]
                return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
        return set()


@dataclass
class Bench:
    """A server, a worker and a model of one case. ``answer`` may be changed while they run."""

    folder: Path
    server: EmbeddedServer
    client: Client
    worker: WorkerProcess
    shop: ToolServer
    model_url: str
    postgres: PostgresServer | None
    answer: Callable[[Request], Reply]
    tasks: list["asyncio.Task[None]"] = field(default_factory=lambda: list["asyncio.Task[None]"]())

    async def start(self, **given: Any) -> Handle:
        """Starts a run of an agent that may buy something."""
        options: dict[str, Any] = {"task_queue": self.worker.task_queue, "task_timeout": WORKFLOW_TASK_TIMEOUT}
        run = {"agent": "buyer", "input": "Buy!", **given}
        return await self.client.start_workflow("agent", run, id=uuid.uuid4().hex, **options)

    def start_many(self, interval: float = 2.0, **given: Any) -> None:
        """Starts a run in each interval, until the end of the case."""

        async def start() -> None:
            while True:
                with contextlib.suppress(Exception):
                    await self.start(**given)
                await asyncio.sleep(interval)

        self.tasks.append(asyncio.create_task(start()))

    def stall(self, process: psutil.Process, seconds: float, pause: float) -> None:
        """Suspends a process for so many seconds, again and again."""

        async def stall() -> None:
            while True:
                process.suspend()
                try:
                    await asyncio.sleep(seconds)
                finally:  # at the end of the case, too: a suspended process takes no SIGTERM
                    process.resume()
                await asyncio.sleep(pause)

        self.tasks.append(asyncio.create_task(stall()))

    @property
    def server_process(self) -> psutil.Process:
        """The process of the Temporal server."""
        assert self.server._process
        return server_process(self.server._process.pid)


Break = Callable[[Bench], Awaitable[object]]


@dataclass(frozen=True)
class Case:
    """What is broken, how, and which alerts are to fire. ``disk`` is the folder on a small disk: worker or server."""

    name: str
    breaks: Break
    alerts: set[str]
    settings: Mapping[str, str] = field(default_factory=dict)
    postgres: bool = False
    disk: str = ""


GOOD = Reply(text="Done.")
BUYS = Reply.model_validate(call("buy", item="pen"))


async def kill_worker(bench: Bench) -> None:
    bench.worker.kill()


async def kill_server(bench: Bench) -> None:
    bench.server_process.kill()


async def freeze_server(bench: Bench) -> None:
    bench.server_process.suspend()


async def stop_postgres(bench: Bench) -> None:
    assert bench.postgres
    bench.start_many()
    bench.postgres.stop()


async def answer_503(bench: Bench) -> None:
    bench.answer = lambda _: Reply(status=503)
    bench.start_many(agent="guarded")


async def answer_401(bench: Bench) -> None:
    bench.answer = lambda _: Reply(status=401)
    bench.start_many()


async def break_tool(bench: Bench) -> None:
    gets = Reply.model_validate(call("get", item="pen"))
    bench.answer = lambda request: gets if request["messages"][-1]["role"] == "user" else GOOD
    bench.shop.answers(Answer("broken", status=500))
    bench.start_many(agent="shopper")


async def delete_rows(bench: Bench) -> None:
    bench.answer = lambda request: BUYS if request["messages"][-1]["role"] == "user" else GOOD
    run = await bench.start()
    (asked,) = await pending(run)
    bench.worker.kill()  # it has the rows in its memory
    with contextlib.closing(sqlite3.connect(bench.folder / "worker" / "journal.db")) as database:
        database.execute("delete from baton_messages")
        database.commit()
    bench.worker.start()
    await approve(run, asked, approved=True)


async def use_unknown_key(bench: Bench) -> None:
    environment = {**process_env(), **NEW_KEYS}
    client = await connect(bench.server.address, environment)
    options: dict[str, Any] = {"task_queue": bench.worker.task_queue, "task_timeout": WORKFLOW_TASK_TIMEOUT}
    await client.start_workflow("agent", {"agent": "buyer", "input": "Buy!"}, id="encrypted", **options)


async def start_too_much(bench: Bench) -> None:
    bench.answer = lambda _: Reply(text="Done.", delay=15)
    for _ in range(30):
        await bench.start()


async def ask_person(bench: Bench) -> None:
    bench.answer = lambda _: BUYS
    await bench.start()


async def pause_run(bench: Bench) -> None:
    bench.answer = lambda _: BUYS
    run = await bench.start()
    await run.signal("pause", {"name": "dana"})


async def fill_disk(bench: Bench) -> None:
    bench.answer = lambda _: Reply(text="Done.", delay=5)
    for _ in range(20):
        await bench.start()
    bench.start_many()
    folder = bench.folder / "worker"
    if not folder.is_mount():
        folder = bench.folder / "server"
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4_096))


async def block_loop(bench: Bench) -> None:
    bench.answer = lambda request: (
        Reply.model_validate(call("block")) if request["messages"][-1]["role"] == "user" else GOOD
    )
    bench.start_many(agent="blocker")


async def spend(bench: Bench) -> None:
    bench.start_many(agent="spender")


async def stall_worker(bench: Bench) -> None:
    bench.start_many()
    bench.stall(psutil.Process(bench.worker.pid), 3.0, 1.0)


async def stall_server(bench: Bench) -> None:
    bench.start_many()
    bench.stall(bench.server_process, 2.5, 1.0)


async def stall_postgres(bench: Bench) -> None:
    assert bench.postgres
    bench.start_many()
    postmaster = psutil.Process(int((bench.postgres.folder / "data" / "postmaster.pid").read_text().split()[0]))
    for process in postmaster.children():  # among them those that serve the worker
        bench.stall(process, 1.0, 0.2)


CASES = (
    Case("All workers are killed", kill_worker, {"BatonNoWorker", "BatonWorkerDown"}),
    Case("Temporal is killed", kill_server, {"BatonTemporalUnavailable", "BatonWorkerNotReady"}),
    Case("Temporal is frozen: it takes requests and never answers", freeze_server, {"BatonWorkerNotReady"}),
    Case("Temporal gets no CPU for 2.5 of 3.5 seconds", stall_server, {"BatonTemporalSlow"}),
    Case("The disk of Temporal's database is full", fill_disk, {"BatonTemporalRefusesRequests"}, disk="server"),
    Case(
        "PostgreSQL, with the journal, is stopped",
        stop_postgres,
        {"BatonJournalUnavailable", "BatonWorkerNotReady"},
        postgres=True,
    ),
    Case("PostgreSQL gets no CPU for 1 of 1.2 seconds", stall_postgres, {"BatonJournalSlow"}, postgres=True),
    Case("The disk of the journal is full", fill_disk, {"BatonJournalDiskFull", "BatonWorkerNotReady"}, disk="worker"),
    Case("The rows of an open run are deleted from the journal", delete_rows, {"BatonJournalRowsMissing"}),
    Case(
        "A client encrypts with a key that the worker doesn't have",
        use_unknown_key,
        {"BatonWorkflowTasksFail", "BatonRunsStuck"},
    ),
    Case("The worker gets no CPU for 3 of 4 seconds", stall_worker, {"BatonWorkflowTasksSlow"}),
    Case("A function blocks the event loop for 3 seconds", block_loop, {"BatonEventLoopBlocked"}),
    Case(
        "30 calls of 15 seconds for one slot",
        start_too_much,
        {"BatonBacklog", "BatonTooFewWorkers"},
        {"BATON_MAX_CONCURRENT_ACTIVITIES": "1"},
    ),
    Case(
        "A model with a circuit breaker answers 503",
        answer_503,
        {"BatonModelCallsFail", "BatonCircuitBreakerOpen", "BatonRunsWaitForServers"},
    ),
    Case("A model refuses the key (401)", answer_401, {"BatonModelCallsFail", "BatonRunsFail"}),
    Case("A tool answers 500", break_tool, {"BatonToolCallsFail"}),
    Case("A run waits for an approval", ask_person, {"BatonRunsWaitForPeople"}),
    Case("A run is paused", pause_run, {"BatonRunsPaused"}),
    Case("A model costs a dollar a token", spend, {"BatonCostsHigh"}),
)

FUNCTIONS = """
import time, baton

@baton.function
async def block() -> str:
    time.sleep(3)
    return "done"
"""


def model(name: str, url: str, **spec: Any) -> Json:
    """A Model at the scripted server."""
    config = {"openai": {"baseUrl": {"value": url}, "apiKey": {"value": KEY}}}
    return manifest("Model", name, {"type": "openai", "model": {"value": name}, "config": config, **spec})


def manifests(url: str, shop: ToolServer) -> list[Json]:
    """What the worker of a case has."""
    reads = tool(shop, None, "get")
    reads["spec"]["http"] = {"url": f"{shop.url}/get?item={{item}}"}
    return [
        agent("buyer", "buy", modelRef={"name": "plain"}),
        agent("shopper", "get", modelRef={"name": "plain"}),
        agent("blocker", "block", modelRef={"name": "plain"}),
        agent("guarded", modelRef={"name": "gpt"}),
        agent("spender", modelRef={"name": "gold"}),
        tool(shop, {}),
        reads,
        manifest("Tool", "block", {"type": "function", "function": {"name": "block"}}),
        model("plain", url),
        model("gpt", url, circuitBreaker={"failures": 3, "openFor": "5s"}),
        model("gold", url, pricing={"input": 1_000_000, "output": 1_000_000}),
    ]


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mounts a file system of 64 MB at a folder while the block runs. Raises CalledProcessError without the right."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.asynccontextmanager
async def opened(case: Case, program: str) -> AsyncIterator[tuple[Bench, Prometheus]]:
    """Everything that a case needs, while the block runs; it ends with kills, as what was broken can't stop."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-alerts-")))
        if case.disk:
            stack.enter_context(small_disk(folder / case.disk))
        postgres = stack.enter_context(PostgresServer.running()) if case.postgres else None
        lock = stack.enter_context(StateDir(folder / "server").lock("dev"))
        assert lock
        shop = stack.enter_context(ToolServer().serving())
        server = EmbeddedServer(folder / "server", lock, *own_ports())
        client = await server.start()
        answering: list[Bench] = []
        scripted = ScriptedModel(lambda request: answering[0].answer(request) if answering else GOOD)
        url = stack.enter_context(scripted.serve())
        (folder / "cases.py").write_text(FUNCTIONS)
        (folder / "manifests.yaml").write_text(yaml.safe_dump_all(manifests(url, shop)))
        port = own_port()
        environment = process_env(
            TEMPORAL_ADDRESS=server.address,
            BATON_HOME=str(folder / "worker"),
            BATON_HEALTH_PORT=str(port),
            BATON_FUNCTIONS="cases",
            BATON_ALLOW_PRIVATE_HOSTS="1",
            PYTHONPATH=str(folder),
            **({"BATON_JOURNAL_URL": await postgres.database()} if postgres else {}),
            **case.settings,
        )
        worker = WorkerProcess(environment, folder / "worker.log", folder / "manifests.yaml")
        worker.start()
        bench = Bench(folder, server, client, worker, shop, url, postgres, lambda _: GOOD)
        answering.append(bench)
        prometheus = Prometheus(program, folder / "prometheus", port)
        try:
            started = wait_until(lambda: "Worker started" in worker.log.read_text())
            try:
                await asyncio.wait_for(started, 60)
            except TimeoutError:
                raise SystemExit(worker.log.read_text()) from None
            with prometheus.running():
                yield bench, prometheus
        finally:
            for task in bench.tasks:
                task.cancel()
            await asyncio.gather(*bench.tasks, return_exceptions=True)
            worker.kill()
            with contextlib.suppress(psutil.Error, AssertionError, ValueError):
                bench.server_process.kill()
            await server.stop()


async def measured(case: Case, program: str) -> dict[str, float]:
    """After how many seconds the alerts have fired that fired until all that are wanted have, or PATIENCE is over."""
    fired = dict[str, float]()
    async with opened(case, program) as (bench, prometheus):
        await bench.start()  # as all counters begin with the first run
        await asyncio.sleep(10)  # so that Prometheus knows how it was before
        while await prometheus.firing() - case.alerts:  # a small disk is almost full from the start
            await asyncio.sleep(0.5)
        begun = time.monotonic()
        await case.breaks(bench)
        while not case.alerts <= fired.keys() and time.monotonic() - begun < PATIENCE:
            for alert in await prometheus.firing() - fired.keys():
                fired[alert] = time.monotonic() - begun
            await asyncio.sleep(0.2)
    return fired


def shown(case: Case, fired: Mapping[str, float]) -> str:
    """A row of the table: first the alerts that had to fire, then others that did."""
    wanted = (f"`{name}` {fired[name]:.0f} s" if name in fired else f"**`{name}` not**" for name in sorted(case.alerts))
    others = (f"`{name}` {seconds:.0f} s" for name, seconds in fired.items() if name not in case.alerts)
    return f"| {case.name} | {', '.join(wanted)} | {', '.join(others) or '–'} |"


async def main(names: list[str], program: str) -> None:
    """Prints the table, a row when its case has ended."""
    print("| broken | fired, after | also fired |\n|---|---|---|", flush=True)
    missing = 0
    for case in CASES:
        if names and not any(name.lower() in case.name.lower() for name in names):
            continue
        try:
            fired = await measured(case, program)
        except subprocess.CalledProcessError as error:
            print(f"| {case.name} | not tried: {error} | |", flush=True)
            continue
        missing += not case.alerts <= fired.keys()
        print(shown(case, fired), flush=True)
    known = {rule["alert"] for rule in shortened_rules()["groups"][0]["rules"]}
    unbroken = known - {alert for case in CASES for alert in case.alerts}
    print(f"\n{missing} cases without their alerts; not broken here: {sorted(unbroken)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of the cases; by default all")
    parser.add_argument("--prometheus", default=shutil.which("prometheus"), help="the program")
    arguments = parser.parse_args()
    if not arguments.prometheus:
        parser.error("prometheus is not installed")
    asyncio.run(main(arguments.names, arguments.prometheus))
