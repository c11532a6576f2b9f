"""The tool by which a model reads the skills of its agent."""

from ...conversation.errors import BadArguments
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.skill import LOAD_SKILL, Skill
from ..context.skills import skills_of
from .tool import CallableTool, ToolDefinition


def skill_tools(agent: Agent, catalog: Catalog) -> list[CallableTool]:
    """The tool that reads skills, if the agent has any. It reads what was pinned with the run, and no file."""
    skills = skills_of(agent, catalog)
    if not skills:
        return []

    async def load(arguments: JsonObject) -> str:
        name, file = str(arguments["skill"]), arguments.get("file")
        return _main_text(skills[name]) if file is None else _file(skills[name], str(file))

    return [CallableTool(_definition([*skills]), load)]


def _definition(names: list[str]) -> ToolDefinition:
    properties: JsonObject = {
        "skill": {"type": "string", "enum": [*names]},
        "file": {"type": "string", "description": "A file of the skill; without it, the skill's instructions."},
    }
    schema: JsonObject = {"type": "object", "properties": properties, "required": ["skill"]}
    return ToolDefinition(LOAD_SKILL, "Reads the instructions of a skill, or one of its files.", schema)


def _main_text(skill: Skill) -> str:
    """The instructions, and which files there are."""
    files = "\n".join(f"- {name}" for name in skill.spec.files)
    return f"{skill.spec.instructions}\n\nFiles of this skill:\n{files}" if files else skill.spec.instructions or ""


def _file(skill: Skill, name: str) -> str:
    if (text := skill.spec.files.get(name.removeprefix("./"))) is None:
        known = ", ".join(skill.spec.files) or "none"
        raise BadArguments(f"the skill {skill.name} has no file '{name}'; its files: {known}")
    return text
