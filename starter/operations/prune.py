"""What of the journal is past its time? What no run needs that is open, or that was closed a short while ago."""

import asyncio
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ...activities.journal.engine import connect
from ...activities.journal.prune import Conversation, conversations, count, families, prune, release
from ...activities.journal.storage_driver import family
from ...conversation.messages.message import cut
from ...resources.duration import parse_duration
from ..cli.targets import UsageError

AT_ONCE = 20
TIMED = 7
"""The version of a UUID that tells when it was made; Temporal gives one to every run that continues no other."""


@dataclass(frozen=True)
class Pruned:
    """What has gone, or would go: conversations, and their messages; and how many conversations stay."""

    conversations: int
    messages: int
    kept: int


class _Needed(NamedTuple):
    """The ids of runs that are needed, and the families of workflows that they belong to."""

    runs: set[str]
    families: set[str]


def read_age(text: str) -> timedelta:
    """An age such as ``30d`` or ``12h``; raises UsageError."""
    try:
        return timedelta(days=int(text[:-1])) if text.endswith("d") else parse_duration(text)
    except (ValueError, OverflowError):
        raise UsageError(f"'{cut(text, 20)}' is no age: write such as 30d or 12h") from None


async def prune_journal(client: Client, url: str, age: timedelta | None, *, dry: bool) -> Pruned:
    """Deletes the conversations that are past their time, or only counts them if ``dry``.

    Without an ``age``, runs are kept as long as the namespace keeps them. Raises JournalUnavailable and RPCError.
    """
    since = datetime.now(UTC) - (await _retention(client) if age is None else age)
    engine = connect(url)
    try:
        found = await engine.do(conversations)  # first: later there may be others
        idle = await engine.do(lambda connection: families(connection, since))
        needed = await _needed(client, since)
        past = [each for each in found if not (each & needed.runs or _young(each, since))]
        runs = {run for each in past for run in each}
        messages = await engine.do(lambda connection: count(connection, runs))
        if not dry:
            await engine.do(lambda connection: prune(connection, runs))
            await engine.do(lambda connection: release(connection, idle - needed.families, since))
        return Pruned(len(past), messages, len(found) - len(past))
    finally:
        await engine.dispose()


async def _retention(client: Client) -> timedelta:
    asked = DescribeNamespaceRequest(namespace=client.namespace)
    config = (await client.workflow_service.describe_namespace(asked, retry=True)).config
    kept: timedelta = config.workflow_execution_retention_ttl.ToTimedelta()
    return kept


async def _needed(client: Client, since: datetime) -> _Needed:
    """The runs that are open, or were closed since then, and those in which their conversations have begun."""
    needed, continued = _Needed(set(), set()), list[WorkflowExecution]()
    async for run in client.list_workflows(f"ExecutionStatus = 'Running' OR CloseTime >= '{since.isoformat()}'"):
        needed.runs.update({run.run_id, run.root_run_id or run.run_id})
        needed.families.add(family(run.id))
        if _begun(run.run_id) is None:
            continued.append(run)
    for start in range(0, len(continued), AT_ONCE):
        needed.runs.update(await asyncio.gather(*(_first(client, run) for run in continued[start : start + AT_ONCE])))
    return needed


async def _first(client: Client, run: WorkflowExecution) -> str:
    """The run that a run goes back to, by however many others."""
    try:
        described = await client.get_workflow_handle(run.id, run_id=run.run_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return run.run_id  # it has gone in this moment
    return described.raw_info.first_run_id


def _young(conversation: Conversation, since: datetime) -> bool:
    """Whether it may have begun since then: Temporal lists a run a moment after its beginning."""
    begun = [time for run in conversation if (time := _begun(run))]
    return not begun or max(begun) >= since


def _begun(run: str) -> datetime | None:
    """When a run has begun; None where its id doesn't tell."""
    try:
        told = uuid.UUID(run)
    except ValueError:
        return None
    return datetime.fromtimestamp((told.int >> 80) / 1_000, UTC) if told.version == TIMED else None
