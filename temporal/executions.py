"""Finds the executions of a run: its continue-as-new chain, and its children."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from ..resources.strategies import OWN_WORKFLOWS
from .encryption import UnknownKeyError, WrongKeyError
from .search_attributes import quoted

Started = WorkflowExecutionStartedEventAttributes


class HasMemo(Protocol):
    """A run or a schedule, as Temporal's SDK lists or describes it."""

    async def memo(self) -> Mapping[str, object]: ...


LAST_EVENTS = 20
"""Events at the end of a history that are searched for the failure of a workflow task: messages may follow it."""


async def key_error(client: Client, workflow_id: str) -> str | None:
    """The error of the key for which a run waits with its next step; None if it doesn't. Raises SettingsError.

    Temporal says of such a run only that its workflow task fails.
    """
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id),
        maximum_page_size=LAST_EVENTS,
    )
    history = await client.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
    for event in history.history.events:
        if event.HasField("workflow_task_failed_event_attributes"):
            error = await client.data_converter.decode_failure(event.workflow_task_failed_event_attributes.failure)
            return error.message if isinstance(error, ApplicationError) and error.type in KEY_ERRORS else None
    return None


KEY_ERRORS = frozenset({UnknownKeyError.__name__, WrongKeyError.__name__})

MAX_STARTS_BYTES = 32_000_000
"""Bytes of the starts of executions that a client remembers."""

SINGLE_READS = 3
"""Starts of a chain that are read one by one, before the others are read at once."""

CONCURRENT_READS = 20


class _Starts:
    """The starts of the executions that a client has read last: the first event of a history never changes."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Started] = OrderedDict()
        self._bytes = 0

    def get(self, name: str, run_id: str) -> Started | None:
        started = self._known.get((name, run_id))
        if started is not None:
            self._known.move_to_end((name, run_id))
        return started

    def add(self, name: str, run_id: str, started: Started) -> None:
        self.remove(name, run_id)
        self._known[name, run_id] = started
        self._bytes += started.ByteSize()
        while self._bytes > MAX_STARTS_BYTES:
            self.remove(*next(iter(self._known)))

    def remove(self, name: str, run_id: str) -> None:
        removed = self._known.pop((name, run_id), None)
        if removed is not None:
            self._bytes -= removed.ByteSize()


_starts: WeakKeyDictionary[Client, _Starts] = WeakKeyDictionary()


async def execution_chain(client: Client, name: str, run_id: str) -> list[tuple[str, Started]]:
    """The run ids of the executions from the first to this one, with their start attributes.

    Executions whose history Temporal has deleted are omitted; it deletes the oldest first. The client remembers what it
    has read: a chain that it knows costs one request, however long it is.

    Raises:
        RPCError: if the history of this one is deleted, too, or Temporal is unreachable.
    """
    starts = _starts.setdefault(client, _Starts())
    chain: list[tuple[str, Started]] = []
    reads = 0
    is_remembered = False
    while run_id:
        known = starts.get(name, run_id)
        is_remembered = known is not None
        if known is None:
            reads += 1
            if reads == SINGLE_READS:
                await _read_ahead(client, name, starts)
            try:
                known = await _started(client, name, run_id)
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND or not chain:
                    raise
                break
            starts.add(name, run_id, known)
        chain.append((run_id, known))
        run_id = known.continued_execution_run_id
    while is_remembered:  # Temporal may have deleted the oldest ones meanwhile
        oldest, _ = chain[-1]
        try:
            await _started(client, name, oldest)
            break
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            starts.remove(name, oldest)
            chain.pop()
            if not chain:
                raise
    return chain[::-1]


async def _read_ahead(client: Client, name: str, starts: _Starts) -> None:
    """Remembers the starts of the executions with a workflow id that are listed; the list may lack the latest ones."""
    limit = asyncio.Semaphore(CONCURRENT_READS)

    async def read(run_id: str) -> None:
        async with limit:
            with contextlib.suppress(RPCError):  # whoever needs it gets the error
                starts.add(name, run_id, await _started(client, name, run_id))

    with contextlib.suppress(RPCError):
        listed = [run.run_id async for run in client.list_workflows(f"WorkflowId = {quoted(name)}")]
        await asyncio.gather(*(read(run_id) for run_id in listed if starts.get(name, run_id) is None))


async def memo_of(run: HasMemo) -> Mapping[str, object]:
    """The memo of a run or a schedule; empty if Baton can't decode it, as after encoding by an application's codec.

    Raises SettingsError if a key of Baton's encryption is missing.
    """
    try:
        return await run.memo()
    except (ApplicationError, KeyError, RuntimeError, ValueError):  # of Baton's converter, and of Temporal's
        return {}


async def first_run_id(handle: WorkflowHandle[object, object]) -> str:
    """The run id of the first execution."""
    return (await handle.describe()).raw_description.workflow_execution_info.first_run_id


async def _started(client: Client, name: str, run_id: str) -> Started:
    handle = client.get_workflow_handle(name, run_id=run_id)
    async for event in handle.fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes
    raise AssertionError("a history has no first event")


CHILD_STARTED = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED
CONTINUED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW


class RunExecution(NamedTuple):
    """One execution of a run: its ids, its workflow type, and whether it is still open.

    ``first_run_id`` is that of the first execution, and does not change at continue-as-new or a reset.
    """

    workflow_id: str
    run_id: str
    first_run_id: str
    type: str
    is_open: bool


async def run_tree(client: Client, workflow_id: str, run_id: str) -> list[RunExecution]:
    """All executions of the run whose last one is ``run_id``, from that one back, and each before its descendants.

    Deleting them from the end of the list can be interrupted at any time: the remaining ones are found again.
    Executions that Temporal has deleted are omitted, and so are an application's workflows. Raises RPCError.
    """
    executions: dict[tuple[str, str], RunExecution] = {}
    pending = [(workflow_id, chained) for chained in await _chain(client, workflow_id, run_id)]
    while pending:
        key = pending.pop()
        if key in executions:
            continue
        read = await _read(client, *key)
        if read:
            executions[key], below = read
            pending.extend(below)
    return [*executions.values()]


async def _chain(client: Client, workflow_id: str, run_id: str) -> list[str]:
    try:
        return [chained for chained, _ in await execution_chain(client, workflow_id, run_id)]
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return []


async def _read(client: Client, workflow_id: str, run_id: str) -> tuple[RunExecution, list[tuple[str, str]]] | None:
    """An execution, with the ids of its children and of its successor; None if Temporal has deleted it."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    below: list[tuple[str, str]] = []
    try:
        description = await handle.describe()
        async for event in handle.fetch_history_events():
            if event.event_type == CHILD_STARTED:
                started = event.child_workflow_execution_started_event_attributes
                if started.workflow_type.name in OWN_WORKFLOWS:  # those of an application are not Baton's to delete
                    below.append((started.workflow_execution.workflow_id, started.workflow_execution.run_id))
            elif event.event_type == CONTINUED:
                attributes = event.workflow_execution_continued_as_new_event_attributes
                below.append((workflow_id, attributes.new_execution_run_id))
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return None
    execution = RunExecution(
        workflow_id=workflow_id,
        run_id=run_id,
        first_run_id=description.raw_info.first_run_id,
        type=description.workflow_type,
        is_open=description.status == WorkflowExecutionStatus.RUNNING,
    )
    return execution, below


async def delete_execution(client: Client, workflow_id: str, run_id: str) -> None:
    """Deletes an execution in Temporal, unless it is deleted already. Raises RPCError."""
    execution = WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
    try:
        await client.workflow_service.delete_workflow_execution(request, retry=True)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise


PUSH_WORKFLOW = "a2a-push"
"""The type of the workflows that post what happens to a run."""


def push_id(run: str, config: str) -> str:
    """The workflow id of a configuration of push notifications for the run with that workflow id."""
    return f"{run}/push/{config}"


def pushes_of(run: str) -> str:
    """The filter for all executions that have posted, or still post, what happens to a run."""
    return f"WorkflowType = '{PUSH_WORKFLOW}' AND WorkflowId STARTS_WITH {quoted(push_id(run, ''))}"


async def delete_pushes(client: Client, run: str) -> None:
    """Deletes the configurations of push notifications for a run: their histories have addresses and credentials.

    One that Temporal does not list yet ends by itself, as its run is missing. Raises RPCError.
    """
    async for push in client.list_workflows(pushes_of(run)):
        await delete_execution(client, push.id, push.run_id)
