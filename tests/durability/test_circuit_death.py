"""A worker that is killed while a run waits for a circuit breaker: the run keeps waiting, and then calls once."""

import json
import time
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.contracts.status import Status
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request
from tests.activities.test_inline_manifests import model
from tests.harness.environment import Json, agent
from tests.harness.killable import KillableWorker, wait_until

OPEN_SECONDS = 4.0


async def waits(handle: object) -> bool:
    """Whether the run's history has a timer, and no call under way."""
    events = (await handle.fetch_history()).events  # type: ignore[attr-defined]  # a handle of any type
    return any(event.HasField("timer_started_event_attributes") for event in events)


@pytest.mark.slow
async def test_a_wait_for_a_circuit_breaker_survives_the_worker(
    client: Client, server: EmbeddedServer, tmp_path: Path
) -> None:
    at: list[float] = []

    def answer(_: Request) -> Reply:
        at.append(time.monotonic())
        return Reply(text="Here.") if len(at) > 1 else Reply(status=503, headers={"retry-after-ms": "1"})

    async with KillableWorker.ready(client, server.address, tmp_path, answer) as killable:
        with killable.model.serve() as url:
            gpt = model(url)
            gpt["spec"]["circuitBreaker"] = {"failures": 1, "openFor": f"{OPEN_SECONDS:g}s"}
            spec: Json = {"input": "Why?", "target": {"type": "agent", "name": "a"}}
            handle = await killable.start("query", spec=spec, resources=[agent("a", modelRef={"name": "gpt"}), gpt])
            await wait_until(lambda: len(at) == 1)
            while not await waits(handle):
                pass
            killable.worker.kill()
            asked = len(at)  # 2 if this process has needed as long as the wait takes
            killable.worker.start()
            status = Status.model_validate_json(json.dumps(await handle.result()))
    assert status.message == "Here."
    assert len(at) == 2 or asked == 2
    assert at[1] - at[0] > OPEN_SECONDS - 0.5
