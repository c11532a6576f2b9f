"""Runs the other systems that are measured: each a program under ``peers/`` in a virtual environment of its own."""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import BenchmarkEnvironment
from tests.harness.postgres import execute

PEERS = Path(__file__).parent / "peers"
TIMEOUT = 900
"""Seconds after which a program is killed."""

TABLES = "select coalesce(sum(pg_total_relation_size(relid)), 0) from pg_stat_user_tables"


@dataclass(frozen=True)
class Peer:
    """A system: its virtual environment, its program, and where it stores its state.

    ``keeps`` is ``history``, ``tables`` or ``files``.
    """

    name: str
    environment: str
    program: str
    keeps: str
    flag: str = ""

    def install(self, folder: Path) -> Path:
        """Makes its virtual environment in a folder, unless it exists; the path of its Python."""
        python = folder.absolute() / self.environment / "bin" / "python"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / self.environment / "installed").exists():
            wanted = PEERS / f"requirements-{self.environment}.txt"
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder / self.environment], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--requirement", wanted], check=True)
            (folder / self.environment / "installed").touch()
        return python

    def versions(self, folder: Path) -> dict[str, str]:
        """Versions of its packages."""
        frozen = subprocess.check_output([self.install(folder), "-m", "pip", "freeze"], text=True)
        parts = ("agent", "dbos", "langgraph", "openai", "pydantic-ai", "temporalio")
        pairs = (line.partition("==") for line in frozen.splitlines() if line.startswith(parts))
        return {name: version for name, _, version in pairs}

    async def run(
        self, env: BenchmarkEnvironment, folder: Path, postgres: str, turns: int, size: int, teams: int = 1
    ) -> "PeerRun":
        """Runs teams with its program."""
        run = f"{self.environment}-{uuid.uuid4().hex[:8]}"
        files = tempfile.mkdtemp(dir=env.folder)
        where = {"model": env.model, "temporal": env.address, "postgres": postgres, "folder": files}
        params = json.dumps({**where, "run": run, "turns": turns, "size": size, "teams": teams})
        command = [str(self.install(folder)), str(PEERS / self.program), params, self.flag]
        return PeerRun(await said_by(command), f"{run}-0", Path(files))

    async def kept(self, env: BenchmarkEnvironment, played: "PeerRun", postgres: str) -> int:
        """Bytes that it has stored of its first team."""
        if self.keeps == "history":
            return await env.history(played.run)
        if self.keeps == "files":
            return sum(file.stat().st_size for file in played.files.rglob("*") if file.is_file())
        return await tables(postgres)


@dataclass(frozen=True)
class PeerRun:
    """The output of a program, the id of its first team's run, and the folder of its files."""

    said: dict[str, Any]
    run: str
    files: Path


async def result(out: asyncio.StreamReader) -> bytes:
    """The line of a program's output that is JSON; libraries print other lines."""
    async for line in out:
        if line.startswith(b"{"):
            return line
    return b""


async def said_by(command: list[str]) -> dict[str, Any]:
    """The JSON that a program prints. A program whose run was terminated may hang; it is killed after a timeout."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    try:
        line = await asyncio.wait_for(result(process.stdout), TIMEOUT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 5)
    except TimeoutError:
        line = b""
    if process.returncode is None:
        process.kill()
        await process.wait()
    said: dict[str, Any] = json.loads(line or '{"ended": 0, "seconds": 0, "error": "it did not end"}')
    return said


ALL = (
    Peer("openai-agents on Temporal", "openai-agents", "openai_agents.py", "history"),
    Peer("pydantic-ai on Temporal", "pydantic-ai", "pydantic_ai_temporal.py", "history"),
    Peer("pydantic-ai on DBOS", "pydantic-ai", "pydantic_ai_dbos.py", "tables"),
    Peer("langgraph on PostgreSQL", "langgraph", "langgraph_postgres.py", "tables"),
    Peer("langgraph, DeltaChannel", "langgraph", "langgraph_postgres.py", "tables", "delta"),
    Peer("agent-framework, files", "agent-framework", "agent_framework_files.py", "files"),
)

FUNCTIONS = (
    Peer("openai-agents", "openai-agents", "openai_agents_functions.py", "history", "plain"),
    Peer("openai-agents with functions", "openai-agents", "openai_agents_functions.py", "history", "functions"),
)


async def tables(url: str) -> int:
    """Bytes of all tables of a database, indices included."""
    found = await execute(url, TABLES)
    return int(str(found[0][0]))
