"""Queries that a worker gets before the workflow task whose events they bring: no run continues with those."""

import json
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import (
    HandleSignalInput,
    Interceptor,
    Replayer,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)
from temporalio.worker import WorkflowRunner as AnyRunner

from baton.activities.runtime.sdk_options import WorkflowRunner
from baton.temporal.converter import DATA_CONVERTER
from baton.workflows.registry import WORKFLOWS
from tests.replay.recorded import HISTORIES

SEEN: list[str] = []


class _Signals(WorkflowInboundInterceptor):
    async def handle_signal(self, input: HandleSignalInput) -> None:  # noqa: A002 - as the SDK calls it
        SEEN.append(input.signal)
        await super().handle_signal(input)


class _SeesSignals(Interceptor):
    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002
        return _Signals


def history_of_a_query_that_came_early() -> WorkflowHistory:
    """What a query brings where a signal has come and no workflow task has begun on it."""
    stored: dict[str, Any] = json.loads((HISTORIES / "paused_selector.1.selector.json").read_text())
    kinds = [each["eventType"].removeprefix("EVENT_TYPE_") for each in stored["events"]]
    last = kinds.index("WORKFLOW_EXECUTION_SIGNALED") + 1
    assert kinds[last] == "WORKFLOW_TASK_SCHEDULED"
    stored["events"] = stored["events"][: last + 1]
    return WorkflowHistory.from_json("run", json.dumps(stored))


@pytest.mark.parametrize(("runner", "seen"), [(UnsandboxedWorkflowRunner(), ["pause"]), (WorkflowRunner(), [])])
async def test_a_run_does_not_see_what_no_workflow_task_has_begun_on(runner: AnyRunner, seen: list[str]) -> None:
    SEEN.clear()
    replayer = Replayer(
        workflows=WORKFLOWS,
        data_converter=DATA_CONVERTER,
        unsandboxed_workflow_runner=runner,
        interceptors=[_SeesSignals()],
    )
    await replayer.replay_workflow(history_of_a_query_that_came_early())
    assert seen == SEEN
