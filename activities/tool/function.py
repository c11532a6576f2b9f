"""Tools of ``type: function``: registered Python functions of the worker."""

import asyncio

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from ...contracts.errors import BadArguments, FunctionFailed, InvalidManifest
from ...journal.leases import Lease
from ...resources.base import JsonObject
from ...resources.functions import call_arguments, description, input_schema
from ...resources.run_catalog import RunCatalog
from ...resources.tool import Tool
from ..context.value_resolver import ValueResolver
from ..runtime.functions import FunctionRegistry, converting
from .tool import CallableTool, ToolContext, ToolDefinition


class FunctionTools:
    """A ``ToolSource``."""

    def __init__(self, functions: FunctionRegistry) -> None:
        self._functions = functions

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The single tool of a manifest. Its function may be missing on a worker that has only the role ``models``."""
        tool = context.manifest
        if tool is None or tool.spec.function is None:
            raise InvalidManifest(f"the tool {context.name} has no function")
        name = tool.spec.function.name
        hints = tool.spec.annotations
        repeatable = context.repeatable or bool(hints and (hints.read_only_hint or hints.idempotent_hint))

        async def use(arguments: JsonObject, lease: Lease) -> str:
            try:
                parameters = call_arguments(self._functions.find(name), arguments)
            except ValidationError as error:
                raise BadArguments(
                    f"the arguments of {context.name} don't match the function: {_problems(error)}"
                ) from None
            if not repeatable:
                await lease.send_once(context.name)
            try:
                async with asyncio.timeout(tool.spec.seconds):
                    value = await self._functions.invoke(name, **parameters)
            except TimeoutError:
                text = f"the function '{name}' has not returned within {tool.spec.timeout}"
                raise FunctionFailed(text, retryable=repeatable) from None
            except FunctionFailed as failed:
                raise FunctionFailed(failed.message, retryable=repeatable and not failed.non_retryable) from failed
            with converting(name, value):
                return _text(value)

        return [CallableTool(self._definition(context.name, tool, name), use, context.provenance)]

    def _definition(self, name: str, tool: Tool, function: str) -> ToolDefinition:
        """The tool's definition. Fields that the manifest omits are derived from the function."""
        text = tool.own_description or description(self._functions.find(function)) or tool.model_description
        has_schema = "input_schema" in tool.spec.model_fields_set
        return ToolDefinition(
            name, text, tool.input_schema if has_schema else input_schema(self._functions.find(function))
        )

    async def pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog unchanged: the manifests are complete."""
        return values.catalog

    async def close(self) -> None:
        """Does nothing: the functions are the worker's."""


def _text(value: object) -> str:
    """A function's result for a model: a text unchanged, any other value as JSON."""
    if isinstance(value, str):
        return value
    return to_json(value, by_alias=isinstance(value, BaseModel), fallback=str).decode()


def _problems(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
