"""The rule that tools which ask agents and teams, whose tools ask others, come to an end."""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from .agent import Agent
from .catalog import Catalog
from .team import Team
from .tool import Tool

MAX_TOOL_DEPTH = 8
"""How many tools may stand below each other, each asking the agent or the team that has the next one."""


def too_deep_tools(catalog: Catalog) -> Iterator[tuple[Tool, str]]:
    """The tools below which too many others stand: the innermost of them alone."""
    nodes = {each.id: each for each in catalog.manifests if isinstance(each, Team | Agent | Tool)}
    below = {
        key: [found.id for ref in each.references if (found := catalog.find(ref)) and found.id in nodes]
        for key, each in nodes.items()
    }
    try:
        order = [*TopologicalSorter(below).static_order()]
    except CycleError:
        return  # who contains itself has a rule of its own
    depths: dict[str, int] = {}
    for key in order:
        node, deepest = nodes[key], max((depths[each] for each in below[key]), default=0)
        depths[key] = deepest + 1 if isinstance(node, Tool) and node.asks else deepest
        if isinstance(node, Tool) and depths[key] > MAX_TOOL_DEPTH == deepest:
            yield node, f"{depths[key]} tools stand below each other, each asking the next one; {MAX_TOOL_DEPTH} may"
