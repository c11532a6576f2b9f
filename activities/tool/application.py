"""Tools of ``type: activity`` and ``workflow``: those of an application, which the workflow itself calls."""

import json

from ...contracts.errors import BadArguments, InvalidManifest
from ...contracts.text import MAX_MESSAGE, byte_size
from ...journal.leases import Lease
from ...resources.base import JsonObject
from ...resources.run_catalog import RunCatalog
from ...resources.tool import PLURALS
from ..context.value_resolver import ValueResolver
from ..runtime.secrets import SecretStore
from .tool import CallableTool, ToolContext, ToolDefinition


class ApplicationTools:
    """A ``ToolSource``. The call here only returns the positional arguments for the application, as a JSON array."""

    def __init__(self, secrets: SecretStore) -> None:
        self._secrets = secrets

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The single tool of a manifest."""
        tool = context.manifest
        spec = tool.spec.application if tool else None
        if tool is None or spec is None:
            raise InvalidManifest(f"the tool {context.name} has neither an activity nor a workflow")

        async def use(arguments: JsonObject, _lease: Lease) -> str:
            try:
                text = json.dumps(
                    [arguments] if spec.arguments is None else _positional(context.name, spec.arguments, arguments),
                    ensure_ascii=False,
                    allow_nan=False,
                )
            except ValueError:
                raise BadArguments(f"the arguments of {context.name} contain NaN or Infinity") from None
            if byte_size(text) > MAX_MESSAGE:
                size = f"{byte_size(text):,} bytes, and may have at most {MAX_MESSAGE:,}"
                raise BadArguments(f"the arguments of {context.name} have {size}")
            if await self._secrets.redact_long(text) != text:
                why = f"the history of the run has the arguments of {PLURALS[tool.spec.type]}"
                raise InvalidManifest(f"{tool.id}: the arguments of {context.name} contain a Secret: {why}")
            return text

        definition = ToolDefinition(context.name, tool.model_description, tool.input_schema)
        return [CallableTool(definition, use, context.provenance, application=spec.type)]

    async def pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog unchanged: the manifests are complete."""
        return values.catalog

    async def close(self) -> None:
        """Does nothing: there are no connections."""


def _positional(tool: str, names: tuple[str, ...], arguments: JsonObject) -> list[object]:
    """The arguments in the order of ``names``: null for one that is missing, except after the last one that is not."""
    if unknown := [name for name in arguments if name not in names]:
        raise BadArguments(f"{tool} has no argument '{unknown[0]}'; its arguments: {', '.join(names) or 'none'}")
    last = max((index for index, name in enumerate(names) if name in arguments), default=-1)
    return [arguments.get(name) for name in names[: last + 1]]
