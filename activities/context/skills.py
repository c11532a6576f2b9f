"""The skills of an agent, and what its system prompt says of them."""

from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.skill import LOAD_SKILL, Skill
from .lookup import find
from .value_resolver import ValueResolver

HEADING = f"# Skills\nBefore a task that a skill is for, read the skill with the tool {LOAD_SKILL}."


def skills_of(agent: Agent, catalog: Catalog) -> dict[str, Skill]:
    """Its skills, by their names, in the order of its manifest."""
    found = (find(catalog, each) for each in agent.references if each.kinds == ("Skill",))
    return {each.name: each for each in found if isinstance(each, Skill)}


def speaker_prompt(agent: Agent, values: ValueResolver) -> str | None:
    """An agent's prompt, with the names and descriptions of its skills."""
    prompt, skills = values.prompt(agent), skills_of(agent, values.catalog)
    if not skills:
        return prompt
    listed = "\n".join(f"- {name}: {each.spec.description}" for name, each in skills.items())
    return "\n\n".join(each for each in (prompt, f"{HEADING}\n{listed}") if each)
