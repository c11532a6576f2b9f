"""The tools that the client of a query brings, and executes itself."""

import json

from ...contracts.errors import BadArguments
from ...contracts.text import MAX_MESSAGE, byte_size
from ...journal.leases import Lease
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.client import ClientTool
from ...resources.provenance import Provenance
from ...resources.run_catalog import RunCatalog
from .tool import CallableTool, ToolDefinition


def client_tools(agent: Agent, catalog: RunCatalog) -> list[CallableTool]:
    """The tools that the run's client offers to an agent.

    A call here only returns the arguments, as a JSON array with one object: the workflow waits for the client.
    """
    client = catalog.client_of(agent)
    return [_callable(tool) for tool in client.offered_tools] if client else []


def _callable(tool: ClientTool) -> CallableTool:
    async def use(arguments: JsonObject, _lease: Lease) -> str:
        try:
            text = json.dumps([arguments], ensure_ascii=False, allow_nan=False)
        except ValueError:
            raise BadArguments(f"the arguments of {tool.name} contain NaN or Infinity") from None
        if byte_size(text) > MAX_MESSAGE:
            size = f"{byte_size(text):,} bytes, and may have at most {MAX_MESSAGE:,}"
            raise BadArguments(f"the arguments of {tool.name} have {size}")
        return text

    definition = ToolDefinition(tool.name, tool.description, tool.parameters)
    return CallableTool(definition, use, Provenance.RUN, untrusted=True, by_client=True)
