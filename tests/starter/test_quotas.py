"""What tenants have used under their Quotas, and what is left, as ``baton quotas`` shows it."""

import uuid
from typing import Any

from sqlalchemy import Connection

from baton.journal.accounts import Amount, reserve
from baton.journal.journal import Journal
from baton.journal.quotas import Admissions, KnownRun, QuotaAccount, RunLimit
from baton.resources.budget import NANO
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.starter.operations.manifests import Store
from baton.starter.operations.quotas import quota_usage
from tests.harness.environment import Json, manifest


def quota(name: str, **spec: Any) -> Json:
    return manifest("Quota", name, spec)


async def test_each_limit_is_shown_with_what_is_used_and_left_and_when_it_begins_anew(journal_url: str) -> None:
    journal = await Journal.open(journal_url, "default")
    store = Store(journal)
    given = [
        quota("own", perDay={"cost": 2, "modelCalls": 5}, maxConcurrentRuns=1, callsPerMinute={"gpt": 7}),
        quota("each", eachNamespace=True, perMonth={"tokens": 100}),
    ]
    await store.apply(load_documents([Document("quotas.yaml", each, {}) for each in given]))
    own, each = "Quota/default/own", "Quota/default/each"
    run = f"{uuid.uuid4()}"

    def spend(connection: Connection) -> None:
        day = QuotaAccount(own, "default", "day", (("cost", 2 * NANO), ("model_calls", 5)))
        minute = QuotaAccount(own, "default", "minute", (("model_calls", 7),), model="gpt")
        month = QuotaAccount(each, "poor", "month", (("tokens", 100),))
        amount = Amount(tokens=30, cost=NANO // 2, model_calls=1)
        assert reserve(connection, f"{run}/1", (), amount, quotas=[day, minute, month], booking=f"{run}/0") is None

    await journal.database.transact(spend)
    admissions, limit = Admissions(journal.database), RunLimit(own, "default", 1)
    for _ in range(3):
        await admissions.admit([limit], KnownRun(f"{uuid.uuid4()}", "run"))
    shown = {
        (usage.quota.name, usage.tenant, usage.limit): (usage.used, usage.left, usage.waiting)
        for usage in await quota_usage(store, None)
    }
    minute_used = shown.pop(("own", "default", "calls of gpt a minute"))
    assert minute_used in ((1, 6, 0), (0, 7, 0)), "the minute may have ended"
    assert shown == {
        ("own", "default", "open runs"): (1, 0, 2),
        ("own", "default", "cost a day"): (0.5, 1.5, 0),
        ("own", "default", "modelCalls a day"): (1, 4, 0),
        ("each", "poor", "tokens a month"): (30, 70, 0),
    }
    await journal.close()
