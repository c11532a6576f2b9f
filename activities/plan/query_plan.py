"""The plan of a query: its targets, and the workflow type that answers for each of them."""

from ...conversation.contracts.plan import QueryPlan, TargetPlan
from ...resources.catalog import Catalog
from ...resources.duration import parse_duration
from ...resources.query import TARGETS, Query
from ...resources.team import Team
from ..context.lookup import find


def query_plan(query: Query, catalog: Catalog) -> QueryPlan:
    """The plan of a query."""
    targets = []
    for reference in catalog.targets(query):
        found = find(catalog, reference)
        kind = TARGETS[found.kind]
        workflow = found.spec.strategy if isinstance(found, Team) else kind
        targets.append(TargetPlan(type=kind, name=found.name, namespace=found.namespace, workflow=workflow))
    return QueryPlan(
        kind="query",
        name=query.name,
        namespace=query.namespace,
        targets=tuple(targets),
        timeout=parse_duration(query.spec.timeout).total_seconds() if query.spec.timeout else None,
        fail_fast=query.spec.fail_fast,
        budget=query.budget,
    )
