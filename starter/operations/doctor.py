"""Checks the server, workers, journal and models that an installation uses."""

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import httpx
from pydantic import TypeAdapter
from sqlalchemy import make_url
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    GetSystemInfoRequest,
)
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from ...activities.agent.executors import Executors
from ...activities.context.lookup import Executor, find_executor
from ...activities.context.metering import ChainedModel
from ...activities.context.value_resolver import ValueResolver
from ...activities.model.providers import Providers, types_in
from ...activities.runtime.outbound import BodyLimits, Destination, Outbound
from ...activities.runtime.secrets import SecretStore
from ...activities.runtime.settings import Settings
from ...contracts.errors import BatonError, InvalidInput
from ...contracts.settings import CONVERTER, SCRIPTED_MODEL_URL, SettingsError
from ...contracts.status import Status
from ...contracts.text import truncate
from ...installation import version
from ...journal.engine import connect as connect_journal
from ...journal.engine import free_space
from ...journal.migrate import VERSION
from ...journal.migrate import version as journal_version
from ...journal.rows import check_keys
from ...resources.agent import DEFAULT_MODEL, Agent
from ...resources.loader import Loaded
from ...resources.model import Model
from ...resources.provenance import Provenance
from ...resources.run_catalog import RunCatalog
from ...temporal import search_attributes
from ...temporal.client import ConnectionFailed, connect
from ...temporal.encryption import KEYS, KEYS_FILE, Keys
from ...temporal.executions import key_error
from ...temporal.search_attributes import backlog_of, live_workers, quoted
from ..errors import START_HINT, UnreachableError
from ..runs.runs import RunHandle, why_not_served
from ..server.connection import ServerLocation, use_server
from ..text import escape_line, format_duration

MAX_RUNS = 100
"""The number of open runs that are checked, newest first, plus as many with problems reported by the server."""

BATCH = 20
"""Concurrent requests to Temporal."""

MAX_ATTEMPTS = 3
"""Failed attempts after which a workflow task or an activity counts as stuck."""

TASK_HINT = "its workflow code fails; nothing is lost: fix or roll back the workers, then the run continues"
ACTIVITY_HINT = "check that the service it calls responds; the run then continues. To end it: baton terminate --now {}"
WORKER_KEY_HINT = f"set {KEYS} or {KEYS_FILE} of all workers; the run then continues. To end it: temporal workflow "
WORKER_KEY_HINT += "terminate -w {}"
KEY_HINT = f"set {KEYS} or {KEYS_FILE} as for the workers, to read the reason"
CODEC_HINT = f"set {CONVERTER} to the converter of the workers, to read the reason"

Stuck = tuple[str, str, str]
"""A run's id, its problem, and a hint."""


async def _open_runs(client: Client, queue: str) -> tuple[list[str], list[str]]:
    """The ids of the open runs of a task queue: those with problems reported by the server, and the newest ones."""
    open_here = f"TaskQueue = {quoted(queue)} AND ExecutionStatus = 'Running'"

    async def listed(query: str) -> list[str]:
        return [run.id async for run in client.list_workflows(query, limit=MAX_RUNS)]

    try:
        with_problems = await listed(f"{open_here} AND TemporalReportedProblems IS NOT NULL")
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:  # as of an older server, without this search attribute
            raise
        with_problems = []
    return with_problems, await listed(open_here)


async def _stuck(client: Client, run: str) -> Stuck | None:
    handle: RunHandle = client.get_workflow_handle(run)
    description = await handle.describe()
    described = description.raw_description
    if (attempt := described.pending_workflow_task.attempt) > MAX_ATTEMPTS:
        try:
            reason = await key_error(client, run)
        except (SettingsError, InvalidInput):  # the failure is encrypted as well
            reason = None
        if reason:
            return run, f"attempt {attempt} at its next step: {reason}", WORKER_KEY_HINT.format(run)
        return run, f"attempt {attempt} at its next step", TASK_HINT
    worst = max(described.pending_activities, key=_failed_attempts, default=None)
    if description.typed_search_attributes.get(search_attributes.PHASE) == "Waiting":
        return await _in_outage(handle)
    if worst is None or _failed_attempts(worst) < MAX_ATTEMPTS:
        return None
    hint = ACTIVITY_HINT.format(run)
    try:
        error = await client.data_converter.decode_failure(worst.last_failure)
        reason = truncate(str(getattr(error, "message", error)).partition("\n")[0], 200)
    except SettingsError as no_key:
        reason = str(no_key)
        hint = KEY_HINT
    except InvalidInput as no_codec:
        reason = no_codec.message
        hint = CODEC_HINT
    return run, f"attempt {worst.attempt} at {worst.activity_type.name}: {reason}", hint


async def _in_outage(run: RunHandle) -> Stuck | None:
    """A run that waits for the end of an outage; None if only runs below it do, which are reported themselves.

    A run that waits for a Quota is not stuck.
    """
    try:
        status: Status = await run.query("status", result_type=Status, rpc_timeout=STATUS_TIMEOUT)
    except (RPCError, WorkflowQueryFailedError):
        return run.id, "waits for the end of an outage", ACTIVITY_HINT.format(run.id)
    except SettingsError as no_key:
        return run.id, f"waits for the end of an outage: {no_key}", KEY_HINT
    except InvalidInput as no_codec:
        return run.id, f"waits for the end of an outage: {no_codec.message}", CODEC_HINT
    for outage in status.outages or ():
        if outage.is_quota:
            continue
        reason = truncate(outage.error.partition("\n")[0], 200)
        return (
            run.id,
            f"waits after {outage.attempts} attempts at {outage.call}: {reason}",
            ACTIVITY_HINT.format(run.id),
        )
    return None


STATUS_TIMEOUT = timedelta(seconds=1)
"""The timeout of a query for the status of a run."""


def _failed_attempts(activity: PendingActivityInfo) -> int:
    return activity.attempt if activity.HasField("last_failure") else 0


CHECK_TIMEOUT = 2.5
"""The timeout of a check in seconds."""

MIN_RETENTION = timedelta(days=3)
"""With a shorter retention closed runs may be deleted before anyone looks at them."""

REGISTER_ATTRIBUTES = "; ".join(
    f"temporal operator search-attribute create --name {key.name} --type Keyword" for key in search_attributes.ALL
)


@dataclass(frozen=True)
class CheckResult:
    """The result of a check: the subject, whether it is ok, a description, and a hint if it is not ok."""

    what: str
    ok: bool
    text: str
    hint: str = ""


CheckResults = AsyncIterator[CheckResult]


async def collect(what: str, results: CheckResults, hint: str) -> list[CheckResult]:
    """The results of a check; an error or timeout becomes a result with ``hint``."""
    collected: list[CheckResult] = []
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            async for result in results:
                collected.append(result)
    except TimeoutError:
        collected.append(CheckResult(what, False, f"no answer within {CHECK_TIMEOUT:g} s", hint))
    except (RPCError, BatonError) as error:
        collected.append(CheckResult(what, False, error.message, hint))
    return collected


async def server(client: Client) -> CheckResults:
    """The server and its namespace, with their limits."""
    info = await client.workflow_service.get_system_info(GetSystemInfoRequest(), retry=True)
    yield CheckResult("server", True, f"Temporal {info.server_version} at {client.service_client.config.target_host}")
    request = DescribeNamespaceRequest(namespace=client.namespace)
    namespace = await client.workflow_service.describe_namespace(request, retry=True)
    retention = namespace.config.workflow_execution_retention_ttl.ToTimedelta()
    ok = retention >= MIN_RETENTION
    hint = "" if ok else f"temporal operator namespace update --namespace {client.namespace} --retention 30d"
    yield CheckResult("retention", ok, f"closed runs are kept for {retention.days} days", hint)
    if largest := namespace.namespace_info.limits.blob_size_limit_error:
        yield CheckResult("limits", True, f"a value can have up to {largest:,} bytes")
    if await search_attributes.registered(client):
        yield CheckResult("attributes", True, "runs can be searched by team, strategy, phase and reason")
    else:
        hint = f"{REGISTER_ATTRIBUTES}; then restart the workers"
        yield CheckResult("attributes", False, "runs can't be searched by team", hint)


async def workers(client: Client, settings: Settings) -> CheckResults:
    """The workers that poll the task queues of these settings."""
    for queue in settings.with_all_roles().worker_queues():
        count = len(await live_workers(client, queue.name))
        waiting = [f"{(await backlog_of(client, queue.name, 'activity')).count} calls"]
        if "workflows" in queue.roles:
            waiting.insert(0, f"{(await backlog_of(client, queue.name, 'workflow')).count} runs")
        who = f"{count or 'no'} worker{'' if count == 1 else 's'}"
        text = f"{who} on the task queue {queue.name}, {' and '.join(waiting)} waiting"
        hint = f"start one that serves {', '.join(sorted(queue.roles))}: baton worker -f PATH"
        yield CheckResult("workers", bool(count), text, "" if count else hint)
        if count and "workflows" in queue.roles and (reason := await why_not_served(client, queue.name)):
            text, _, hint = reason.partition("; ")
            yield CheckResult("workers", False, text, hint)


async def runs(client: Client, settings: Settings) -> CheckResults:
    """Stuck runs."""
    with_problems, newest = await _open_runs(client, settings.task_queue)
    looked_at = list(dict.fromkeys(with_problems + newest))
    found = False
    for start in range(0, len(looked_at), BATCH):
        for stuck in await asyncio.gather(*(_stuck(client, run) for run in looked_at[start : start + BATCH])):
            if stuck:
                run, text, hint = stuck
                yield CheckResult("run", False, f"{run}: {text}", hint)
                found = True
    if not found:
        is_all = len(newest) < MAX_RUNS
        text = "no run is stuck" if is_all else f"none of the newest {MAX_RUNS} open runs is stuck"
        yield CheckResult("runs", True, text)


async def journal(settings: Settings) -> CheckResults:
    """Whether the journal is reachable, and its version."""
    engine = connect_journal(settings.journal)
    where = engine.place
    url = make_url(settings.journal)
    if url.get_backend_name() == "sqlite" and not await asyncio.to_thread(Path(url.database or "").exists):
        yield CheckResult("journal", True, f"{where} does not exist yet: the first worker creates it")
        return
    unreadable = ""
    try:
        current = await engine.run(journal_version)
        if current == VERSION:
            await check_keys(engine, Keys.from_environment(os.environ))
    except SettingsError as error:
        unreadable = str(error)
    finally:
        await engine.dispose()
    if (free := await asyncio.to_thread(free_space, settings.journal)) is not None and free < MIN_FREE_SPACE:
        hint = "free up space: runs wait while the journal can't be written"
        yield CheckResult("journal", False, f"the disk of {where} has only {free // 1_000_000:,} MB left", hint)
    ok = current <= VERSION
    text = f"has version {current}" if current else "is empty: the first worker creates its tables"
    if 0 < current < VERSION:
        text += f": the next worker that starts migrates it to version {VERSION}"
    hint = "" if ok else f"this release supports versions up to {VERSION}: run one that supports version {current}"
    yield CheckResult("journal", ok, f"{where} {text}", hint)
    if unreadable:
        yield CheckResult("keys", False, unreadable, f"set {KEYS} or {KEYS_FILE} as for the workers")


async def retention(settings: Settings) -> CheckResults:
    """How long ``baton prune`` keeps the data of ended runs, if that differs by the namespace of their manifests."""
    ages = [f"{namespace} {format_duration(age)}" for namespace, age in settings.retention.items()]
    if ages:
        yield CheckResult("retention", True, f"baton prune keeps the data of ended runs for: {', '.join(ages)}")


MIN_FREE_SPACE = 500_000_000
"""Bytes on the disk of a SQLite journal below which it is reported."""


async def models(loaded: Loaded, environment: Mapping[str, str], providers: Providers) -> list[CheckResult]:
    """Whether the servers of all Models answer and accept their keys; without manifests, the one in the environment.

    Closes ``providers``.
    """
    secrets = SecretStore(loaded.secrets, environment)
    models: list[Model | None] = [manifest for manifest in loaded.catalog.manifests if isinstance(manifest, Model)]
    if not models and any(map(secrets.environment, ("OPENAI_API_KEY", "OPENAI_BASE_URL"))):
        models = [None]
    values = ValueResolver(RunCatalog.of_files(loaded.catalog), secrets)

    async def check(model: Model | None) -> CheckResults:
        chained = ChainedModel(model, model.name if model else DEFAULT_MODEL)
        address = await (await providers.of(chained)).check(chained, values)
        yield CheckResult("model", True, f"{model.id if model else 'default'}: {address} answers")

    try:
        hint = "check its address and key"
        results = await asyncio.gather(*(collect("model", check(model), hint) for model in models))
        return [_redacted(result, secrets) for of_model in results for result in of_model]
    finally:
        await providers.close()


async def executors(loaded: Loaded, environment: Mapping[str, str]) -> list[CheckResult]:
    """Whether all ExecutionEngines and A2AServers answer, and the skills of the agents of A2AServers."""
    secrets = SecretStore(loaded.secrets, environment)
    values = ValueResolver(RunCatalog.of_files(loaded.catalog), secrets)
    clients = Executors()
    executors: dict[str, Executor] = {}
    for manifest in loaded.catalog.manifests:
        if isinstance(manifest, Agent) and manifest.a2a_address:
            executor = find_executor(manifest, loaded.catalog)
            if executor:
                executors[executor.id] = executor
        elif isinstance(manifest, Executor):
            executors[manifest.id] = manifest

    async def check(executor: Executor) -> CheckResults:
        text = await (await clients.of(executor)).check(executor, values)
        yield CheckResult("agents", True, f"{executor.id}: {text}")

    try:
        hint = "check its address and headers"
        results = await asyncio.gather(*(collect("agents", check(executor), hint) for executor in executors.values()))
        return [_redacted(result, secrets) for of_executor in results for result in of_executor]
    finally:
        await clients.close()


def _redacted(result: CheckResult, secrets: SecretStore) -> CheckResult:
    return replace(result, text=secrets.redact(result.text))


_STATES = TypeAdapter(dict[str, str])

CIRCUIT_HINT = "check that its server responds; waiting calls then continue"


async def open_circuits(settings: Settings) -> CheckResults:
    """The circuit breakers that are not closed; no result without a local worker that serves health checks."""
    if settings.health_address is None:
        return
    host, port = settings.health_address
    at = "127.0.0.1" if host == "*" else f"[{host}]" if ":" in host else host
    url = f"http://{at}:{port}/circuits"
    worker = Destination(url=url, provenance=Provenance.FILES, private_hosts=True)
    try:
        async with Outbound(BodyLimits(None, None), worker).open(httpx.AsyncClient, trust_env=False) as http:
            states = _STATES.validate_json((await http.get(url)).raise_for_status().content)
    except (httpx.HTTPError, ValueError):  # there is no worker here, or an older one, or another service
        return
    for name, state in states.items():
        yield CheckResult("circuits", False, f"the circuit breaker of {name} is {state}", CIRCUIT_HINT)
    if not states:
        yield CheckResult("circuits", True, "no circuit breaker is open")


Check = Coroutine[Any, Any, list[CheckResult]]


def run_checks(loaded: Loaded, report: Callable[[str], None]) -> list[CheckResult]:
    """The results of all checks, including those of the Models in ``loaded``; ``report`` receives warnings."""
    scripted = bool(os.environ.get(SCRIPTED_MODEL_URL))
    # before the event loop, which imports would block
    providers = Providers(types_in(loaded.catalog, os.environ), scripted=scripted)
    try:
        settings = Settings.of(os.environ)
        with use_server(report, start=False) as server:
            return [_versions(), *_variables(server), *asyncio.run(_check(server, settings, loaded, providers))]
    except SettingsError as error:
        return [_versions(), CheckResult("settings", False, str(error), "correct it, then restart the processes")]
    except UnreachableError as error:
        unreachable = CheckResult("server", False, error.text, error.hint)
        return [_versions(), unreachable, *asyncio.run(_check(None, settings, loaded, providers))]


def _versions() -> CheckResult:
    packages = f"baton {version()}, temporalio {version_of('temporalio')}"
    return CheckResult("versions", True, f"{packages}, Python {platform.python_version()}")


def _variables(server: ServerLocation) -> list[CheckResult]:
    """The environment variables of the local worker, if it is running, and those that differ from this process."""
    dev = server.state_dir.read_dev_server() if server.state_dir else None
    if dev is None:
        return []
    differing = " and ".join(dev.differing(os.environ))
    text = f"the local worker has {' and '.join(dev.environment) or 'none of the variables for models and keys'}"
    hint = "the next 'baton run' restarts it once no run is open; restart a 'baton dev' yourself"
    text += f"; {differing} differs from the environment of this command" if differing else ""
    return [CheckResult("variables", not differing, text, hint if differing else "")]


async def _check(
    server: ServerLocation | None, settings: Settings, loaded: Loaded, providers: Providers
) -> list[CheckResult]:
    """Runs the checks concurrently; without ``server``, all except those of the server."""
    checking: list[Check] = [_temporal(server.address, settings)] if server else []
    checking.append(collect("journal", journal(settings), "start its database, or correct BATON_JOURNAL_URL"))
    checking.append(collect("retention", retention(settings), ""))
    checking.append(models(loaded, os.environ, providers))
    checking.append(executors(loaded, os.environ))
    checking.append(collect("circuits", open_circuits(settings), "check that the local worker is running"))
    return [result for results in await asyncio.gather(*checking) for result in results]


async def _temporal(address: str | None, settings: Settings) -> list[CheckResult]:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            client = await connect(address)
    except (ConnectionFailed, TimeoutError) as error:
        return [CheckResult("server", False, str(error) or "Temporal did not answer in time", START_HINT)]
    checked = await asyncio.gather(
        collect("server", server(client), START_HINT),
        collect("workers", workers(client, settings), START_HINT),
        collect("runs", runs(client, settings), "look at the runs in Temporal's UI"),
    )
    return [result for results in checked for result in results]


def as_text(results: list[CheckResult]) -> str:
    """The results as text, one per line, with hints below the results that are not ok."""
    lines = []
    for result in results:
        lines.append(f"{'ok   ' if result.ok else 'WRONG'}  {result.what:<10}  {escape_line(result.text)}")
        if result.hint:
            lines.append(f"{'':19}→ {escape_line(result.hint)}")
    return "\n".join(lines)
