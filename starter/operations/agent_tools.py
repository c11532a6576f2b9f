"""Asks the servers of agents' tools what the models of these agents would be told."""

import os
from collections.abc import Sequence
from dataclasses import replace

from ...activities.context.value_resolver import ValueResolver
from ...activities.process.functions import FunctionRegistry
from ...activities.process.secrets import SecretStore
from ...activities.process.settings import Settings
from ...activities.tool.tool import ToolDefinition
from ...activities.tool.tools import Tools
from ...conversation.failure import BatonError
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.loader import Loaded
from ..errors import UsageError


async def tools_of(loaded: Loaded, agents: Sequence[Agent]) -> list[JsonObject]:
    """Each agent's namespace, name and tools, with the name, description and JSON Schema of each.

    Raises ManifestError for a manifest that is missing, UsageError where a server can't be asked.
    """
    secrets = SecretStore(loaded.secrets, os.environ)
    functions = FunctionRegistry.of(Settings.of(os.environ).functions, (), max_concurrent=1)
    tools = Tools(secrets, functions)
    try:
        return [await _tools_of(loaded, each, tools, secrets) for each in agents]
    except BatonError as error:
        raise UsageError(secrets.redact(error.message)) from None
    finally:
        await tools.close()
        functions.close()


async def _tools_of(loaded: Loaded, agent: Agent, tools: Tools, secrets: SecretStore) -> JsonObject:
    values = ValueResolver(loaded.needed_by(agent), secrets)
    catalog = await tools.pin(values)
    pinned = catalog.by_id(agent.id)
    assert isinstance(pinned, Agent)
    found = await tools.of_agent(pinned, replace(values, catalog=catalog))
    listed = [_as_json(tool.definition) for tool in found]
    return {"namespace": agent.namespace, "agent": agent.name, "tools": [*listed]}


def _as_json(tool: ToolDefinition) -> JsonObject:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
