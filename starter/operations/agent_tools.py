"""Lists the tools of agents as their models see them, including those of MCP servers."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from textwrap import wrap

from pydantic import JsonValue

from ...activities.context.value_resolver import ValueResolver
from ...activities.runtime.functions import FunctionRegistry, marked_functions
from ...activities.runtime.secrets import SecretStore
from ...activities.runtime.settings import Settings
from ...activities.tool.tools import Tools
from ...contracts.errors import BatonError
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.loader import Loaded
from ...resources.run_catalog import RunCatalog
from ..errors import UsageError


async def tools_of(loaded: Loaded, agents: Sequence[Agent]) -> list[JsonObject]:
    """The namespace, name and tools of agents; a tool has a name, a description and a JSON Schema.

    Raises ManifestError for a missing manifest, and UsageError if a server can't be reached.
    """
    secrets = SecretStore(loaded.secrets, os.environ)
    functions = FunctionRegistry(marked_functions(Settings.of(os.environ).functions), max_concurrent=1)
    tools = Tools(secrets, functions)
    try:
        return [await _tools_of(loaded, agent, tools, secrets) for agent in agents]
    except BatonError as error:
        raise UsageError(secrets.redact(error.message)) from None
    finally:
        await tools.close()
        functions.close()


async def _tools_of(loaded: Loaded, agent: Agent, tools: Tools, secrets: SecretStore) -> JsonObject:
    values = ValueResolver(RunCatalog.of_files(loaded.needed_by(agent)), secrets)
    catalog = await tools.pin(values)
    pinned = catalog.by_id(agent.id)
    assert isinstance(pinned, Agent)
    definitions = [tool.definition for tool in await tools.of_agent(pinned, replace(values, catalog=catalog))]
    listed: list[JsonValue] = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in definitions
    ]
    return {"namespace": agent.namespace, "agent": agent.name, "tools": listed}


WIDTH = 100


def tool_list(agents: Iterable[JsonObject]) -> str:
    """The agents and their tools as text; ``agents`` is the result of ``tools_of``."""
    return "\n".join(line for agent in agents for line in _agent(agent))


def _agent(agent: JsonObject) -> Iterator[str]:
    tools = _objects(agent["tools"])
    yield f"{agent['agent']}: {len(tools)} {'tool' if len(tools) == 1 else 'tools'}"
    for tool in tools:
        yield f"  {tool['name']}({', '.join(_arguments(tool['parameters']))})"
        for paragraph in str(tool["description"]).splitlines():
            yield from (f"    {line}" for line in wrap(paragraph, WIDTH))


def _arguments(schema: JsonValue) -> Iterator[str]:
    """The names of the arguments with their types; optional ones have a ``?``."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    required = schema.get("required") if isinstance(schema, dict) else None
    for name, property_schema in properties.items() if isinstance(properties, dict) else ():
        optional = "" if isinstance(required, list) and name in required else "?"
        kind = property_schema.get("type") if isinstance(property_schema, dict) else None
        yield f"{name}{optional}: {kind}" if isinstance(kind, str) else f"{name}{optional}"


def _objects(values: JsonValue) -> list[JsonObject]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
