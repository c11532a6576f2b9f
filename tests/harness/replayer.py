"""Replays histories with the present workflow code, inside the workflow sandbox."""

from collections.abc import AsyncIterator, Iterable, Sequence

from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

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
"""Modules that the sandbox does not import anew; in all others it refuses what is not deterministic."""


ALL_IN_SANDBOX = False
"""Whether every test replays in the sandbox, as with ``--full``."""

_replayed_in_sandbox = set[tuple[str, str]]()
"""The workflow types that a test file has replayed in the sandbox."""


async def replay(
    histories: Iterable[WorkflowHistory], converter: DataConverter = DATA_CONVERTER, test_file: str = ""
) -> None:
    """Replays histories; raises if the present code would send other commands than a history holds.

    The longest of each workflow type is replayed in the sandbox. A replay there takes 100 ms, outside 5 ms,
    so a test file replays each type there once, unless all tests shall.
    """
    by_length = sorted(histories, key=lambda history: len(history.events))
    longest = {_type(history): history for history in by_length}
    if test_file and not ALL_IN_SANDBOX:
        longest = {name: history for name, history in longest.items() if (test_file, name) not in _replayed_in_sandbox}
        _replayed_in_sandbox.update((test_file, name) for name in longest)
    unsandboxed = [history for history in by_length if history is not longest.get(_type(history))]
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    await _replay([*longest.values()], converter, SandboxedWorkflowRunner(restrictions=restrictions))
    await _replay(unsandboxed, converter, UnsandboxedWorkflowRunner())


async def _replay(histories: Sequence[WorkflowHistory], converter: DataConverter, runner: WorkflowRunner) -> None:
    if not histories:
        return
    types = {*map(_type, histories)}
    replayer = Replayer(
        # Only the needed ones: each takes 25 ms to prepare.
        workflows=[workflow_class for workflow_class in WORKFLOWS if _name(workflow_class) in types],
        data_converter=converter,
        unsandboxed_workflow_runner=runner,
    )
    await replayer.replay_workflows(_each(histories))


def _name(workflow_class: type) -> str | None:
    return workflow._Definition.must_from_class(workflow_class).name


def _type(history: WorkflowHistory) -> str:
    return history.events[0].workflow_execution_started_event_attributes.workflow_type.name


async def _each(histories: Sequence[WorkflowHistory]) -> AsyncIterator[WorkflowHistory]:
    for history in histories:
        yield history
