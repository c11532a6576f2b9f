"""Fields of a Tool: its hints, and who or what is behind a tool of each type."""

from pydantic import Field

from .base import JsonModel, JsonObject, Name, Ref, Text

ASKING: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "What is asked, with all that is needed to answer it."}},
    "required": ["input"],
}
"""The schema of a tool of type 'agent' or 'team' that has none of its own (ARK: agents as tools)."""


class Annotations(JsonModel):
    """Hints about a tool, with the names of MCP."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class McpSpec(JsonModel):
    """A tool of an MCP server."""

    mcp_server_ref: Ref | None = Field(None, description="the MCPServer")
    tool_name: str | None = Field(None, description="the tool's name on that server")


class NameRef(JsonModel):
    """The name of an agent or a team, in the namespace of the tool."""

    name: Name = Field(description="its name")


class RegisteredFunction(JsonModel):
    """The name of a registered Python function."""

    name: Text = Field(description="its name")
