"""Starts thousands of queries at once on one worker: ``python -m benchmarks.query_burst [--queries 5100]``.

They are started as fast as the server accepts them. Each asks one agent, whose model answers after 50 ms. With
``--peers FOLDER``, as many questions are then put to openai-agents, on the same server and to the same model.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baton.starter.scripted_model import Reply
from benchmarks.environment import BenchmarkEnvironment
from benchmarks.peers_runner import ALL
from tests.chaos.environment import ProcessEnvironment, batched
from tests.chaos.report import Report, parser_of, percentiles
from tests.harness.environment import Json, agent

AT_ONCE = 100
"""How many start requests are in flight at a time."""

SHOWN = 60
"""How many samples are written, at most."""

RESOURCES = [agent("one", modelRef={"name": "secret-model"})]


async def send_all(env: ProcessEnvironment, queries: int) -> None:
    """Starts all queries."""
    spec = {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}
    for some in batched(range(queries), AT_ONCE):
        starts = (
            env.start("query", {"name": f"q{n}", "spec": spec, "resources": RESOURCES}, f"query-{n}") for n in some
        )
        await asyncio.gather(*starts)


async def watched(env: ProcessEnvironment, done: Callable[[int], bool]) -> list[Json]:
    """Samples the worker's memory every second, until ``done`` accepts the number of closed queries."""
    begun, samples = time.monotonic(), list[Json]()
    while True:
        ended = (await env.client.count_workflows("WorkflowType='query' AND ExecutionStatus!='Running'")).count
        seconds = round(time.monotonic() - begun, 1)
        samples.append({"seconds": seconds, "ended": ended, "worker_mb": round(env.memory())})
        if done(ended):
            return samples
        await asyncio.sleep(1)


async def main() -> None:
    """Starts the queries, samples and writes the results."""
    parser = parser_of(__doc__, queries=5100)
    parser.add_argument("--peers", type=Path, help="the folder of the virtual environments of other systems")
    given = vars(parser.parse_args())
    peers = given.pop("peers")
    report = Report("query-burst", given)
    async with ProcessEnvironment.running(lambda _: Reply(text="Since KEY.", delay=0.05)) as env:
        begun = time.monotonic()
        watching = asyncio.create_task(watched(env, lambda ended: ended >= given["queries"]))
        await send_all(env, given["queries"])
        sent = time.monotonic() - begun
        samples = await asyncio.wait_for(watching, 3600)
        report.row({**await ends(env), "sent in s": round(sent, 1), **summary(env, samples)})
        report.leaks("all", await env.search())
        more = {ALL[0].name: await asked_elsewhere(env, peers, given["queries"])} if peers else {}
    report.write(samples=samples[:: len(samples) // SHOWN + 1], **more)


async def asked_elsewhere(env: ProcessEnvironment, peers: Path, questions: int) -> Json:
    """As many questions to openai-agents, while Baton's worker is idle: how many were answered, in how many seconds."""
    where = BenchmarkEnvironment(env.client, env.server.address, env.model_url, env.folder)
    said = (await ALL[0].run(where, peers, "", 1, 1_000, questions)).said
    rate = round(questions / said["seconds"], 1) if said["seconds"] else None
    return {
        "versions": ALL[0].versions(peers),
        "completed": said["ended"],
        "error": said["error"],
        "questions per s": rate,
    }


async def ends(env: ProcessEnvironment) -> Json:
    """How the queries have ended, and how long each took from its start."""
    runs = [run async for run in env.client.list_workflows("WorkflowType='query'")]
    completed = [run for run in runs if run.status and run.status.name == "COMPLETED"]
    took = [(run.close_time - run.start_time).total_seconds() for run in completed if run.close_time]
    return {"queries": len(runs), "completed": len(completed), **percentiles(took)}


def summary(env: ProcessEnvironment, samples: list[Json]) -> dict[str, Any]:
    """Time in all, model calls, and the worker's memory: idle, maximum, and at the end."""
    memory, seconds = [each["worker_mb"] for each in samples], samples[-1]["seconds"]
    counts = {
        "calls": len(env.model.requests),
        "seconds": seconds,
        "queries per s": round(samples[-1]["ended"] / seconds, 1),
    }
    return {**counts, "idle MB": memory[0], "most MB": max(memory), "last MB": memory[-1]}


if __name__ == "__main__":
    asyncio.run(main())
