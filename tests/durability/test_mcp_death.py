"""A worker that is killed under a call of an MCP tool: no second unsafe call, and a safe one is answered."""

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowHandle

from baton.conversation.defaults import TASK_QUEUE
from baton.conversation.messages.turn import TurnResult
from baton.conversation.temporal.temporal_client import WORKFLOW_TASK_TIMEOUT
from baton.starter.scripted_model.script import Reply, Request, ScriptedToolCall
from baton.starter.scripted_model.server import ScriptedModel
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import KEY, Json, agent
from tests.harness.killable import KillableWorker, wait_until
from tests.harness.mcp_process import McpServerProcess
from tests.harness.processes import WorkerProcess, process_env
from tests.harness.tool_answers import plain_answer


def answer(request: Request) -> Reply:
    """Uses the only tool that it was offered, and then repeats its result."""
    received = [plain_answer(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    given: Json = {"test-note": {"words": "once", "seconds": 3}, "test-work": {"steps": 10, "seconds": 0.3}}
    name = request["tools"][0]["function"]["name"]
    return Reply(text=received[0]) if received else Reply(calls=[ScriptedToolCall(name=name, arguments=given[name])])


TRUST = {"BATON_BROUGHT_MANIFESTS": "all"}
"""The servers of the tests are in the worker's own network."""


@pytest_asyncio.fixture(loop_scope="session")
async def killable(client: Client, server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[KillableWorker]:
    """A worker that can be killed."""
    model = ScriptedModel(answer)
    with model.serve() as url:
        env = process_env(
            TEMPORAL_ADDRESS=server.address,
            BATON_HOME=str(tmp_path),
            BATON_BROUGHT_MANIFESTS="all",
            OPENAI_BASE_URL=url,
            OPENAI_API_KEY=KEY,
        )
        worker = WorkerProcess(env, tmp_path / "worker.log")
        yield KillableWorker(client, model, worker, tmp_path / "journal.db")
        await worker.stop()


async def start(killable: KillableWorker, mcp: McpServerProcess, tool: str) -> WorkflowHandle[Any, Any]:
    """Starts an agent that uses a tool once."""
    given = {"agent": "one", "input": "Use it!", "resources": [agent("one", tool), mcp.manifest()]}
    killable.worker.start()
    return await killable.client.start_workflow(
        "agent", given, id=f"mcp-{uuid.uuid4().hex[:8]}", task_queue=TASK_QUEUE, task_timeout=WORKFLOW_TASK_TIMEOUT
    )


UNKNOWN = "Error: test-note was begun before and broken off; whether it was carried out is unknown"


@pytest.mark.parametrize(("tool", "received"), [("test-note", UNKNOWN), ("test-work", "all done")])
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_only_a_safe_call_is_made_again_after_the_death_of_its_worker(
    killable: KillableWorker, tmp_path: Path, era: str, tool: str, received: str
) -> None:
    with McpServerProcess(era, tmp_path).running() as mcp:
        handle = await start(killable, mcp, tool)
        await wait_until(lambda: (tmp_path / "calls").exists() or (tmp_path / "working").exists())
        killable.worker.kill()
        killable.worker.start()
        turn = TurnResult.model_validate_json(json.dumps(await handle.result()))
        assert turn.message == received
        assert len(mcp.calls) == (tool == "test-note")
