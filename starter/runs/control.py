"""Controls open runs: terminates, cancels, pauses, resumes and steers them, and changes their sessions."""

import json

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.control_messages import (
    MAX_SESSION,
    SESSION_TOO_LARGE,
    CancelRequest,
    PauseRequest,
    SteerRequest,
    SteerResult,
    TerminateRequest,
)
from ...contracts.identity import Identity
from ...contracts.text import byte_size
from ...resources.base import JsonObject
from .runs import RunHandle, served


class RunEndedError(Exception):
    """The run has ended, so that it can't be controlled."""


class RejectedError(Exception):
    """The run rejected a request; the text says why."""


async def check_open(run: RunHandle) -> None:
    """Raises RunEndedError if the run has ended: Temporal accepts some requests to an ended run without effect."""
    status = (await run.describe()).status
    if status is not None and status is not WorkflowExecutionStatus.RUNNING:
        raise RunEndedError(f"{run.id} has ended: {status.name.lower().replace('_', ' ')}")


async def terminate(
    run: RunHandle, reason: str = "", *, now: bool = False, by: str | None = None, identity: Identity | None = None
) -> None:
    """Ends the run after the current turn or, with ``now``, at once; its phase is then Completed.

    ``by`` is the name of the person; by default events show the identity of the client. ``identity``, here and below,
    is the signed one that a gateway has verified, for the audit log. Raises RunEndedError.
    """
    await _signal(run, "terminate_team", TerminateRequest(reason=reason, now=now, name=by, identity=identity))


async def cancel(run: RunHandle, reason: str = "", *, by: str | None = None, identity: Identity | None = None) -> None:
    """Cancels the run at once; its messages remain stored. ``by`` as in ``terminate``. Raises RunEndedError."""
    await _signal(run, "cancel", CancelRequest(reason=reason, name=by, identity=identity))


async def request_cancellation(run: RunHandle) -> None:
    """Requests Temporal's cancellation of the run, as the UI does, without a reason. Raises RunEndedError."""
    try:
        await run.cancel()
    except RPCError as error:
        raise _ended(run, error) from None


async def pause(run: RunHandle, by: str, identity: Identity | None = None) -> None:
    """Pauses the run before its next model call; ``by`` is the name of the person. Raises RunEndedError."""
    await _signal(run, "pause", PauseRequest(name=by, identity=identity))


async def resume(run: RunHandle, by: str, identity: Identity | None = None) -> None:
    """Resumes a paused run; ``by`` is the name of the person. Raises RunEndedError."""
    await _signal(run, "resume", PauseRequest(name=by, identity=identity))


async def steer(
    client: Client,
    run: RunHandle,
    text: str,
    name: str,
    request_id: str | None = None,
    identity: Identity | None = None,
) -> SteerResult:
    """Sends a person's message into the discussion, which all later speakers read.

    The same ``request_id`` again has no further effect. Raises RunEndedError, RejectedError, and
    ProgramNotRunningError.
    """
    request = SteerRequest(text=text, name=name, identity=identity)
    if problem := request.problem:  # if it is large, not the update but the workflow task would fail
        raise RejectedError(problem)
    try:
        sent = run.execute_update("steer", request, id=request_id, result_type=SteerResult)
        result: SteerResult = await served(client, run, sent, awaits_workers=True)
    except WorkflowUpdateFailedError as error:
        raise RejectedError(str(error.cause)) from None
    except RPCError as error:
        raise _ended(run, error) from None
    return result


async def change_session(client: Client, run: RunHandle, changes: JsonObject) -> JsonObject:
    """Changes values of the session; None removes one. Returns all values.

    Raises RunEndedError, RejectedError, and ProgramNotRunningError.
    """
    if byte_size(json.dumps(changes)) > 2 * MAX_SESSION:  # all old values removed, and as many new ones
        raise RejectedError(SESSION_TOO_LARGE)
    try:
        sent = run.execute_update("session", changes)
        values: object = await served(client, run, sent, awaits_workers=True)
    except WorkflowUpdateFailedError as error:
        raise RejectedError(str(error.cause)) from None
    except RPCError as error:
        raise _ended(run, error) from None
    return values if isinstance(values, dict) else {}


async def _signal(run: RunHandle, name: str, request: object) -> None:
    try:
        await run.signal(name, request)
    except RPCError as error:
        raise _ended(run, error) from None


def _ended(run: RunHandle, error: RPCError) -> Exception:
    """The error to raise instead of Temporal's: it doesn't find runs that are closed."""
    return RunEndedError(f"the run {run.id} has ended") if error.status == RPCStatusCode.NOT_FOUND else error
