"""An MCP server whose calls take a while, each a line in a file: one tool may be repeated, one may not."""

import asyncio
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

SECONDS = 2.0
"""How long each execution takes, at whatever counterpart."""

HELD = "held"
"""While a file of this name is beside that of the executions, none of them ends."""


async def execute(file: Path, label: str) -> str:
    """Notes in a file that an execution begins, takes its time, and gives the answer."""
    with file.open("a") as begun:
        begun.write(f"{label}\n")
    await asyncio.sleep(SECONDS)
    while (file.parent / HELD).exists():
        await asyncio.sleep(0.05)
    return answer_of(label)


def answer_of(label: str) -> str:
    """What everything that is asked for a run answers."""
    return f"the answer of {label}."


def make_server(file: Path) -> MCPServer:
    """The server; ``file`` gets the line of each call, the label of its run."""
    server = MCPServer("noted")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def read(label: str) -> str:
        """May be repeated."""
        return await execute(file, label)

    @server.tool()
    async def write(label: str) -> str:
        """Must not be repeated."""
        return await execute(file, label)

    return server


if __name__ == "__main__":
    asyncio.run(make_server(Path(sys.argv[1])).run_stdio_async())
