"""Which run is meant, how is one started, and what has become of it?"""

import asyncio
import contextlib
import random
import string

from pydantic import JsonValue
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from ...conversation.contracts.control_messages import TerminateRequest
from ...conversation.contracts.inputs import QueryInput
from ...conversation.contracts.status import Status, instant
from ...conversation.errors import RunClosed
from ...conversation.settings_error import SettingsError
from ...conversation.temporal import temporal_client
from ...conversation.temporal.temporal_client import TASK_TIMEOUT
from ...conversation.text import truncate
from ...resources.base import API_VERSION, JsonObject, Plain
from ...resources.catalog import Catalog
from ...resources.query import Query
from .execution_chain import execution_chain, first_run_id

Handle = WorkflowHandle[object, object]

SEARCHED = 1_000
"""Runs that are looked through for the one of a Query, the newest first."""


class NoSuchRunError(Exception):
    """There is no run of that name or id."""


async def start_query(
    client: Client,
    query: Query,
    catalog: Catalog,
    run_id: str | None = None,
    *,
    task_queue: str | None = None,
    session: JsonObject | None = None,
) -> Handle:
    """Starts a run of a query with the manifests it needs, and the values of its ``session``.

    Its id is ``NAME-xxxxxx``, or the caller's own: then a run of that id that is open already is joined.
    """
    suffix = "".join(random.choices(string.ascii_lowercase + string.digits, k=6))
    given = QueryInput(name=query.name, namespace=query.namespace, resources=tuple(map(_plain, catalog.manifests)))
    return await client.start_workflow(
        "query",
        given.model_copy(update={"session": session}) if session else given,
        id=run_id or f"{query.name}-{suffix}",
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING if run_id else WorkflowIDConflictPolicy.FAIL,
        task_queue=task_queue or temporal_client.task_queue(),
        task_timeout=TASK_TIMEOUT,
        memo={"query": query.name, "namespace": query.namespace},
        static_summary=truncate(" ".join(query.spec.input.split()), 120),
    )


async def find_run(client: Client, name: str, namespace: str) -> Handle:
    """The run of that id, or else the newest run of the Query of that name.

    Raises NoSuchRunError, or SettingsError where a key is missing to tell.
    """
    handle = client.get_workflow_handle(name)
    try:
        await handle.describe()
        return handle
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
    hidden: SettingsError | None = None
    for wanted in (f"AND WorkflowId STARTS_WITH '{_quoted(name)}-'", ""):  # most runs begin with their Query's name
        async for run in client.list_workflows(f"WorkflowType = 'query' {wanted}", limit=SEARCHED):
            try:
                memo = await run.memo()
            except SettingsError as error:  # it may be the one
                hidden = error
                continue
            if (memo.get("query"), memo.get("namespace")) == (name, namespace):  # the newest comes first
                found = client.get_workflow_handle(run.id, run_id=run.run_id)
                newest = client.get_workflow_handle(run.id)  # in which it may have gone on
                return newest if await first_run_id(newest) == await first_run_id(found) else found
    if hidden:
        raise hidden
    raise NoSuchRunError(f"there is no run '{name}', neither by that id nor of a Query of that name in {namespace}")


async def has_open_runs(client: Client) -> bool:
    """Whether any run is open; where nobody can tell, one may be."""
    try:
        return (await client.count_workflows("ExecutionStatus = 'Running'")).count > 0
    except RPCError:
        return True


async def has_worker(client: Client, task_queue: str | None = None) -> bool:
    """Whether any worker waits for runs."""
    queue = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue or temporal_client.task_queue()),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    return bool((await client.workflow_service.describe_task_queue(queue, retry=True)).pollers)


async def status_of(handle: Handle) -> Status:
    """How a run stands; asks its workflow, so a worker must run. One that Temporal has closed by itself has failed."""
    status: Status = await handle.query("status", result_type=Status)
    closed = (await handle.describe()).status
    if status.phase != "Running" or closed in (None, WorkflowExecutionStatus.RUNNING):
        return status
    return status.model_copy(update=_closed_by_temporal(closed))


async def closed_status(handle: Handle) -> Status:
    """How a run has ended that says nothing of it itself: Temporal has closed it."""
    about = await handle.describe()
    if about.status in (None, WorkflowExecutionStatus.CANCELED):
        how: dict[str, object] = {"phase": "Canceled", "stop_reason": "canceled"}
    else:
        how = _closed_by_temporal(about.status)
    end = instant(about.close_time or about.start_time)
    return Status.model_validate({**how, "start_time": instant(about.start_time), "completion_time": end})


def _closed_by_temporal(closed: WorkflowExecutionStatus) -> dict[str, object]:
    failure = RunClosed(f"the run was closed in Temporal: {closed.name.lower().replace('_', ' ')}").as_failure()
    return {"phase": "Failed", "stop_reason": "failed", "error": failure.message, "failure": failure}


async def wait_until_closed(handle: Handle) -> None:
    """Waits until a run is over, however it ends and however often Temporal is away meanwhile."""
    while True:
        try:
            await handle.result()
            return
        except WorkflowFailureError:
            return
        except RPCError:
            await asyncio.sleep(1)


async def final_status(handle: Handle) -> Status:
    """Waits until a run is over, and says how it ended."""
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    return await status_of(handle)


async def terminate(handle: Handle, reason: str, *, now: bool) -> None:
    """Asks a run to end gracefully after the current turn, or ``now``."""
    await handle.signal("terminate_team", TerminateRequest(reason=reason, now=now))


async def run_manifest(client: Client, handle: Handle, status: Status) -> JsonObject:
    """What a run was started with, as a manifest with its status filled in."""
    run_id = handle.run_id or (await handle.describe()).run_id
    (_, started), *_ = await execution_chain(client, handle.id, run_id)
    values = await client.data_converter.decode(started.input.payloads, [dict[str, JsonValue]])
    return {**_asked_for(values[0], started.workflow_type.name), "status": _plain(status)}


def _asked_for(given: JsonObject, workflow: str) -> JsonObject:
    kind = "Query" if workflow == "query" else "Agent" if workflow == "agent" else "Team"
    name = given.get("name") or given.get("team") or given.get("agent") or "query"
    namespace = given.get("namespace", "default")
    metadata: JsonObject = {"name": name, "namespace": namespace}
    base: JsonObject = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata}
    brought = given.get("resources")
    for each in brought if isinstance(brought, list) else []:
        if isinstance(each, dict) and each.get("kind") == kind and _names(each) == (metadata["name"], namespace):
            return each
    return {**base, "spec": given["spec"]} if "spec" in given else base


def _names(manifest: JsonObject) -> tuple[JsonValue, JsonValue]:
    metadata = manifest.get("metadata")
    return (metadata.get("name"), metadata.get("namespace", "default")) if isinstance(metadata, dict) else (None, None)


def _plain(value: Plain) -> JsonObject:
    plain: JsonObject = value.model_dump(mode="json", exclude_unset=True)
    return plain


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
