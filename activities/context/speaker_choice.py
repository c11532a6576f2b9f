"""Whom does a selector's answer name? Matched exactly, then case-blind, then by the one name that it mentions."""

import json
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ...conversation.messages.message import Message
from ...resources.base import JsonObject
from ..tool.tool import Tool

SELECT = "select-next-speaker"
TERMINATE = "terminate"
END = re.compile(r"TERMINATE\b[:\s]*", re.IGNORECASE)
"""How a selector that answers with text ends its team; what comes after it are the final words."""


class Choice(NamedTuple):
    """A valid answer: the place among the candidates, or None for the end with its final words."""

    place: int | None
    how: Literal["chosen", "matched", "terminated"]
    words: str = ""


def choice_of(answer: Message, names: Sequence[str], *, may_end: bool) -> Choice | None:
    """What an answer chooses; None where it chooses nobody."""
    for call in answer.tool_calls:
        arguments = _arguments(call.arguments)
        if call.name == TERMINATE and may_end:
            return Choice(None, "terminated", str(arguments.get("response") or ""))
        if call.name == SELECT and (choice := _named(str(arguments.get("name") or ""), names)):
            return choice
    text = answer.content.strip()
    if may_end and text.casefold() not in map(str.casefold, names) and (end := END.match(text)):
        return Choice(None, "terminated", text[end.end() :].strip())
    return _named(text, names)


def _arguments(text: str) -> JsonObject:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _named(text: str, names: Sequence[str]) -> Choice | None:
    text = text.strip()
    if text in names:
        return Choice(names.index(text), "chosen")
    blind = [name.casefold() for name in names]
    if text.casefold() in blind:
        return Choice(blind.index(text.casefold()), "matched")
    mentioned = [
        place
        for place, name in enumerate(blind)
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text.casefold())
    ]
    return Choice(mentioned[0], "matched") if len(mentioned) == 1 else None


def tools_of(names: Sequence[str], *, may_end: bool) -> list[Tool]:
    """What a selector's model is offered: to name the next speaker, and perhaps to end the team."""
    select = Tool(
        name=SELECT,
        description="Names who speaks next.",
        parameters={
            "type": "object",
            "properties": {"name": {"type": "string", "enum": [*names], "description": "Who speaks next."}},
            "required": ["name"],
        },
        use=_never,
    )
    end = Tool(
        name=TERMINATE,
        description="Ends the discussion. Call it only when the question has been answered.",
        parameters={
            "type": "object",
            "properties": {"response": {"type": "string", "description": "The final words, if any."}},
        },
        use=_never,
    )
    return [select, end] if may_end else [select]


async def _never(arguments: JsonObject) -> str:
    raise AssertionError("a selector's tool is its answer, and is never carried out")
