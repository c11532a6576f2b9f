"""Tools of the real MCP server that ask a person, each in the way of the client's era."""

from pathlib import Path
from typing import Annotated

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.shared.exceptions import MCPError, UrlElicitationRequiredError
from mcp_types import ElicitRequest, ElicitRequestURLParams, InputRequiredResult
from pydantic import BaseModel

MODERN = "2026"


class Room(BaseModel):
    """Which room."""

    room: str


class Nights(BaseModel):
    """For how long."""

    nights: int


def ask_room() -> Elicit[Room]:
    """The first question."""
    return Elicit("Which room?", Room)


def ask_nights(room: Annotated[ElicitationResult[Room], Resolve(ask_room)]) -> Elicit[Nights] | Nights:
    """The second question, which knows the answer to the first one."""
    if isinstance(room, AcceptedElicitation):
        return Elicit(f"How many nights in the {room.data.room} room?", Nights)
    return Nights(nights=0)


def add_questions(server: MCPServer, folder: Path) -> None:
    """``book`` asks two questions, ``reserve`` one, ``pay`` wants an address to be opened.

    ``calls`` has a line for each success.
    """

    def note(line: str) -> None:
        with (folder / "calls").open("a") as calls:
            calls.write(f"{line}\n")

    @server.tool()
    def book(
        day: str,
        room: Annotated[ElicitationResult[Room], Resolve(ask_room)],
        nights: Annotated[ElicitationResult[Nights], Resolve(ask_nights)],
    ) -> str:
        """Books a room."""
        if not isinstance(room, AcceptedElicitation) or not isinstance(nights, AcceptedElicitation):
            return f"not booked: {room.action}"
        note(f"booked {room.data.room} for {nights.data.nights} on {day}")
        return f"booked the {room.data.room} room"

    @server.tool()
    def reserve(room: Annotated[ElicitationResult[Room], Resolve(ask_room)]) -> str:
        """Reserves a room. Without an answer, the call is an error of the protocol and not of the tool."""
        if not isinstance(room, AcceptedElicitation):
            raise MCPError(code=-32_000, message=f"not reserved: {room.action}")
        note(f"reserved {room.data.room}")
        return f"reserved the {room.data.room} room"

    @server.tool()
    async def pay(ctx: Context) -> str | InputRequiredResult:
        """Pays, at an address that a person opens."""
        paid = folder / "paid"
        params = ElicitRequestURLParams(message="Pay for it.", url="https://pay.example/7", elicitation_id="7")
        if paid.exists():
            note("paid")
            return "paid"
        if (ctx.protocol_version or "") < MODERN:
            raise UrlElicitationRequiredError([params])
        if ctx.input_responses:
            return f"not paid: {ctx.input_responses['pay'].action}"  # type: ignore[union-attr]  # only elicited
        return InputRequiredResult(input_requests={"pay": ElicitRequest(params=params)}, request_state="state")
