"""Runs that are made to stop a worker: hostile conditions, schemas, and answers of servers."""

from collections.abc import Iterator
from typing import Any

from tests.chaos.hostile_values import PACKED
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.manifests import prealpha
from tests.harness.remote_agents import a2a_agent
from tests.harness.tool_server import Answer

DEEP = "[" * 9_000 + "]" * 9_000
DIGITS = "[0,1,2,3,4,5,6,7,8,9]"
SLOW = "^([A-Za-z]+ ?)+$"


def _doubled(levels: int) -> Json:
    schemas: Json = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**schemas, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def _with_tool(url: str, properties: Json, **more: Any) -> list[Json]:
    spec = {"type": "http", "http": {"url": url}, "inputSchema": {"type": "object", "properties": properties, **more}}
    return [agent("evil", "t"), manifest("Tool", "t", spec), team("hostile", "evil", maxTurns=1, onMaxTurns="complete")]


Case = tuple[str, list[Json], Json, Answer | None]
"""A name, the manifests, the arguments of the model's tool call, and what the server at the address answers."""


def cases(url: str) -> Iterator[Case]:
    """All cases, whose server is at this address."""
    hidden = f"{DIGITS}.all//\n(turn, " * 12 + "true" + ")" * 12
    yield (
        "CEL: loops behind comments",
        [agent("evil"), team("hostile", "evil", terminateWhen=hidden, maxTurns=2)],
        {},
        None,
    )
    joined = "+".join(["message"] * 100) + " == ''"
    yield "CEL: long texts joined", [agent("evil"), team("hostile", "evil", terminateWhen=joined, maxTurns=2)], {}, None
    words: Json = {"a": "a" * 50 + "!"}
    yield "schema: a pattern", _with_tool(url, {"a": {"pattern": SLOW}}), words, None
    yield "schema: doubled 30 times", _with_tool(url, {}, **_doubled(30)), words, None
    yield "schema: refers to itself", _with_tool(url, {"a": {"$ref": "#/properties/a"}}), words, None
    many: Json = {"a": [each for n in range(9_000) for each in (n, str(n))]}
    yield "schema: unique items", _with_tool(url, {"a": {"uniqueItems": True}}), many, None
    yield "schema: a huge number", _with_tool(url, {"a": {"multipleOf": 0.5}}), {"a": 10**400}, None
    for encoding in ("gzip", "gzip, gzip", "br"):
        headers = {"content-encoding": encoding, "content-type": "text/plain"}
        packed = Answer(PACKED.get(encoding, b"x"), headers=headers)
        yield f"tool: {encoding}", _with_tool(url, {}), {}, packed
    yield "tool: charset zlib", _with_tool(url, {}), {}, Answer(headers={"content-type": "text/plain; charset=zlib"})
    yield "tool: host 0177.0.0.1", _with_tool("http://0177.0.0.1/", {}), {}, None
    yield from _packed_answers(url)


def _packed_answers(url: str) -> Iterator[Case]:
    """Servers of each kind that answer with little that unpacks to much, or with one event that has no end."""
    alone = team("hostile", "evil", maxTurns=1, onMaxTurns="complete")
    servers: dict[str, list[Json]] = {}
    for kind in ("openai", "anthropic"):
        spec = {"provider": kind, "model": {"value": "m"}, "config": {kind: {"baseUrl": {"value": url}}}}
        servers[kind] = [agent("evil", modelRef={"name": "bomb"}), manifest("Model", "bomb", spec)]
    servers["engine"] = [
        agent("evil", executionEngine={"name": "far"}),
        prealpha("ExecutionEngine", "far", {"type": "x", "address": {"value": url}}),
    ]
    servers["A2A"] = [a2a_agent("evil"), prealpha("A2AServer", "far", {"address": {"value": url}})]
    servers["MCP"] = [
        agent("evil", tools=[{"name": "far", "type": "mcp"}], onToolsUnavailable="fail"),
        manifest("MCPServer", "far", {"address": {"value": url}}),
    ]
    for kind, given in servers.items():
        packed = {"content-encoding": "gzip, gzip", "content-type": "application/json"}
        yield f"{kind}: gzip, gzip", [*given, alone], {}, Answer(PACKED["gzip, gzip"], headers=packed)
        endless = Answer(b"data: " + b"x" * 30_000_000, headers={"content-type": "text/event-stream"})
        yield f"{kind}: an event of 30 MB", [*given, alone], {}, endless
