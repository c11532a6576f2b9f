"""Manifests of agents that are executed elsewhere, and what their servers respond."""

import json
from typing import Any

from tests.harness.agent_server import AgentServer
from tests.harness.environment import Json, agent
from tests.harness.manifests import prealpha
from tests.harness.tool_server import Answer, ToolServer


def engine_agent(name: str, *tools: str, **spec: Any) -> Json:
    """An agent of the ExecutionEngine ``engine``."""
    return agent(name, *tools, executionEngine={"name": "engine"}, **spec)


def engine(tool_server: ToolServer, **spec: Any) -> Json:
    """The ExecutionEngine ``engine``."""
    return prealpha("ExecutionEngine", "engine", {"type": "langchain", "address": f"{tool_server.url}/v1", **spec})


def said(*texts: str, delay: float = 0, **more: Any) -> Answer:
    """A response of an ExecutionEngine."""
    messages = [{"role": "assistant", "content": text} for text in texts]
    return Answer(json.dumps({"messages": messages, **more}), delay=delay, headers={"content-type": "application/json"})


def a2a_agent(name: str) -> Json:
    """An agent of the A2AServer ``far``."""
    made = agent(name, executionEngine={"name": "a2a"})
    made["metadata"]["annotations"] = {"a2a.server/name": "far"}
    del made["spec"]["prompt"]
    return made


def a2a_server(agents: AgentServer, **spec: Any) -> Json:
    """The A2AServer ``far``."""
    return prealpha("A2AServer", "far", {"address": agents.url, **spec})
