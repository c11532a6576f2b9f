"""The span of a tool's use: OpenTelemetry's conventions for generative AI."""

import contextlib
from collections.abc import Iterator

from ...conversation.messages.message import ToolCall
from ...resources.base import JsonObject
from ..runtime.call_spans import call_span, found_call, note_call
from .tool import AsksPerson, ToolDefinition


@contextlib.contextmanager
def tool_span(tool: ToolDefinition, call: ToolCall) -> Iterator[None]:
    """Uses a tool in the block. A use that ends with a question to a person has not failed."""
    asks: AsksPerson | None = None
    with call_span("execute_tool", tool.name, lambda: _attributes(tool, call), kind="internal"):
        try:
            yield
        except AsksPerson as question:
            asks = question
            note_call(lambda: {"baton.tool.asks": True})
    if asks:
        raise asks


def found_use(tool: ToolDefinition, call: ToolCall) -> None:
    """Tells the trace of a use whose result an earlier attempt has written down."""
    found_call("execute_tool", tool.name, lambda: _attributes(tool, call), kind="internal")


def _attributes(tool: ToolDefinition, call: ToolCall) -> JsonObject:
    found: JsonObject = {"gen_ai.tool.name": tool.name, "gen_ai.tool.type": "function"}
    if call.id:
        found["gen_ai.tool.call.id"] = call.id
    if tool.description:
        found["gen_ai.tool.description"] = tool.description[:500]
    return found
