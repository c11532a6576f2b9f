"""Tools that are made when a run begins, of what a server or a document lists: their names, and who has them."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from ...resources.agent import Agent
from ...resources.agent_tool import AgentTool
from ...resources.base import Reference

MAX_NAME = 64
"""Characters of a tool's name: models take no longer ones."""

Chosen = Callable[[Reference], Sequence[str] | None]
"""The names of the made tools that a reference stands for; None where it names a manifest of its own."""


def tool_names(prefix: str, names: Iterable[str]) -> Iterator[str]:
    """A name for each tool, as in ``prefix-read-file``; no two are the same."""
    known = set[str]()
    for name in names:
        short = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "tool"
        first = made = f"{prefix}-{short}"[:MAX_NAME].rstrip("-")
        for number in count(2):  # two names may differ in what is not kept of them
            if made not in known:
                break
            made = f"{first[: MAX_NAME - 4]}-{number}"
        known.add(made)
        yield made


def with_made_tools(agent: Agent, chosen: Chosen) -> Agent:
    """The agent with the tools that one of its own stands for, without those that it has by name already."""
    tools = tuple(_tools(agent, chosen))
    if tools == agent.spec.tools:
        return agent
    return agent.model_copy(update={"spec": agent.spec.model_copy(update={"tools": tools})})


def _tools(agent: Agent, chosen: Chosen) -> Iterator[AgentTool]:
    own = {tool.name for tool in agent.spec.tools}
    for given, reference in agent.tools():
        names = chosen(reference) if reference else None
        for name in (given.own_name,) if names is None else names:
            if name == given.own_name:
                yield given
            elif name not in own:
                own.add(name)
                presets = given.partial.model_copy(update={"name": None}) if given.partial else None
                made = {"name": name, "type": None, "description": None, "partial": presets}
                yield given.model_copy(update=made)
