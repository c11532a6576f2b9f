"""Starts a run of a query."""

import random
import string
from dataclasses import dataclass

from pydantic import JsonValue
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from ...contracts.ark_status import ArkTarget, ark_status
from ...contracts.inputs import QueryInput
from ...contracts.status import Status
from ...contracts.text import truncate
from ...resources.base import API_VERSION, JsonModel, JsonObject
from ...resources.catalog import Catalog
from ...resources.query import Query, QueryName
from ...temporal.client import WORKFLOW_TASK_TIMEOUT
from ...temporal.client import task_queue as default_task_queue
from ...temporal.executions import execution_chain
from .runs import RunHandle


async def run_manifest(client: Client, handle: RunHandle, status: Status) -> JsonObject:
    """The manifest with which a run was started, with this status; without a spec if the run's input has none."""
    run_id = handle.run_id or (await handle.describe()).run_id
    (_, started), *_ = await execution_chain(client, handle.id, run_id)
    values = await client.data_converter.decode(started.input.payloads, [dict[str, JsonValue]])
    return {**_manifest(values[0], started.workflow_type.name), "status": to_json(status)}


def in_ark_dialect(manifest: JsonObject) -> JsonObject:
    """A manifest of ``run_manifest`` with its status in ARK's dialect."""
    kind, (name, _) = str(manifest["kind"]).lower(), _name(manifest)
    target = None if kind == "query" else ArkTarget(type=kind, name=str(name))
    return {**manifest, "status": to_json(ark_status(Status.model_validate(manifest["status"]), target))}


def to_json(value: JsonModel) -> JsonObject:
    """A model as JSON, with the fields that were set."""
    plain: JsonObject = value.model_dump(mode="json", exclude_unset=True)
    return plain


def _manifest(given: JsonObject, workflow_type: str) -> JsonObject:
    """The manifest among the resources in a workflow's input, or one that is made from that input."""
    kind = "Query" if workflow_type == "query" else "Agent" if workflow_type == "agent" else "Team"
    name = given.get("name") or given.get("team") or given.get("agent") or "query"
    namespace = given.get("namespace", "default")
    resources = given.get("resources")
    for each in resources if isinstance(resources, list) else []:
        if isinstance(each, dict) and each.get("kind") == kind and _name(each) == (name, namespace):
            return each
    base: JsonObject = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
    }
    return {**base, "spec": given["spec"]} if "spec" in given else base


def _name(manifest: JsonObject) -> tuple[JsonValue, JsonValue]:
    metadata = manifest.get("metadata")
    return (metadata.get("name"), metadata.get("namespace", "default")) if isinstance(metadata, dict) else (None, None)


MAX_SUMMARY_BYTES = 120
"""The length at which the input is cut in the run's summary in Temporal's UI."""


@dataclass(frozen=True)
class QueryStart:
    """The input of the workflow ``query``, its memo and its summary."""

    input: QueryInput
    memo: JsonObject
    summary: str


def query_start(query: Query, catalog: Catalog, session: JsonObject | None = None) -> QueryStart:
    """How a run of a query is started, with the manifests that it needs and the first values of its ``session``."""
    given = QueryInput(name=query.name, namespace=query.namespace, resources=tuple(map(to_json, catalog.manifests)))
    return QueryStart(
        given.model_copy(update={"session": session}) if session else given,
        {"query": query.name, "namespace": query.namespace},
        truncate(" ".join(query.spec.input.split()), MAX_SUMMARY_BYTES),
    )


def named_start(query: QueryName) -> QueryStart:
    """How a run of a Query is started that workers know."""
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
) -> RunHandle:
    """Starts a run of a query, with the manifests that it needs and the first values of its ``session``.

    The id of the run is ``NAME-xxxxxx``, or ``run_id``: if a run with that id is open, its handle is returned.
    """
    return await start_run(client, query_start(query, catalog, session), run_id, task_queue=task_queue)


async def start_run(
    client: Client, start: QueryStart, run_id: str | None = None, *, task_queue: str | None = None
) -> RunHandle:
    """The same for a query that is ready to be started."""
    return await client.start_workflow(
        "query",
        start.input,
        id=run_id or f"{start.input.name}-{_random_suffix()}",
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING if run_id else WorkflowIDConflictPolicy.FAIL,
        task_queue=task_queue or default_task_queue(),
        task_timeout=WORKFLOW_TASK_TIMEOUT,
        memo=start.memo,
        static_summary=start.summary,
    )


def _random_suffix() -> str:
    return "".join(random.choices(string.ascii_lowercase + string.digits, k=6))
