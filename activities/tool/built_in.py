"""``type: built-in``: tools that need nothing but what they are given (seeds 000, 001 and 003)."""

from ...resources.base import JsonObject
from .calculator import calculate
from .format_text import STYLES, format_text
from .tool import Tool


async def _say(arguments: JsonObject) -> str:
    """The final words of ``terminate``; none are no error."""
    return str(arguments.get("response", ""))


async def _nothing(arguments: JsonObject) -> str:
    return str(arguments.get("message", ""))


def _schema(required: tuple[str, ...] = (), **properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {**properties}, "required": [*required]}


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


_TERMINATE = Tool(
    name="terminate",
    description="Ends the discussion. Call it once the goal is reached, with your final words as the response.",
    parameters=_schema(response=_text("The final words: what the whole discussion has come to.")),
    use=_say,
    ends=True,
)

BUILT_IN: dict[str, Tool] = {
    "terminate": _TERMINATE,
    "terminate_team": _TERMINATE,
    "noop": Tool(
        name="noop",
        description="Does nothing and gives the message back.",
        parameters=_schema(message=_text("Any text.")),
        use=_nothing,
    ),
    "calculator": Tool(
        name="calculator",
        description="Calculates an arithmetic expression exactly, with + - * / // % ** and parentheses, "
        "abs, round, sqrt, min and max.",
        parameters=_schema(("expression",), expression=_text("For example: (19.99 * 3 + 4.50) * 1.21")),
        use=calculate,
    ),
    "format-text": Tool(
        name="format-text",
        description="Formats a text in one of several styles.",
        parameters=_schema(
            ("text", "style"),
            text=_text("The text to format."),
            style={"type": "string", "enum": [*STYLES]},
            width={"type": "integer", "minimum": 1, "maximum": 1000, "description": "Columns, for the style wrap."},
        ),
        use=format_text,
    ),
}
