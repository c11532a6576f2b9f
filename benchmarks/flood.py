"""What becomes of thousands of queries that come at once?  ``python -m benchmarks.flood [--queries 5100]``

All are sent as fast as the server takes them, to one worker. Each asks one agent, whose model answers after 50 ms.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from baton.starter.scripted_model.script import Reply
from tests.chaos.ground import Ground, batched
from tests.chaos.report import Report, arguments, percentiles
from tests.harness.environment import Json, agent

AT_ONCE = 100
"""How many requests to start a query are under way at a time."""

SHOWN = 60
"""How many of the looks at the worker are kept."""

RESOURCES = [agent("one", modelRef={"name": "held"})]


async def flood(ground: Ground, queries: int) -> None:
    """Sends all queries."""
    spec = {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}
    for some in batched(range(queries), AT_ONCE):
        starts = (
            ground.start("query", {"name": f"q{n}", "spec": spec, "resources": RESOURCES}, f"query-{n}") for n in some
        )
        await asyncio.gather(*starts)


async def watched(ground: Ground, done: Callable[[int], bool]) -> list[Json]:
    """Looks at the worker every second, until so many queries have ended."""
    begun, samples = time.monotonic(), list[Json]()
    while True:
        ended = (await ground.client.count_workflows("WorkflowType='query' AND ExecutionStatus!='Running'")).count
        seconds = round(time.monotonic() - begun, 1)
        samples.append({"seconds": seconds, "ended": ended, "worker_mb": round(ground.memory())})
        if done(ended):
            return samples
        await asyncio.sleep(1)


async def main() -> None:
    """Floods, watches and keeps."""
    given = arguments(__doc__, queries=5100)
    report = Report("flood", given)
    async with Ground.laid(lambda _: Reply(text="Since KEY.", delay=0.05)) as ground:
        begun = time.monotonic()
        watching = asyncio.create_task(watched(ground, lambda ended: ended >= given["queries"]))
        await flood(ground, given["queries"])
        sent = time.monotonic() - begun
        samples = await asyncio.wait_for(watching, 3600)
        report.row({**await ends(ground), "sent in s": round(sent, 1), **summary(ground, samples)})
        report.leaks("all", await ground.search())
    report.keep(samples=samples[:: len(samples) // SHOWN + 1])


async def ends(ground: Ground) -> Json:
    """How the queries have ended, and how long each took since it was taken."""
    runs = [run async for run in ground.client.list_workflows("WorkflowType='query'")]
    completed = [run for run in runs if run.status and run.status.name == "COMPLETED"]
    took = [(run.close_time - run.start_time).total_seconds() for run in completed if run.close_time]
    return {"queries": len(runs), "completed": len(completed), **percentiles(took)}


def summary(ground: Ground, samples: list[Json]) -> dict[str, Any]:
    """The whole time, what was asked, and the worker's memory: idle, at most, and at the end."""
    memory, seconds = [each["worker_mb"] for each in samples], samples[-1]["seconds"]
    told = {
        "calls": len(ground.model.asked),
        "seconds": seconds,
        "queries per s": round(samples[-1]["ended"] / seconds, 1),
    }
    return {**told, "idle MB": memory[0], "most MB": max(memory), "last MB": memory[-1]}


if __name__ == "__main__":
    asyncio.run(main())
