"""Starts a run of a query."""

import random
import string

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from ...conversation.contracts.inputs import QueryInput
from ...conversation.temporal import temporal_client
from ...conversation.temporal.temporal_client import WORKFLOW_TASK_TIMEOUT
from ...conversation.text import truncate
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.query import Query
from .run_handle import RunHandle
from .run_manifest import to_json

MAX_SUMMARY_BYTES = 120
"""The length at which the input is cut in the run's summary in Temporal's UI."""


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
    given = QueryInput(name=query.name, namespace=query.namespace, resources=tuple(map(to_json, catalog.manifests)))
    return await client.start_workflow(
        "query",
        given.model_copy(update={"session": session}) if session else given,
        id=run_id or f"{query.name}-{_random_suffix()}",
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING if run_id else WorkflowIDConflictPolicy.FAIL,
        task_queue=task_queue or temporal_client.task_queue(),
        task_timeout=WORKFLOW_TASK_TIMEOUT,
        memo={"query": query.name, "namespace": query.namespace},
        static_summary=truncate(" ".join(query.spec.input.split()), MAX_SUMMARY_BYTES),
    )


def _random_suffix() -> str:
    return "".join(random.choices(string.ascii_lowercase + string.digits, k=6))
