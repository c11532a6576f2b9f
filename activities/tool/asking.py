"""Tools of ``type: agent`` and ``type: team``: whoever is asked takes a turn in a child run (ARK: agents as tools)."""

import json

from ...conversation.errors import InvalidManifest
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ..context.value_resolver import ValueResolver
from ..process.secrets import SecretStore
from .tool import CallableTool, ToolContext, ToolDefinition


class AskingTools:
    """A ``ToolSource``. The workflow runs the child; using the tool here only gives the question that is put to it."""

    def __init__(self, _secrets: SecretStore) -> None: ...

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The one tool of a manifest."""
        tool = context.manifest
        if tool is None:
            raise InvalidManifest(f"the tool {context.name} asks nobody")
        return [CallableTool(ToolDefinition(context.name, tool.model_description, tool.input_schema), _question)]

    async def pin(self, values: ValueResolver) -> Catalog:
        """Their manifests say all."""
        return values.catalog

    async def close(self) -> None:
        """There is nothing to close."""


async def _question(arguments: JsonObject) -> str:
    """The argument ``input`` if it is the only one, else all arguments as JSON."""
    if arguments.keys() == {"input"} and isinstance(text := arguments["input"], str):
        return text
    return json.dumps(arguments, ensure_ascii=False)
