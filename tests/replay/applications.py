"""Records histories of an application's workflows that ask teams: ``python -m tests.replay.applications``.

``baton.workflow`` is executed in them, so a change of its commands needs a patch, too. Recording only adds: the name of
a file has the version of the package.
"""

import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Worker

from baton.installation import version
from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.testing import fake_runs
from tests.harness.claims import Claim, Decision, Question, pay
from tests.harness.ports import own_ports

FOLDER = Path(__file__).parent / "applications"

WORKFLOWS = [Claim, Question]


@workflow.defn(name="query", sandboxed=False)
class EndlessRun:
    """In place of a run of Baton: it goes on until it is canceled."""

    @workflow.run
    async def run(self, _: dict[str, Any]) -> None:
        await workflow.wait_condition(lambda: False)


async def record(client: Client) -> dict[str, str]:
    """The histories, as JSON by name: a claim that is paid, and a question that is canceled while it waits."""
    queue = "claims"
    fake = fake_runs({"claims": Decision(approved=True, amount=120)})
    async with Worker(client, task_queue=queue, workflows=[*WORKFLOWS, fake], activities=[pay]):
        claim = await client.start_workflow(Claim.run, "My bicycle was stolen.", id="claim-7", task_queue=queue)
        await claim.result()
    async with Worker(client, task_queue=queue, workflows=[*WORKFLOWS, EndlessRun]):
        question = await client.start_workflow(Question.run, args=["Why?", {}], id="question-7", task_queue=queue)
        await _started(question)
        await question.cancel()
        with contextlib.suppress(WorkflowFailureError):
            await question.result()
    handles: dict[str, WorkflowHandle[Any, Any]] = {"claim": claim, "canceled": question}
    return {name: (await handle.fetch_history()).to_json() for name, handle in handles.items()}


async def _started(parent: WorkflowHandle[Any, Any]) -> None:
    """Waits until the parent has taken up that its child has started."""
    started = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    while True:
        types = [event.event_type async for event in parent.fetch_history_events()]
        if started in types and types[-1] == completed:
            return
        await asyncio.sleep(0.05)


async def main() -> None:
    """Adds the histories of this version, or of the one that is given, whose code has to be there."""
    name_of_version = sys.argv[1] if len(sys.argv) > 1 else version()
    with tempfile.TemporaryDirectory() as folder, StateDir(Path(folder)).lock("dev") as lock:
        assert lock
        server = EmbeddedServer(Path(folder), lock, *own_ports())
        try:
            histories = await record(await server.start())
        finally:
            await server.stop()
    FOLDER.mkdir(exist_ok=True)
    for name, history in histories.items():
        file = FOLDER / f"{name}-{name_of_version}.json"
        if not file.exists():
            file.write_text(f"{history}\n")


if __name__ == "__main__":
    asyncio.run(main())
