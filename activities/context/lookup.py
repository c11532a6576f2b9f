"""Looks resources up in the catalog of a run; what is missing raises UnknownResource."""

from ...conversation.errors import UnknownResource
from ...resources.base import Reference
from ...resources.catalog import Catalog, Resource
from ...resources.mcp_server import MCPServer
from ...resources.team import Team
from ...resources.tool import Tool


def find(catalog: Catalog, reference: Reference) -> Resource:
    """The resource that a reference names."""
    if found := catalog.find(reference):
        return found
    raise UnknownResource(f"{reference} is known neither to the run nor to its worker")


def find_optional(catalog: Catalog, reference: Reference) -> Resource | None:
    """The same; None where the reference is optional and names nothing."""
    return catalog.find(reference) if reference.optional else find(catalog, reference)


def find_team(catalog: Catalog, team_id: str) -> Team:
    """The team with an id such as ``Team/default/writers``."""
    if isinstance(team := catalog.by_id(team_id), Team):
        return team
    raise UnknownResource(f"the run's catalog has no {team_id}")


def mcp_server_of(tool: Tool, catalog: Catalog) -> MCPServer | None:
    """The MCPServer of a tool of type 'mcp'."""
    reference = tool.mcp_server()
    server = find(catalog, reference) if reference else None
    return server if isinstance(server, MCPServer) else None
