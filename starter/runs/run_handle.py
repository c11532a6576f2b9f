"""The handle of a run, and the signal that ends it."""

from temporalio.client import WorkflowHandle

from ...conversation.contracts.control_messages import TerminateRequest

RunHandle = WorkflowHandle[object, object]
"""Temporal's handle of the workflow of a run."""


async def request_termination(handle: RunHandle, reason: str, *, now: bool) -> None:
    """Asks a run to end after the current turn or, with ``now``, at once; its phase is then Completed."""
    await handle.signal("terminate_team", TerminateRequest(reason=reason, now=now))
