"""Where do a server and a worker live that a test may kill? In a house of their own."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from temporalio.client import Client

from baton.conversation.temporal.temporal_client import TASK_QUEUE, TASK_TIMEOUT
from baton.starter.scripted_model.script import Reply, Request
from baton.starter.scripted_model.server import ScriptedModel
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import Handle, agent, team
from tests.harness.processes import WorkerProcess, kill_server

MANIFESTS = [agent("one"), agent("two"), agent("three"), team("team", "one", "two", "three", maxTurns=3)]
SAID = [f"answer {number}" for number in range(1, 10)]


class KillableEnvironment:
    """A server and a worker that can be killed.

    The model takes ``slow`` seconds for the fifth answer, and fails ``failing`` times before it.
    """

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path) -> None:
        self.server, self.client, self.journal = server, client, folder / "journal.db"
        self.model = ScriptedModel(self.answer)
        self.slow, self.failing = 1.0, 0
        self.worker: WorkerProcess

    def answer(self, request: Request) -> Reply:
        """The number of the answer."""
        number = spoken(request) + 1
        if number == 5 and len(self.model.asked) < 5 + self.failing:
            return Reply(status=503)
        return Reply(text=f"answer {number}", delay=self.slow if number == 5 else 0.02)

    async def start(self, workflow: str, given: dict[str, Any]) -> Handle:
        """Starts a run."""
        options: dict[str, Any] = {"task_queue": TASK_QUEUE, "task_timeout": TASK_TIMEOUT}
        return await self.client.start_workflow(workflow, given, id="run", **options)

    async def start_team(self) -> Handle:
        """Starts three rounds of a team of three."""
        return await self.start("round-robin", {"team": "team", "input": "Why?", "resources": MANIFESTS})

    def written(self) -> int:
        """How many rows the journal holds."""
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self.journal)) as database:
            return int(database.execute("select count(*) from baton_messages").fetchone()[0])
        return 0

    async def die(self) -> None:
        """Kills the server."""
        assert self.server._process
        kill_server(self.server._process.pid)
        await self.server._process.wait()

    async def be_away(self, seconds: float) -> None:
        """Kills the server, and starts it again after a while."""
        await self.die()
        await asyncio.sleep(seconds)
        await self.server.start()


def spoken(request: Request) -> int:
    """How many answers a conversation holds."""
    return sum(message["role"] == "assistant" for message in request["messages"])
