"""The client whose behaviour the conformance suite of MCP checks: Baton's, which lists a server's tools and uses each.

``python -m benchmarks.mcp_client [ADDRESS | COMMAND ARGUMENT …]`` prints what it got, as JSON. A scenario that wants
certain calls says so in the environment variable MCP_CONFORMANCE_CONTEXT.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from pydantic import JsonValue

from baton.activities.runtime.heartbeat import Heartbeat, run_with
from baton.activities.tool.mcp.connection import McpConnections
from baton.activities.tool.mcp.content import result_text
from baton.activities.tool.mcp.endpoint import McpEndpoint
from baton.activities.tool.mcp.operations import list_tools, use_tool
from baton.activities.tool.mcp.pinned_tools import ListedTool
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


def calls_of(tools: Iterable[ListedTool]) -> list[tuple[str, dict[str, JsonValue]]]:
    """The calls that a scenario wants, as names and arguments; else one of each tool."""
    wanted = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}").get("toolCalls", ())
    known = [(str(each["name"]), each["arguments"]) for each in wanted]
    return known or [(tool.name, arguments(tool.input_schema)) for tool in tools]


async def use_all(endpoint: McpEndpoint) -> dict[str, str]:
    """The result of each tool of a server, or its failure, by the tool's name."""
    connections, results = McpConnections(), dict[str, str]()

    async def current(_: bool) -> McpEndpoint:
        return endpoint

    try:
        listed = await McpRequest(connections, current).send(list_tools, SECONDS)
        for name, given in calls_of(listed):
            request = McpRequest(connections, current)
            operation = use_tool(name, given, "the server")
            try:
                results[name] = result_text(await request.send(operation, SECONDS))
            except BatonError as error:
                results[name] = f"{type(error).__name__}: {error.message}"
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
