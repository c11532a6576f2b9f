"""With what a run of a query is started: its input, and what Temporal shows of it."""

from dataclasses import dataclass

from ...conversation.contracts.inputs import QueryInput
from ...conversation.text import truncate
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.query import Query, QueryName
from .run_manifest import to_json

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
