"""An MCP server of the SDK 1.x: it has sessions, and forgets them when it ends; it knows nothing of 2026-07-28."""

import asyncio
import sys
from pathlib import Path

from mcp.server.fastmcp import FastMCP
from mcp.types import ToolAnnotations

folder, port = Path(sys.argv[1]), int(sys.argv[2])
server = FastMCP("older", port=port, host="127.0.0.1")


async def execute(label: str, seconds: float) -> str:
    with (folder / "executions").open("a") as begun:
        begun.write(f"{label}\n")
    await asyncio.sleep(seconds)
    return f"the answer of {label}."


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
async def read(label: str, seconds: float = 0) -> str:
    """May be repeated."""
    return await execute(label, seconds)


@server.tool()
async def write(label: str, seconds: float = 0) -> str:
    """Must not be repeated."""
    return await execute(label, seconds)


server.run("streamable-http")
