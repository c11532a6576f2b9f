"""``select``: a team's selector chooses who speaks next, and its answers are kept before anybody is told of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from temporalio import activity

from ..conversation.contracts.requests import Selected, SelectRequest
from ..conversation.errors import UnknownResource
from ..conversation.failure import BatonError
from ..conversation.messages.message import Message, TokenUsage
from ..resources.agent import Agent
from ..resources.strategy import Selector
from ..resources.team import Team
from ..resources.template import fill
from .context.context_window import reach, within
from .context.planning import chooser_models
from .context.speaker_choice import choice_of, tools_of
from .context.value_resolver import Values
from .journal import Journal
from .journal.row import Row
from .model.models import Models
from .process.secrets import Vault
from .runtime.heartbeat import Pulse
from .runtime.ids import call_id
from .runtime.single_flight import InFlight

DEFAULT_PROMPT = """\
You moderate a discussion among these participants: {{.Roles}}.
Read the conversation, and decide which of them ({{.Participants}}) can carry it on best.

{{.History}}"""

TERMINATE_PROMPT = "If the user's question has been answered well enough, name nobody and end the discussion instead."

ASKED = {
    "tool": "Who speaks next? Answer by calling the tool select-next-speaker.",
    "text": "Select the next participant to respond. Answer with one name only.",
}
ENDS = {"tool": " Or call the tool terminate.", "text": " Or answer TERMINATE, a colon, and the final words."}


@dataclass(frozen=True)
class _Table:
    """What a selector chooses from: the candidates' names, in a team with its values."""

    request: SelectRequest
    team: Team
    selector: Selector
    names: Sequence[str]
    values: Values


class Select:
    """The activity ``select``."""

    def __init__(self, journal: Journal, models: Models, vault: Vault, calls: InFlight) -> None:
        self._journal, self._models, self._vault, self._calls = journal, models, vault, calls

    @activity.defn(name="select")
    async def select(self, request: SelectRequest) -> Selected:
        """Asks the selector, once more if its answer names nobody, and then takes the first candidate.

        A second question that is refused counts as an answer that names nobody.
        """

        async def selected(pulse: Pulse) -> Selected:
            return await self._select(request, pulse)

        return await self._calls.once(selected, self._vault.redact_growing)

    async def _select(self, request: SelectRequest, pulse: Pulse) -> Selected:
        table = await self._table(request)
        asked = await self._asked(table)
        usage = TokenUsage()
        for place in ("choice", "second-choice"):
            try:
                answer = (await self._answer(table, asked, f"{call_id()}/{place}", pulse)).message
            except BatonError as error:
                if not usage.model_calls or not error.non_retryable:
                    raise
                break  # the first answer was paid for: failing would lose count of it
            usage += (answer.usage or TokenUsage()) + TokenUsage(model_calls=1)
            if choice := choice_of(answer, table.names, may_end=table.selector.enable_terminate_tool):
                said = Message(role="assistant", content=choice.words, name=table.team.name) if choice.words else None
                seat = None if choice.place is None else request.candidates[choice.place]
                name = None if choice.place is None else table.names[choice.place]
                return Selected(seat=seat, member=name, how=choice.how, usage=usage, said=said)
            again = f"That names none of: {', '.join(table.names)}. {asked[1].content}"
            said_so = Message(role="assistant", content=answer.content or "(nobody)")
            asked = [*asked, said_so, Message(role="user", content=again)]
        return Selected(seat=request.candidates[0], member=table.names[0], how="fallback", usage=usage)

    async def _table(self, request: SelectRequest) -> _Table:
        catalog = await self._journal.catalog(request.thread.catalog)
        team = catalog.by_id(request.team)
        if not isinstance(team, Team):
            raise UnknownResource(f"the run's catalog has no {request.team}")
        names = [team.spec.members[seat].address for seat in request.candidates]
        values = await Values.of(self._journal, catalog, self._vault)
        return _Table(request, team, team.spec.selector or Selector(), names, values)

    async def _answer(self, table: _Table, asked: Sequence[Message], row_id: str, pulse: Pulse) -> Row:
        """The answer that stands in the journal, beside the conversation; the model is asked only if none does."""
        if row := await self._journal.find(row_id):
            return row
        model, name = chooser_models(table.team, table.values.catalog)[table.request.fallback]
        endpoint = self._models.endpoint(model, name, table.values)
        by_tool = table.selector.style == "tool"
        tools = tools_of(table.names, may_end=table.selector.enable_terminate_tool) if by_tool else []
        answer = await self._models.ask(endpoint, asked, tools, pulse.hear, must_use=by_tool)
        return await self._journal.answer(table.request.thread.head, self._vault.redact_message(answer), row_id)

    async def _asked(self, table: _Table) -> list[Message]:
        selector, values, team = table.selector, table.values, table.team
        thread, window = table.request.thread, team.spec.context_window
        question = await self._journal.row(thread.question)
        rows = await self._journal.read(thread.head, reach(thread.question, thread.head.depth, window))
        history = within([row for row in rows if row.id != thread.question], window)
        messages = [values.whole(row.message) for row in (question, *history)]
        told = {"Participants": ", ".join(table.names), "Roles": _roles(table), "History": _history(messages)}
        prompt = fill(selector.selector_prompt or DEFAULT_PROMPT, told.__getitem__)
        if selector.enable_terminate_tool:
            prompt = f"{prompt}\n\n{selector.terminate_prompt or TERMINATE_PROMPT}"
        chooser = values.catalog.find(team.chooser())
        own = values.prompt(chooser) if isinstance(chooser, Agent) else None
        ends = ENDS[selector.style] if selector.enable_terminate_tool else ""
        system = f"{own}\n\n{prompt}" if own else prompt
        return [Message(role="system", content=system), Message(role="user", content=f"{ASKED[selector.style]}{ends}")]


def _roles(table: _Table) -> str:
    """The candidates with what their manifests say of them (seed 001, Template Variables)."""
    roles = []
    for member, reference in zip(table.team.spec.members, table.team.members(), strict=True):
        found = table.values.catalog.find(reference)
        told = found.spec.description if isinstance(found, Agent | Team) else None
        if member.address in table.names:
            roles.append(f"{member.address}: {told}" if told else member.address)
    return ", ".join(roles)


def _history(messages: Sequence[Message]) -> str:
    """What was said, under the speakers' names; tools' answers are left out."""
    said = ((each.name or each.role, each.content) for each in messages if each.role in ("user", "assistant"))
    return "\n".join(f"# {name}:\n{text}\n" for name, text in said if text)
