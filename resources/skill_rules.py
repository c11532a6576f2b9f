"""Rules of Skills, and of the agents that have them."""

from collections.abc import Iterator

from .agent import Agent
from .base import Path
from .catalog import Catalog
from .skill import LOAD_SKILL, Skill


def broken_skill_rules(catalog: Catalog) -> Iterator[tuple[Agent | Skill, Path, str]]:
    """The Agents and Skills that break them, each with the path and what is wrong."""
    for each in catalog.manifests:
        if isinstance(each, Agent) and each.spec.skills:
            yield from _broken_by_agent(each)
        if isinstance(each, Skill) and each.spec.folder:
            text = "is only read for manifests in files: write description, instructions and files"
            yield each, ("spec", "folder"), text


def _broken_by_agent(agent: Agent) -> Iterator[tuple[Agent, Path, str]]:
    names = [skill.name for skill in agent.spec.skills]
    if twice := next((name for name in names if names.count(name) > 1), None):
        yield agent, ("spec", "skills"), f"'{twice}' appears twice"
    if any(tool.name == LOAD_SKILL for tool in agent.spec.tools):
        yield agent, ("spec", "tools"), f"'{LOAD_SKILL}' is the tool that loads skills: give the tool another name"
    if agent.is_remote:
        yield agent, ("spec", "skills"), "can't be used by an agent that is executed elsewhere: remove it"
