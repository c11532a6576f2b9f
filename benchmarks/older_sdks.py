"""Baton against servers of older SDKs, as processes that are killed: MCP 1.x with its sessions, and A2A 0.3.

``python -m benchmarks.older_sdks`` installs them in .baton/peers. Results: benchmarks/results/older-sdks.json.
"""

import asyncio
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from baton.contracts.turn import TurnResult
from baton.starter.scripted_model import Reply, Request, ScriptedToolCall
from benchmarks.peers_runner import PEERS, Peer
from tests.chaos.environment import ProcessEnvironment
from tests.harness.environment import Handle, Json, agent, ended, manifest
from tests.harness.manifests import prealpha
from tests.harness.ports import own_port
from tests.harness.remote_agents import a2a_agent
from tests.harness.tool_answers import plain_answer

ROOT = Path(__file__).parent.parent
OLDER = Peer("older SDKs", "older-sdks", "", "files")
SECONDS = 5.0


class Server:
    """A server of an older SDK, in a process; ``folder`` has what it notes."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.folder, self.port = Path(tempfile.mkdtemp()), own_port()
        self.url = f"http://127.0.0.1:{self.port}"
        python = OLDER.install(ROOT / ".baton" / "peers")
        self._command = [*map(str, (python, PEERS / program, self.folder, self.port)), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=quiet, stderr=quiet)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{self.url}/nothing", timeout=1)
                return
            time.sleep(0.1)

    def kill(self) -> None:
        """Kills it as ``kill -9`` does."""
        assert self._process
        self._process.kill()
        self._process.wait()

    async def restart(self) -> None:
        """Kills it, and starts it again."""
        self.kill()
        await asyncio.to_thread(self.start)

    def noted(self, name: str = "executions") -> int:
        """How many executions were begun, or tasks canceled."""
        file = self.folder / name
        return len(file.read_text().splitlines()) if file.exists() else 0

    @contextlib.contextmanager
    def running(self) -> Iterator["Server"]:
        """Runs it while the block runs."""
        self.start()
        try:
            yield self
        finally:
            self.kill()


def answer(request: Request) -> Reply:
    """Uses the tool that the question names, as often as the question says, and repeats the last result."""
    said = request["messages"]
    received = [plain_answer(each["content"]) for each in said if each["role"] == "tool"]
    times, seconds = json.loads(said[1]["content"])
    if len(received) == times:
        return Reply(text=received[-1])
    name = request["tools"][0]["function"]["name"]
    return Reply(calls=[ScriptedToolCall(name=name, arguments={"label": f"{len(received)}", "seconds": seconds})])


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition, for two minutes at most."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.02)


async def start(env: ProcessEnvironment, name: str, question: str, *resources: Json) -> Handle:
    """Starts an agent."""
    given = {"agent": name, "input": question, "resources": [*resources]}
    return await env.start("agent", given, f"older-{time.monotonic_ns()}")


async def use_mcp(env: ProcessEnvironment) -> dict[str, str]:
    """What comes of calls of an MCP server that forgets its sessions."""
    results = {}
    with Server("older_mcp_server.py").running() as server:
        own = manifest("MCPServer", "older", {"address": f"{server.url}/mcp", "timeout": "60s"})
        for tool, times, seconds in (("read", 2, 0.0), ("read", 1, SECONDS), ("write", 1, SECONDS)):
            before = server.noted()
            handle = await start(env, "one", json.dumps([times, seconds]), agent("one", f"older-{tool}"), own)
            if seconds:
                await until(lambda: server.noted() == before + 1)  # noqa: B023  # awaited at once
                await server.restart()
            turn = await ended(handle, TurnResult)
            what = "restarted under the call" if seconds else "as it is"
            results[f"MCP, {tool}, {what}"] = f"{turn.message}; {server.noted() - before} executions"
            if not seconds:
                await server.restart()
                turn = await ended(await start(env, "one", "[1, 0]", agent("one", f"older-{tool}"), own), TurnResult)
                results["MCP, read, after it has forgotten its sessions"] = turn.message
    return results


async def use_a2a(env: ProcessEnvironment, way: str) -> dict[str, str]:
    """What comes of calls of an A2A server, undisturbed, with a killed worker, and canceled."""
    results = {}
    with Server("older_a2a_server.py", way).running() as server:
        given = [a2a_agent("oracle"), prealpha("A2AServer", "far", {"address": server.url})]
        for what in ("as it is", "worker killed", "canceled"):
            before = server.noted()
            handle = await start(env, "oracle", "Why?", *given)
            await until(lambda: server.noted() == before + 1)  # noqa: B023  # awaited at once
            await asyncio.sleep(1)
            if what == "worker killed":
                await env.kill(worker=True, server=False)
            elif what == "canceled":
                await handle.signal("cancel")
            turn = await ended(handle, TurnResult)
            if what == "canceled":
                await until(lambda: server.noted("canceled") == 1)
            text = turn.message or turn.stop_reason
            results[f"A2A {way}, {what}"] = f"{text}; {server.noted() - before} executions"
    return results


async def main() -> None:
    """Uses all, prints, and writes the results."""
    async with ProcessEnvironment.running(answer) as env:
        results = await use_mcp(env)
        for way in ("streaming", "polled"):
            results |= await use_a2a(env, way)
    wanted = (PEERS / "requirements-older-sdks.txt").read_text().split()
    text = json.dumps({"packages": wanted, "results": results}, indent=1)
    print(text)
    (ROOT / "benchmarks" / "results" / "older-sdks.json").write_text(f"{text}\n")


if __name__ == "__main__":
    asyncio.run(main())
