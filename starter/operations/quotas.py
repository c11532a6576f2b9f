"""Reads what tenants have used under their Quotas, and what is left of them, from the journal."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel
from sqlalchemy import Connection, func, select
from temporalio.client import Client

from ...journal import schema
from ...journal.quotas import bounds, database_time
from ...resources.base import JsonModel
from ...resources.budget import NANO
from ...resources.catalog import Catalog, catalog_of
from ...resources.quota import ANY_MODEL, Quota
from .manifests import Store, read_worker_files


class QuotaReport(JsonModel):
    """The usage of a tenant under one limit of a Quota: ``used`` of ``most``, and what is ``left`` until the limit.

    ``begins_anew`` is when the period ends, in seconds since 1970.
    """

    quota: str
    tenant: str
    limit: str
    used: int | float
    most: int | float
    left: int | float
    begins_anew: int | None = None
    waiting_runs: int = 0


class QuotaUsage(NamedTuple):
    """The usage of a tenant under one limit of a Quota.

    ``used`` has what calls in progress have reserved; amounts of a cost are in US dollars. ``anew`` is when the period
    ends, in seconds since 1970; None for open runs, of which ``waiting`` others wait.
    """

    quota: Quota
    tenant: str
    limit: str
    used: float
    most: float
    anew: int | None
    waiting: int = 0

    @property
    def left(self) -> float:
        """What is left until the limit."""
        return max(self.most - self.used, 0)

    @property
    def report(self) -> QuotaReport:
        """The same as commands and gateways show it."""
        return QuotaReport(
            quota=f"{self.quota.namespace}/{self.quota.name}",
            tenant=self.tenant,
            limit=self.limit,
            used=self.used,
            most=self.most,
            left=self.left,
            begins_anew=self.anew,
            waiting_runs=self.waiting,
        )


async def quota_usage(store: Store, client: Client | None, queue: str | None = None) -> list[QuotaUsage]:
    """The usage under all Quotas of the store and, with a client, of the files of workers.

    These are the workers of the task queue ``queue``, by default of that of this process. Open runs are those of the
    journal's Temporal namespace.
    """
    catalog = catalog_of((await store.contents()).readable)
    if client:
        files = await read_worker_files(store.journal, client, queue)
        catalog = Catalog(manifests=tuple(manifest for manifest, _ in files.manifests)).overlaid_on(catalog)
    quotas = [manifest for manifest in catalog.manifests if isinstance(manifest, Quota)]

    database = store.journal.database

    def read(connection: Connection) -> list[QuotaUsage]:
        now = database_time(connection)
        return [usage for quota in quotas for usage in _of_quota(connection, database.namespace, quota, now)]

    return await database.engine.run(read)


def _of_quota(connection: Connection, namespace: str, quota: Quota, now: float) -> Iterator[QuotaUsage]:
    table = schema.quota_accounts
    current = table.c.quota == quota.id, table.c.began <= now, table.c.ends > now
    rows = connection.execute(select(table).where(*current)).all()
    runs = schema.quota_runs
    is_waiting = (runs.c.number > 0).label("is_waiting")
    here = runs.c.manifest == quota.id, runs.c.temporal_namespace == namespace, runs.c.number >= 0
    counted = select(runs.c.tenant, is_waiting, func.count()).where(*here)
    counts = {
        (tenant, bool(waiting)): number
        for tenant, waiting, number in connection.execute(counted.group_by(runs.c.tenant, is_waiting))
    }
    account = quota.spec.service_account
    own = f"{quota.namespace}/{account}" if account else quota.namespace
    others = {row.tenant for row in rows} | {tenant for tenant, _ in counts}
    for tenant in sorted(others if quota.spec.each_namespace else {own}):
        of_tenant = {(row.period, row.model): row for row in rows if row.tenant == tenant}
        yield from _of_tenant(quota, tenant, of_tenant, counts, now)


def _of_tenant(
    quota: Quota,
    tenant: str,
    rows: Mapping[tuple[str, str], Any],
    counts: Mapping[tuple[str, bool], int],
    now: float,
) -> Iterator[QuotaUsage]:
    if most := quota.spec.max_concurrent_runs:
        opened, waiting = counts.get((tenant, False), 0), counts.get((tenant, True), 0)
        yield QuotaUsage(quota, tenant, "open runs", opened, most, None, waiting)
    called = {model for period, model in rows if period == "minute"}
    for model in sorted({*quota.spec.calls_per_minute, *called} - {ANY_MODEL}):
        if calls := quota.calls_per_minute(model):
            row = rows.get(("minute", model))
            used = row.model_calls if row else 0
            yield QuotaUsage(quota, tenant, f"calls of {model} a minute", used, calls, bounds("minute", now)[1])
    for period, amounts in quota.periods:
        row = rows.get((period, ""))
        for name, limit in amounts.limits.items():
            scale = NANO if name == "cost" else 1
            used = getattr(row, name) if row else 0
            what = f"{to_camel(name)} a {period}"
            yield QuotaUsage(quota, tenant, what, used / scale, limit / scale, bounds(period, now)[1])
