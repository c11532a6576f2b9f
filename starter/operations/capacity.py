"""``baton capacity``: measures what a run takes on this machine, and computes from that what a load needs."""

import asyncio
import contextlib
import itertools
import math
import os
import random
import string
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import to_json
from sqlalchemy import Connection, inspect
from temporalio.client import Client

from ...activities.runtime.settings import Settings
from ...installation import require
from ...journal.engine import Engine
from ...journal.engine import connect as connect_journal
from ...temporal.client import WORKFLOW_TASK_TIMEOUT, connect
from ...temporal.encryption import KEYS, Key
from ..errors import UsageError
from ..scripted_model import Reply, Request, ScriptedModel
from ..server.embedded import EmbeddedServer, free_ports
from ..server.state_dir import StateDir

FILLED = 0.6
"""How much of a worker's core is planned for: the rest is for the death of another worker, and for rollouts."""

PEAK = 3
"""How many times the average the busiest hour is."""

CALLS_AT_ONCE = 200
"""The concurrent calls of a worker: the default of BATON_MAX_CONCURRENT_ACTIVITIES."""

WARM_UP, SAMPLED = 4, 3
"""Runs before the measurement, which open connections and fill caches; and runs whose histories are measured."""

STARTED = b"Worker started on task queue"
"""The line of a worker's log that says that it polls."""

START_SECONDS = 120.0
"""How long a worker may take to get ready."""

MEMBERS = ("writer", "critic")
QUESTION = "How do we write a good report?"

_KEPT = ("BATON_MAX_", "BATON_CALL_LEASE")
"""The settings of this process that the measured worker has as well: all others would change what it does."""


@dataclass(frozen=True)
class Load:
    """What is run: so many runs, ``at_once`` of them concurrently, each with ``turns`` replies of ``reply`` bytes."""

    turns: int = 12
    reply: int = 1_000
    runs: int = 40
    at_once: int = 20


@dataclass(frozen=True)
class MeasuredRuns:
    """What a run takes, and what a worker does. Bytes are those of a run, CPU times those of a turn.

    ``history_bytes`` are those of the query, of its team, and of their child runs. ``server_ms`` is the CPU time of
    Temporal and its database, None for a server elsewhere. ``idle_mb`` and ``loaded_mb`` are the resident memory of the
    worker's process, ``all_mb`` the proportional memory with its helper processes after the load; None where /proc is
    missing.
    """

    encrypted: bool
    history_bytes: int
    journal_bytes: int
    worker_ms: float | None
    server_ms: float | None
    runs_per_minute: float
    idle_mb: int | None
    loaded_mb: int | None
    all_mb: int | None


@dataclass(frozen=True)
class Needs:
    """What a load needs, in its busiest hour: workers, and CPUs of Temporal; and what it stores in a day.

    A worker makes ``calls_at_once``.
    """

    turns_per_second: float
    workers_by_cpu: int
    workers_by_calls: int
    calls_at_once: int
    server_cpus: float | None
    histories_gb: float
    journal_gb: float

    @property
    def workers(self) -> int:
        """How many workers: at least two, so that the death of one stops nothing."""
        return max(self.workers_by_cpu, self.workers_by_calls, 2)


def worker_calls_at_once() -> int:
    """The calls that a worker with these environment variables makes at once. Raises SettingsError."""
    return Settings.of(os.environ).max_concurrent_activities


def needs(
    measured: MeasuredRuns,
    runs_per_day: float,
    turns: int,
    call_seconds: float,
    calls_at_once: int = CALLS_AT_ONCE,
) -> Needs:
    """What so many runs a day need, each with so many turns, if a model answers after ``call_seconds``.

    A worker makes ``calls_at_once``, its BATON_MAX_CONCURRENT_ACTIVITIES.
    """
    busiest = runs_per_day * turns / 86_400 * PEAK
    by_cpu = busiest * (measured.worker_ms or 0) / 1_000 / FILLED
    return Needs(
        turns_per_second=busiest,
        workers_by_cpu=math.ceil(by_cpu),
        workers_by_calls=math.ceil(busiest * call_seconds / calls_at_once),
        calls_at_once=calls_at_once,
        server_cpus=None if measured.server_ms is None else busiest * measured.server_ms / 1_000,
        histories_gb=runs_per_day * measured.history_bytes / 1e9,
        journal_gb=runs_per_day * measured.journal_bytes / 1e9,
    )


def measured_rows(measured: Sequence[MeasuredRuns]) -> list[tuple[str, ...]]:
    """The table of what was measured: a row for each figure, with a cell for each measurement."""
    kinds = {
        "history of a run": [_kb(each.history_bytes) for each in measured],
        "journal of a run": [_kb(each.journal_bytes) for each in measured],
        "CPU of the worker, per turn": [_figure(each.worker_ms, "ms") for each in measured],
        "CPU of Temporal, per turn": [_figure(each.server_ms, "ms") for each in measured],
        "runs per minute": [f"{each.runs_per_minute:,.0f}" for each in measured],
        "memory of an idle worker": [_figure(each.idle_mb, "MB") for each in measured],
        "memory after the runs": [_figure(each.loaded_mb, "MB") for each in measured],
        "… with its helper processes, proportional": [_figure(each.all_mb, "MB") for each in measured],
    }
    return [(kind, *cells) for kind, cells in kinds.items()]


def needs_rows(wanted: Sequence[Needs]) -> list[tuple[str, ...]]:
    """The table of what a load needs; all of them with the same calls at once."""
    kinds = {
        f"turns per second, in the busiest hour ({PEAK} × the average)": [
            f"{each.turns_per_second:,.1f}" for each in wanted
        ],
        "workers": [f"{each.workers:,}" for each in wanted],
        f"… by CPU ({FILLED:.0%} of a core each)": [f"{each.workers_by_cpu:,}" for each in wanted],
        f"… by calls ({wanted[0].calls_at_once:,} at once each)": [f"{each.workers_by_calls:,}" for each in wanted],
        "CPUs of Temporal": [_figure(each.server_cpus, "") for each in wanted],
        "histories of a day": [f"{each.histories_gb:,.2f} GB" for each in wanted],
        "journal of a day": [f"{each.journal_gb:,.2f} GB" for each in wanted],
    }
    return [(kind, *cells) for kind, cells in kinds.items()]


def as_json(load: Load, measured: Sequence[MeasuredRuns], wanted: Sequence[Needs]) -> dict[str, JsonValue]:
    """The same as JSON."""
    needed = [{**asdict(each), "workers": each.workers} for each in wanted]
    return {"load": asdict(load), "measured": [asdict(each) for each in measured], "needs": [*needed]}


def _kb(size: int) -> str:
    return f"{size / 1_000:,.1f} kB"


def _figure(value: float | None, unit: str) -> str:
    """A number with its unit, or ``-`` if it is not known."""
    return "-" if value is None else f"{value:,.1f} {unit}".replace(".0 MB", " MB").strip()


async def measure(
    load: Load, journal: str | None = None, environ: Mapping[str, str] = os.environ, *, encrypted: Sequence[bool]
) -> list[MeasuredRuns]:
    """Runs the load once for each of ``encrypted``: with or without encryption.

    The server is that of TEMPORAL_ADDRESS, or else a temporary one; the journal is the empty database ``journal``,
    which is empty again afterwards, or else a temporary file. Raises UsageError if the database is not empty or a run
    fails, and ServerError, UnreachableError, ConnectionFailed and JournalUnavailable.
    """
    require("worker", "baton capacity")
    with tempfile.TemporaryDirectory(prefix="baton-", ignore_cleanup_errors=True) as name:
        async with _server(Path(name), environ) as server:
            with ScriptedModel(_RandomReplies(load.reply).answer).serve() as model:
                return [
                    await _measure_once(load, journal, environ, server, model, Path(name), each) for each in encrypted
                ]


@dataclass(frozen=True)
class _TemporalServer:
    """A Temporal server: its address, and the id of its process if it is a temporary one."""

    address: str
    pid: int | None


@contextlib.asynccontextmanager
async def _server(folder: Path, environ: Mapping[str, str]) -> AsyncIterator[_TemporalServer]:
    if address := environ.get("TEMPORAL_ADDRESS"):
        yield _TemporalServer(address, None)
        return
    with StateDir(folder).lock("dev") as lock:
        assert lock, "nobody else has the folder"
        server = EmbeddedServer(folder, lock, *free_ports())
        await server.start()
        try:
            yield _TemporalServer(server.address, server.pid)
        finally:
            await server.stop()


class _RandomReplies:
    """Replies with a new text each time, so that nothing is small by repetition."""

    def __init__(self, size: int) -> None:
        self._numbers, self._size = itertools.count(), size

    def answer(self, _request: Request) -> Reply:
        letters = random.Random(next(self._numbers)).choices(string.ascii_lowercase + "  ", k=self._size)
        return Reply(text="".join(letters))


async def _measure_once(
    load: Load,
    journal: str | None,
    environ: Mapping[str, str],
    server: _TemporalServer,
    model: str,
    folder: Path,
    encrypted: bool,
) -> MeasuredRuns:
    home = folder / uuid.uuid4().hex
    home.mkdir()
    (home / "team.yaml").write_bytes(_manifests(load.turns))
    kept = {name: value for name, value in environ.items() if not name.startswith("BATON_") or name.startswith(_KEPT)}
    settings = {
        **kept,
        "TEMPORAL_ADDRESS": server.address,
        "BATON_HOME": str(home),
        "BATON_JOURNAL_URL": journal or f"sqlite:///{home / 'journal.db'}",
        "BATON_TASK_QUEUE": f"capacity-{home.name}",
        "OPENAI_BASE_URL": model,
        "OPENAI_API_KEY": "none",
        **({KEYS: str(Key.generate("capacity"))} if encrypted else {}),
    }
    client = await connect(server.address, settings, is_local=server.pid is not None)
    async with _empty_journal(settings["BATON_JOURNAL_URL"]) as engine, _worker(settings, home) as worker:
        idle = resident_mb(worker)
        await _run_all(client, settings, WARM_UP, load.at_once)
        stored, cpu, began = await engine.run(_bytes_of), _cpu_seconds(worker), time.perf_counter()
        server_cpu = _cpu_seconds(server.pid) if server.pid else None
        runs = await _run_all(client, settings, load.runs, load.at_once)
        seconds, turns = time.perf_counter() - began, load.runs * load.turns
        return MeasuredRuns(
            encrypted=encrypted,
            history_bytes=await _history_bytes(client, runs[:SAMPLED]),
            journal_bytes=(await engine.run(_bytes_of) - stored) // load.runs,
            worker_ms=_ms_per_turn(cpu, _cpu_seconds(worker), turns),
            server_ms=_ms_per_turn(server_cpu, _cpu_seconds(server.pid) if server.pid else None, turns),
            runs_per_minute=load.runs / seconds * 60,
            idle_mb=idle,
            loaded_mb=resident_mb(worker),
            all_mb=proportional_mb(worker),
        )


def _manifests(turns: int) -> bytes:
    """A team in which two members take turns, or one if the turns are odd, as documents of a YAML file."""
    members = MEMBERS[: 1 if turns % 2 else 2]
    rounds = {"maxTurns": turns // len(members), "onMaxTurns": "complete"}
    specs = {
        ("Team", "capacity"): {"strategy": "round-robin", "members": [{"name": name} for name in members], **rounds},
        **{("Agent", name): {"prompt": f"You are the {name}. Say what you think of it."} for name in members},
    }
    version = "ark.mckinsey.com/v1alpha1"
    documents = (
        to_json({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
        for (kind, name), spec in specs.items()
    )
    return b"\n---\n".join(documents)


@contextlib.asynccontextmanager
async def _empty_journal(url: str) -> AsyncIterator[Engine]:
    """The database of the measured journal, which has no tables afterwards. Raises UsageError if it has some before."""
    engine = connect_journal(url)
    try:
        if await engine.run(lambda connection: inspect(connection).get_table_names()):
            raise UsageError(
                f"the journal at {engine.place} has tables: pass an empty database, which is emptied again afterwards"
            )
        try:
            yield engine
        finally:
            await engine.run(_drop_tables)
    finally:
        await engine.dispose()


def _drop_tables(connection: Connection) -> None:
    cascade = "" if connection.dialect.name == "sqlite" else " cascade"
    for name in inspect(connection).get_table_names():
        connection.exec_driver_sql(f'drop table "{name}"{cascade}')


def _bytes_of(connection: Connection) -> int:
    """The size of the database's tables, with indexes."""
    size = (
        "select page_count * page_size from pragma_page_count(), pragma_page_size()"
        if connection.dialect.name == "sqlite"
        else "select coalesce(sum(pg_total_relation_size(oid)), 0) from pg_class "
        "where relkind = 'r' and relnamespace = current_schema()::regnamespace"
    )
    return int(connection.exec_driver_sql(size).scalar_one())


@contextlib.asynccontextmanager
async def _worker(settings: Mapping[str, str], home: Path) -> AsyncIterator[int]:
    """The id of a worker's process, which is ready. Raises UsageError with its log if it ends."""
    log = home / "worker.log"
    command = (sys.executable, "-m", "baton.worker", str(home / "team.yaml"))
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, env=settings, cwd=home, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_SECONDS
        while STARTED not in log.read_bytes():
            if process.returncode is not None or time.monotonic() > deadline:
                raise UsageError(f"the worker did not start: {log.read_text()[-2_000:]}")
            await asyncio.sleep(0.1)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _run_all(client: Client, settings: Mapping[str, str], runs: int, at_once: int) -> list[str]:
    """Runs the team so often; the ids of the runs. Raises UsageError if one fails."""
    free = asyncio.Semaphore(at_once)
    spec = {"input": QUESTION, "targets": [{"type": "team", "name": "capacity"}]}

    async def run(run_id: str) -> str:
        async with free:
            status = await client.execute_workflow(
                "query",
                {"spec": spec},
                id=run_id,
                task_queue=settings["BATON_TASK_QUEUE"],
                task_timeout=WORKFLOW_TASK_TIMEOUT,
            )
        if status["phase"] != "Completed":
            raise UsageError(f"the run {run_id} has failed: {status}")
        return run_id

    return await asyncio.gather(*(run(f"capacity-{uuid.uuid4().hex}") for _ in range(runs)))


async def _history_bytes(client: Client, runs: Sequence[str]) -> int:
    """The average size of the histories of a run and of all runs below it, as Temporal counts it."""
    sizes = dict[str, int]()
    query = " or ".join(f"WorkflowId = '{run}' or RootWorkflowId = '{run}'" for run in runs)
    while True:
        before = len(sizes)
        async for execution in client.list_workflows(query):
            handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
            info = (await handle.describe()).raw_description.workflow_execution_info
            sizes[execution.run_id] = info.history_size_bytes
        if before == len(sizes) >= 2 * len(runs):  # the query and its team; Temporal's list is a moment late
            return sum(sizes.values()) // len(runs)
        await asyncio.sleep(0.2)


def _ms_per_turn(before: float | None, after: float | None, turns: int) -> float | None:
    return None if before is None or after is None else (after - before) * 1_000 / turns


def _tree(pid: int) -> list[int]:
    """A process and all processes below it; empty where /proc is missing."""
    parents = {int(stat.parent.name): int(_fields(stat)[1]) for stat in Path("/proc").glob("[0-9]*/stat")}
    found = [pid] if pid in parents else []
    for each in found:  # which grows
        found += (child for child, parent in parents.items() if parent == each)
    return found


def _fields(stat: Path) -> list[str]:
    """The fields of /proc/PID/stat after the name; of a process that has just ended, zeros."""
    with contextlib.suppress(OSError):
        return stat.read_text().rpartition(")")[2].split()
    return ["0"] * 50


def _cpu_seconds(pid: int) -> float | None:
    """The CPU time of a process and of those below it, with those that have ended; None where /proc is missing."""
    ticks = [sum(map(int, _fields(Path("/proc", str(each), "stat"))[11:15])) for each in _tree(pid)]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def resident_mb(pid: int) -> int | None:
    """The resident memory of a process, in MB; None where /proc is missing."""
    return _smaps_mb([pid], "Rss")


def proportional_mb(pid: int) -> int | None:
    """The memory of a process and of those below it, in MB, of which what they share counts once."""
    return _smaps_mb(_tree(pid), "Pss")


def _smaps_mb(pids: Iterable[int], name: str) -> int | None:
    """The sum of a line of /proc/PID/smaps_rollup, in MB; None if none can be read."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
            found.append(int(lines[name].split()[0]) * 1_024)
    return round(sum(found) / 1e6) if found else None
