"""Preset arguments: takes them out of a tool's schema, and puts them into each use of it."""

from collections.abc import Callable
from dataclasses import replace

from pydantic import JsonValue

from ...conversation.errors import InvalidManifest
from ...conversation.text import parse_json
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.partial import QUERY, PresetArguments
from ...resources.template import fill
from ...resources.tool import Tool
from ...resources.values import Parameter
from ..context.schema_errors import schema_errors
from ..context.value_resolver import ValueResolver
from .tool import CallableTool

Resolve = Callable[[Parameter], str | None]
"""From a preset argument to its text; None where an optional value is missing."""


def with_presets(
    tool: CallableTool, presets: PresetArguments | None, owner: Tool | Agent, agent: Agent | None, values: ValueResolver
) -> CallableTool:
    """The tool without its preset arguments, which ``owner`` names and which win over what a model sends.

    Their values are resolved when the tool is used, and are never stored.
    """
    if presets is None or not presets.parameters:
        return tool
    names = {each.name for each in presets.parameters}
    full, use, resolve = tool.definition.parameters, tool.use, _resolver(owner, agent, values)

    async def use_with_presets(arguments: JsonObject) -> str:
        given = {name: each for name, each in arguments.items() if name not in names}
        for preset in presets.parameters:
            if (text := resolve(preset)) is not None:
                given[preset.name] = _typed(text, _properties(full).get(preset.name))
        if wrong := [each for each in await schema_errors(given, full) if _is_about(each, names)]:
            raise InvalidManifest(f"{owner.id}: the preset arguments of {tool.definition.name} don't fit: {wrong[0]}")
        return await use(given)

    definition = replace(tool.definition, parameters=_without(full, names))
    return replace(tool, definition=definition, use=use_with_presets)


def _resolver(owner: Tool | Agent, agent: Agent | None, values: ValueResolver) -> Resolve:
    """A literal is a template of the parameters of the tool, the agent and the query; other values are none."""
    query = values.query()
    value = values.parameter_lookup(owner, *(each for each in (agent, query) if each))

    def named(name: str) -> str:
        return (
            values.parameter_lookup(query)(name.removeprefix(QUERY))
            if query and name.startswith(QUERY)
            else value(name)
        )

    return lambda preset: fill(preset.value, named) if preset.value else values.resolve(preset, owner)


def _without(schema: JsonObject, names: set[str]) -> JsonObject:
    properties: JsonObject = {name: each for name, each in _properties(schema).items() if name not in names}
    required = schema.get("required")
    left: JsonObject = {**schema, "properties": properties}
    if isinstance(required, list):
        left["required"] = [name for name in required if name not in names]
    return left


def _properties(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _typed(text: str, schema: JsonValue) -> JsonValue:
    """A text as its argument: a number, an object and the like where the schema wants no text."""
    types = schema.get("type", "string") if isinstance(schema, dict) else "string"
    if "string" in (types if isinstance(types, list) else [types]):
        return text
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return value


def _is_about(error: str, names: set[str]) -> bool:
    """Whether an error lies in one of the preset arguments: the others were checked before, with their defaults."""
    return any(error.startswith((f"$.{name}:", f"$.{name}.", f"$.{name}[")) for name in names)
