"""On what is measured? One tuned Temporal server, one scripted model in a process of its own, and Baton's worker."""

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
from baton.conversation.temporal.temporal_client import TASK_QUEUE, TASK_TIMEOUT
from baton.resources.loader import Loaded
from baton.starter.server.embedded import EmbeddedServer, free_ports
from baton.starter.server.state_dir import Home
from benchmarks.words import speaking

RESULTS = Path(__file__).parent / "results"
QUESTION = "How do we write a good report?"
MEMBERS = ("writer", "critic")
"""Who speaks in turn. Everybody hears all that is said."""

PROMPT = "You are the {}. Say what you think of it."


@dataclass(frozen=True)
class Ground:
    """Where all systems are measured. ``folder`` goes with the block."""

    client: Client
    address: str
    model: str
    folder: Path

    @classmethod
    @contextlib.asynccontextmanager
    async def laid(cls) -> AsyncIterator["Ground"]:
        """Starts the server and the model."""
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
            lock = stack.enter_context(Home(folder).lock("dev"))
            assert lock
            server = EmbeddedServer(folder, lock, *free_ports((0, 0)))
            client = await server.start()
            try:
                yield cls(client, server.address, stack.enter_context(speaking()), folder)
            finally:
                await server.stop()

    async def history(self, workflow_id: str) -> int:
        """Bytes of history of a run, as Temporal counts them: of all the runs in which it went on, and its children."""
        query = f"WorkflowId = '{workflow_id}' OR RootWorkflowId = '{workflow_id}'"
        sizes = dict[str, int]()
        while await self._unseen(query, sizes) or not sizes:
            await asyncio.sleep(0.1)
        return sum(sizes.values())

    async def _unseen(self, query: str, sizes: dict[str, int]) -> bool:
        """Adds the sizes of runs that weren't listed before; whether there were any."""
        before = len(sizes)
        async for run in self.client.list_workflows(query):
            described = await self.client.get_workflow_handle(run.id, run_id=run.run_id).describe()
            sizes[run.run_id] = described.raw_description.workflow_execution_info.history_size_bytes
        return len(sizes) > before


@dataclass(frozen=True)
class Baton:
    """A worker of Baton's in this process, with a journal of its own."""

    client: Client
    home: Path

    @classmethod
    @contextlib.asynccontextmanager
    async def working(cls, ground: Ground) -> AsyncIterator["Baton"]:
        """Runs it as long as the block does."""
        home = ground.folder / uuid.uuid4().hex
        environment = {"OPENAI_BASE_URL": ground.model, "OPENAI_API_KEY": "scripted", "BATON_HOME": str(home)}
        async with worker.running(ground.client, Loaded(), environment):
            yield cls(ground.client, home)

    async def play(self, turns: int, size: int, window: int | None = None) -> str:
        """Runs a team for so many turns with replies of so many characters; the id of its run."""
        given = {"team": "team", "input": QUESTION, "resources": manifests(turns, size, window)}
        run_id = f"team-{uuid.uuid4().hex}"
        options: dict[str, Any] = {"id": run_id, "task_queue": TASK_QUEUE, "task_timeout": TASK_TIMEOUT}
        turn = await self.client.execute_workflow("round-robin", given, **options)
        assert turn["turns"] == turns, turn
        return run_id

    def journal(self) -> int:
        """Bytes of the journal's database."""
        with contextlib.closing(sqlite3.connect(self.home / "journal.db")) as database:
            pages, size = (database.execute(f"pragma page_{each}").fetchone()[0] for each in ("count", "size"))
            return int(pages * size)


def manifests(turns: int, size: int, window: int | None = None) -> list[dict[str, Any]]:
    """A team whose members speak in turn, with a ``contextWindow`` of so many messages."""
    bounds = {"maxTurns": turns // len(MEMBERS), "onMaxTurns": "complete"}
    windows = {"contextWindow": {"maxMessages": window}} if window else {}
    team = {"strategy": "round-robin", "members": [{"name": name} for name in MEMBERS], **bounds, **windows}
    agents = {name: {"prompt": PROMPT.format(name), "model": {"name": f"words-{size}"}} for name in MEMBERS}
    return [_manifest("Team", "team", team), *(_manifest("Agent", name, spec) for name, spec in agents.items())]


def _manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def versions(*names: str) -> dict[str, str]:
    """What is measured, and on what."""
    found = {"python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in ("baton", "temporalio", "openai", *names)}


def keep(name: str, results: dict[str, Any]) -> None:
    """Writes what was measured, with the date."""
    text = json.dumps({"date": f"{datetime.now(UTC):%Y-%m-%d}", **results}, indent=1)
    (RESULTS / f"{name}.json").write_text(f"{text}\n")
