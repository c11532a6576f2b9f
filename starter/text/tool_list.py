"""Text for people about the tools of agents: what each is for, and its arguments."""

from collections.abc import Iterable, Iterator
from textwrap import wrap

from pydantic import JsonValue

from ...resources.base import JsonObject

WIDTH = 100


def tool_list(agents: Iterable[JsonObject]) -> str:
    """A paragraph for each agent; ``agents`` as ``operations.agent_tools`` gives them."""
    return "\n".join(line for each in agents for line in _agent(each))


def _agent(agent: JsonObject) -> Iterator[str]:
    tools = _objects(agent["tools"])
    yield f"{agent['agent']}: {len(tools)} {'tool' if len(tools) == 1 else 'tools'}"
    for tool in tools:
        yield f"  {tool['name']}({', '.join(_arguments(tool['parameters']))})"
        for paragraph in str(tool["description"]).splitlines():
            yield from (f"    {line}" for line in wrap(paragraph, WIDTH))


def _arguments(schema: JsonValue) -> Iterator[str]:
    """The names of the arguments with their types; one that may be left out has a ``?``."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    required = schema.get("required") if isinstance(schema, dict) else None
    for name, each in properties.items() if isinstance(properties, dict) else ():
        optional = "" if isinstance(required, list) and name in required else "?"
        kind = each.get("type") if isinstance(each, dict) else None
        yield f"{name}{optional}: {kind}" if isinstance(kind, str) else f"{name}{optional}"


def _objects(values: JsonValue) -> list[JsonObject]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []
