"""Structured output: tells a model the JSON Schema of its answer, and checks the answer against it."""

import json
import re
from collections.abc import Iterable

from pydantic import JsonValue

from ...conversation.failure import MAX_ERROR_TEXT
from ...conversation.messages.message import Message
from ...conversation.text import parse_json, truncate
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.model import Model
from .schema_errors import schema_errors

FENCED = re.compile(r"```(?:json)?\s(.*)```", re.DOTALL | re.IGNORECASE)
"""JSON in a fenced code block, as models like to write it. Greedy: the JSON may contain such a block itself."""


def output_schema(speaker: Agent | Model) -> JsonObject | None:
    """The JSON Schema of a speaker's final answer: the agent's ``outputSchema``; None if it has none."""
    return speaker.spec.output_schema if isinstance(speaker, Agent) else None


def with_schema(messages: Iterable[Message], schema: JsonObject | None) -> list[Message]:
    """The messages with the schema in the system prompt: not every server passes a response format on to its model."""
    if schema is None:
        return [*messages]
    instruction = f"Give your final answer as JSON alone, which fits this JSON Schema:\n{json.dumps(schema)}"
    first, *others = messages
    if first.role != "system":
        return [Message(role="system", content=instruction), first, *others]
    return [first.model_copy(update={"content": f"{first.content}\n\n{instruction}"}), *others]


async def normalized(answer: Message, schema: JsonObject | None) -> Message:
    """A final answer that fits, reduced to the JSON in it; any other message unchanged."""
    if schema is None or answer.tool_calls or await output_error(answer, schema):
        return answer
    return answer.model_copy(update={"content": _parse(answer.content)[0]})


async def output_error(answer: Message, schema: JsonObject | None) -> str | None:
    """What is wrong with a final answer, such as ``is not JSON: …``; None if it fits, or calls tools instead."""
    if schema is None or answer.tool_calls:
        return None
    try:
        errors = await schema_errors(_parse(answer.content)[1], schema)
    except ValueError as error:
        return f"is not JSON: {error}"
    return truncate(f"doesn't fit its schema: {'; '.join(errors)}", MAX_ERROR_TEXT) if errors else None


def _parse(text: str) -> tuple[str, JsonValue]:
    """The JSON in a text, alone or in a fenced block, and its value. Raises ValueError where there is none."""
    block = FENCED.search(text)
    try:
        return text.strip(), _value(text)
    except ValueError:
        if block is None:
            raise
        return block[1].strip(), _value(block[1])


def _value(text: str) -> JsonValue:
    return parse_json(text.strip(), constants=False)
