"""Messages in the form of OpenAI's chat completions, as other services store them."""

from ...resources.base import JsonObject
from .message import Message


def openai_form(message: Message) -> JsonObject:
    """A message with the keys of chat completions: role, content, name, tool_calls, tool_call_id."""
    data: JsonObject = {"role": message.role, "content": message.content}
    if message.name:
        data["name"] = message.name
    if message.role == "tool":
        data["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        data["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return data
