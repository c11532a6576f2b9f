"""Which form is an answer to have, and has it? An agent's ``outputSchema``, told to its model and held against it."""

import json
import re
from collections.abc import Iterable

from pydantic import JsonValue

from ...conversation.failure import MAX_TEXT
from ...conversation.messages.message import Message, cut
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.model import Model
from .schema_errors import misfits

FENCED = re.compile(r"```(?:json)?\s(.*)```", re.DOTALL | re.IGNORECASE)
"""JSON as models like to write it, perhaps with words around; it may hold such a block itself."""


def schema_of(speaker: Agent | Model) -> JsonObject | None:
    """The JSON Schema that a speaker's final answer has to fit, if any."""
    return speaker.spec.output_schema if isinstance(speaker, Agent) else None


def told(messages: Iterable[Message], schema: JsonObject | None) -> list[Message]:
    """The messages with the schema in the system prompt: servers differ in what else they tell their models of one."""
    if schema is None:
        return [*messages]
    words = f"Give your final answer as JSON alone, which fits this JSON Schema:\n{json.dumps(schema)}"
    first, *others = messages
    if first.role != "system":
        return [Message(role="system", content=words), first, *others]
    return [first.model_copy(update={"content": f"{first.content}\n\n{words}"}), *others]


def plain(answer: Message, schema: JsonObject | None) -> Message:
    """A final answer that fits, as the JSON in it without what stands around; any other message as it is."""
    if schema is None or answer.tool_calls or wrong(answer, schema):
        return answer
    return answer.model_copy(update={"content": _read(answer.content)[0]})


def wrong(answer: Message, schema: JsonObject | None) -> str | None:
    """What is wrong with a final answer, as in ``is not JSON: …``; None if it fits, or calls for tools instead."""
    if schema is None or answer.tool_calls:
        return None
    try:
        found = misfits(_read(answer.content)[1], schema)
    except ValueError as error:
        return f"is not JSON: {error}"
    except RecursionError:
        return "is nested too deeply"
    return cut(f"doesn't fit its schema: {'; '.join(found)}", MAX_TEXT) if found else None


def _read(text: str) -> tuple[str, JsonValue]:
    """The JSON that a text is, or holds in a fenced block, and its value; raises ValueError where there is none."""
    block = FENCED.search(text)
    try:
        return text.strip(), _value(text)
    except ValueError:
        if block is None:
            raise
        return block[1].strip(), _value(block[1])


def _value(text: str) -> JsonValue:
    value: JsonValue = json.loads(text.strip(), parse_constant=_not_json)
    return value


def _not_json(constant: str) -> None:
    raise ValueError(f"it says {constant}")
