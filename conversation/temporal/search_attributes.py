"""By what can runs be searched? Four attributes, which a server must know before a run can carry them."""

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

ALL = (TEAM, STRATEGY, PHASE, STOP_REASON)

AttributeValues = Mapping[SearchAttributeKey[str], str | None]


def attributes_of(plan: Plan) -> AttributeValues:
    """The team that a run is of, or asks alone, and its strategy."""
    if isinstance(plan, TeamPlan):
        return {TEAM: plan.name, STRATEGY: plan.strategy}
    if isinstance(plan, QueryPlan) and len(plan.targets) == 1 and plan.targets[0].type == "team":
        return {TEAM: plan.targets[0].name, STRATEGY: plan.targets[0].workflow}
    return {}


def updates(values: AttributeValues) -> list[SearchAttributeUpdate[str]]:
    """What makes these a run's attributes; those without a value stay as they are."""
    return [key.value_set(value) for key, value in values.items() if value]


async def registered(client: Client) -> bool:
    """Whether the server's namespace knows all four; where nobody may ask, it counts as one that doesn't."""
    try:
        found = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace), retry=True
        )
    except RPCError:
        return False
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    return all(found.custom_attributes.get(key.name) == keyword for key in ALL)


async def register(client: Client) -> None:
    """Makes them known to the server; raises RPCError where that is not allowed."""
    if not await registered(client):
        wanted = {key.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD for key in ALL}
        request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wanted)
        await client.operator_service.add_search_attributes(request, retry=True)
