"""Workers that are killed under queries of one conversation: each question and each answer is kept once."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client

from baton.contracts.plan import ConversationPlan
from baton.contracts.status import Status
from baton.starter.operations.conversations import read_conversation
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, Request, ScriptedModel
from tests.harness.environment import KEY, Json, agent, manifest
from tests.harness.killable import KillableWorker, wait_until
from tests.harness.memory_server import MemoryServer
from tests.harness.processes import WorkerProcess, process_env

QUERIES = 8


def answer(request: Request) -> Reply:
    """Repeats the question."""
    return Reply(text=f"to {request['messages'][-1]['content']}", delay=0.1)


@pytest_asyncio.fixture(loop_scope="session")
async def killable(client: Client, server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[KillableWorker]:
    """A worker that can be killed."""
    model = ScriptedModel(answer)
    with model.serve() as url:
        where = {"TEMPORAL_ADDRESS": server.address, "BATON_HOME": str(tmp_path), "BATON_INLINE_MANIFESTS": "all"}
        env = process_env(**where, BATON_TASK_QUEUE=uuid.uuid4().hex, OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
        worker = WorkerProcess(env, tmp_path / "worker.log")
        worker.start()
        yield KillableWorker(client, model, worker, tmp_path / "journal.db")
        await worker.stop()


async def ask(killable: KillableWorker, question: str, *resources: Json, **spec: Any) -> Status:
    """The status of a query in the conversation ``c``."""
    query = {"input": question, "targets": [{"type": "agent", "name": "one"}], "conversationId": "c", **spec}
    given = {"spec": query, "resources": [agent("one"), *resources]}
    options: Json = {"task_queue": killable.task_queue, "task_timeout": WORKFLOW_TASK_TIMEOUT}
    result = await killable.client.execute_workflow("query", given, id=f"talk-{uuid.uuid4().hex}", **options)
    return Status.model_validate_json(json.dumps(result))


async def ask_all(killable: KillableWorker, kills: int, *resources: Json, **spec: Any) -> None:
    """Asks questions at once, while the worker is killed again and again."""
    tasks = [asyncio.create_task(ask(killable, f"question {number}", *resources, **spec)) for number in range(QUERIES)]

    def goes_on(rows: int) -> bool:
        return killable.journal_rows() > rows + 2 or all(task.done() for task in tasks)

    for number in range(kills):
        await wait_until(partial(goes_on, killable.journal_rows()))
        await asyncio.sleep(0.05 * number)
        killable.worker.kill()
        killable.worker.start()
    statuses = await asyncio.gather(*tasks)
    assert {status.phase for status in statuses} == {"Completed"}
    assert not [status.notices for status in statuses if status.notices]


def assert_each_once(texts: list[str]) -> None:
    """Each question is followed by its own answer, and none stands there twice."""
    pairs = [*zip(texts[::2], texts[1::2], strict=True)]
    assert sorted(pairs) == sorted((f"question {n}", f"to question {n}") for n in range(QUERIES))


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_each_exchange_is_kept_once_in_the_journal(killable: KillableWorker) -> None:
    await ask_all(killable, kills=2)
    plan = ConversationPlan(id="c", namespace="default")
    said = await read_conversation("default", plan, 1_000, {"BATON_JOURNAL_URL": f"sqlite:///{killable.journal}"})
    assert said
    assert_each_once([each.content for each in said])


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", ["older", "items"])
async def test_each_exchange_is_kept_once_by_a_memory(killable: KillableWorker, form: Any) -> None:
    with MemoryServer(form).serving() as memory:
        await ask_all(killable, 2, manifest("Memory", "m", {"address": memory.url}), memory="m")
        assert_each_once(memory.texts())
