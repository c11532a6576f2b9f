"""How are other systems measured? Each in an environment of its own, by a program under ``peers/``."""

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

from benchmarks.ground import Ground
from tests.harness.postgres import execute

PEERS = Path(__file__).parent / "peers"
LONGEST = 900
"""Seconds that a program may take."""

TABLES = "select coalesce(sum(pg_total_relation_size(relid)), 0) from pg_stat_user_tables"


@dataclass(frozen=True)
class Peer:
    """A system: its environment, its program, and where it keeps what it keeps."""

    name: str
    environment: str
    program: str
    keeps: str
    flag: str = ""

    def install(self, folder: Path) -> Path:
        """Makes its environment in a folder, unless it is there; the Python of it."""
        python = folder.absolute() / self.environment / "bin" / "python"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / self.environment / "installed").exists():
            wanted = PEERS / f"requirements-{self.environment}.txt"
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder / self.environment], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--requirement", wanted], check=True)
            (folder / self.environment / "installed").touch()
        return python

    def versions(self, folder: Path) -> dict[str, str]:
        """What it is made of."""
        frozen = subprocess.check_output([self.install(folder), "-m", "pip", "freeze"], text=True)
        parts = ("agent", "dbos", "langgraph", "openai", "pydantic-ai", "temporalio")
        pairs = (line.partition("==") for line in frozen.splitlines() if line.startswith(parts))
        return {name: version for name, _, version in pairs}

    async def run(self, ground: Ground, folder: Path, postgres: str, turns: int, size: int, teams: int = 1) -> "Played":
        """Lets its program play teams; what it says of that."""
        run = f"{self.environment}-{uuid.uuid4().hex[:8]}"
        files = tempfile.mkdtemp(dir=ground.folder)
        where = {"model": ground.model, "temporal": ground.address, "postgres": postgres, "folder": files}
        told = json.dumps({**where, "run": run, "turns": turns, "size": size, "teams": teams})
        command = [str(self.install(folder)), str(PEERS / self.program), told, self.flag]
        return Played(await said_by(command), f"{run}-0", Path(files))

    async def kept(self, ground: Ground, played: "Played", postgres: str) -> int:
        """Bytes that it has kept of its first team, wherever that is."""
        if self.keeps == "history":
            return await ground.history(played.run)
        if self.keeps == "files":
            return sum(file.stat().st_size for file in played.files.rglob("*") if file.is_file())
        return await tables(postgres)


@dataclass(frozen=True)
class Played:
    """What a program has said, the id of its first team's run, and the folder of its files."""

    said: dict[str, Any]
    run: str
    files: Path


async def result(out: asyncio.StreamReader) -> bytes:
    """The line of a program's output that is JSON, among those of the libraries that it uses."""
    async for line in out:
        if line.startswith(b"{"):
            return line
    return b""


async def said_by(command: list[str]) -> dict[str, Any]:
    """What a program says. One whose run was closed by force may not come to its own end."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    try:
        line = await asyncio.wait_for(result(process.stdout), LONGEST)
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


async def tables(url: str) -> int:
    """Bytes of all tables of a database with their indices."""
    found = await execute(url, TABLES)
    return int(str(found[0][0]))
