"""Builds the plan of a run: one function for each kind of manifest that a run can start with."""

from ...conversation.contracts.plan import Plan, QueryPlan
from ...conversation.errors import InvalidInput
from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.dialect import Dialect
from ...resources.model import Model
from ...resources.query import Query
from ...resources.team import Team
from ...resources.tool import Tool
from .agent_plan import agent_plan, model_plan, tool_plan
from .query_plan import query_plan
from .team_plan import team_plan

Startable = Query | Team | Agent | Model | Tool
"""The kinds of manifest that a run can start with."""


def build_plan(
    start: Startable,
    catalog: Catalog,
    workflow: str,
    query_ttl: float | None = None,
    dialect: Dialect | None = None,
    *,
    takes_turn: bool = False,
) -> Plan:
    """The plan of a run of ``start``. Raises InvalidInput if another workflow type than ``workflow`` runs it.

    ``query_ttl`` are the seconds after which a query that has no ``ttl`` is deleted. ``takes_turn``: its run can
    take the turn of its only target.
    """
    right = start.spec.strategy if isinstance(start, Team) else start.kind.lower()
    if right != workflow:
        raise InvalidInput(f"{start.id} is run by the workflow '{right}': start that, not '{workflow}'")
    match start:
        case Query():
            plan = query_plan(start, catalog, query_ttl, dialect)
            return _with_turn(plan, catalog) if takes_turn and len(plan.targets) == 1 else plan
        case Team():
            return team_plan(start, catalog, dialect)
        case Agent():
            return agent_plan(start, catalog)
        case Model():
            return model_plan(start, catalog)
        case Tool():
            return tool_plan(start, catalog)


def _with_turn(query: QueryPlan, catalog: Catalog) -> QueryPlan:
    """The plan of a query with a single target, and how it takes that target's turn itself; a team runs by itself."""
    (target,) = query.targets
    found = catalog.get(target.type.capitalize(), target.namespace, target.name)
    if not isinstance(found, Agent | Model | Tool):
        return query
    turn = build_plan(found, catalog, target.workflow)
    return query.model_copy(update={"targets": (target.model_copy(update={"turn": turn}),)})
