"""What all measurements run on: a Temporal server, a scripted model in a process of its own, and Baton's worker."""

import asyncio
import contextlib
import importlib.metadata
import json
import platform
import sqlite3
import tempfile
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio.client import Client

from baton import worker
from baton.activities.runtime.worker_process import leave_out_loaded_objects
from baton.contracts.settings import TASK_QUEUE
from baton.resources.loader import Loaded
from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from benchmarks.random_model import serving_random_model
from tests.harness.ports import own_ports

RESULTS = Path(__file__).parent / "results"
QUESTION = "How do we write a good report?"
MEMBERS = ("writer", "critic")
"""The members, who take turns. Every member gets the whole conversation."""

KEY = "sk-nobody-0123456789"
PROMPT = "You are the {}. Say what you think of it."


@dataclass(frozen=True)
class BenchmarkEnvironment:
    """The server and the model of a measurement. ``folder`` is temporary."""

    client: Client
    address: str
    model: str
    folder: Path

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, delay: float = 0.0) -> AsyncIterator["BenchmarkEnvironment"]:
        """Runs the server and the model while the block runs; each reply comes after ``delay`` seconds."""
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
            lock = stack.enter_context(StateDir(folder).lock("dev"))
            assert lock
            server = EmbeddedServer(folder, lock, *own_ports())
            client = await server.start()
            try:
                yield cls(client, server.address, stack.enter_context(serving_random_model(delay)), folder)
            finally:
                await server.stop()

    async def history(self, workflow_id: str) -> int:
        """Bytes of history of a workflow, as Temporal counts them, with all continued runs and children."""
        query = f"WorkflowId = '{workflow_id}' OR RootWorkflowId = '{workflow_id}'"
        sizes = dict[str, int]()
        while await self._add_new_runs(query, sizes) or not sizes:
            await asyncio.sleep(0.1)
        return sum(sizes.values())

    async def _add_new_runs(self, query: str, sizes: dict[str, int]) -> bool:
        """Adds the sizes of runs that were not listed before; whether there were any."""
        before = len(sizes)
        async for run in self.client.list_workflows(query):
            described = await self.client.get_workflow_handle(run.id, run_id=run.run_id).describe()
            sizes[run.run_id] = described.raw_description.workflow_execution_info.history_size_bytes
        return len(sizes) > before


@dataclass(frozen=True)
class Baton:
    """Baton's worker in this process, with a journal of its own."""

    client: Client
    folder: Path
    task_queue: str = TASK_QUEUE

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, env: BenchmarkEnvironment, own: Loaded | None = None, /, *, task_queue: str = TASK_QUEUE, **settings: str
    ) -> AsyncIterator["Baton"]:
        """Runs the worker while the block runs, with manifests of its ``own``."""
        folder = env.folder / uuid.uuid4().hex
        model = {"OPENAI_BASE_URL": env.model, "OPENAI_API_KEY": KEY, "BATON_HOME": str(folder)}
        environment = {**model, "BATON_TASK_QUEUE": task_queue, **settings}
        async with worker.run_worker(env.client, own or Loaded(), environment):
            leave_out_loaded_objects()
            yield cls(env.client, folder, task_queue)

    async def run_team(self, turns: int, size: int, window: int | None = None) -> str:
        """Runs one team for so many turns, with replies of so many characters; its workflow id."""
        given = {"team": "team", "input": QUESTION, "resources": manifests(turns, size, window)}
        run_id = f"team-{uuid.uuid4().hex}"
        turn = await self.client.execute_workflow("round-robin", given, id=run_id, **self._options)
        assert turn["turns"] == turns, turn
        return run_id

    async def ask(self, turns: int, size: int) -> None:
        """Asks one agent one question, by a query that brings the agent."""
        await self.ask_agent(MEMBERS[0], agent(MEMBERS[0], size))

    async def ask_agent(self, name: str, *brought: dict[str, Any]) -> None:
        """Asks an agent that the worker knows, or that the query brings, one question."""
        spec = {"input": QUESTION, "targets": [{"type": "agent", "name": name}]}
        given = {"spec": spec, "resources": [*brought]}
        status = await self.client.execute_workflow("query", given, id=f"query-{uuid.uuid4().hex}", **self._options)
        assert status["phase"] == "Completed", status

    async def run_agent(self, turns: int, size: int) -> None:
        """Asks one agent one question, by its own workflow."""
        given = {"agent": MEMBERS[0], "input": QUESTION, "resources": [agent(MEMBERS[0], size)]}
        await self.client.execute_workflow("agent", given, id=f"agent-{uuid.uuid4().hex}", **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"task_queue": self.task_queue, "task_timeout": WORKFLOW_TASK_TIMEOUT}

    def journal(self) -> int:
        """Bytes of the journal's database."""
        with contextlib.closing(sqlite3.connect(self.folder / "journal.db")) as database:
            pages, size = (database.execute(f"pragma page_{each}").fetchone()[0] for each in ("count", "size"))
            return int(pages * size)


def manifests(turns: int, size: int, window: int | None = None) -> list[dict[str, Any]]:
    """A team whose members take turns, with a ``contextWindow`` of so many messages."""
    bounds = {"maxTurns": turns // len(MEMBERS), "onMaxTurns": "complete"}
    windows = {"contextWindow": {"maxMessages": window}} if window else {}
    team = {"strategy": "round-robin", "members": [{"name": name} for name in MEMBERS], **bounds, **windows}
    return [_manifest("Team", "team", team), *(agent(name, size) for name in MEMBERS)]


def agent(name: str, size: int, model: str | None = None) -> dict[str, Any]:
    """An agent whose model replies with so many characters, or that asks the Model ``model``."""
    return _manifest("Agent", name, {"prompt": PROMPT.format(name), "model": {"name": model or f"random-{size}"}})


def whole_model(name: str, url: str, size: int) -> dict[str, Any]:
    """A model that replies with so many characters, as a whole."""
    config = {"openai": {"baseUrl": url, "apiKey": KEY}}
    given = {"type": "completions", "provider": "openai", "model": f"random-{size}", "config": config}
    return _manifest("Model", name, {**given, "stream": False})


def _manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def versions(*names: str) -> dict[str, str]:
    """Versions of Python and of the packages that are measured."""
    found = {"python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in ("baton-teams", "temporalio", "openai", *names)}


def write(name: str, results: dict[str, Any]) -> None:
    """Writes results with the date."""
    text = json.dumps({"date": f"{datetime.now(UTC):%Y-%m-%d}", **results}, indent=1)
    (RESULTS / f"{name}.json").write_text(f"{text}\n")
