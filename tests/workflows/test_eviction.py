"""Runs that leave a worker's memory while they wait: none of their code runs there any more, and nothing is printed."""

import asyncio
import gc
import json
import sys
import uuid
from collections.abc import Iterator

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from baton import worker
from baton.temporal.converter import DATA_CONVERTER
from baton.workflows.registry import WORKFLOWS
from tests.harness.environment import Environment, agent, line, team
from tests.replay.recorded import HISTORIES


@pytest.fixture
def ignored() -> Iterator[list[str]]:
    """The texts of exceptions that Python has ignored, as it does with those of coroutines that nobody holds."""
    texts: list[str] = []
    before = sys.unraisablehook

    def note(raised: "sys.UnraisableHookArgs") -> None:
        place = raised.exc_traceback
        while place and place.tb_next:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place else ""
        texts.append(f"{raised.exc_type.__name__}: {raised.exc_value} at {where}: {raised.err_msg} {raised.object}")

    sys.unraisablehook = lambda _: None
    gc.collect()  # what other tests have left is not of this one
    sys.unraisablehook = note
    yield texts
    sys.unraisablehook = before


async def test_a_paused_run_whose_worker_ends_prints_nothing_and_goes_on(env: Environment, ignored: list[str]) -> None:
    env.script(line("one", "word"))
    env.task_queue = uuid.uuid4().hex
    resources = [agent("one"), team("team", "one", maxTurns=1, onMaxTurns="complete")]
    async with worker.run_worker(env.client, env.catalog, env.worker_env):
        handle = await env.start(
            "round-robin", {"team": "team", "input": "Why?", "resources": resources}, start_signal="pause"
        )
        while not (await handle.query("status")).get("paused"):
            await asyncio.sleep(0.05)
    gc.collect()
    assert ignored == []
    async with worker.run_worker(env.client, env.catalog, env.worker_env):
        await handle.signal("resume")
        assert (await env.turn_result(handle)).stop_reason == "max_turns"


def recorded() -> Iterator[WorkflowHistory]:
    """All histories of the replay tests."""
    for file in sorted(HISTORIES.glob("*.json")):
        text = file.read_text()
        started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
        yield WorkflowHistory.from_json(started["workflowId"], text)


def beginnings(history: WorkflowHistory) -> Iterator[WorkflowHistory]:
    """What a history was after each of its workflow tasks, with the commands of that task."""
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    for task in [event.event_id for event in history.events if event.event_type == completed]:
        commands = [event.event_id for event in history.events if _task_of(event) == task]
        yield WorkflowHistory(history.workflow_id, history.events[: max([task, *commands])])


def _task_of(event: HistoryEvent) -> int:
    """The workflow task to whose commands an event belongs; 0 for one that comes from outside."""
    attributes = getattr(event, event.WhichOneof("attributes") or "")
    return getattr(attributes, "workflow_task_completed_event_id", 0)


@pytest.mark.slow
async def test_no_code_of_a_run_runs_when_it_is_dropped_wherever_it_waits(ignored: list[str]) -> None:
    """As at the end of a worker, and with the SDK's option to drop runs without their end."""
    replayer = Replayer(
        workflows=WORKFLOWS,
        data_converter=DATA_CONVERTER,
        disable_safe_workflow_eviction=True,
    )
    for history in recorded():
        for beginning in beginnings(history):
            await replayer.replay_workflow(beginning, raise_on_replay_failure=False)  # cut so, some are no history
    gc.collect()
    assert ignored == []
