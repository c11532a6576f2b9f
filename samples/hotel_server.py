"""An MCP server of a hotel, which asks the guest which room to book: python samples/hotel_server.py [PORT]."""

import sys
from typing import Annotated

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

hotel = MCPServer("hotel")


class Room(BaseModel):
    """What the guest is asked."""

    room: str


def ask_room() -> Elicit[Room]:
    """The question, which the server puts to the guest in the way of the client's version of the protocol."""
    return Elicit("The blue room costs 90 euros, the one with a view of the sea 120. Which room?", Room)


@hotel.tool()
def book(day: str, choice: Annotated[ElicitationResult[Room], Resolve(ask_room)]) -> str:
    """Books a room for a day. The guest is asked which one."""
    if not isinstance(choice, AcceptedElicitation):
        return "Nothing is booked: the guest has chosen no room."
    return f"Booked: the room '{choice.data.room}' on {day}."


if __name__ == "__main__":
    hotel.run("streamable-http", port=int(sys.argv[1]) if len(sys.argv) > 1 else 3002)
