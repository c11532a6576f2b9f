"""The workflow type ``expire``: waits for the ttl of its parent query, then deletes the query's data."""

from collections.abc import Sequence
from datetime import timedelta

from pydantic import JsonValue
from temporalio import workflow
from temporalio.common import VersioningBehavior

from ..contracts.errors import InvalidInput
from ..contracts.requests import ExpireInput, ExpireRequest, ExpireResult
from .calls.children import expire
from .run.base import workflow_type


@workflow_type("expire")
class ExpireWorkflow:
    """Deletes the data of the run that started it. Canceling it keeps the data."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> ExpireResult:
        return await _run(payloads)


@workflow_type("expire", VersioningBehavior.AUTO_UPGRADE)
class VersionedExpireWorkflow:
    """The same for versioned workers: it may wait for months, and must not block the removal of a version."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> ExpireResult:
        return await _run(payloads)


async def _run(payloads: Sequence[JsonValue]) -> ExpireResult:
    """The run to delete is the parent according to Temporal: an input can't name another one."""
    parent = workflow.info().parent
    if parent is None:
        raise InvalidInput("only a query starts this workflow, at its end")
    ttl = ExpireInput.model_validate(payloads[0] if payloads else None)
    await workflow.sleep(timedelta(seconds=ttl.seconds), summary="ttl")
    return await expire(ExpireRequest(workflow_id=parent.workflow_id, run_id=parent.run_id))
