"""Clients that use only Temporal, names and JSON: ``plain_client.py`` and the ``temporal`` command."""

import ast
import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request, Script, ScriptedModel
from tests.harness.environment import KEY, Handle
from tests.harness.processes import ROOT, WorkerProcess, end_open_runs, process_env

SCRIPT = ROOT / "samples" / "scripts" / "brainstorming.yaml"
TEMPORAL = Path(sys.executable).parent / "temporal"


class Served(NamedTuple):
    """The address of a server with a worker, and its model: its first answer is held, and there is no other one."""

    address: str
    model: ScriptedModel


@pytest_asyncio.fixture(loop_scope="session")
async def served(server: EmbeddedServer, client: Client, tmp_path: Path) -> AsyncIterator[Served]:
    """A worker that was started with the sample's resources. Its runs end only if they are terminated or canceled."""
    await end_open_runs(client)
    script = Script.read(SCRIPT)

    def answer(request: Request) -> Reply:
        waits = {"held": True} if len(model.requests) == 1 else {"hang": True}
        return script.answer(request).model_copy(update=waits)

    model = ScriptedModel(answer)
    with model.serve() as url:
        env = process_env(
            TEMPORAL_ADDRESS=server.address, BATON_HOME=str(tmp_path), OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY
        )
        worker = WorkerProcess(env, tmp_path / "worker.log", ROOT / "samples" / "brainstorming.yaml")
        worker.start()
        yield Served(server.address, model)
        assert await worker.stop() == 0


async def run(*command: str | Path, **env: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=process_env(**env)
    )
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


@pytest.mark.full
async def test_the_plain_client_starts_queries_terminates_and_cancels_runs(
    served: Served, client: Client, tmp_path: Path
) -> None:
    source = ROOT / "starter" / "plain_client.py"
    copy = tmp_path / "plain_client.py"
    unique = uuid.uuid4().hex[:6]
    text = source.read_text()
    copy.write_text(text.replace("my-run", f"my-run-{unique}").replace("my-query", f"my-query-{unique}"))
    running = asyncio.create_task(run(sys.executable, copy, TEMPORAL_ADDRESS=served.address))
    while not (await was_signaled(client.get_workflow_handle(f"my-run-{unique}")) or running.done()):
        await asyncio.sleep(0.05)
    served.model.release()
    out = (await running).splitlines()
    status, result = ast.literal_eval(out[0]), ast.literal_eval(out[1])
    assert status["phase"] == "Running"
    assert (result["stopReason"], result["note"]) == ("terminated", "enough for today")
    asked = client.get_workflow_handle(f"my-query-{unique}")
    while (state := (await asked.describe()).status) is WorkflowExecutionStatus.RUNNING:
        await asyncio.sleep(0.05)
    assert state is WorkflowExecutionStatus.CANCELED


async def was_signaled(handle: Handle) -> bool:
    """Whether a run has got a signal."""
    try:
        events = (await handle.fetch_history()).events
    except RPCError:  # it has not started yet
        return False
    return any(event.HasField("workflow_execution_signaled_event_attributes") for event in events)


def test_the_plain_client_imports_nothing_of_baton() -> None:
    tree = ast.parse((ROOT / "starter" / "plain_client.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"temporalio.client"}
    main = next(node for node in tree.body if isinstance(node, ast.AsyncFunctionDef))
    assert len(main.body) - 1 <= 10


@pytest.mark.slow
async def test_the_temporal_command_does_the_same(served: Served) -> None:
    name = f"cli-{uuid.uuid4().hex[:6]}"
    temporal = (TEMPORAL, "--address", served.address)
    target = {"type": "team", "name": "brainstorming-team"}
    given = json.dumps({"spec": {"input": "How do we part?", "targets": [target]}})
    start = ("workflow", "start", "--type", "query", "--task-queue", "baton", "--workflow-id", name, "--input", given)
    await run(*temporal, *start)
    query = ("workflow", "query", "--workflow-id", name, "--name", "status", "-o", "json")
    status = json.loads(await run(*temporal, *query))
    assert "Running" in json.dumps(status)
    reason = ("--name", "terminate_team", "--input", '{"reason": "enough"}')
    await run(*temporal, "workflow", "signal", "--workflow-id", name, *reason)
    served.model.release()
    result = json.loads(await run(*temporal, "workflow", "result", "--workflow-id", name, "-o", "json"))
    assert result["status"] == "COMPLETED"
    assert (result["result"]["phase"], result["result"]["note"]) == ("Completed", "enough")
    await run(*temporal, *start[:-3], f"{name}-2", *start[-2:])
    await run(*temporal, "workflow", "cancel", "--workflow-id", f"{name}-2")
