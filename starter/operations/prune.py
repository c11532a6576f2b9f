"""Deletes journal rows that no open run and no stored conversation needs."""

import asyncio
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from temporalio.api.namespace.v1 import NamespaceInfo
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.text import truncate
from ...journal.database import JournalIdentity
from ...journal.engine import Engine, connect
from ...journal.external_storage import workflow_family
from ...journal.prune import (
    Conversation,
    count_messages,
    delete_runs,
    delete_values,
    find_conversations,
    find_idle_families,
    forget_copies,
    live_runs,
    runs_after,
)
from ...resources.base import parse_duration
from ...temporal.search_attributes import describe_namespace
from ..errors import UsageError

BATCH = 20
"""Concurrent requests to Temporal."""

TIME_ORDERED = 7
"""The version of time-ordered UUIDs, which Temporal uses for every run that doesn't continue another."""


@dataclass(frozen=True)
class Pruned:
    """The number of conversations and messages that were or would be deleted, and of remaining conversations."""

    conversations: int
    messages: int
    remaining: int


class _Needed(NamedTuple):
    """The ids of needed runs, and the families of workflows to which they belong."""

    runs: set[str]
    families: set[str]


def read_age(text: str) -> timedelta:
    """An age such as ``30d`` or ``12h``; raises UsageError."""
    try:
        days = re.fullmatch("([0-9]{1,5})d", text)
        return parse_duration(f"{24 * int(days[1])}h" if days else text)
    except ValueError:
        raise UsageError(f"'{truncate(text, 20)}' is not an age: write for example 30d or 12h") from None


async def prune_journal(client: Client, url: str, age: timedelta | None, *, dry: bool) -> Pruned:
    """Deletes the conversations of the client's namespace that are older than ``age``, or only counts them if ``dry``.

    The default ``age`` is the namespace's retention. Conversations of other namespaces are neither deleted nor counted.
    Raises JournalUnavailable, RPCError, and UsageError if equally named namespaces of two servers use the journal.
    """
    space = await describe_namespace(client)
    namespace = space.namespace_info.name
    retention: timedelta = space.config.workflow_execution_retention_ttl.ToTimedelta()
    since = datetime.now(UTC) - (retention if age is None else age)
    engine = connect(url)
    try:
        await _check_server(engine, space.namespace_info)
        conversations = await engine.run(partial(find_conversations, namespace=namespace))  # first: new ones may begin
        idle = await engine.run(partial(find_idle_families, namespace=namespace, before=since))
        needed = await _needed(client, since)
        needed.runs.update(await engine.run(partial(live_runs, namespace=namespace)))
        past = [
            conversation
            for conversation in conversations
            if not (conversation & needed.runs or _is_recent(conversation, since))
        ]
        if not dry:
            past = await _forgotten(engine, namespace, past)
        runs = {run for conversation in past for run in conversation}
        messages = await engine.run(partial(count_messages, runs=runs))
        if not dry:
            await delete_runs(engine, runs)
            families = idle - needed.families
            await engine.run(partial(delete_values, namespace=namespace, families=families, before=since))
        return Pruned(len(past), messages, len(conversations) - len(past))
    finally:
        await engine.dispose()


async def _forgotten(engine: Engine, namespace: str, past: list[Conversation]) -> list[Conversation]:
    """Those of the conversations that no query has continued meanwhile, after their copies were forgotten."""
    runs = {run for conversation in past for run in conversation}
    await engine.run(partial(forget_copies, runs=runs))
    if not await engine.run(partial(runs_after, namespace=namespace, runs=runs)):
        return past
    return [each for each in past if not await engine.run(partial(runs_after, namespace=namespace, runs=each))]


async def _check_server(engine: Engine, own: NamespaceInfo) -> None:
    """Raises UsageError if runs of the namespace's rows may be open on another Temporal server.

    Rows have the name of their namespace, which only the namespaces of one server don't share.
    """
    others = (await JournalIdentity.read(engine)).ids_of(own.name) - {own.id}
    if others:
        rows = " and ".join(f"'serves/{other}'" for other in sorted(others))
        raise UsageError(
            f"the journal at {engine.place} was also used by a namespace {own.name} of another Temporal server: "
            f"nothing was deleted. If that server no longer exists, delete {rows} from the table baton_identity"
        )


async def _needed(client: Client, since: datetime) -> _Needed:
    """The runs that are open or were closed after ``since``, and the runs in which their conversations began."""
    needed = _Needed(set(), set())
    continued: list[WorkflowExecution] = []
    async for run in client.list_workflows(f"ExecutionStatus = 'Running' OR CloseTime >= '{since.isoformat()}'"):
        needed.runs.update({run.run_id, run.root_run_id or run.run_id})
        needed.families.add(workflow_family(run.id))
        if _start_time(run.run_id) is None:
            continued.append(run)
    for start in range(0, len(continued), BATCH):
        needed.runs.update(await asyncio.gather(*(_first_run(client, run) for run in continued[start : start + BATCH])))
    return needed


async def _first_run(client: Client, run: WorkflowExecution) -> str:
    """The first run of a continue-as-new chain."""
    try:
        described = await client.get_workflow_handle(run.id, run_id=run.run_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return run.run_id  # it was deleted meanwhile
    return described.raw_info.first_run_id


def _is_recent(conversation: Conversation, since: datetime) -> bool:
    """Whether it may have begun after ``since``: Temporal's visibility is eventually consistent."""
    begun = [time for run in conversation if (time := _start_time(run))]
    return not begun or max(begun) >= since


def _start_time(run: str) -> datetime | None:
    """The start time of a run; None if its id doesn't contain it."""
    try:
        parsed = uuid.UUID(run)
    except ValueError:
        return None
    return datetime.fromtimestamp((parsed.int >> 80) / 1_000, UTC) if parsed.version == TIME_ORDERED else None
