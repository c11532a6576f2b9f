"""Messages in the form of chat completions, with what the model's server wants back with its own tool calls."""

from typing import cast

from openai.types.chat import ChatCompletionMessageParam

from ....conversation.messages.message import Message, ToolCall
from ....conversation.text import parse_json
from ....resources.base import JsonObject
from ..answer import LONGEST_NAME
from .endpoint import Endpoint

NO_SIGNATURE: JsonObject = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""What Gemini takes for the signature of a call that it has not made (https://ai.google.dev/gemini-api/docs/thought-signatures)."""


def message_param(message: Message, endpoint: Endpoint) -> ChatCompletionMessageParam:
    """The message as the endpoint gets it."""
    data: JsonObject = {"role": message.role, "content": message.content}
    if message.role in ("assistant", "user") and message.name:
        data["name"] = message.name.replace(".", "_")[:LONGEST_NAME]
    if message.role == "tool":
        data["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        data["tool_calls"] = [
            _call_param(call, endpoint, first=place == 0) for place, call in enumerate(message.tool_calls)
        ]
    return cast(ChatCompletionMessageParam, data)


def _call_param(call: ToolCall, endpoint: Endpoint, *, first: bool) -> JsonObject:
    """A call. Of calls that were made at once, Gemini signs the first, and wants that signature alone."""
    data: JsonObject = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    extra = _extra_of(call, endpoint)
    if extra is None and first and endpoint.wants_signatures:
        extra = NO_SIGNATURE
    return data if extra is None else {**data, "extra_content": extra}


def _extra_of(call: ToolCall, endpoint: Endpoint) -> JsonObject | None:
    """What the endpoint's own model has added to the call; None where it was another, or where it is unreadable."""
    if call.extra is None or call.extra.model != endpoint.where:
        return None
    try:
        content = parse_json(call.extra.content)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
