"""Starts and kills what users start: workers and commands, as processes of their own."""

import asyncio
import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from temporalio.client import Client
from temporalio.service import RPCError

from baton.contracts.settings import TASK_QUEUE
from tests.harness import command_line

ROOT = Path(__file__).parent.parent.parent
BATON = Path(sys.executable).parent / "baton"

USERS_PYTEST = (
    *(sys.executable, "-P", "-m", "pytest"),
    *("-p", "no:cacheprovider"),
    *("-p", "no:asyncio"),
    *("-p", "no:cloudcoil"),
)
"""The command for pytest in a user's folder, without plugins that only developers of Baton have."""

PATIENCE = 200
"""Seconds after which a process hangs; pytest itself gives up later."""


def process_env(**variables: str) -> dict[str, str]:
    """Environment variables for a process: the caller's without those that Baton reads, and the given ones."""
    ours = ("TEMPORAL_", "OPENAI_", "BATON_")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return {**clean, "TEMPORAL_CONFIG_FILE": os.devnull, **variables}


FORKS = multiprocessing.get_context("forkserver")
"""Workers and servers are forks of a process that has imported what they need, which takes 2.5 s of CPU time."""

FORKS.set_forkserver_preload(
    [
        "tests.harness.processes",
        "baton.worker",
        "baton.activities.model.openai",
        "tests.harness.mcp_server",
        "tests.harness.authorized_mcp_server",
    ]
)


class WorkerProcess:
    """A worker in a process of its own, with its log in a file."""

    def __init__(self, env: dict[str, str], log: Path, *manifests: Path) -> None:
        self._manifests = manifests
        self._env, self.log = env, log
        self.task_queue = env.get("BATON_TASK_QUEUE", TASK_QUEUE)
        self._process: BaseProcess | None = None
        self.started = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process
        assert self._process.pid
        return self._process.pid

    def start(self) -> None:
        """Starts it, and does not wait until it polls."""
        self.started += 1
        self.log.touch()
        self._process = FORKS.Process(target=_run_worker, args=[self._env, self.log, self._manifests], daemon=True)
        self._process.start()

    def kill(self) -> None:
        """Kills it as ``kill -9`` does."""
        assert self._process
        self._process.kill()
        self._process.join()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspends it while the block runs."""
        process = psutil.Process(self.pid)
        process.suspend()
        try:
            yield
        finally:
            process.resume()

    async def stop(self) -> int:
        """Sends SIGTERM, as a deployment does, and waits for its end; its exit code."""
        assert self._process
        self._process.terminate()
        await asyncio.to_thread(self._process.join)
        assert self._process.exitcode is not None
        return self._process.exitcode


def _run_worker(env: dict[str, str], log: Path, manifests: Sequence[Path]) -> None:
    """Does what ``worker.py`` does when it is run, with these environment variables alone."""
    from baton import worker  # noqa: PLC0415  # not where a process is only described

    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(asyncio.run(worker.main(manifests, recursive=False)))


def baton(
    *arguments: str | Path, env: dict[str, str], cwd: Path | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command line to its end: in this process, or in one of its own where a test runs an event loop."""
    if command_line.can_run_here():
        return command_line.run_here([*map(str, arguments)], env, cwd, stdin)
    return baton_process(*arguments, env=env, cwd=cwd, stdin=stdin)


def baton_process(
    *arguments: str | Path, env: dict[str, str], cwd: Path | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a process to its end."""
    return subprocess.run(
        [BATON, *arguments],
        env=env,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


GAVE_UP = re.compile(r"no answer within|did not answer in time|waits for the end of an outage(?!:)")
"""What ``baton doctor`` says of a check that has given up."""


async def doctor(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs ``baton doctor`` until no check has given up: each waits a few seconds, and a machine may be busy."""
    while True:
        done = await asyncio.to_thread(baton, "doctor", *arguments, env=process_env(**variables))
        if not GAVE_UP.search(done.stdout):
            return done


def server_process(starter: int) -> psutil.Process:
    """The Temporal server that a process has started."""
    [server] = [each for each in psutil.Process(starter).children(recursive=True) if each.name() == "temporal"]
    return server


def kill_server(starter: int) -> None:
    """Kills the Temporal server that a process has started, as ``kill -9`` does."""
    server = server_process(starter)
    server.kill()
    server.wait()


async def end_open_runs(client: Client) -> None:
    """Ends what other tests have left open on the default task queue: a worker with another journal would not start."""
    query = f"TaskQueue = '{TASK_QUEUE}' AND ExecutionStatus = 'Running'"
    while runs := [run async for run in client.list_workflows(query)]:
        for run in runs:
            with contextlib.suppress(RPCError):  # it has just ended
                await client.get_workflow_handle(run.id, run_id=run.run_id).terminate()
        await asyncio.sleep(0.1)
