"""Two workers with one journal share the work, and each message is stored once."""

import asyncio
import contextlib
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from baton.contracts.turn import TurnResult
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, Request, ScriptedModel
from tests.harness.environment import KEY, agent, team, texts
from tests.harness.postgres import execute
from tests.harness.processes import WorkerProcess, process_env
from tests.harness.replayer import replay

TEAMS, ROUNDS = 50, 3
MANIFESTS = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=ROUNDS, onMaxTurns="complete")]
TURNS = 2 * ROUNDS


def answer(request: Request) -> Reply:
    said = [message["content"] for message in request["messages"] if message["role"] == "assistant"]
    question = next(message["content"] for message in request["messages"] if message["role"] == "user")
    return Reply(text=f"{question}, answer {len(said) + 1}", delay=0.05)


@contextlib.asynccontextmanager
async def two_workers(env: dict[str, str], folder: Path) -> AsyncIterator[None]:
    workers = [WorkerProcess(env, folder / f"worker-{number}.log") for number in range(2)]
    for worker in workers:
        worker.start()
    try:
        while not all("Worker started on task queue" in worker.log.read_text() for worker in workers):
            await asyncio.sleep(0.05)
        yield
    finally:
        assert [await worker.stop() for worker in workers] == [0, 0]


@pytest.mark.slow
async def test_two_workers_share_fifty_teams_and_each_message_stands_once(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path
) -> None:
    model = ScriptedModel(answer)
    with model.serve() as url:
        address = {"TEMPORAL_ADDRESS": server.address, "OPENAI_BASE_URL": url, "BATON_JOURNAL_URL": journal_url}
        own = {"BATON_TASK_QUEUE": (queue := uuid.uuid4().hex), "BATON_HOME": str(tmp_path)}
        async with two_workers(process_env(**address, **own, OPENAI_API_KEY=KEY), tmp_path):
            begun = time.monotonic()
            handles = await asyncio.gather(*(start(client, queue, number) for number in range(TEAMS)))
            turns = [TurnResult.model_validate_json(json.dumps(await handle.result())) for handle in handles]
            print(f"{TEAMS} teams of {TURNS} turns: {time.monotonic() - begun:.1f} s")

    said = [[f"team {number}, answer {turn + 1}" for turn in range(TURNS)] for number in range(TEAMS)]
    assert [texts(turn.messages) for turn in turns] == said
    assert len(model.requests) == TEAMS * TURNS, "no answer was asked for twice"
    rows = await execute(journal_url, "select message from baton_messages")
    written = Counter(json.loads(str(row[0]))["content"] for row in rows)
    assert written == Counter([*(f"team {number}" for number in range(TEAMS)), *chain(*said)])
    calls = await calls_of_workers(handles)
    print(f"calls by worker: {calls}")
    assert len(calls) == 2


async def start(client: Client, queue: str, number: int) -> WorkflowHandle[object, object]:
    return await client.start_workflow(
        "round-robin",
        {"team": "team", "input": f"team {number}", "resources": MANIFESTS},
        id=f"two-workers-{uuid.uuid4().hex[:8]}",
        task_queue=queue,
        task_timeout=WORKFLOW_TASK_TIMEOUT,
    )


async def calls_of_workers(handles: list[WorkflowHandle[object, object]]) -> Counter[str]:
    """How many activities each worker has executed; also replays the runs."""
    histories = [await handle.fetch_history() for handle in handles]
    await replay(histories)
    return Counter(
        event.activity_task_started_event_attributes.identity
        for history in histories
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    )
