"""Tools of ``type: built-in``: they need nothing but their arguments (ARK: queries, tool execution)."""

from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ..context.value_resolver import ValueResolver
from ..process.secrets import SecretStore
from .calculator import calculate
from .format_text import STYLES, format_text
from .tool import CallableTool, ToolContext, ToolDefinition


class BuiltInTools:
    """A ``ToolSource``."""

    def __init__(self, _secrets: SecretStore) -> None: ...

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The built-in tool of that name."""
        return [BUILT_IN_TOOLS[context.name]]

    async def pin(self, values: ValueResolver) -> Catalog:
        """Their manifests say all."""
        return values.catalog

    async def close(self) -> None:
        """There is nothing to close."""


async def _terminate(arguments: JsonObject) -> str:
    """The final words, which may be left out."""
    return str(arguments.get("response", ""))


async def _noop(arguments: JsonObject) -> str:
    return str(arguments.get("message", ""))


def _schema(required: tuple[str, ...] = (), **properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {**properties}, "required": [*required]}


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


def _terminating(name: str) -> CallableTool:
    definition = ToolDefinition(
        name,
        "Ends the discussion. Call it once the goal is reached, with your final words as the response.",
        _schema(response=_text("The final words: what the whole discussion has come to.")),
    )
    return CallableTool(definition, _terminate, ends=True)


_NOOP = ToolDefinition(
    "noop",
    "Does nothing and gives the message back.",
    _schema(message=_text("Any text.")),
)
_CALCULATOR = ToolDefinition(
    "calculator",
    "Calculates an arithmetic expression exactly, with + - * / // % ** and parentheses, abs, round, sqrt, min and max.",
    _schema(("expression",), expression=_text("For example: (19.99 * 3 + 4.50) * 1.21")),
)
_FORMAT_TEXT = ToolDefinition(
    "format-text",
    "Formats a text in one of several styles.",
    _schema(
        ("text", "style"),
        text=_text("The text to format."),
        style={"type": "string", "enum": [*STYLES]},
        width={"type": "integer", "minimum": 1, "maximum": 1000, "description": "Columns, for the style wrap."},
    ),
)

BUILT_IN_TOOLS: dict[str, CallableTool] = {
    "terminate": _terminating("terminate"),
    "terminate_team": _terminating("terminate_team"),
    "noop": CallableTool(_NOOP, _noop),
    "calculator": CallableTool(_CALCULATOR, calculate),
    "format-text": CallableTool(_FORMAT_TEXT, format_text),
}
