"""Replays a run's history up to a workflow task, and queries the workflow as it was then."""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import JsonValue
from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, WorkflowInstance, WorkflowInstanceDetails

from ...installation import version
from .sdk_options import CheckedInstance, WorkflowRunner

MAX_CONCURRENT_REPLAYS = 2
"""Replays that a worker does at once: each has the events of a whole execution in memory."""

MAX_ANSWERS = 16
"""Answers that a worker keeps: many forks of a comparison go on from one place, and a replay takes up to a second."""


class Replays:
    """Queries workflows at an earlier point of their histories, with the code of this worker.

    It sends nothing to Temporal. A replayed workflow records no metrics and reports no spans, as in any replay.
    """

    def __init__(self, workflows: Sequence[type], converter: DataConverter) -> None:
        self._workflows = workflows
        self._converter = converter
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_REPLAYS)
        self._answers: dict[_Place, JsonValue] = {}

    async def query(self, workflow_id: str, events: Sequence[HistoryEvent], name: str) -> JsonValue:
        """The answer to a query after the last of ``events``, the beginning of a history up to a workflow task.

        Raises NondeterminismError if the workflow's code does not fit the history, and RuntimeError if it can't answer.
        """
        place = _Place(workflow_id, name, events[-1].SerializeToString(deterministic=True))
        async with self._slots:
            if place not in self._answers:
                self._answers[place] = await self._replayed(workflow_id, events, name)
                if len(self._answers) > MAX_ANSWERS:
                    del self._answers[next(iter(self._answers))]  # the oldest
            return self._answers[place]

    async def _replayed(self, workflow_id: str, events: Sequence[HistoryEvent], name: str) -> JsonValue:
        with ThreadPoolExecutor(max_workers=1) as thread:
            runner = _QueryingRunner(name)
            replayer = Replayer(
                workflows=self._workflows,
                workflow_task_executor=thread,
                data_converter=self._converter,
                unsandboxed_workflow_runner=runner,
                build_id=version(),  # else the SDK reads the code of all loaded modules to make one
            )
            await replayer.replay_workflow(WorkflowHistory(workflow_id, [*events]))
        return runner.answer()


@dataclass(frozen=True)
class _Place:
    """What determines an answer: a query after an event, whose time and task id no other event of the workflow has."""

    workflow_id: str
    query: str
    event: bytes


class _QueryingRunner(WorkflowRunner):
    """Runs one workflow, and queries it when its history ends."""

    def __init__(self, query: str) -> None:
        super().__init__()
        self._query = query
        self._answer: WorkflowActivationCompletion | None = None

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """The workflow instance."""
        return _QueriedInstance(super().create_instance(det), self)

    def ask(self, inner: WorkflowInstance, last: WorkflowActivation) -> None:
        """Queries the instance as it is after its last activation."""
        activation = WorkflowActivation(run_id=last.run_id, is_replaying=True, history_length=last.history_length)
        activation.timestamp.CopyFrom(last.timestamp)
        job = activation.jobs.add().query_workflow
        job.query_id = "state"
        job.query_type = self._query
        self._answer = inner.activate(activation)

    def answer(self) -> JsonValue:
        """The answer to the query. Raises RuntimeError if there is none."""
        commands = self._answer.successful.commands if self._answer else ()
        for command in commands:
            if command.HasField("respond_to_query") and command.respond_to_query.HasField("succeeded"):
                value: JsonValue = json.loads(command.respond_to_query.succeeded.response.data)
                return value
        raise RuntimeError(f"the replayed workflow did not answer the query {self._query}")


class _QueriedInstance(CheckedInstance):
    """A replayed run. The SDK evicts it after the last event of its history: that is the time to query it."""

    def __init__(self, inner: WorkflowInstance, runner: _QueryingRunner) -> None:
        super().__init__(inner)
        self._runner = runner
        self._last = WorkflowActivation()

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Handles an activation as a replayed one, also that of the last workflow task."""
        if any(job.HasField("remove_from_cache") for job in act.jobs):
            self._runner.ask(self._inner, self._last)
        else:
            self._last = act
        act.is_replaying = True
        return super().activate(act)
