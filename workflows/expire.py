"""The workflow type ``expire``: waits until the ttl of the query above is over, and deletes what the query has left."""

from collections.abc import Sequence
from datetime import timedelta

from pydantic import JsonValue
from temporalio import workflow
from temporalio.common import VersioningBehavior

from ..contracts.errors import InvalidInput
from ..contracts.requests import ExpireInput, ExpireRequest, ExpireResult
from .calls.children import expire


@workflow.defn(name="expire")
class ExpireWorkflow:
    """Deletes the run that has started it. Whoever cancels it keeps what that run has left."""

    @workflow.run
    async def run(self, *given: JsonValue) -> ExpireResult:
        return await _run(given)


@workflow.defn(name="expire", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class VersionedExpireWorkflow:
    """The same for workers that have a version: it may wait for months, and keeps no version waiting."""

    @workflow.run
    async def run(self, *given: JsonValue) -> ExpireResult:
        return await _run(given)


async def _run(given: Sequence[JsonValue]) -> ExpireResult:
    """The run to delete is the parent, as Temporal knows it: an input can't name another one."""
    above = workflow.info().parent
    if above is None:
        raise InvalidInput("only a query starts this workflow, at its end")
    wanted = ExpireInput.model_validate(given[0] if given else None)
    await workflow.sleep(timedelta(seconds=wanted.seconds), summary="ttl")
    return await expire(ExpireRequest(workflow_id=above.workflow_id, run_id=above.run_id))
