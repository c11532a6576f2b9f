"""What a speaker of a panel gets to read: a default agent prompt sections, every other speaker a briefing as JSON."""

from collections.abc import Sequence

from ...conversation.contracts.panel_requests import SpeakerBrief
from ...conversation.errors import FunctionFailed
from ...conversation.messages.message import Message
from ...conversation.messages.panel import Briefing
from ...resources.agent import Agent
from ...resources.capability import Capability
from ...resources.member import Member
from ...resources.panel import FunctionRef
from ...resources.team import Team
from ...resources.template import fill
from ..context.lookup import find_team
from ..context.skills import speaker_prompt
from ..context.value_resolver import ValueResolver
from ..journal.row import Row
from ..process.functions import FunctionRegistry
from ..runtime.ids import idempotency_key
from .default_agents import MEMBER, ROLE, capabilities
from .prompt_sections import PromptSections
from .transcript import Transcript

_SECTIONS = {
    ("round-robin", "member"): PromptSections.member,
    ("round-robin", "referee"): PromptSections.referee,
    ("round-robin", "synthesizer"): PromptSections.synthesizer,
    ("debate", "member"): PromptSections.debater,
    ("debate", "moderator"): PromptSections.moderator,
    ("debate", "judge"): PromptSections.judge,
    ("debate", "synthesizer"): PromptSections.debate_synthesizer,
}


class SpeakerContext:
    """The panel as one speaker finds it: ``rows`` is the conversation, ``question`` the id of the question's row."""

    def __init__(self, team: Team, brief: SpeakerBrief, rows: Sequence[Row], question: str) -> None:
        self.team, self.brief = team, brief
        self.transcript = Transcript.of(team, rows, question, brief.begun)

    @classmethod
    def of(cls, brief: SpeakerBrief, values: ValueResolver, rows: Sequence[Row], question: str) -> "SpeakerContext":
        """The context for a brief. Raises UnknownResource if the catalog has not got the brief's team."""
        return cls(find_team(values.catalog, brief.team), brief, rows, question)

    @property
    def name(self) -> str:
        """The speaker's name: the member's, or that of the role."""
        return self.brief.part if self.brief.seat is None else self.team.spec.members[self.brief.seat].name_in_team

    @property
    def briefing(self) -> Briefing:
        """Everything that the speaker may know."""
        return self.transcript.briefing(self.brief, self.name)

    def as_json(self) -> str:
        """What a speaker gets that is no default agent: a synthesizer the panel's result, others their briefing."""
        if self.brief.part == "synthesizer":
            return self.transcript.shape(self.brief.round).model_dump_json(by_alias=True)
        return self.briefing.model_dump_json(by_alias=True)

    async def messages(
        self, agent: Agent, speaker: str, values: ValueResolver, functions: FunctionRegistry
    ) -> list[Message]:
        """The messages for the model of the agent with the id ``speaker``."""
        if speaker.partition("/")[0] not in (MEMBER, ROLE):
            prompt, text = speaker_prompt(agent, values), self.as_json()
        else:
            prompt = await self._prompt(agent, values, functions)
            sections = PromptSections(self.transcript, self.briefing, agent.spec.context_window, idempotency_key())
            text = _SECTIONS[self.team.spec.strategy, self.brief.part](sections)
        system = [Message(role="system", content=prompt)] if prompt else []
        return [*system, Message(role="user", content=text)]

    async def _prompt(self, agent: Agent, values: ValueResolver, functions: FunctionRegistry) -> str:
        """The prompt with its names filled in. Instructions and context that it does not name follow under headings."""
        known = await self._names(values, functions)
        used: set[str] = set()

        def value(name: str) -> str:
            used.add(name)
            return known[name]

        base = fill(agent.spec.prompt or "", value)
        rest = [f"# {name}\n{known[name]}" for name in ("Instructions", "Context") if known[name] and name not in used]
        if self.brief.part == "synthesizer":
            return "\n\n".join((*rest, base))
        return "\n\n".join((base, *rest))

    async def _names(self, values: ValueResolver, functions: FunctionRegistry) -> dict[str, str]:
        brief, spec = self.brief, self.team.spec
        member = spec.members[brief.seat] if brief.seat is not None else Member(name=brief.part)
        return {
            "Name": self.name,
            "Role": member.role or "one of its members",
            "Stance": member.stance or "",
            "Team": self.team.name,
            "Goal": self.transcript.goal,
            "Round": str(brief.round),
            "MaxRounds": str(spec.rounds),
            "Instructions": await self._instructions(functions),
            "Context": self._context(values),
        }

    async def _instructions(self, functions: FunctionRegistry) -> str:
        given = self.team.spec.instructions
        if not isinstance(given, FunctionRef):
            return given or ""
        text = await functions.invoke(given.function, self.briefing, **given.parameters)
        if not isinstance(text, str):
            raise FunctionFailed(f"the function '{given.function}' gave {type(text).__name__}, not a text")
        return text

    def _context(self, values: ValueResolver) -> str:
        """The context of the team, then that of its capabilities, line by line."""
        texts: list[str] = []
        owners: list[Team | Capability] = [self.team, *capabilities(self.team, values.catalog)]
        for owner in owners:
            given = owner.spec.context
            if isinstance(given, str):
                texts.append(given)
            else:
                texts += [f"{each.name}: {values.resolve(each, owner) or ''}" for each in given or ()]
        return "\n".join(texts)
