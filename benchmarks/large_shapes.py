"""Runs the largest shapes that a run can have, and measures their histories and what the worker needs for each call.

python -m benchmarks.large_shapes [--quick]

A parallel team of agents, each of which takes 18 steps with 3 tool calls, whose results have 66 kB; and a panel of many
seats and rounds. The model and the tool's server are in a process of their own: they read several GB of requests, which
would hold the interpreter of the worker.
"""

import argparse
import asyncio
import contextlib
import resource
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from baton.starter.scripted_model import Reply, Request, ScriptedModel
from benchmarks.environment import Baton, BenchmarkEnvironment, versions, write
from benchmarks.random_model import ROOT
from tests.harness.event_loop import watched_loop
from tests.harness.large_teams import BusyModel, busy_team, long_panel, serving_tool

Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A run: its workflow type, its team and its manifests."""

    name: str
    strategy: str
    team: str
    manifests: list[dict[str, Any]]


def shapes(tool: str, *, quick: bool) -> list[Shape]:
    """All shapes, or the smallest ones. Each comes after those that need less memory, as a process has one peak."""
    teams = (24,) if quick else (24, 240)
    panels = ((40, 2),) if quick else ((40, 2), (40, 50))
    return [
        *(
            Shape(f"panel, {seats} × {rounds}", "round-robin", "panel", long_panel(seats, rounds))
            for seats, rounds in panels
        ),
        *(Shape(f"parallel, {members} agents", "parallel", "team", busy_team(members, tool)) for members in teams),
    ]


class Answers:
    """Answers the agents of a busy team, which have a tool, and the seats of a panel, which have none."""

    def __init__(self) -> None:
        self._busy = BusyModel()
        self.model = ScriptedModel(self.answer)

    def answer(self, request: Request) -> Reply:
        """The answer to a request, which is not kept."""
        self.model.requests.clear()
        if request.tools:
            return self._busy.answer(request)
        return Reply(text="I agree with what was said before, and have nothing to add to it.")


def serve() -> None:
    """Serves the model and the tool, and prints their URLs, until the standard input closes."""
    with Answers().model.serve() as model, serving_tool() as tool:
        print(model, tool, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, str]]:
    """Runs the process of ``serve`` while the block runs; yields the URLs of the model and of the tool."""
    command = [sys.executable, "-m", "benchmarks.large_shapes", "--serve"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        model, tool = process.stdout.readline().split()
        yield model, tool
        process.stdin.close()


async def measure(env: BenchmarkEnvironment, shape: Shape) -> Row:
    """Runs one shape."""
    settings = {"BATON_ALLOW_PRIVATE_HOSTS": "1"}  # the tool's server is on this machine
    async with Baton.running(env, task_queue=uuid.uuid4().hex, **settings) as baton:
        run = f"large-{uuid.uuid4().hex}"
        given = {"team": shape.team, "input": "Why?", "resources": shape.manifests}
        async with watched_loop() as waits:
            status = await env.client.execute_workflow(shape.strategy, given, id=run, task_queue=baton.task_queue)
        sizes = await _sizes(env, run)
    model_calls = status["tokenUsage"]["modelCalls"]
    tool_calls = status["tokenUsage"].get("toolCalls", 0)
    calls = model_calls + tool_calls
    return {
        "shape": shape.name,
        "phase": status["phase"],
        "calls of models": model_calls,
        "calls of tools": tool_calls,
        "seconds": round(waits.total),
        "ms per call": round(1_000 * waits.total / calls, 1),
        "CPU ms per call": round(1_000 * waits.used / calls, 1),
        "CPU ms of the longest hold of the event loop": round(1_000 * waits.held),
        "MB of memory at most": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT / 1e6),
        "executions": len(sizes),
        "events of the longest": max(events for events, _ in sizes),
        "MB of the largest": round(max(size for _, size in sizes) / 1e6, 2),
        "MB in all": round(sum(size for _, size in sizes) / 1e6, 1),
    }


RSS_UNIT = 1 if sys.platform == "darwin" else 1_024
"""Bytes in which the system counts the memory of a process."""


async def _sizes(env: BenchmarkEnvironment, run: str) -> list[tuple[int, int]]:
    """Events and bytes of each execution of a run and the runs below it."""
    await env.history(run)  # waits until all are listed
    found = list[tuple[int, int]]()
    async for each in env.client.list_workflows(f"WorkflowId = '{run}' OR RootWorkflowId = '{run}'"):
        described = await env.client.get_workflow_handle(each.id, run_id=each.run_id).describe()
        info = described.raw_description.workflow_execution_info
        found.append((info.history_length, info.history_size_bytes))
    return found


async def measure_all(*, quick: bool) -> list[Row]:
    """All rows."""
    rows = list[Row]()
    with serving() as (model, tool):
        for shape in shapes(tool, quick=quick):
            async with BenchmarkEnvironment.running() as env:
                rows.append(await measure(replace(env, model=model), shape))
                print(*(f"{name}: {value}" for name, value in rows[-1].items()), sep="; ", flush=True)
    return rows


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only the smallest ones")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    rows = asyncio.run(measure_all(quick=given.quick))
    if not given.quick:
        write("large-shapes", {"versions": versions(), "rows": rows})


if __name__ == "__main__":
    main()
