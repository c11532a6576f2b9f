"""The model call of a team's selector: its prompt, its tools, and how its answer is parsed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..contracts.message import Message, TokenUsage
from ..contracts.requests import SelectRequest, SelectResult
from ..contracts.text import parse_json, truncate
from ..resources.agent import Agent
from ..resources.base import JsonObject
from ..resources.team import SelectorSpec, Team
from ..resources.template import fill
from .context.metering import ChainedModel
from .context.value_resolver import ValueResolver
from .tool.tool import ToolDefinition

SELECT = "select-next-speaker"
TERMINATE = "terminate"
END = re.compile(r"TERMINATE\b[:\s]*", re.IGNORECASE)
"""The start of a text answer that ends the team. The rest of the answer is the final message."""


class SpeakerChoice(NamedTuple):
    """A valid answer: the number of a candidate, or None to end the team, with the final message."""

    candidate: int | None
    how: Literal["chosen", "matched", "terminated"]
    final_message: str = ""


def read_choice(answer: Message, names: Sequence[str], *, may_end: bool) -> SpeakerChoice | None:
    """The choice in an answer, by a tool call or by its text; None if it names no candidate."""
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
    """The candidate named by a text: exactly, ignoring case, or as the only candidate mentioned in it."""
    text = text.strip()
    if text in names:
        return SpeakerChoice(names.index(text), "chosen")
    folded = [name.casefold() for name in names]
    if text.casefold() in folded:
        return SpeakerChoice(folded.index(text.casefold()), "matched")
    mentioned = [
        index
        for index, name in enumerate(folded)
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text.casefold())
    ]
    return SpeakerChoice(mentioned[0], "matched") if len(mentioned) == 1 else None


def selector_tools(names: Sequence[str], *, may_end: bool) -> list[ToolDefinition]:
    """The tools of a selector's model: one to name the next speaker, and with ``may_end`` one to end the team.

    They are never executed: the tool call itself is the answer.
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


DEFAULT_PROMPT = """\
You moderate a discussion among these participants: {{.Roles}}.
Read the conversation, and decide which of them ({{.Participants}}) can carry it on best.

{{.History}}"""

TERMINATE_PROMPT = "If the user's question has been answered well enough, name nobody and end the discussion instead."

INSTRUCTION = {
    "tool": "Who speaks next? Answer by calling the tool select-next-speaker.",
    "text": "Select the next participant to respond. Answer with one name only.",
}
TERMINATE_INSTRUCTION = {
    "tool": " Or call the tool terminate.",
    "text": " Or answer TERMINATE, a colon, and the final words.",
}


@dataclass(frozen=True)
class SpeakerSelection:
    """The resolved ``select`` request. ``names`` are those of the candidates, in the order of the request."""

    request: SelectRequest
    team: Team
    selector: SelectorSpec
    model: ChainedModel
    names: Sequence[str]
    values: ValueResolver

    def messages(self, history: Sequence[Message]) -> list[Message]:
        """The prompts of the selector's agent and of the selector, and the instruction how to answer.

        As in ARK, a prompt of style ``text`` lists all members, also the last speaker, who can't be chosen.
        """
        selector = self.selector
        members = [member.name_in_team for member in self.team.spec.members]
        shown = members if selector.style == "text" and not self.team.spec.graph else self.names
        names = {
            "Participants": ", ".join(shown),
            "Roles": self._roles(shown),
            "History": _spoken(history),
        }
        prompt = fill(selector.selector_prompt or DEFAULT_PROMPT, names.__getitem__)
        instruction = INSTRUCTION[selector.style]
        if selector.enable_terminate_tool:
            prompt = f"{prompt}\n\n{selector.terminate_prompt or TERMINATE_PROMPT}"
            instruction += TERMINATE_INSTRUCTION[selector.style]
        agent = self.values.catalog.find(self.team.selector_reference())
        agent_prompt = self.values.prompt(agent) if isinstance(agent, Agent) else None
        system = f"{agent_prompt}\n\n{prompt}" if agent_prompt else prompt
        return [Message(role="system", content=system), Message(role="user", content=instruction)]

    def result(self, choice: SpeakerChoice, usage: TokenUsage) -> SelectResult:
        """The result for a valid answer."""
        final_message = None
        if choice.final_message:
            final_message = Message(role="assistant", content=truncate(choice.final_message), name=self.team.name)
        if choice.candidate is None:
            return SelectResult(member_index=None, member=None, how=choice.how, usage=usage, said=final_message)
        return SelectResult(
            member_index=self.request.candidates[choice.candidate],
            member=self.names[choice.candidate],
            how=choice.how,
            usage=usage,
            said=final_message,
        )

    def fallback(self, usage: TokenUsage) -> SelectResult:
        """The result if no answer names a candidate: the first one or, as in ARK, the first member if any may speak."""
        index = self.request.candidates[0]
        if self.selector.on_no_choice == "first" and not self.team.spec.graph:
            index = 0
        member = self.team.spec.members[index].name_in_team
        return SelectResult(member_index=index, member=member, how="fallback", usage=usage)

    def _roles(self, names: Sequence[str]) -> str:
        """These members with their descriptions (ARK: team strategies, template variables)."""
        roles = []
        for member, reference in zip(self.team.spec.members, self.team.members(), strict=True):
            speaker = self.values.catalog.find(reference)
            described = speaker.spec.description if isinstance(speaker, Agent | Team) else None
            description = described or ("a person" if member.is_human else None)
            if member.name_in_team in names:
                roles.append(f"{member.name_in_team}: {description}" if description else member.name_in_team)
        return ", ".join(roles)


def _spoken(messages: Sequence[Message]) -> str:
    """The spoken messages under their speakers' names, without tool results."""
    spoken = [message for message in messages if message.role in ("user", "assistant") and message.content]
    return "\n".join(f"# {message.name or message.role}:\n{message.content}\n" for message in spoken)
