"""Reads the audit log of a journal: filters it, verifies its chain, and exports it as JSON lines or in OCSF's form."""

import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from ...activities.runtime.settings import Settings
from ...contracts.text import format_time
from ...installation import version
from ...journal.audit import AuditEntry, AuditLog, AuditRow, broken
from ...journal.database import Database
from ...resources.base import JsonObject
from ..server.connection import temporal_namespace

MAX_PROBLEMS = 20
"""Problems of a chain that are named."""


@dataclass(frozen=True)
class AuditFilter:
    """Which rows are shown: those with all of these values. Times are in milliseconds since 1970."""

    who: str | None = None
    name: str | None = None
    kind: str | None = None
    action: str | None = None
    since: int | None = None
    until: int | None = None

    def matches(self, entry: AuditEntry) -> bool:
        """Whether an entry has the values; manifests are also found as ``KIND/NAME`` and ``KIND/NAMESPACE/NAME``."""
        names = (entry.name, f"{entry.kind.lower()}/{entry.name}", entry.subject)
        return (
            self.who in (None, entry.who)
            and (self.name is None or self.name in names)
            and (self.kind is None or self.kind.lower() == entry.kind.lower())
            and self.action in (None, entry.action)
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
        )


class Verified(NamedTuple):
    """A verified chain: its number of rows, the hash of the last one, and what is wrong, in sentences."""

    rows: int
    head: str
    problems: list[str]


async def audit_rows(chosen: AuditFilter, environ: Mapping[str, str] = os.environ) -> AsyncIterator[AuditRow]:
    """The rows of the journal's audit log that are chosen, in their order. Raises JournalUnavailable."""
    async for page in _pages(environ):
        for row in page:
            if chosen.matches(row.entry):
                yield row


async def verify_audit(head: str | None, environ: Mapping[str, str] = os.environ) -> Verified:
    """Verifies the whole chain; it has to have the hash ``head``, which was its last one at some time.

    Raises JournalUnavailable.
    """
    last: AuditRow | None = None
    count = 0
    problems: list[str] = []
    is_there = head is None
    async for page in _pages(environ):
        problems += list(broken(page, last))[:MAX_PROBLEMS]
        is_there = is_there or any(row.hash == head for row in page)
        last = page[-1]
        count += len(page)
    if not is_there:
        problems.append(f"the log has no row with the hash {head}: it was truncated or replaced")
    return Verified(rows=count, head=last.hash if last else "", problems=problems[:MAX_PROBLEMS])


async def _pages(environ: Mapping[str, str]) -> AsyncIterator[list[AuditRow]]:
    database = await Database.connect(Settings.of(environ).journal, temporal_namespace(), upgrade=False, create=False)
    try:
        log = AuditLog(database)
        number = 0
        while page := await log.read(number):
            yield page
            number = page[-1].number
    finally:
        await database.close()


def row_json(row: AuditRow) -> JsonObject:
    """A row as JSON; ``time`` is in UTC."""
    entry = {name: value for name, value in asdict(row.entry).items() if name not in ("id", "at")}
    at = format_time(datetime.fromtimestamp(row.entry.at / 1000, UTC))
    return {"number": row.number, "time": at, **entry, "id": row.entry.id, "previous": row.previous, "hash": row.hash}


_ACTIVITIES = {"start": 1, "create": 1, "fork": 1, "retry": 1, "delete": 4}
"""OCSF's activities of an API: 1 creates, 3 updates, 4 deletes."""


def row_ocsf(row: AuditRow) -> JsonObject:
    """A row as an event of OCSF 1.3, class API Activity (6003): https://schema.ocsf.io/1.3.0/classes/api_activity."""
    entry = row.entry
    activity = _ACTIVITIES.get(entry.action, 3)
    succeeded = entry.outcome == "success"
    return {
        "activity_id": activity,
        "category_uid": 6,
        "class_uid": 6003,
        "type_uid": 600_300 + activity,
        "severity_id": 1,
        "time": entry.at,
        "status_id": 1 if succeeded else 2,
        "status": "Success" if succeeded else "Failure",
        "status_detail": entry.detail or None,
        "actor": {"user": {"name": entry.who, "type_id": 1 if entry.verified else 0}},
        "api": {"operation": f"{entry.kind.lower()}.{entry.action}", "service": {"name": "baton"}},
        "src_endpoint": {"svc_name": entry.via, "name": entry.client or entry.via},
        "resources": [{"type": entry.kind, "namespace": entry.namespace, "name": entry.name}],
        "metadata": {
            "version": "1.3.0",
            "product": {"name": "Baton", "vendor_name": "Baton", "version": version()},
            "log_name": "audit",
            "uid": entry.id,
            "sequence": row.number,
        },
        "unmapped": {"verified": entry.verified, "previous": row.previous, "hash": row.hash},
    }
