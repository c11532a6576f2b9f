"""Runs the largest shapes that a run can have, and measures their histories.

python -m benchmarks.large_shapes [--quick]

A parallel team of agents, each of which takes 18 steps with 3 tool calls, whose results have 66 kB; and a panel of many
seats and rounds.
"""

import argparse
import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from baton.starter.scripted_model import Reply, Request, ScriptedModel
from benchmarks.environment import Baton, BenchmarkEnvironment, versions, write
from tests.harness.large_teams import BusyModel, busy_team, long_panel
from tests.harness.tool_server import ToolServer

Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A run: its workflow type, its team, its manifests, and who answers."""

    name: str
    strategy: str
    team: str
    manifests: list[dict[str, Any]]
    answer: Callable[[Request], Reply]


def shapes(server: ToolServer, *, quick: bool) -> list[Shape]:
    """All shapes, or the smallest ones."""
    teams = (24,) if quick else (24, 240)
    panels = ((40, 2),) if quick else ((40, 50),)
    return [
        *(Shape(f"parallel, {n} agents", "parallel", "team", busy_team(n, server), BusyModel().answer) for n in teams),
        *(
            Shape(f"panel, {seats} × {rounds}", "round-robin", "panel", long_panel(seats, rounds), _contribution)
            for seats, rounds in panels
        ),
    ]


def _contribution(_: Request) -> Reply:
    return Reply(text="I agree with what was said before, and have nothing to add to it.")


async def measure(env: BenchmarkEnvironment, shape: Shape) -> Row:
    """Runs one shape."""
    with ScriptedModel(shape.answer).serve() as url:
        settings = {"BATON_ALLOW_PRIVATE_HOSTS": "1"}  # the tool's server is on this machine
        async with Baton.running(replace(env, model=url), task_queue=uuid.uuid4().hex, **settings) as baton:
            began = time.monotonic()
            run = f"large-{uuid.uuid4().hex}"
            given = {"team": shape.team, "input": "Why?", "resources": shape.manifests}
            status = await env.client.execute_workflow(shape.strategy, given, id=run, task_queue=baton.task_queue)
            seconds = time.monotonic() - began
            sizes = await _sizes(env, run)
    return {
        "shape": shape.name,
        "phase": status["phase"],
        "calls of models": status["tokenUsage"]["modelCalls"],
        "calls of tools": status["tokenUsage"].get("toolCalls", 0),
        "seconds": round(seconds),
        "executions": len(sizes),
        "events of the longest": max(events for events, _ in sizes),
        "MB of the largest": round(max(size for _, size in sizes) / 1e6, 2),
        "MB in all": round(sum(size for _, size in sizes) / 1e6, 1),
    }


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
    with ToolServer().serving() as server:
        for shape in shapes(server, quick=quick):
            async with BenchmarkEnvironment.running() as env:
                rows.append(await measure(env, shape))
                print(*(f"{name}: {value}" for name, value in rows[-1].items()), sep="; ", flush=True)
    return rows


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only the smallest ones")
    given = parser.parse_args()
    rows = asyncio.run(measure_all(quick=given.quick))
    if not given.quick:
        write("large-shapes", {"versions": versions(), "rows": rows})


if __name__ == "__main__":
    main()
