"""The choice of the next speaker: the tools a selector's model is offered, and what its answer means."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ...conversation.messages.message import Message
from ...conversation.text import parse_json
from ...resources.base import JsonObject
from .tool import ToolDefinition

SELECT = "select-next-speaker"
TERMINATE = "terminate"
END = re.compile(r"TERMINATE\b[:\s]*", re.IGNORECASE)
"""How a selector that answers with text ends its team. The rest of the answer are the final words."""


class SpeakerChoice(NamedTuple):
    """A valid answer: the place among the candidates, or None for the end of the team, with the final words."""

    place: int | None
    how: Literal["chosen", "matched", "terminated"]
    words: str = ""


def read_choice(answer: Message, names: Sequence[str], *, may_end: bool) -> SpeakerChoice | None:
    """The choice in an answer, by a tool call or by its text; None where it names no candidate."""
    for call in answer.tool_calls:
        arguments = _arguments(call.arguments)
        if call.name == TERMINATE and may_end:
            return SpeakerChoice(None, "terminated", str(arguments.get("response") or ""))
        if call.name == SELECT and (choice := _by_name(str(arguments.get("name") or ""), names)):
            return choice
    text = answer.content.strip()
    if may_end and text.casefold() not in map(str.casefold, names) and (end := END.match(text)):
        return SpeakerChoice(None, "terminated", text[end.end() :].strip())
    return _by_name(text, names)


def _arguments(text: str) -> JsonObject:
    try:
        value = parse_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _by_name(text: str, names: Sequence[str]) -> SpeakerChoice | None:
    """The candidate named by a text: exactly, ignoring case, or as the only candidate that the text mentions."""
    text = text.strip()
    if text in names:
        return SpeakerChoice(names.index(text), "chosen")
    folded = [name.casefold() for name in names]
    if text.casefold() in folded:
        return SpeakerChoice(folded.index(text.casefold()), "matched")
    mentioned = [
        place
        for place, name in enumerate(folded)
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text.casefold())
    ]
    return SpeakerChoice(mentioned[0], "matched") if len(mentioned) == 1 else None


def selector_tools(names: Sequence[str], *, may_end: bool) -> list[ToolDefinition]:
    """The tools that a selector's model is offered: to name the next speaker, and perhaps to end the team.

    They are never used: the model's call is the answer itself.
    """
    select = ToolDefinition(
        SELECT,
        "Names who speaks next.",
        {
            "type": "object",
            "properties": {"name": {"type": "string", "enum": [*names], "description": "Who speaks next."}},
            "required": ["name"],
        },
    )
    end = ToolDefinition(
        TERMINATE,
        "Ends the discussion. Call it only when the question has been answered.",
        {
            "type": "object",
            "properties": {"response": {"type": "string", "description": "The final words, if any."}},
        },
    )
    return [select, end] if may_end else [select]
