"""Deletes journal rows that no open run and no stored conversation needs."""

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from temporalio.api.namespace.v1 import NamespaceInfo
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ...activities.runtime.settings import EVERY_NAMESPACE
from ...contracts.text import truncate
from ...journal.database import JournalIdentity
from ...journal.engine import LONG_STATEMENT, Engine, connect
from ...journal.external_storage import workflow_family
from ...journal.migrate import migrate
from ...journal.prune import (
    Conversation,
    count_messages,
    database_now,
    delete_old_periods,
    delete_runs,
    delete_unused,
    delete_values,
    find_conversations,
    find_idle_families,
    forget,
    live_runs,
    namespaces_of_runs,
)
from ...resources.base import parse_age
from ...temporal.search_attributes import describe_namespace
from ..errors import UsageError

NO_RETENTION: Mapping[str, timedelta] = {}

BATCH = 20
"""Concurrent requests to Temporal."""

FORGOTTEN_AT_ONCE = 100
"""Conversations that are forgotten in one transaction."""

TIME_ORDERED = 7
"""The version of time-ordered UUIDs, which Temporal uses for every run that doesn't continue another."""


@dataclass(frozen=True)
class Pruned:
    """The number of conversations and messages that were or would be deleted, and of remaining conversations."""

    conversations: int
    messages: int
    remaining: int


OPEN = datetime.max.replace(tzinfo=UTC)
"""Stands for the end of a run that is open."""


class _Needed(NamedTuple):
    """When needed runs were closed, by their ids, and the families of workflows to which they belong."""

    closed: dict[str, datetime]
    families: set[str]

    def note(self, run: str, closed: datetime) -> None:
        """A run that may have been open until then."""
        self.closed[run] = max(closed, self.closed.get(run, closed))


@dataclass(frozen=True)
class Ages:
    """How long the data of ended runs is kept: by the namespace of their manifests, and of all ``others``."""

    by_namespace: Mapping[str, timedelta]
    others: timedelta

    @classmethod
    async def of(cls, client: Client, retention: Mapping[str, timedelta], age: timedelta | None) -> "Ages":
        """The ages of BATON_RETENTION. Those of other namespaces are ``age``, or that of Temporal's namespace."""
        kept = dict(retention)
        others = kept.pop(EVERY_NAMESPACE, None)
        if age is not None or others is None:
            space = await describe_namespace(client)
            others = space.config.workflow_execution_retention_ttl.ToTimedelta() if age is None else age
        return cls(by_namespace=kept, others=others)

    @property
    def longest(self) -> timedelta:
        """The longest age."""
        return max((self.others, *self.by_namespace.values()))

    def kept(self, namespaces: Iterable[str]) -> timedelta:
        """The age of what runs of these namespaces have written together: the longest of theirs."""
        return max((self.by_namespace.get(name, self.others) for name in namespaces), default=self.others)


def read_age(text: str) -> timedelta:
    """An age such as ``30d`` or ``12h``; raises UsageError."""
    try:
        return parse_age(text)
    except ValueError:
        raise UsageError(f"'{truncate(text, 20)}' is not an age: write for example 30d or 12h") from None


async def prune_journal(
    client: Client,
    url: str,
    age: timedelta | None,
    *,
    dry: bool,
    retention: Mapping[str, timedelta] = NO_RETENTION,
) -> Pruned:
    """Deletes the conversations of the client's namespace that are older than ``age``, or only counts them if ``dry``.

    The default ``age`` is the namespace's retention. Conversations of other namespaces are neither deleted nor counted.
    For the namespaces of manifests in ``retention`` its ages count, also for conversations that queries could continue.
    Raises JournalUnavailable, RPCError, and UsageError if equally named namespaces of two servers use the journal.
    """
    space = await describe_namespace(client)
    namespace = space.namespace_info.name
    ages = await Ages.of(client, retention, age)
    engine = connect(url, longest=LONG_STATEMENT)
    try:
        await migrate(engine, upgrade=False, create=False)
        await check_server(engine, space.namespace_info)
        now = await engine.run(database_now)
        since = now - ages.longest
        conversations = await engine.run(partial(find_conversations, namespace=namespace))  # first: new ones may begin
        idle = await engine.run(partial(find_idle_families, namespace=namespace, before=since))
        needed = await _needed(client, since)
        namespaces = await engine.run(namespaces_of_runs)
        past: list[Conversation] = []
        for conversation in conversations:
            kept_since = now - ages.kept({namespaces[run] for run in conversation if run in namespaces})
            is_needed = any(needed.closed[run] >= kept_since for run in conversation if run in needed.closed)
            if not (is_needed or _is_recent(conversation, kept_since)):
                past.append(conversation)
        old = {run for conversation in past for run in conversation}
        live = await engine.run(partial(live_runs, runs=old, unless=partial(_is_over, retention, now)))
        past = [conversation for conversation in past if not conversation & live]
        if not dry:
            past = await _forgotten(engine, namespace, past)
        runs = {run for conversation in past for run in conversation}
        messages = await engine.run(partial(count_messages, runs=runs))
        if not dry:
            await delete_runs(engine, runs)
            await delete_old_periods(engine)
            families = idle - needed.families
            await delete_values(engine, namespace, families, since)
            await delete_unused(engine)
        return Pruned(len(past), messages, len(conversations) - len(past))
    finally:
        await engine.dispose()


async def _forgotten(engine: Engine, namespace: str, past: Sequence[Conversation]) -> list[Conversation]:
    """Those of the conversations that were forgotten: all that no query has continued meanwhile."""
    forgotten: list[Conversation] = []
    for start in range(0, len(past), FORGOTTEN_AT_ONCE):
        some = past[start : start + FORGOTTEN_AT_ONCE]
        if await forget(engine, namespace, {run for conversation in some for run in conversation}):
            forgotten += some
        else:  # one of them was continued
            forgotten += [each for each in some if await forget(engine, namespace, each)]
    return forgotten


async def check_server(engine: Engine, own: NamespaceInfo) -> None:
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
    needed = _Needed({}, set())
    continued: list[WorkflowExecution] = []
    async for run in client.list_workflows(f"ExecutionStatus = 'Running' OR CloseTime >= '{since.isoformat()}'"):
        closed = run.close_time or OPEN
        needed.note(run.run_id, closed)
        needed.note(run.root_run_id or run.run_id, closed)
        needed.families.add(workflow_family(run.id))
        if start_time(run.run_id) is None:
            continued.append(run)
    for start in range(0, len(continued), BATCH):
        some = continued[start : start + BATCH]
        for run, first in zip(some, await asyncio.gather(*(_first_run(client, run) for run in some)), strict=True):
            needed.note(first, run.close_time or OPEN)
    return needed


def _is_over(retention: Mapping[str, timedelta], now: datetime, namespace: str, changed: int) -> bool:
    """Whether the retention of a conversation's namespace has ended; without one it is kept until it is deleted."""
    age = retention.get(namespace, retention.get(EVERY_NAMESPACE))
    return age is not None and changed < (now - age).timestamp()


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
    begun = [time for run in conversation if (time := start_time(run))]
    return not begun or max(begun) >= since


def start_time(run: str) -> datetime | None:
    """The start time of a run; None if its id doesn't contain it."""
    try:
        parsed = uuid.UUID(run)
    except ValueError:
        return None
    return datetime.fromtimestamp((parsed.int >> 80) / 1_000, UTC) if parsed.version == TIME_ORDERED else None
