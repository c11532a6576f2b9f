"""What can be found out about an installation, without changing it or paying for a call?"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import make_url
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetSystemInfoRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from ...activities.context.value_resolver import Values
from ...activities.journal import schema
from ...activities.journal.engine import connect
from ...activities.journal.statements import version
from ...activities.model.models import Models
from ...activities.process.secrets import Vault
from ...activities.process.settings import ROLES, Lane, Settings
from ...conversation.failure import BatonError
from ...conversation.temporal import search_attributes
from ...resources.agent import DEFAULT_MODEL
from ...resources.loader import Loaded
from ...resources.model import Model
from .stuck_runs import stuck_runs

PATIENCE = 2.5
"""Seconds that anything may take to answer."""

SHORTEST = timedelta(days=3)
"""Closed runs that are kept for less are gone before somebody looks for them."""

REGISTER = "; ".join(
    f"temporal operator search-attribute create --name {key.name} --type Keyword" for key in search_attributes.ALL
)


@dataclass(frozen=True)
class Finding:
    """What was found of something, whether it is well, and what to do if it isn't."""

    what: str
    well: bool
    text: str
    todo: str = ""


Findings = AsyncIterator[Finding]


async def gathered(what: str, findings: Findings, todo: str) -> list[Finding]:
    """All findings, or that nothing could be found: nothing that is asked here may fail or hang a doctor."""
    found: list[Finding] = []
    try:
        async with asyncio.timeout(PATIENCE):
            async for each in findings:
                found.append(each)
    except TimeoutError:
        found.append(Finding(what, False, f"no answer within {PATIENCE:g} s", todo))
    except (RPCError, BatonError) as error:
        found.append(Finding(what, False, error.message, todo))
    return found


async def server(client: Client) -> Findings:
    """The server and its namespace, with the limits that it tells."""
    info = await client.workflow_service.get_system_info(GetSystemInfoRequest(), retry=True)
    yield Finding("server", True, f"Temporal {info.server_version} at {client.service_client.config.target_host}")
    asked = DescribeNamespaceRequest(namespace=client.namespace)
    space = await client.workflow_service.describe_namespace(asked, retry=True)
    kept = space.config.workflow_execution_retention_ttl.ToTimedelta()
    todo = f"temporal operator namespace update --namespace {client.namespace} --retention 30d"
    yield Finding(
        "retention", kept >= SHORTEST, f"closed runs are kept for {kept.days} days", "" if kept >= SHORTEST else todo
    )
    if largest := space.namespace_info.limits.blob_size_limit_error:
        yield Finding("limits", True, f"one value may have {largest:,} bytes")
    known = await search_attributes.registered(client)
    text = "runs can be searched by team, strategy, phase and reason" if known else "runs can't be searched by team"
    yield Finding("attributes", known, text, "" if known else f"{REGISTER}; then start the workers anew")


async def workers(client: Client, settings: Settings) -> Findings:
    """Who polls the task queues that these settings lead to."""
    for lane in settings.model_copy(update={"serves": frozenset(ROLES)}).lanes():
        for kind in ("WORKFLOW", "ACTIVITY") if "workflows" in lane.roles else ("ACTIVITY",):
            yield await _polled(client, lane, kind)


async def _polled(client: Client, lane: Lane, kind: str) -> Finding:
    asked = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=lane.queue),
        task_queue_type=TaskQueueType.Value(f"TASK_QUEUE_TYPE_{kind}"),
        report_stats=True,
    )
    found = await client.workflow_service.describe_task_queue(asked, retry=True)
    count = len({poller.identity for poller in found.pollers})
    waiting = found.stats.approximate_backlog_count
    what = "runs" if kind == "WORKFLOW" else "calls"
    who = f"{count or 'no'} worker{'' if count == 1 else 's'}"
    text = f"{who} for {what} on the task queue {lane.queue}, {waiting} waiting"
    todo = f"start one that serves {', '.join(sorted(lane.roles))}: python worker.py MANIFESTS"
    return Finding("workers", bool(count), text, "" if count else todo)


async def runs(client: Client, settings: Settings) -> Findings:
    """Runs that get nowhere."""
    stuck = [each async for each in stuck_runs(client, settings.queue)]
    for run, text, todo in stuck:
        yield Finding("run", False, f"{run}: {text}", todo)
    if not stuck:
        yield Finding("runs", True, "no run is stuck")


async def journal(settings: Settings) -> Findings:
    """Whether the journal answers, and of which version it is."""
    engine = connect(settings.journal)
    url = make_url(settings.journal)
    where = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and not await asyncio.to_thread(Path(url.database or "").exists):
        yield Finding("journal", True, f"{where} is not there yet: the first worker makes it")
        return
    try:
        found = await engine.do(version)
    finally:
        await engine.dispose()
    well = found in (None, schema.VERSION)
    text = "is empty: the first worker makes its tables" if found is None else f"is of version {found}"
    todo = "" if well else f"this Baton is for version {schema.VERSION}: run the one that made it"
    yield Finding("journal", well, f"{where} {text}", todo)


async def models(loaded: Loaded, environment: Mapping[str, str]) -> list[Finding]:
    """Whether the server of each Model answers and takes its key; without manifests, the environment's."""
    vault = Vault(loaded.secrets, environment)
    asked: list[Model | None] = [each for each in loaded.catalog.manifests if isinstance(each, Model)]
    if not asked and environment.keys() & {"OPENAI_API_KEY", "OPENAI_BASE_URL"}:
        asked = [None]
    found, values = Models(vault), Values(loaded.catalog, vault)

    async def greeted(model: Model | None) -> Findings:
        endpoint = found.endpoint(model, DEFAULT_MODEL, values)
        await found.greet(endpoint)
        yield Finding("model", True, f"{model.id if model else 'default'}: {endpoint.base_url} answers")

    try:
        todo = "check its address and key"
        told = await asyncio.gather(*(gathered("model", greeted(model), todo) for model in asked))
        return [
            Finding(each.what, each.well, vault.redact(each.text), each.todo) for findings in told for each in findings
        ]
    finally:
        await found.close()
