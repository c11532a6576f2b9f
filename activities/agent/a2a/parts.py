"""The parts of A2A's messages as text: texts as they are, data and files as texts that say what they are."""

import json
from collections.abc import Iterable, Sequence

from a2a.types import Part
from google.protobuf.json_format import MessageToDict
from pydantic import JsonValue

from ....conversation.messages.message import Message


def text_of(parts: Iterable[Part]) -> str:
    """The text of parts, each in a paragraph of its own."""
    return "\n\n".join(filter(None, map(_text, parts)))


def _text(part: Part) -> str:
    match part.WhichOneof("content"):
        case "text":
            return part.text
        case "data":
            return f"[data]\n{json.dumps(_plain(MessageToDict(part.data)), ensure_ascii=False)}"
        case "url":
            return f"[{_file(part)}, at {part.url}]"
        case "raw":
            return f"[{_file(part)}, {len(part.raw):,} bytes]"
    return ""


def _plain(value: JsonValue) -> JsonValue:
    """A JSON value whose whole numbers are written without a fraction: the protocol's library has no others."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _file(part: Part) -> str:
    return ", ".join(filter(None, (f"file {part.filename}".strip(), part.media_type)))


def parts_of(messages: Sequence[Message]) -> list[Part]:
    """What an agent gets to read: the conversation so far as one text, then what it is asked as another."""
    *history, asked = messages
    lines = [f"{each.name or each.role}: {each.content}" for each in history if each.content]
    if not lines:
        return [Part(text=asked.content)]
    return [Part(text="\n\n".join(("The conversation so far:", *lines))), Part(text=asked.content)]
