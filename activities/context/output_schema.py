"""Structured output: tells a model the JSON Schema of its answer, and checks the answer against it."""

import json
import re
from collections.abc import Iterable

from pydantic import JsonValue

from ...contracts.errors import MAX_ERROR_TEXT
from ...contracts.message import Message
from ...contracts.text import parse_json, truncate
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.model import Model
from ..runtime.bounded_process import BoundedFunction, LimitExceeded
from .schema_process import errors_of

# References to other schemas are never fetched. Patterns are matched by `regex`, which knows such as ``\p{L}``.


# Schemas come from manifests and servers, and values from models: both may be made so that checking takes for ever.

SECONDS = 1.0
"""The time of one check in a process."""

QUICK_PAIRS = 10_000
"""Values in the schema times values in what is checked, up to which a check takes less than 20 ms."""

QUICK_LENGTH = 20_000
"""Characters of the texts in them."""

UNBOUNDED = frozenset(
    {"$ref", "$dynamicRef", "pattern", "patternProperties", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"}
)
"""Keywords without which each part of a schema is applied to each part of a value once at most."""

_check = BoundedFunction(f"{__package__}.schema_process:errors_of", seconds=SECONDS)


async def schema_errors(value: JsonValue, schema: JsonObject) -> list[str]:
    """The errors, each with its JSON path. References to other schemas are never fetched."""
    if _is_quick(value, schema):
        return errors_of([value, schema])
    try:
        found = await _check.call([value, schema])
    except LimitExceeded as exceeded:
        return [f"$: can't be checked against its schema: {exceeded}"]
    except ValueError:
        return ["$: is nested too deeply"]
    return [str(each) for each in found] if isinstance(found, list) else []


def _is_quick(value: JsonValue, schema: JsonObject) -> bool:
    values, texts, _ = _size(value)
    schemas, words, keywords = _size(schema)
    return values * schemas <= QUICK_PAIRS and texts + words <= QUICK_LENGTH and not keywords & UNBOUNDED


def _size(value: JsonValue) -> tuple[int, int, set[str]]:
    """How many values there are in one, the characters of all texts, and the names of all properties.

    Counting ends where there are too many.
    """
    waiting = [value]
    count = 0
    length = 0
    names: set[str] = set()
    while waiting and count <= QUICK_PAIRS and length <= QUICK_LENGTH:
        each = waiting.pop()
        count += 1
        if isinstance(each, str):
            length += len(each)
        elif isinstance(each, dict):
            names.update(each)
            length += sum(map(len, each))
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return count, length, names


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
    return [first.with_content(f"{first.content}\n\n{instruction}"), *others]


async def normalized(answer: Message, schema: JsonObject | None) -> Message:
    """A final answer that fits, reduced to the JSON in it; any other message unchanged."""
    if schema is None or answer.tool_calls or await output_error(answer, schema):
        return answer
    return answer.with_content(_parse(answer.content)[0])


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
