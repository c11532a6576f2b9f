"""The checks of ``baton doctor``: they change nothing and make no model call that costs money."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
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

from ...activities.agent.executors import Executors
from ...activities.context.executor import Executor, find_executor
from ...activities.context.model_chain import ChainedModel
from ...activities.context.value_resolver import ValueResolver
from ...activities.journal.engine import connect
from ...activities.journal.migrate import VERSION, version
from ...activities.model.providers import Providers
from ...activities.process.secrets import SecretStore
from ...activities.process.settings import ROLES, Settings
from ...conversation.failure import BatonError
from ...conversation.temporal import search_attributes
from ...conversation.temporal.live_workers import live_workers
from ...resources.agent import DEFAULT_MODEL, Agent
from ...resources.loader import Loaded
from ...resources.model import Model
from .stuck_runs import stuck_runs

CHECK_TIMEOUT = 2.5
"""Seconds after which a check is given up."""

MIN_RETENTION = timedelta(days=3)
"""With a shorter retention closed runs are deleted before somebody looks at them."""

REGISTER_ATTRIBUTES = "; ".join(
    f"temporal operator search-attribute create --name {key.name} --type Keyword" for key in search_attributes.ALL
)


@dataclass(frozen=True)
class CheckResult:
    """The result of a check: what was checked, whether it is ok, what was found, and a hint where it is not ok."""

    what: str
    ok: bool
    text: str
    hint: str = ""


CheckResults = AsyncIterator[CheckResult]


async def collect(what: str, results: CheckResults, hint: str) -> list[CheckResult]:
    """The results of a check, or the error or timeout that ended it, as a result with ``hint``."""
    found: list[CheckResult] = []
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            async for each in results:
                found.append(each)
    except TimeoutError:
        found.append(CheckResult(what, False, f"no answer within {CHECK_TIMEOUT:g} s", hint))
    except (RPCError, BatonError) as error:
        found.append(CheckResult(what, False, error.message, hint))
    return found


async def server(client: Client) -> CheckResults:
    """The server and its namespace, with their limits."""
    info = await client.workflow_service.get_system_info(GetSystemInfoRequest(), retry=True)
    yield CheckResult("server", True, f"Temporal {info.server_version} at {client.service_client.config.target_host}")
    asked = DescribeNamespaceRequest(namespace=client.namespace)
    space = await client.workflow_service.describe_namespace(asked, retry=True)
    kept = space.config.workflow_execution_retention_ttl.ToTimedelta()
    ok, longer = kept >= MIN_RETENTION, f"namespace update --namespace {client.namespace} --retention 30d"
    hint = "" if ok else f"temporal operator {longer}"
    yield CheckResult("retention", ok, f"closed runs are kept for {kept.days} days", hint)
    if largest := space.namespace_info.limits.blob_size_limit_error:
        yield CheckResult("limits", True, f"one value may have {largest:,} bytes")
    known = await search_attributes.registered(client)
    text = "runs can be searched by team, strategy, phase and reason" if known else "runs can't be searched by team"
    yield CheckResult("attributes", known, text, "" if known else f"{REGISTER_ATTRIBUTES}; then restart the workers")


async def workers(client: Client, settings: Settings) -> CheckResults:
    """The workers that poll the task queues of these settings, each counted once."""
    for queue in settings.model_copy(update={"roles": frozenset(ROLES)}).worker_queues():
        count = len(await live_workers(client, queue.name))
        kinds = {"WORKFLOW": "runs", "ACTIVITY": "calls"} if "workflows" in queue.roles else {"ACTIVITY": "calls"}
        waiting = [f"{await _backlog(client, queue.name, kind)} {what}" for kind, what in kinds.items()]
        who = f"{count or 'no'} worker{'' if count == 1 else 's'}"
        text = f"{who} on the task queue {queue.name}, {' and '.join(waiting)} waiting"
        hint = f"start one that serves {', '.join(sorted(queue.roles))}: baton worker -f PATH"
        yield CheckResult("workers", bool(count), text, "" if count else hint)


async def _backlog(client: Client, queue: str, kind: str) -> int:
    """How many tasks wait in a task queue, about."""
    asked = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.Value(f"TASK_QUEUE_TYPE_{kind}"),
        report_stats=True,
    )
    found = await client.workflow_service.describe_task_queue(asked, retry=True)
    return int(found.stats.approximate_backlog_count)


async def runs(client: Client, settings: Settings) -> CheckResults:
    """Runs that are stuck."""
    stuck = [each async for each in stuck_runs(client, settings.task_queue)]
    for run, text, hint in stuck:
        yield CheckResult("run", False, f"{run}: {text}", hint)
    if not stuck:
        yield CheckResult("runs", True, "no run is stuck")


async def journal(settings: Settings) -> CheckResults:
    """Whether the journal can be reached, and its version."""
    engine = connect(settings.journal)
    url = make_url(settings.journal)
    where = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and not await asyncio.to_thread(Path(url.database or "").exists):
        yield CheckResult("journal", True, f"{where} does not exist yet: the first worker creates it")
        return
    try:
        found = await engine.run(version)
    finally:
        await engine.dispose()
    ok = found <= VERSION
    text = f"is of version {found}" if found else "is empty: the first worker creates its tables"
    if 0 < found < VERSION:
        text += f": the next worker that starts migrates it to version {VERSION}"
    hint = "" if ok else f"this Baton knows the tables up to version {VERSION}: run one that knows version {found}"
    yield CheckResult("journal", ok, f"{where} {text}", hint)


async def models(loaded: Loaded, environment: Mapping[str, str], providers: Providers) -> list[CheckResult]:
    """Whether the server of each Model answers and accepts its key; without manifests, that of the environment.

    Closes ``providers``.
    """
    secrets = SecretStore(loaded.secrets, environment)
    models: list[Model | None] = [each for each in loaded.catalog.manifests if isinstance(each, Model)]
    if not models and environment.keys() & {"OPENAI_API_KEY", "OPENAI_BASE_URL"}:
        models = [None]
    values = ValueResolver(loaded.catalog, secrets)

    async def check(model: Model | None) -> CheckResults:
        chained = ChainedModel(model, model.name if model else DEFAULT_MODEL)
        address = await (await providers.of(chained)).check(chained, values)
        yield CheckResult("model", True, f"{model.id if model else 'default'}: {address} answers")

    try:
        hint = "check its address and key"
        results = await asyncio.gather(*(collect("model", check(model), hint) for model in models))
        return [replace(each, text=secrets.redact(each.text)) for of_model in results for each in of_model]
    finally:
        await providers.close()


async def executors(loaded: Loaded, environment: Mapping[str, str]) -> list[CheckResult]:
    """Whether each ExecutionEngine and A2AServer answers, and the skills of the agents of the latter."""
    secrets = SecretStore(loaded.secrets, environment)
    values, made = ValueResolver(loaded.catalog, secrets), Executors(secrets)
    known = [each for each in loaded.catalog.manifests if isinstance(each, Executor)]
    agents = [each for each in loaded.catalog.manifests if isinstance(each, Agent) and each.a2a_address]
    found = {each.id: each for each in (*(find_executor(agent, loaded.catalog) for agent in agents), *known) if each}

    async def check(executor: Executor) -> CheckResults:
        text = await (await made.of(executor)).check(executor, values)
        yield CheckResult("agents", True, f"{executor.id}: {text}")

    try:
        hint = "check its address and headers"
        results = await asyncio.gather(*(collect("agents", check(each), hint) for each in found.values()))
        return [replace(each, text=secrets.redact(each.text)) for of_one in results for each in of_one]
    finally:
        await made.close()
