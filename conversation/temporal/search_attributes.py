"""Baton's search attributes: their names, their values for a run, and their registration with a server."""

from collections.abc import Mapping

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.service import RPCError

from ..contracts.plan import Plan, QueryPlan, TeamPlan

TEAM = SearchAttributeKey.for_keyword("BatonTeam")
STRATEGY = SearchAttributeKey.for_keyword("BatonStrategy")
PHASE = SearchAttributeKey.for_keyword("BatonPhase")
STOP_REASON = SearchAttributeKey.for_keyword("BatonStopReason")

COST = SearchAttributeKey.for_float("BatonCost")

ALL = (TEAM, STRATEGY, PHASE, STOP_REASON)
"""The attributes that are keywords; a server may lack COST, which is younger."""

AttributeValues = Mapping[SearchAttributeKey[str], str | None]


def attributes_of(plan: Plan) -> AttributeValues:
    """The team of a run, or the only team that a query asks, and the strategy of the team."""
    if isinstance(plan, TeamPlan):
        return {TEAM: plan.name, STRATEGY: plan.strategy}
    if isinstance(plan, QueryPlan) and len(plan.targets) == 1 and plan.targets[0].type == "team":
        return {TEAM: plan.targets[0].name, STRATEGY: plan.targets[0].workflow}
    return {}


def updates(values: AttributeValues) -> list[SearchAttributeUpdate[str]]:
    """The updates that set these attributes on a run; an attribute without a value is not changed."""
    return [key.value_set(value) for key, value in values.items() if value]


async def registered(client: Client) -> bool:
    """Whether the server's namespace has all four attributes; False if the server doesn't allow the question."""
    found = await _types(client)
    return all(found.get(key.name) == IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD for key in ALL)


async def shows_cost(client: Client) -> bool:
    """Whether it has the attribute of the cost, which servers that were set up for an earlier version lack."""
    return (await _types(client)).get(COST.name) == IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE


async def _types(client: Client) -> Mapping[str, int]:
    try:
        found = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace), retry=True
        )
    except RPCError:
        return {}
    return found.custom_attributes


async def register(client: Client) -> None:
    """Registers the attributes with the server; raises RPCError if that is not allowed."""
    if not (await registered(client) and await shows_cost(client)):
        wanted = {key.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD for key in ALL}
        wanted[COST.name] = IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE
        request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wanted)
        await client.operator_service.add_search_attributes(request, retry=True)
