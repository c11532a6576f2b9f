"""The workflow type ``notify``: sends one event about its parent query to webhooks."""

import asyncio
from collections.abc import Sequence

from pydantic import JsonValue
from temporalio import workflow
from temporalio.common import VersioningBehavior

from ..contracts.errors import InvalidInput
from ..contracts.requests import NotifyInput, NotifyResult
from .calls.notifications import notify
from .run.base import workflow_type


@workflow_type("notify")
class NotifyWorkflow:
    """Delivers an event, and fails if a webhook has not accepted it in the end."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> NotifyResult:
        return await _run(payloads)


@workflow_type("notify", VersioningBehavior.AUTO_UPGRADE)
class VersionedNotifyWorkflow:
    """The same for versioned workers: a webhook may be down for hours, and must not block the removal of a version."""

    @workflow.run
    async def run(self, *payloads: JsonValue) -> NotifyResult:
        return await _run(payloads)


async def _run(payloads: Sequence[JsonValue]) -> NotifyResult:
    """All webhooks are called independently of each other."""
    if workflow.info().parent is None:
        raise InvalidInput("only a query starts this workflow")
    given = NotifyInput.model_validate(payloads[0] if payloads else None)
    results = await asyncio.gather(*map(notify, given.requests), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return NotifyResult(delivered=len(results))
