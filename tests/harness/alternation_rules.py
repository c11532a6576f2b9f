"""What APIs refuse in which user and assistant take turns: the rules of Anthropic's Messages and Bedrock's Converse."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """A part of a message: a ``text``, a tool ``call`` or a ``result``, with its text or its id."""

    kind: str
    value: str


def wrong_in(messages: Sequence[tuple[str, Sequence[Part]]], *, tools: bool) -> str | None:
    """The first thing that such an API would refuse; None for a good conversation."""
    if [role for role, _ in messages] != [("user", "assistant")[place % 2] for place in range(len(messages))]:
        return "roles must alternate between user and assistant, and the user begins"
    if not messages or messages[-1][0] != "user":
        return "this model does not support assistant message prefill"
    parts = [part for _, parts in messages for part in parts]
    if not all(parts for _, parts in messages) or any(not part.value.strip() for part in parts):
        return "text content blocks must be non-empty"
    if any(part.kind != "text" for part in parts) and not tools:
        return "requests which include tool calls must define tools"
    return _unpaired(messages)


def _unpaired(messages: Sequence[tuple[str, Sequence[Part]]]) -> str | None:
    calls: list[str] = []
    for (_, before), (_, parts) in zip([("", ()), *messages], messages, strict=False):
        wanted, found = [*_ids("call", before)], [*_ids("result", parts)]
        if sorted(wanted) != sorted(found):
            return "each tool call must have its result in the next message"
        if any(part.kind == "text" for part in parts[: len(found)]):
            return "tool results must come first"
        calls += wanted
    return "tool call ids must be unique" if len({*calls}) < len(calls) else None


def _ids(kind: str, parts: Iterable[Part]) -> Iterable[str]:
    return (part.value for part in parts if part.kind == kind)
