"""The client whose behaviour the conformance suite of MCP checks: Baton's, which lists a server's tools and uses each.

``python -m benchmarks.mcp_client [ADDRESS | COMMAND ARGUMENT …]`` prints what it got, as JSON.
"""

import asyncio
import json
import sys
from typing import Any

from pydantic import JsonValue

from baton.activities.runtime.heartbeat import Heartbeat, run_with
from baton.activities.tool.mcp.connection import McpConnections
from baton.activities.tool.mcp.content import result_text
from baton.activities.tool.mcp.endpoint import McpEndpoint
from baton.activities.tool.mcp.operations import list_tools, use_tool
from baton.activities.tool.mcp.request import McpRequest
from baton.conversation.failure import BatonError

SECONDS = 20.0

EXAMPLES: dict[str, JsonValue] = {"string": "a", "number": 1, "integer": 1, "boolean": True, "array": [], "object": {}}


def arguments(schema: dict[str, Any]) -> dict[str, JsonValue]:
    """Arguments that fit a simple schema: one of each required property's type."""
    known = schema.get("properties", {})
    return {
        name: (known[name].get("enum") or [EXAMPLES.get(known[name].get("type", "string"), "a")])[0]
        for name in schema.get("required", ())
    }


async def use_all(endpoint: McpEndpoint) -> dict[str, str]:
    """The result of each tool of a server, or its failure, by the tool's name."""
    connections, results = McpConnections(), dict[str, str]()

    async def current(_: bool) -> McpEndpoint:
        return endpoint

    try:
        listed = await McpRequest(connections, current).send(list_tools, SECONDS)
        for tool in listed:
            request = McpRequest(connections, current)
            operation = use_tool(tool.name, arguments(tool.input_schema), "the server")
            try:
                results[tool.name] = result_text(await request.send(operation, SECONDS))
            except BatonError as error:
                results[tool.name] = f"{type(error).__name__}: {error.message}"
    finally:
        await connections.close()
    return results


def endpoint_of(given: list[str]) -> McpEndpoint:
    """The endpoint that the command line names."""
    if given[0].startswith("http"):
        return McpEndpoint("it", given[0], "sse" if given[0].endswith("/sse") else "http")
    return McpEndpoint("it", command=tuple(given))


async def main() -> dict[str, str]:
    """Uses all tools, where heartbeats would be sent."""
    return await run_with(Heartbeat(str), use_all(endpoint_of(sys.argv[1:])))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main()), indent=2))
