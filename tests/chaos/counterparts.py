"""What agents and tools call elsewhere, as a process that can be killed, and the manifests by which runs call it."""

import contextlib
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]

from tests.chaos.noted_tools import HELD
from tests.harness.environment import Json, agent, manifest
from tests.harness.manifests import prealpha
from tests.harness.ports import own_port
from tests.harness.processes import ROOT, process_env

EXECUTIONS = "executions"
"""The file with a line for each execution that was begun: the label of its run."""

LABEL = re.compile(r"run-[\w.-]*\w")
MCP_SERVERS = ("stdio", "http-2025", "http-2026")
AGENTS = ("1.0-message", "1.0-streaming", "1.0-long", "0.3-message", "0.3-streaming", "0.3-long")
ENGINES = {"engine-once": False, "engine-idempotent": True}


def label_in(text: str) -> str:
    """The label of the run that a text is of."""
    return str(LABEL.findall(text)[0])


@dataclass(frozen=True)
class Kind:
    """A kind of call. ``repeatable``: it may be carried out twice; ``found``: a next attempt can learn what came of it.

    ``noted``: only once the worker has noted the task, as the server can't be asked for it.
    """

    name: str
    repeatable: bool = False
    found: bool = False
    noted: bool = False


KINDS = (
    *(Kind(f"mcp-{server}-read", repeatable=True) for server in MCP_SERVERS),
    *(Kind(f"mcp-{server}-write") for server in MCP_SERVERS),
    *(Kind(f"a2a-{each}", found="message" not in each, noted=each.startswith("0.3")) for each in AGENTS),
    *(Kind(name, repeatable=idempotent) for name, idempotent in ENGINES.items()),
)


def noted_tools(folder: Path) -> Json:
    """The MCPServer that is a command: it belongs to the worker."""
    args = ["-m", "tests.chaos.noted_tools", str(folder / EXECUTIONS)]
    env = [{"name": "PYTHONPATH", "value": str(ROOT)}]
    return manifest("MCPServer", "stdio", {"command": sys.executable, "args": args, "env": env, "timeout": "60s"})


class Counterparts:
    """The process, and the MCP servers that are commands of workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = [own_port() for _ in range(3 + len(AGENTS))]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until all of it listens."""
        ports = [*map(str, self._ports)]
        command = [sys.executable, "-m", "tests.chaos.counterpart_process", str(self._folder), *ports]
        with (self._folder / "counterparts.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, env=process_env(), stdout=log, stderr=log)
        deadline = time.monotonic() + 200
        for port in self._ports:
            while not _listens(port):
                if time.monotonic() > deadline:
                    raise TimeoutError((self._folder / "counterparts.log").read_text())
                time.sleep(0.05)

    def kill(self, workers: tuple[int, ...] = ()) -> None:
        """Kills it as ``kill -9`` does, and the commands of the workers with these process ids."""
        for worker in workers:
            for child in psutil.Process(worker).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    child.kill()
        if self._process:
            self._process.kill()
            self._process.wait()

    @property
    def executions(self) -> Counter[str]:
        """How many executions were begun, by the labels of the runs."""
        file = self._folder / EXECUTIONS
        return Counter(file.read_text().splitlines() if file.exists() else ())

    def hold(self) -> None:
        """Lets no execution end until ``release``."""
        (self._folder / HELD).touch()

    def release(self) -> None:
        """Lets executions end."""
        (self._folder / HELD).unlink(missing_ok=True)

    def manifests(self) -> list[Json]:
        """An agent for each kind of call, by its name, and what they need; but for the server that is a command."""
        *agents, older, newer, engine = (f"http://127.0.0.1:{port}" for port in self._ports)
        limit = {"timeout": "60s"}
        made = [
            manifest("MCPServer", "http-2025", {"address": f"{older}/mcp", **limit}),
            manifest("MCPServer", "http-2026", {"address": f"{newer}/mcp", **limit}),
        ]
        for server in MCP_SERVERS:
            made += [agent(f"mcp-{server}-{tool}", f"{server}-{tool}") for tool in ("read", "write")]
        for name, address in zip(AGENTS, agents, strict=True):
            made += [_remote(f"a2a-{name}", "a2a"), prealpha("A2AServer", f"a2a-{name}", {"address": address, **limit})]
        for name, idempotent in ENGINES.items():
            spec = {"type": "any", "address": engine, "idempotent": idempotent, **limit}
            made += [_remote(name, name), prealpha("ExecutionEngine", name, spec)]
        return made


def _remote(name: str, engine: str) -> Json:
    made = agent(name, executionEngine={"name": engine})
    if engine == "a2a":
        made["metadata"]["annotations"] = {"a2a.server/name": name}
        del made["spec"]["prompt"]
    return made


def _listens(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{port}/nothing", timeout=1)
        return True
    return False
