"""The activity ``select``: asks a team's selector who speaks next, and writes its answers to the journal."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from temporalio import activity

from ..contracts.errors import BatonError
from ..contracts.message import Message, TokenUsage
from ..contracts.requests import SelectRequest, SelectResult
from ..contracts.text import parse_json
from ..journal.journal import Journal
from ..resources.agent import Agent
from ..resources.base import JsonObject
from ..resources.team import SelectorSpec, Team
from ..resources.template import fill
from ..temporal.activity import idempotency_key, on_text
from .context.context_window import history_within, window_end
from .context.lookup import find_team
from .context.metering import ChainedModel, Meter, estimate, selector_model_chain
from .context.value_resolver import ValueResolver
from .model.provider import ModelRequest
from .model.providers import Providers
from .runtime.secrets import SecretStore
from .tool.tool import ToolDefinition

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
class _Context:
    """What a request refers to: the team, its selector and model, and the names of the candidates."""

    request: SelectRequest
    team: Team
    selector: SelectorSpec
    model: ChainedModel
    names: Sequence[str]
    values: ValueResolver


class Select:
    """The activity ``select``."""

    def __init__(self, journal: Journal, providers: Providers, secrets: SecretStore) -> None:
        self._journal, self._providers, self._secrets = journal, providers, secrets

    @activity.defn(name="select")
    async def select(self, request: SelectRequest) -> SelectResult:
        """Asks the selector; asks once more if its answer names no candidate; then takes the first candidate.

        A second request that is refused counts as an answer that names nobody.
        """
        context = await self._context(request)
        messages = await self._messages(context)
        usage = TokenUsage()
        for place in ("choice", "second-choice"):
            try:
                answer = await self._answer(context, messages, place)
            except BatonError as error:
                if not usage.model_calls or not error.non_retryable:
                    raise
                break  # the first answer was paid for: a failure would lose its tokens
            usage += (answer.usage or TokenUsage()) + TokenUsage(model_calls=1)
            if choice := read_choice(answer, context.names, may_end=context.selector.enable_terminate_tool):
                return _result(context, choice, usage)
            correction = f"That names none of: {', '.join(context.names)}. {messages[1].content}"
            wrong = Message(role="assistant", content=answer.content or "(nobody)")
            messages = [*messages, wrong, Message(role="user", content=correction)]
        return SelectResult(member_index=request.candidates[0], member=context.names[0], how="fallback", usage=usage)

    async def _context(self, request: SelectRequest) -> _Context:
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        team = find_team(values.catalog, request.team)
        names = [team.spec.members[place].name_in_team for place in request.candidates]
        model = selector_model_chain(team, values.catalog)[request.fallback]
        values = values.used_by(values.catalog.find(team.selector_reference()))
        return _Context(request, team, team.spec.selector or SelectorSpec(), model, names, values)

    async def _answer(self, context: _Context, messages: Sequence[Message], label: str) -> Message:
        """The answer, kept in a row outside the conversation; the model is asked only if there is none."""
        row_id = f"{idempotency_key()}/{label}"
        meter = Meter(self._journal, context.request.thread, context.team.id, context.values.catalog, row_id)
        if row := await self._journal.find(row_id):
            await meter.settle(row.message.usage)
            self._providers.found(row.message, context.model, context.values, label)
            return row.message
        by_tool = context.selector.style == "tool"
        tools = selector_tools(context.names, may_end=context.selector.enable_terminate_tool) if by_tool else []
        request = ModelRequest(messages, tools, must_use=by_tool, label=label)
        async with meter.reserved(estimate(messages, tools, context.model)):
            answer = await self._providers.ask(context.model, context.values, request, on_text)
        answer = await self._secrets.redact_message(answer)
        row = await self._journal.append_once(context.request.thread.head, answer, row_id)
        await meter.settle(row.message.usage)
        return row.message

    async def _messages(self, context: _Context) -> list[Message]:
        """The prompt of the selector's agent and of the selector, and the instruction how to answer."""
        selector, values = context.selector, context.values
        names = {
            "Participants": ", ".join(context.names),
            "Roles": _roles(context),
            "History": _history(await self._history(context)),
        }
        prompt = fill(selector.selector_prompt or DEFAULT_PROMPT, names.__getitem__)
        instruction = INSTRUCTION[selector.style]
        if selector.enable_terminate_tool:
            prompt = f"{prompt}\n\n{selector.terminate_prompt or TERMINATE_PROMPT}"
            instruction += TERMINATE_INSTRUCTION[selector.style]
        agent = values.catalog.find(context.team.selector_reference())
        own = values.prompt(agent) if isinstance(agent, Agent) else None
        system = f"{own}\n\n{prompt}" if own else prompt
        return [Message(role="system", content=system), Message(role="user", content=instruction)]

    async def _history(self, context: _Context) -> list[Message]:
        """The question, and what the team's context window keeps of the conversation, after the newest summary."""
        thread, window = context.request.thread, context.team.spec.context_window
        question = await self._journal.row(thread.question)
        rows = await self._journal.read(thread.head, window_end(thread.question, thread.head.depth, window))
        summary, history = history_within(rows, thread.question, thread.head.depth, window)
        asked, *said = (context.values.message_of(row, question) for row in (question, *history))
        return [asked, *summary, *said]


def _result(context: _Context, choice: SpeakerChoice, usage: TokenUsage) -> SelectResult:
    words = Message(role="assistant", content=choice.words, name=context.team.name) if choice.words else None
    index = None if choice.place is None else context.request.candidates[choice.place]
    name = None if choice.place is None else context.names[choice.place]
    return SelectResult(member_index=index, member=name, how=choice.how, usage=usage, said=words)


def _roles(context: _Context) -> str:
    """The candidates with their descriptions (ARK: team strategies, template variables)."""
    roles = []
    for member, reference in zip(context.team.spec.members, context.team.members(), strict=True):
        found = context.values.catalog.find(reference)
        described = found.spec.description if isinstance(found, Agent | Team) else None
        description = described or ("a person" if member.is_human else None)
        if member.name_in_team in context.names:
            roles.append(f"{member.name_in_team}: {description}" if description else member.name_in_team)
    return ", ".join(roles)


def _history(messages: Sequence[Message]) -> str:
    """The messages under their speakers' names, without the results of tools."""
    spoken = ((each.name or each.role, each.content) for each in messages if each.role in ("user", "assistant"))
    return "\n".join(f"# {name}:\n{text}\n" for name, text in spoken if text)
