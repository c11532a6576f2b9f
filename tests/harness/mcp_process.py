"""Starts and kills MCP servers, and the manifests with which runs use them."""

import asyncio
import contextlib
import runpy
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.harness.environment import Json, manifest
from tests.harness.ports import own_port
from tests.harness.processes import FORKS, PATIENCE, ROOT

Serve = Callable[[int], object]
"""Serves on a port until its process is killed."""


@dataclass
class McpServerProcess:
    """A server that listens, of an era: ``2025``, with sessions, ``2026``, without, or ``sse``; or ``serve``."""

    era: str
    folder: Path
    port: int = field(default_factory=own_port)
    serve: Serve | None = None
    _process: BaseProcess | None = None

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
        serve = self.serve or partial(_serve, self.era, self.folder)
        self._process = FORKS.Process(target=serve, args=[self.port], daemon=True)
        self._process.start()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                assert self._process.is_alive(), "another server has its port"
                return
            time.sleep(0.02)
        raise TimeoutError("the MCP server did not start")

    def kill(self) -> None:
        """Kills it as ``kill -9`` does."""
        assert self._process
        self._process.kill()
        self._process.join()

    async def restart(self, after: float = 0) -> None:
        """Kills it, and starts it after some seconds; meanwhile the worker in this process continues."""
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


def _serve(era: str, folder: Path, port: int) -> None:
    from tests.harness import mcp_server  # noqa: PLC0415  # not where a server is only described

    mcp_server.serve(era, folder, port)


def run_program(file: Path, port: int) -> None:
    """Runs a program with the port as its argument."""
    sys.argv = [str(file), str(port)]
    runpy.run_path(str(file), run_name="__main__")


def command(era: str, folder: Path, port: int = 0) -> list[str]:
    """The command that runs a server."""
    run = "runpy.run_module('tests.harness.mcp_server', run_name='__main__')"
    code = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); {run}"
    return [sys.executable, "-c", code, era, str(folder), str(port)]


def stdio_manifest(folder: Path, name: str = "test", **spec: Any) -> Json:
    """An MCPServer with a command."""
    program, *args = command("stdio", folder)
    return manifest("MCPServer", name, {"command": program, "args": args, **spec})
