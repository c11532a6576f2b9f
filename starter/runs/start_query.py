"""Starts a run of a query."""

import random
import string

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from ...conversation.temporal import temporal_client
from ...conversation.temporal.temporal_client import WORKFLOW_TASK_TIMEOUT
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.query import Query
from .query_start import QueryStart, query_start
from .run_handle import RunHandle


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
        task_queue=task_queue or temporal_client.task_queue(),
        task_timeout=WORKFLOW_TASK_TIMEOUT,
        memo=start.memo,
        static_summary=start.summary,
    )


def _random_suffix() -> str:
    return "".join(random.choices(string.ascii_lowercase + string.digits, k=6))
