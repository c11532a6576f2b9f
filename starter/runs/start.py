"""Starts a run of a query."""

import contextlib
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import JsonValue
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import Priority, TypedSearchAttributes, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.ark_status import ArkTarget, ark_status
from ...contracts.inputs import ForkRequest, QueryInput
from ...contracts.message import Head
from ...contracts.status import Status
from ...contracts.text import truncate
from ...resources.base import API_VERSION, JsonModel, JsonObject
from ...resources.catalog import Catalog, Resource, catalog_of
from ...resources.documents import Document
from ...resources.loader import load_documents
from ...resources.problems import ManifestError
from ...resources.query import Query, QueryName
from ...resources.tenants import MAX_FAIRNESS_KEY
from ...temporal.client import WORKFLOW_TASK_TIMEOUT
from ...temporal.client import task_queue as default_task_queue
from ...temporal.executions import execution_chain
from .runs import CATALOG, RunHandle


class Attempt(NamedTuple):
    """A run, or a retry of a failed one: the run id of its first execution, its workflow type, and its input."""

    run_id: str
    workflow_type: str
    input: JsonObject


async def attempts(client: Client, run: str, run_id: str) -> list[Attempt]:
    """The attempts of a run up to the one with this execution, oldest first. Each retries the one before.

    Attempts, and first executions of the oldest one, that Temporal has deleted are omitted.
    """
    found: list[Attempt] = []
    while True:
        (first, started), *_ = await execution_chain(client, run, run_id)
        (run_input,) = await client.data_converter.decode(started.input.payloads, [dict[str, JsonValue]])
        found.append(Attempt(first, started.workflow_type.name, run_input))
        retried = run_input.get("retries")
        if not isinstance(retried, str):
            break
        try:
            await client.get_workflow_handle(run, run_id=retried).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            break
        run_id = retried
    return found[::-1]


async def original_input(client: Client, run: str, run_id: str) -> tuple[str, JsonObject]:
    """The workflow type and the input with which a client has started a run; of a retry, that of the first attempt.

    Of a run whose first executions Temporal has deleted, it is the input of the first one that is left.
    """
    first, *_ = await attempts(client, run, run_id)
    return first.workflow_type, first.input


async def asked_query(client: Client, run: str, run_id: str) -> Query | None:
    """The Query of a run; of a fork, that of the run in which its conversation has begun.

    None if only its workers have the manifest, if Temporal has deleted that run, or if it is the run of a team or an
    agent without a query.
    """
    chain = await fork_chain(client, run, run_id)
    if not chain or "forks" in chain[-1].input:
        return None
    begun = chain[-1]
    manifest = _manifest(begun.input, begun.workflow_type)
    return Query.model_validate(manifest) if begun.workflow_type == "query" and "spec" in manifest else None


async def manifests_of_run(client: Client, run: str, run_id: str) -> Catalog:
    """The manifests with which a run was started; of a fork, also those of the forked runs that it does not replace."""
    return Catalog.model_validate({"manifests": await _resources_of_run(client, run, run_id)})


async def readable_manifests_of_run(client: Client, run: str, run_id: str) -> Catalog:
    """The same without those that a rule of today refuses, which the run's own release did not have."""
    readable: list[Resource] = []
    for number, data in enumerate(await _resources_of_run(client, run, run_id)):
        with contextlib.suppress(ManifestError):
            readable.extend(load_documents([Document(f"manifest {number}", data, {})]).catalog.manifests)
    return catalog_of({one.id: one for one in readable}.values())


async def _resources_of_run(client: Client, run: str, run_id: str) -> list[JsonObject]:
    known: dict[object, JsonObject] = {}
    for origin in await fork_chain(client, run, run_id):
        resources = origin.input.get("resources")
        for manifest in resources if isinstance(resources, list) else []:
            if isinstance(manifest, dict):
                known.setdefault((manifest.get("kind"), *_name(manifest)), manifest)
    return [*known.values()]


class RunOrigin(NamedTuple):
    """A run: its workflow id, the run id of its first execution, and with what a client has started it.

    The workflow type and the input of a retry are those of the first attempt.
    """

    run: str
    run_id: str
    workflow_type: str
    input: JsonObject


async def fork_chain(client: Client, run: str, run_id: str) -> list[RunOrigin]:
    """A run, the run that it forks, the run that this one forks, and so on, up to one that Temporal has deleted."""
    chain: list[RunOrigin] = []
    while True:
        try:
            workflow_type, run_input = await original_input(client, run, run_id)
            (first, _), *_ = await execution_chain(client, run, run_id)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return chain
        chain.append(RunOrigin(run, first, workflow_type, run_input))
        if "forks" not in run_input:
            return chain
        fork = ForkRequest.model_validate(run_input["forks"]).fork
        run = fork.run
        run_id = fork.run_id


async def run_manifest(client: Client, handle: RunHandle, status: Status) -> JsonObject:
    """The manifest with which a run was started, with this status and the run's id as its ``metadata.uid``.

    It has no spec if the run's input has none.
    """
    run_id = handle.run_id or (await handle.describe()).run_id
    manifest = await manifest_of_run(client, handle.id, run_id)
    metadata = manifest["metadata"] if isinstance(manifest["metadata"], dict) else {}
    return {**manifest, "metadata": {**metadata, "uid": handle.id}, "status": to_json(status)}


async def manifest_of_run(client: Client, run: str, run_id: str) -> JsonObject:
    """The manifest with which a run was started; without a spec if the run's input has none."""
    workflow_type, run_input = await original_input(client, run, run_id)
    return _manifest(run_input, workflow_type)


def in_ark_dialect(manifest: JsonObject) -> JsonObject:
    """A manifest of ``run_manifest`` with its status in ARK's dialect."""
    kind, (name, _) = str(manifest["kind"]).lower(), _name(manifest)
    target = None if kind == "query" else ArkTarget(type=kind, name=str(name))
    status = ark_status(Status.model_validate(manifest["status"]), target)
    return {**manifest, "status": status.model_dump(mode="json")}


def to_json(value: JsonModel) -> JsonObject:
    """A model as JSON, with the fields that were set."""
    plain: JsonObject = value.model_dump(mode="json", exclude_unset=True)
    return plain


def _manifest(run_input: JsonObject, workflow_type: str) -> JsonObject:
    """The run's own manifest in its workflow's input, or one built from that input."""
    kind = {"query": "Query", "agent": "Agent"}.get(workflow_type, "Team")
    name = run_input.get("name") or run_input.get("team") or run_input.get("agent") or "query"
    namespace = run_input.get("namespace", "default")
    resources = run_input.get("resources")
    for manifest in resources if isinstance(resources, list) else []:
        if isinstance(manifest, dict) and manifest.get("kind") == kind and _name(manifest) == (name, namespace):
            return manifest
    base: JsonObject = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
    }
    return {**base, "spec": run_input["spec"]} if "spec" in run_input else base


def _name(manifest: JsonObject) -> tuple[JsonValue, JsonValue]:
    metadata = manifest.get("metadata")
    return (metadata.get("name"), metadata.get("namespace", "default")) if isinstance(metadata, dict) else (None, None)


MAX_SUMMARY_BYTES = 120
"""The length to which the input is truncated in the run's summary in Temporal's UI."""


@dataclass(frozen=True)
class QueryStart:
    """The input of the workflow ``query``, its memo and its summary."""

    input: QueryInput
    memo: JsonObject
    summary: str

    def after(self, head: Head) -> "QueryStart":
        """The same, with a question that follows this place in a conversation."""
        return replace(self, input=self.input.after_head(head))

    def with_memo(self, more: Mapping[str, str]) -> "QueryStart":
        """The same with more entries in the run's memo."""
        return replace(self, memo={**self.memo, **more})


def query_start(query: Query, catalog: Catalog, session: JsonObject | None = None) -> QueryStart:
    """The start of a query's run, with the manifests that it needs and the initial values of its ``session``."""
    resources = tuple(map(to_json, catalog.manifests))
    query_input = QueryInput(name=query.name, namespace=query.namespace, resources=resources)
    if session:  # an unset field takes no space in the history
        query_input = QueryInput(name=query.name, namespace=query.namespace, resources=resources, session=session)
    memo: JsonObject = {"query": query.name, "namespace": query.namespace, CATALOG: catalog.sha}
    return QueryStart(query_input, memo, _summary(query))


def inline_start(query: Query, session: JsonObject | None = None) -> QueryStart:
    """The start of a query without other manifests: the workers have those of its targets."""
    run_input = QueryInput(name=query.name, namespace=query.namespace, spec=to_json(query.spec), session=session or {})
    memo: JsonObject = {"query": query.name, "namespace": query.namespace}
    return QueryStart(run_input, memo, _summary(query))


def _summary(query: Query) -> str:
    return truncate(" ".join(query.spec.text.split()), MAX_SUMMARY_BYTES)


def named_start(query: QueryName) -> QueryStart:
    """The start of a run of a Query whose manifest the workers have."""
    memo: JsonObject = {"query": query.name, "namespace": query.namespace}
    return QueryStart(QueryInput(name=query.name, namespace=query.namespace), memo, f"query/{query.name}")


async def start_query(
    client: Client,
    query: Query,
    catalog: Catalog,
    run_id: str | None = None,
    *,
    task_queue: str | None = None,
    session: JsonObject | None = None,
    joins: bool = True,
    once: bool = False,
) -> RunHandle:
    """Starts a run of a query, with the manifests that it needs and the initial values of its ``session``.

    The id of the run is ``NAME-xxxxxx``, or ``run_id``: if a run with that id is open, its handle is returned, unless
    the run ``joins`` none; with ``once`` also if it has ended.
    """
    start = query_start(query, catalog, session)
    try:
        return await start_run(client, start, run_id, task_queue=task_queue, joins=joins, once=once)
    except WorkflowAlreadyStartedError:
        if not (once and run_id):
            raise
        return client.get_workflow_handle(run_id)


async def ended_run(client: Client, run_id: str) -> RunHandle | None:
    """The run of that id if it has ended; None if there is none, or it is open."""
    handle: RunHandle = client.get_workflow_handle(run_id)
    try:
        return handle if (await handle.describe()).close_time else None
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return None


async def start_run(
    client: Client,
    start: QueryStart,
    run_id: str | None = None,
    *,
    task_queue: str | None = None,
    joins: bool = True,
    once: bool = False,
    attributes: TypedSearchAttributes = TypedSearchAttributes.empty,
) -> RunHandle:
    """Starts a run as ``start`` says; with a ``run_id`` it ``joins`` an open run of that id.

    Raises WorkflowAlreadyStartedError if a run of that id is open and not joined, and with ``once`` also if it has
    ended.
    """
    policy = WorkflowIDConflictPolicy.USE_EXISTING if run_id and joins else WorkflowIDConflictPolicy.FAIL
    reuse = WorkflowIDReusePolicy.REJECT_DUPLICATE if once else WorkflowIDReusePolicy.ALLOW_DUPLICATE
    return await client.start_workflow(
        "query",
        start.input,
        id=run_id or new_run_id(start.input.name),
        id_conflict_policy=policy,
        id_reuse_policy=reuse,
        task_queue=task_queue or default_task_queue(),
        task_timeout=WORKFLOW_TASK_TIMEOUT,
        memo=start.memo,
        static_summary=start.summary,
        search_attributes=attributes,
        priority=Priority(fairness_key=_fairness_key(start.input)),
    )


def _fairness_key(run_input: QueryInput) -> str | None:
    """The namespace of a run, by which its first workflow task is scheduled fairly.

    It is a hint for that one task: what the run does is scheduled as the worker says that pins it.
    """
    account = (run_input.spec or {}).get("serviceAccount")
    namespace = account.get("namespace") if isinstance(account, dict) else None
    key = namespace if isinstance(namespace, str) else run_input.namespace
    return key if len(key.encode()) <= MAX_FAIRNESS_KEY else None


class NotRetriedError(Exception):
    """A run can't be retried: it has not failed, or is a child of another one."""


class NotForkedError(Exception):
    """A run can't be forked at a place: the text says why."""


async def retry_run(client: Client, handle: RunHandle) -> RunHandle:
    """Starts a run that resumes a failed one, under the same id, before the failed call.

    The workers read the state of the failed run from its history.

    Raises:
        NotRetriedError: if the run has not failed, is a child of another run of Baton, or is being retried already.
    """
    failed = await handle.describe()
    if failed.status is not WorkflowExecutionStatus.FAILED:
        state = failed.status.name.lower().replace("_", " ") if failed.status else "unknown"
        raise NotRetriedError(f"{handle.id} has not failed: it is {state}")
    (first, started), *_ = await execution_chain(client, handle.id, failed.run_id)
    (run_input,) = await client.data_converter.decode(started.input.payloads, [dict[str, JsonValue]])
    if failed.parent_id and "thread" in run_input:
        raise NotRetriedError(f"{handle.id} is a child of {failed.parent_id}: retry that run")
    target = {
        key: run_input[key] for key in ("name", "team", "agent", "model", "tool", "namespace") if key in run_input
    }
    try:
        return await client.start_workflow(
            failed.workflow_type,
            {**target, "retries": first},
            id=handle.id,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            task_queue=failed.task_queue,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            memo=await failed.memo(),
            static_summary=await failed.static_summary(),
            priority=Priority(
                priority_key=failed.raw_info.priority.priority_key or None,
                fairness_key=failed.raw_info.priority.fairness_key or None,
            ),
        )
    except WorkflowAlreadyStartedError:
        raise NotRetriedError(f"{handle.id} has not failed: it is being retried already") from None


def new_run_id(query: str | None) -> str:
    """An id for a run of the Query of that name. The seed of ``random``, which a program may set, has no effect."""
    return f"{query}-{''.join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(6))}"
