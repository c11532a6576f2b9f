"""How long the runs of one tenant take beside a flood of another: without Quotas, and with them.

    python -m benchmarks.tenants [RUNS]

Tenant A starts many teams at once. Meanwhile tenant B starts one run after the other, as long as A's take. A worker of
one process and the embedded server share the machine, so that the worker is the bottleneck.
"""

import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

from temporalio.common import Priority

from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from benchmarks.environment import Baton, BenchmarkEnvironment, agent, versions, write

FLOOD = 200
TURNS = 6
ALONE = 5
"""Runs of B without A."""

MAX_BESIDE = 20
"""Runs of B beside A, at most."""

QUOTAS: dict[str, dict[str, dict[str, Any]]] = {
    "no Quota": {},
    "maxConcurrentRuns: 10 for A": {"a": {"maxConcurrentRuns": 10}, "b": {"weight": 1}},
    "maxConcurrentRuns: 4 for A": {"a": {"maxConcurrentRuns": 4}, "b": {"weight": 1}},
}


def manifests(quotas: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """An agent and a team of two in the namespaces of both tenants, and their Quotas."""
    made: list[dict[str, Any]] = []
    for namespace in ("a", "b"):
        team = {
            "strategy": "round-robin",
            "members": [{"name": "writer"}, {"name": "critic"}],
            "maxTurns": TURNS // 2,
            "onMaxTurns": "complete",
        }
        own = [agent("writer", 1000), agent("critic", 1000), manifest("Team", "team", team)]
        if namespace in quotas:
            own.append(manifest("Quota", "limits", quotas[namespace]))
        for one in own:
            one["metadata"]["namespace"] = namespace
        made += own
    return made


def manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A manifest."""
    return {"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


async def run(baton: Baton, namespace: str) -> float:
    """The seconds that a run of a tenant's team takes."""
    began = time.monotonic()
    spec = {"input": "How do we write a good report?", "target": {"type": "team", "name": "team"}}
    status = await baton.client.execute_workflow(
        "query",
        {"namespace": namespace, "spec": spec},
        id=f"{namespace}-{uuid.uuid4().hex}",
        task_queue=baton.task_queue,
        task_timeout=WORKFLOW_TASK_TIMEOUT,
        priority=Priority(fairness_key=namespace),  # as Baton's own clients start it
    )
    assert status["phase"] == "Completed", status
    return time.monotonic() - began


async def measure(
    env: BenchmarkEnvironment, name: str, quotas: dict[str, dict[str, Any]], flood: int
) -> dict[str, Any]:
    """The times of B alone and beside A, and the time of all of A."""
    loaded = load_documents([Document("tenants.yaml", each, {}) for each in manifests(quotas)])
    async with Baton.running(env, loaded, task_queue=uuid.uuid4().hex) as baton:
        await run(baton, "b")
        alone = [await run(baton, "b") for _ in range(ALONE)]
        began = time.monotonic()
        all_of_a = asyncio.gather(*(run(baton, "a") for _ in range(flood)))
        await asyncio.sleep(0.5)
        beside: list[float] = []
        while not all_of_a.done() and len(beside) < MAX_BESIDE:
            beside.append(await run(baton, "b"))
        await all_of_a
        took = time.monotonic() - began
    return {
        "quotas": name,
        "alone s": round(statistics.median(alone), 2),
        "beside: median s": round(statistics.median(beside), 2),
        "beside: worst s": round(max(beside), 2),
        "times": round(statistics.median(beside) / statistics.median(alone), 1),
        "runs of B": len(beside),
        "all of A s": round(took, 1),
    }


async def main(arguments: Sequence[str]) -> None:
    """Measures each case, and writes the results."""
    flood = int(arguments[0]) if arguments else FLOOD
    rows: list[dict[str, Any]] = []
    async with BenchmarkEnvironment.running(delay=0.1) as env:
        for name, quotas in QUOTAS.items():
            rows.append(await measure(env, name, quotas, flood))
            print(rows[-1], flush=True)
    write("tenants", {"versions": versions(), "runs of A": flood, "turns": TURNS, "rows": rows})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
