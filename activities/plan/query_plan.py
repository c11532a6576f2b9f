"""The plan of a query: its targets, and the workflow type that answers for each of them."""

from ...conversation.contracts.conversation_plan import ConversationPlan
from ...conversation.contracts.plan import QueryPlan, TargetPlan
from ...resources.catalog import Catalog
from ...resources.dialect import Dialect
from ...resources.duration import parse_duration
from ...resources.memory import Memory
from ...resources.query import TARGETS, Query
from ...resources.team import Team
from ..context.lookup import find, find_optional
from ..runtime.ids import workflow_id


def query_plan(query: Query, catalog: Catalog, ttl: float | None, dialect: Dialect | None = None) -> QueryPlan:
    """The plan of a query; ``ttl`` in seconds is for one without. In ARK's dialect, a selector finds one target."""
    targets, named = [], any(query.targets())
    for reference in catalog.targets(query)[: 1 if dialect == "ark" and not named else None]:
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
        ttl=parse_duration(query.spec.ttl).total_seconds() if query.spec.ttl else ttl,
        conversation=_conversation(query, catalog) if any(each.type != "tool" for each in targets) else None,
    )


def _conversation(query: Query, catalog: Catalog) -> ConversationPlan | None:
    """The conversation of a query that names one or a Memory, or for which there is a Memory (ARK: queries, memory)."""
    spec = query.spec
    reference = query.memory_reference()
    found = find_optional(catalog, reference)
    if not (found or spec.memory or spec.conversation_id or spec.session_id):
        return None
    return ConversationPlan(
        id=spec.conversation_id or spec.session_id or workflow_id(),
        namespace=reference.namespace,
        memory=reference.name if found or spec.memory else "",
        remote=isinstance(found, Memory),
        on_error=found.spec.on_error if isinstance(found, Memory) else "fail",
    )
