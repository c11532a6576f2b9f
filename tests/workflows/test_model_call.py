"""The way of one model call, from a strategy to the HTTP request, as `docs/architecture.md` describes it."""

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from temporalio.client import Client, Interceptor
from temporalio.worker import Interceptor as WorkerInterceptor
from temporalio.worker import (
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle

from baton.testing import Reply
from tests.harness.environment import Environment, agent, team
from tests.harness.processes import ROOT

OWN = ("workflows", "activities", "contracts", "temporal", "observability", "journal", "resources")
STRATEGY = "round_robin"

Step = tuple[str, str]
"""A function that takes part in a call, with its class, and its file."""


def step_of(code: CodeType) -> Step | None:
    """The step that runs the code, if that is Baton's."""
    file = Path(code.co_filename).resolve()
    if not file.is_relative_to(ROOT) or file.relative_to(ROOT).parts[0] not in OWN:
        return None
    return code.co_qualname, str(file.relative_to(ROOT))


def steps_of_stack(frame: FrameType | None) -> list[Step]:
    """The steps that the stack of a running coroutine consists of, the outermost first."""
    steps: list[Step] = []
    while frame:
        if step := step_of(frame.f_code):
            steps.append(step)
        frame = frame.f_back
    return steps[::-1]


def steps_of_task(task: "asyncio.Task[Any]") -> Iterator[Step]:
    """The steps of a task that waits, the outermost first: each coroutine awaits the next one."""
    waiting: Any = task.get_coro()
    while waiting is not None:
        code = getattr(waiting, "cr_code", None)
        if code and (step := step_of(code)):
            yield step
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)


class StackOfModelCall(Interceptor, WorkerInterceptor):
    """Notes the stack of the workflow when it starts the activity ``ask_model``."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        note = self

        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:  # noqa: A002
                if input.activity == "ask_model":
                    note.steps = steps_of_stack(sys._getframe())
                return super().start_activity(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound


def documented() -> tuple[list[Step], str]:
    """The steps in the table of `docs/architecture.md`, and the sentence above it."""
    section = (
        (ROOT / "docs" / "architecture.md").read_text().partition("\n## One model call\n")[2].partition("\n## ")[0]
    )
    return re.findall(r"^\| \d+ \| `([\w.]+)` \| `([\w/.]+)` \|", section, re.MULTILINE), section


async def test_a_model_call_takes_the_steps_that_the_architecture_describes(client: Client, tmp_path: Path) -> None:
    """On the workflow's side the stack at the start of the activity, on the worker's the coroutines of the call."""
    stack = StackOfModelCall()
    observed = Client(
        client.service_client, namespace=client.namespace, data_converter=client.data_converter, interceptors=[stack]
    )
    async with Environment.running(observed, tmp_path) as env:
        env.answer = lambda _: Reply(hang=True)
        handle = await env.start_team([agent("one"), team("team", "one", maxTurns=1, onMaxTurns="complete")])
        await env.wait_for_calls(1)
        tasks = [[*steps_of_task(task)] for task in asyncio.all_tasks()]
        await handle.signal("cancel")
        await env.turn_result(handle)
    names = [name for name, _ in stack.steps]
    steps = stack.steps[names.index(STRATEGY) + 1 :]
    (call,) = [found for found in tasks if any(name.endswith(".ask_model") for name, _ in found)]
    names = [name for name, _ in call]
    steps += call[names.index("ModelActivities.ask_model") :]
    rows, section = documented()
    assert steps == rows
    assert f"{len(rows)} calls in {len({file for _, file in rows})} files" in section
