"""Structured output: adds the JSON Schema of the answer to the prompt, and validates the answer."""

import json
import re
from collections.abc import Iterable

from pydantic import JsonValue

from ...contracts.errors import MAX_ERROR_TEXT, SchemaNotChecked
from ...contracts.message import Message
from ...contracts.text import parse_json, truncate
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.model import Model
from ...temporal.bounded_process import BoundedFunction, EvaluationFailed, LimitExceeded
from .schema_process import errors_of

# Schemas come from manifests and servers, values from models. Both are untrusted: a validation may never end.

SECONDS = 1.0
"""The time limit of one validation in a process."""

QUICK_PAIRS = 10_000
"""Values in the schema times parts of the value, up to which a validation takes less than 20 ms."""

QUICK_LENGTH = 20_000
"""Characters of all strings in both, up to which a validation takes less than 20 ms."""

UNBOUNDED = frozenset(
    {"$ref", "$dynamicRef", "pattern", "patternProperties", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"}
)
"""Keywords with which a part of a schema may be applied to a part of a value more than once."""

_check = BoundedFunction(f"{__package__}.schema_process:errors_of", seconds=SECONDS)


async def schema_errors(value: JsonValue, schema: JsonObject) -> list[str]:
    """The validation errors with their JSON paths. References to other schemas are never fetched.

    Raises SchemaNotChecked if this worker can't validate it at all.
    """
    if _is_quick(value, schema):
        return errors_of([value, schema])
    try:
        errors = await _check.call([value, schema])
    except LimitExceeded as exceeded:
        return [f"$: can't be validated: {exceeded}"]
    except EvaluationFailed as failed:
        raise SchemaNotChecked(f"a value can't be validated against its schema: {failed}") from None
    except ValueError:
        return ["$: is nested too deeply"]
    return [str(error) for error in errors] if isinstance(errors, list) else []


def _is_quick(value: JsonValue, schema: JsonObject) -> bool:
    parts, length, _ = _size(value)
    schema_parts, schema_length, keywords = _size(schema)
    is_small = parts * schema_parts <= QUICK_PAIRS and length + schema_length <= QUICK_LENGTH
    return is_small and not keywords & UNBOUNDED


def _size(value: JsonValue) -> tuple[int, int, set[str]]:
    """The number of parts of a value, the characters of all strings, and the names of all properties.

    Counting stops beyond the limits.
    """
    pending = [value]
    count = 0
    length = 0
    names: set[str] = set()
    while pending and count <= QUICK_PAIRS and length <= QUICK_LENGTH:
        part = pending.pop()
        count += 1
        if isinstance(part, str):
            length += len(part)
        elif isinstance(part, dict):
            names.update(part)
            length += sum(map(len, part))
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return count, length, names


FENCED = re.compile(r"```(?:json)?\s(.*)```", re.DOTALL | re.IGNORECASE)
"""JSON in a fenced code block, as many models write it. Greedy: the JSON may itself contain such a block."""


def output_schema(speaker: Agent | Model) -> JsonObject | None:
    """The JSON Schema of a speaker's final answer: the agent's ``outputSchema``; None if it has none."""
    return speaker.spec.output_schema if isinstance(speaker, Agent) else None


def with_schema(messages: Iterable[Message], schema: JsonObject | None) -> list[Message]:
    """The messages with the schema in the system prompt: some servers don't forward a response format to the model."""
    if schema is None:
        return [*messages]
    instruction = f"Give your final answer only as JSON that matches this JSON Schema:\n{json.dumps(schema)}"
    first, *others = messages
    if first.role != "system":
        return [Message(role="system", content=instruction), first, *others]
    return [first.with_content(f"{first.content}\n\n{instruction}"), *others]


async def normalized(answer: Message, schema: JsonObject | None) -> Message:
    """A valid final answer, reduced to its JSON; any other message unchanged.

    So is one that can't be validated: it is written to the journal first, as it is charged.
    """
    try:
        is_valid = await output_error(answer, schema) is None
    except SchemaNotChecked:
        is_valid = False
    if schema is None or answer.tool_calls or not is_valid:
        return answer
    return answer.with_content(_parse(answer.content)[0])


async def output_error(answer: Message, schema: JsonObject | None) -> str | None:
    """Why a final answer is invalid, such as ``is not JSON: …``; None if it is valid, or calls tools instead.

    Raises SchemaNotChecked.
    """
    if schema is None or answer.tool_calls:
        return None
    try:
        errors = await schema_errors(_parse(answer.content)[1], schema)
    except ValueError as error:
        return f"is not JSON: {error}"
    return truncate(f"doesn't match its schema: {'; '.join(errors)}", MAX_ERROR_TEXT) if errors else None


def _parse(text: str) -> tuple[str, JsonValue]:
    """The JSON in a text, plain or in a fenced block, and its value. Raises ValueError if there is none."""
    block = FENCED.search(text)
    try:
        return text.strip(), _value(text)
    except ValueError:
        if block is None:
            raise
        return block[1].strip(), _value(block[1])


def _value(text: str) -> JsonValue:
    return parse_json(text.strip(), constants=False)
