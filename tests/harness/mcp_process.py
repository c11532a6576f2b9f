"""Starts and kills MCP servers, and the manifests with which runs use them."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.harness.environment import Json, manifest
from tests.harness.ports import own_port
from tests.harness.processes import ROOT, process_env


@dataclass
class McpServerProcess:
    """A server that listens, of an era: ``2025``, with sessions, ``2026``, without, or ``sse``; or another program."""

    era: str
    folder: Path
    port: int = field(default_factory=own_port)
    program: Path | None = None
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/{'sse' if self.era == 'sse' else 'mcp'}"

    @property
    def calls(self) -> list[str]:
        """The notes that were written."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def manifest(self, name: str = "test", **spec: Any) -> Json:
        """Its MCPServer."""
        transport = {"transport": "sse"} if self.era == "sse" else {}
        return manifest("MCPServer", name, {"address": self.url, **transport, **spec})

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        own = [sys.executable, str(self.program), str(self.port)]
        run = own if self.program else command(self.era, self.folder, self.port)
        self._process = subprocess.Popen(run, cwd=ROOT, env=process_env())
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{self.port}/nothing", timeout=1)
                assert self._process.poll() is None, "another server has its port"
                return
            time.sleep(0.05)
        raise TimeoutError("the MCP server did not start")

    def kill(self) -> None:
        """Kills it as ``kill -9`` does."""
        assert self._process
        self._process.kill()
        self._process.wait()

    async def restart(self, after: float = 0) -> None:
        """Kills it, and starts it after some seconds; meanwhile the worker in this process goes on."""
        self.kill()
        await asyncio.sleep(after)
        await asyncio.to_thread(self.start)

    @contextlib.contextmanager
    def running(self) -> Iterator["McpServerProcess"]:
        """Runs it while the block runs."""
        self.start()
        try:
            yield self
        finally:
            self.kill()


def command(era: str, folder: Path, port: int = 0) -> list[str]:
    """The command that runs a server."""
    run = "runpy.run_module('tests.harness.mcp_server', run_name='__main__')"
    code = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); {run}"
    return [sys.executable, "-c", code, era, str(folder), str(port)]


def stdio_manifest(folder: Path, name: str = "test", **spec: Any) -> Json:
    """An MCPServer with a command."""
    program, *args = command("stdio", folder)
    return manifest("MCPServer", name, {"command": program, "args": args, **spec})
