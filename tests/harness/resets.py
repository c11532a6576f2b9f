"""Helpers that reset a run to an earlier event, as operators do."""

import uuid

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from tests.harness.environment import Environment, Handle


async def reset(env: Environment, handle: Handle, event: int) -> Handle:
    """Resets a run to just after an event; the new run."""
    request = ResetWorkflowExecutionRequest(
        namespace="default",
        workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=handle.run_id or ""),
        workflow_task_finish_event_id=event,
        reason="test",
        request_id=uuid.uuid4().hex,
    )
    reply = await env.client.workflow_service.reset_workflow_execution(request, retry=True)
    return env.client.get_workflow_handle(handle.id, run_id=reply.run_id)


async def reset_points(handle: Handle) -> list[int]:
    """The ids of the events at which a run can be reset."""
    events = (await handle.fetch_history()).events
    return [event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes")]
