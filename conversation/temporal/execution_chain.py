"""Finds all executions of a run that has continued as new: they have one workflow id, and a run id each."""

from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

Started = WorkflowExecutionStartedEventAttributes


async def execution_chain(client: Client, name: str, run_id: str) -> list[tuple[str, Started]]:
    """The run ids of the executions from the first to this one, each with the attributes of its start.

    Executions whose history Temporal has deleted are left out; it deletes the oldest first.

    Raises:
        RPCError: if the history of this one is deleted, too, or Temporal can't be reached.
    """
    found: list[tuple[str, Started]] = []
    while run_id:
        try:
            started = await _started(client, name, run_id)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND or not found:
                raise
            break
        found.append((run_id, started))
        run_id = started.continued_execution_run_id
    return found[::-1]


async def first_run_id(handle: WorkflowHandle[object, object]) -> str:
    """The run id of the first execution."""
    return (await handle.describe()).raw_description.workflow_execution_info.first_run_id


async def _started(client: Client, name: str, run_id: str) -> Started:
    handle = client.get_workflow_handle(name, run_id=run_id)
    async for event in handle.fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes
    raise AssertionError("a history has no first event")
