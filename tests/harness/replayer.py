"""Replays histories with the present workflow code, inside the workflow sandbox."""

from collections.abc import AsyncIterator, Iterable, Sequence

from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions, _runner
from temporalio.worker.workflow_sandbox._importer import Importer
from temporalio.worker.workflow_sandbox._restrictions import RestrictionContext

from baton.temporal.converter import DATA_CONVERTER
from baton.workflows.registry import WORKFLOWS

PASSED_THROUGH = (
    "pydantic",
    "pydantic_core",
    "baton.resources",
    "baton.contracts",
    "baton.temporal",
    "baton.observability",
)
"""Modules that the sandbox takes from outside; in all others it refuses what is not deterministic."""

_IMPORTER = Importer(SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH), RestrictionContext())


async def replay(histories: Iterable[WorkflowHistory], converter: DataConverter = DATA_CONVERTER) -> None:
    """Replays histories; raises if the present code would send other commands than a history holds."""
    if not (replayed := [*histories]):
        return
    types = {*map(_type, replayed)}
    replayer = Replayer(
        workflows=[each for each in WORKFLOWS if _name(each) in types],
        data_converter=converter,
        unsandboxed_workflow_runner=SandboxRunner(),
    )
    await replayer.replay_workflows(_each(replayed))


class SandboxRunner(SandboxedWorkflowRunner):
    """The SDK's sandbox, in which all runs share the modules that it has imported, as they do in a worker.

    The SDK imports them anew for each run, which takes 60 ms, and again to validate a workflow type.
    """

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Instance(det, self.runner_class, self.restrictions)


class _Instance(_runner._Instance):
    """A run in that sandbox."""

    def _create_instance(self) -> None:
        self.importer = _IMPORTER
        super()._create_instance()


def _name(workflow_class: type) -> str | None:
    return workflow._Definition.must_from_class(workflow_class).name


def _type(history: WorkflowHistory) -> str:
    return history.events[0].workflow_execution_started_event_attributes.workflow_type.name


async def _each(histories: Sequence[WorkflowHistory]) -> AsyncIterator[WorkflowHistory]:
    for history in histories:
        yield history
