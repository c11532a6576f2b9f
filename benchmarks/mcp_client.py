"""The client whose behaviour the conformance suite of MCP checks: Baton's, which lists a server's tools and uses each.

What a server asks in a call is answered as by a person who takes the defaults of the question.

``python -m benchmarks.mcp_client [ADDRESS | COMMAND ARGUMENT …]`` prints what it got, as JSON. A scenario that wants
certain calls says so in the environment variable MCP_CONFORMANCE_CONTEXT.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import JsonValue

from baton.activities.runtime.outbound import Destination
from baton.activities.tool.mcp.connection import McpConnections
from baton.activities.tool.mcp.endpoint import McpEndpoint
from baton.activities.tool.mcp.input import Elicitation
from baton.activities.tool.mcp.pinned_tools import ListedTool
from baton.activities.tool.mcp.request import McpRequest, list_tools, result_text, use_tool
from baton.activities.tool.tool import Answered, AsksPerson
from baton.contracts.errors import BatonError
from baton.contracts.message import PersonDecision
from baton.journal.leases import without_lease
from baton.resources.base import JsonObject
from baton.resources.provenance import Provenance
from baton.temporal.activity import Heartbeat, run_with

SECONDS = 20.0
MAX_QUESTIONS = 20

EXAMPLES: dict[str, JsonValue] = {"string": "a", "number": 1, "integer": 1, "boolean": True, "array": [], "object": {}}


def arguments(schema: dict[str, Any]) -> dict[str, JsonValue]:
    """Arguments that fit a simple schema: one of each required property's type."""
    known = schema.get("properties", {})
    return {
        name: (known[name].get("enum") or [EXAMPLES.get(known[name].get("type", "string"), "a")])[0]
        for name in schema.get("required", ())
    }


def calls_of(tools: Sequence[ListedTool]) -> list[tuple[str, dict[str, JsonValue]]]:
    """The calls that a scenario wants, as names and arguments; else one of each tool.

    The one about schemas wants that of one tool back, as a model would be given it, in a call of the other one.
    """
    if os.environ.get("MCP_CONFORMANCE_SCENARIO") == "json-schema-2020-12-preservation":
        schema = next(each.input_schema for each in tools if each.name != "json_schema_echo")
        return [("json_schema_echo", {"schema": schema})]
    wanted = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}").get("toolCalls", ())
    known = [(str(each["name"]), each["arguments"]) for each in wanted]
    return known or [(tool.name, arguments(tool.input_schema)) for tool in tools]


def answer(asks: AsksPerson) -> Answered:
    """The answer: the defaults that the question names, and an example of what is required without one."""
    schema: dict[str, Any] = asks.reply_schema or {}
    defaults = {name: each["default"] for name, each in schema.get("properties", {}).items() if "default" in each}
    text = json.dumps(arguments(schema) | defaults) if asks.reply_schema else ""
    return Answered(asks.state, PersonDecision(approved=True, at=datetime.now(UTC), text=text))


async def use(request: McpRequest, name: str, given: JsonObject) -> str:
    """The result of a tool, or its failure; repeats until it asks nothing more."""
    answered = None
    for _ in range(MAX_QUESTIONS):
        elicitation = Elicitation("the server", answered)
        operation = use_tool(name, given, "the server", elicitation)
        try:
            with without_lease():
                return result_text(await request.send(operation, SECONDS, elicitation))
        except AsksPerson as asks:
            answered = answer(asks)
        except BatonError as error:
            return f"{type(error).__name__}: {error.message}"
    return "ToolFailed: the server asks without an end"


async def use_all(endpoint: McpEndpoint) -> dict[str, str]:
    """The result of each tool of a server, or its failure, by the tool's name."""
    connections, results = McpConnections(), dict[str, str]()

    async def current(_: bool, __: bool) -> McpEndpoint:
        return endpoint

    try:
        listed = await McpRequest(connections, current).send(list_tools, SECONDS)
        for name, given in calls_of(listed):
            results[name] = await use(McpRequest(connections, current), name, given)
    finally:
        await connections.close()
    return results


def endpoint_of(given: list[str]) -> McpEndpoint:
    """The endpoint that the command line names."""
    if given[0].startswith("http"):
        server = Destination(url=given[0], provenance=Provenance.FILES, private_hosts=False)
        return McpEndpoint("it", server, "sse" if given[0].endswith("/sse") else "http", asks=True)
    return McpEndpoint("it", command=tuple(given), asks=True)


async def main() -> dict[str, str]:
    """Uses all tools, where heartbeats would be sent."""
    return await run_with(Heartbeat(str), use_all(endpoint_of(sys.argv[1:])))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main()), indent=2))
