"""How the order of commands of a workflow is changed while runs of it are open: by a patch.

``example/before_patch.json`` was recorded when ``Reminder`` set its memo after its wait, as ``UnpatchedReminder`` still
does; ``example/after_patch.json`` was recorded with the patch. Both replay with the code of today.
"""

from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

EXAMPLE = Path(__file__).parent / "example"

MEMO_FIRST = "memo-first"
"""Patch: the memo is set before the wait, so that it can be read meanwhile."""


@workflow.defn(name="reminder")
class UnpatchedReminder:
    """The workflow before the change."""

    @workflow.run
    async def run(self, text: str) -> str:
        await workflow.sleep(timedelta(milliseconds=10))
        workflow.upsert_memo({"text": text})
        return text


@workflow.defn(name="reminder")
class ReorderedReminder:
    """The change without a patch."""

    @workflow.run
    async def run(self, text: str) -> str:
        workflow.upsert_memo({"text": text})
        await workflow.sleep(timedelta(milliseconds=10))
        return text


@workflow.defn(name="reminder")
class Reminder:
    """The change with a patch: a run that began before it keeps the old order to its end."""

    @workflow.run
    async def run(self, text: str) -> str:
        memo_first = workflow.patched(MEMO_FIRST)
        if memo_first:
            workflow.upsert_memo({"text": text})
        await workflow.sleep(timedelta(milliseconds=10))
        if not memo_first:
            workflow.upsert_memo({"text": text})
        return text


async def replay_with(code: type, recording: str) -> None:
    """Replays a recording; raises an error of Temporal where the code gives other commands."""
    history = WorkflowHistory.from_json("reminder", (EXAMPLE / f"{recording}.json").read_text())
    await Replayer(workflows=[code], workflow_runner=UnsandboxedWorkflowRunner()).replay_workflow(history)


@pytest.mark.parametrize("recording", ["before_patch", "after_patch"])
async def test_both_histories_replay_with_the_patch(recording: str) -> None:
    """Runs that began before the patch, and those that began with it, continue on the same worker."""
    await replay_with(Reminder, recording)


async def test_a_new_order_of_commands_breaks_old_runs_without_a_patch() -> None:
    """This is what the recorded histories are for."""
    with pytest.raises(workflow.NondeterminismError):
        await replay_with(ReorderedReminder, "before_patch")


async def test_code_without_the_patch_does_not_continue_runs_that_began_with_it() -> None:
    """Rolling back needs a version that knows the patch."""
    with pytest.raises(workflow.NondeterminismError):
        await replay_with(UnpatchedReminder, "after_patch")
