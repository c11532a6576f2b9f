"""Which tools does an agent have, and what does its model hear of them? In the order of its manifest."""

from dataclasses import replace

from activities.tool.built_in import BUILT_IN
from activities.tool.kind import Tool
from resources.agent import Agent

__all__ = ["Tool", "tools_of"]


def tools_of(agent: Agent) -> list[Tool]:
    """The agent's tools; a ``description`` in its manifest replaces the tool's own (seed 000)."""
    tools = []
    for given in agent.spec.tools:
        tool = BUILT_IN[given.name]
        description, retries = given.description or tool.description, given.on_error == "retry"
        tools.append(replace(tool, name=given.name, description=description, retries=retries))
    return tools
