"""Baton's MCP client against what others have made: the reference servers, and the scenarios of the conformance suite.

``python -m benchmarks.mcp`` installs npm packages in .baton/mcp, and needs npm. Results: benchmarks/results/mcp.json.
"""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.mcp_kills import killed_under_calls
from benchmarks.mcp_servers import EVERYTHING, FILESYSTEM, PACKAGES, ROOT, SCOPE, environment, everything, install

CLIENT = [sys.executable, "-m", "benchmarks.mcp_client"]
SECONDS = 180


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )


def use(*server: str) -> dict[str, str]:
    """What each tool of a server gave."""
    done = run(*CLIENT, *server)
    if done.returncode:
        return {"(all)": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    results: dict[str, str] = json.loads(done.stdout)
    return results


def servers() -> dict[str, dict[str, str]]:
    """What the tools of the reference servers gave, by server and transport."""
    results = {"everything, stdio": use("node", EVERYTHING, "stdio")}
    for transport in ("streamableHttp", "sse"):
        with everything(transport) as address:
            results[f"everything, {transport}"] = use(address)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a").write_text("hello")
        results["filesystem, stdio"] = use("node", FILESYSTEM, folder)
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


def metered(results: Mapping[str, str]) -> dict[str, Any]:
    """How many tools answered, and what the others said."""
    failed = {name: text[:200] for name, text in results.items() if text.startswith(("ToolFailed", "(all)"))}
    errors = {name: text[:200] for name, text in results.items() if text.startswith("Error:")}
    return {"tools": len(results), "failed": failed, "answered with an error": errors}


def main() -> None:
    """Measures, prints, and writes the results."""
    install()
    used = {name: metered(results) for name, results in servers().items()}
    for name, each in used.items():
        print(f"{name}: {each}", flush=True)
    killed = asyncio.run(killed_under_calls())
    results = {"packages": PACKAGES[:3], "servers": used, "killed under a call": killed, "scenarios": conformance()}
    (ROOT / "benchmarks" / "results" / "mcp.json").write_text(f"{json.dumps(results, indent=2)}\n")


if __name__ == "__main__":
    main()
