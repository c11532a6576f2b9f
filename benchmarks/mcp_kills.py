"""Kills the reference servers of MCP under calls of a run, and starts them again: ``python -m benchmarks.mcp_kills``.

A part of ``benchmarks.mcp``. A server over stdio belongs to the worker, which starts it again itself.
"""

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from baton.contracts.turn import TurnResult
from baton.starter.scripted_model import Reply, Request, ScriptedToolCall
from benchmarks.mcp_servers import EVERYTHING, FILESYSTEM, environment, everything
from tests.chaos.environment import ProcessEnvironment
from tests.harness.environment import Handle, Json, agent, ended, manifest
from tests.harness.ports import own_port
from tests.harness.tool_answers import plain_answer

SECONDS = 4
FILES = "files"
UNKNOWN = "whether it was executed is unknown"


@dataclass(frozen=True)
class Call:
    """A call under which the server is killed.

    ``says`` is in its answer, or else, if a server does not say that it may be repeated, UNKNOWN. ``quick``: the server
    is stopped (SIGSTOP) before it gets the call, as that would end too soon otherwise.
    """

    server: str
    tool: str
    arguments: Json
    says: str
    quick: bool = True


def calls(folder: Path) -> tuple[Call, ...]:
    """All calls; ``folder`` is that of the server of files."""
    file, long = str(folder / FILES / "a"), {"duration": SECONDS, "steps": SECONDS}
    edit = {"path": file, "edits": [{"oldText": "hello", "newText": "hello hello"}]}
    return (
        *(
            Call(transport, "trigger-long-running-operation", long, "operation completed", quick=False)
            for transport in ("stdio", "streamableHttp", "sse")
        ),
        Call(FILES, "read_text_file", {"path": file}, "hello"),  # it only reads
        Call(FILES, "write_file", {"path": file, "content": "hello"}, "Successfully wrote"),  # it is idempotent
        Call(FILES, "edit_file", edit, UNKNOWN),
        Call(FILES, "move_file", {"source": file, "destination": f"{file}b"}, UNKNOWN),
    )


class Model:
    """Makes the call that the question names, and repeats what came of it; before its call, ``then`` is called once."""

    then: Callable[[], None] | None = None

    def answer(self, request: Request) -> Reply:
        """The reply of the model."""
        said = request["messages"]
        received = [plain_answer(each["content"]) for each in said if each["role"] == "tool"]
        if received:
            return Reply(text=received[-1])
        if self.then:
            self.then()
        name = request["tools"][0]["function"]["name"]
        return Reply(calls=[ScriptedToolCall(name=name, arguments=json.loads(said[1]["content"]))])


def own(folder: Path) -> list[Json]:
    """The servers that are commands of the worker."""
    (folder / FILES).mkdir()
    (folder / FILES / "a").write_text("hello")
    env = [{"name": "PATH", "value": environment()["PATH"]}]
    commands = {"stdio": [EVERYTHING, "stdio"], FILES: [FILESYSTEM, str(folder / FILES)]}
    return [manifest("MCPServer", name, {"command": "node", "args": a, "env": env}) for name, a in commands.items()]


def process_of(call: Call, folder: Path) -> psutil.Process:
    """The process of a server, below this one."""
    last = str(folder / FILES) if call.server == FILES else call.server
    below = psutil.Process(os.getpid()).children(recursive=True)
    [found] = [each for each in below if each.name() == "node" and each.cmdline()[-1] == last]
    return found


async def in_its_call(handle: Handle) -> None:
    """Waits until a tool call of a run has been under way for a second."""
    async with asyncio.timeout(60):
        while True:
            pending = (await handle.describe()).raw_description.pending_activities
            if any(each.activity_type.name == "use_tool" for each in pending):
                break
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)


async def killed_under(call: Call, env: ProcessEnvironment, model: Model) -> str:
    """What the run of a call says at its end."""
    with ExitStack() as stack:
        given, port = [agent("one", f"{call.server.lower()}-{call.tool.replace('_', '-')}")], own_port()
        http = call.server in ("streamableHttp", "sse")
        if http:
            address = stack.enter_context(everything(call.server, port))
            spec = {"address": address, **({"transport": "sse"} if call.server == "sse" else {})}
            given.append(manifest("MCPServer", call.server.lower(), spec))
        model.then = (lambda: process_of(call, env.folder).suspend()) if call.quick else None
        asked = {"agent": "one", "input": json.dumps(call.arguments), "resources": given}
        handle = await env.start("agent", asked, f"{call.server}-{call.tool}")
        await in_its_call(handle)
        process_of(call, env.folder).kill()
        if http:
            stack.close()
            await asyncio.to_thread(stack.enter_context, everything(call.server, port))
        turn = await asyncio.wait_for(ended(handle, TurnResult), 120)
        return turn.message or str(turn.failure)


async def killed_under_calls() -> dict[str, str]:
    """What came of each call; whatever is not as it should be begins with WRONG."""
    model, results = Model(), dict[str, str]()
    async with ProcessEnvironment.running(model.answer, own=own) as env:
        for call in calls(env.folder):
            said = await killed_under(call, env, model)
            name, right = f"{call.server}: {call.tool}", call.says in said
            results[name] = said if right else f"WRONG: {said}"
            print(f"{name}: {results[name]}", flush=True)
        text = (env.folder / FILES / "a").read_text()
        results["the file"] = text if text == "hello" else f"WRONG: {text}"
    return results


if __name__ == "__main__":
    asyncio.run(killed_under_calls())
