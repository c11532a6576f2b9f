"""Who uses an MCP server in a run: agents, by their tools, and a query whose target is one of its tools."""

from collections.abc import Sequence

from ....resources.agent import Agent
from ....resources.base import Reference
from ....resources.catalog import Catalog
from ....resources.mcp_server import MCPServer
from ....resources.query import Query
from ....resources.tool import Tool
from ...context.lookup import mcp_server_of


def users_of(server: MCPServer, catalog: Catalog) -> Sequence[Agent | Query]:
    """The agents and queries that use a server, by their ids."""

    def is_used(reference: Reference) -> bool:
        found = catalog.find(reference)
        return (mcp_server_of(found, catalog) if isinstance(found, Tool) else found) is server

    found: list[Agent | Query] = []
    for each in catalog.manifests:
        used = [reference for _, reference in each.tools() if reference] if isinstance(each, Agent) else ()
        targets = catalog.targets(each) if isinstance(each, Query) else ()
        if isinstance(each, Agent | Query) and any(map(is_used, (*used, *targets))):
            found.append(each)
    return found
