"""What does a speaker of a panel get to read? Default ones their prompt and a text, others a briefing as it is."""

from collections.abc import Sequence

from ...conversation.contracts.panel_requests import Brief
from ...conversation.errors import FunctionFailed, UnknownResource
from ...conversation.messages.message import Message
from ...conversation.messages.panel import Briefing
from ...resources.agent import Agent
from ...resources.capability import Capability
from ...resources.member import Member
from ...resources.panel import Named
from ...resources.team import Team
from ...resources.template import fill
from ..context.value_resolver import Values
from ..journal.row import Row
from ..process.functions import Functions
from ..runtime.ids import call_id
from .default_agents import MEMBER, PART, capabilities
from .prompt_sections import Telling
from .transcript import Transcript

_TELLING = {
    ("round-robin", "member"): Telling.member,
    ("round-robin", "referee"): Telling.referee,
    ("round-robin", "synthesizer"): Telling.synthesizer,
    ("debate", "member"): Telling.debater,
    ("debate", "moderator"): Telling.moderator,
    ("debate", "judge"): Telling.judge,
    ("debate", "synthesizer"): Telling.debate_synthesizer,
}


class Room:
    """A panel's room at one moment: whoever speaks is told there what it is to know."""

    def __init__(self, team: Team, brief: Brief, rows: Sequence[Row], question: str) -> None:
        self.team, self.brief = team, brief
        self.transcript = Transcript.of(team, rows, question, brief.begun)

    @classmethod
    def at(cls, brief: Brief, values: Values, rows: Sequence[Row], question: str) -> "Room":
        """The room of the panel that a brief is about."""
        team = values.catalog.by_id(brief.team)
        if not isinstance(team, Team):
            raise UnknownResource(f"the run's catalog has no {brief.team}")
        return cls(team, brief, rows, question)

    @property
    def name(self) -> str:
        """The name of who speaks: a member's, or that of its part."""
        return self.brief.part if self.brief.seat is None else self.team.spec.members[self.brief.seat].address

    @property
    def briefing(self) -> Briefing:
        """All there is to know."""
        return self.transcript.briefing(self.brief, self.name)

    def explicit(self) -> str:
        """What an override is handed, as JSON: a synthesizer what the panel has come to, others their briefing."""
        if self.brief.part == "synthesizer":
            return self.transcript.shape(self.brief.round).model_dump_json(by_alias=True)
        return self.briefing.model_dump_json(by_alias=True)

    async def told(self, agent: Agent, speaker: str, values: Values, functions: Functions) -> list[Message]:
        """The messages for an agent's model. An agent of its own has its own prompt, and nothing is added to it."""
        if speaker.partition("/")[0] not in (MEMBER, PART):
            prompt, text = values.prompt(agent), self.explicit()
        else:
            prompt = await self._prompt(agent, values, functions)
            telling = Telling(self.transcript, self.briefing, agent.spec.context_window, call_id())
            text = _TELLING[self.team.spec.strategy, self.brief.part](telling)
        system = [Message(role="system", content=prompt)] if prompt else []
        return [*system, Message(role="user", content=text)]

    async def _prompt(self, agent: Agent, values: Values, functions: Functions) -> str:
        """The prompt with what is known at the time; what it has no place for stands under a heading."""
        known = await self._known(values, functions)
        used: set[str] = set()

        def value(name: str) -> str:
            used.add(name)
            return known[name]

        base = fill(agent.spec.prompt or "", value)
        rest = [f"# {name}\n{known[name]}" for name in ("Instructions", "Context") if known[name] and name not in used]
        if self.brief.part == "synthesizer":
            return "\n\n".join((*rest, base))
        return "\n\n".join((base, *rest))

    async def _known(self, values: Values, functions: Functions) -> dict[str, str]:
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

    async def _instructions(self, functions: Functions) -> str:
        given = self.team.spec.instructions
        if not isinstance(given, Named):
            return given or ""
        text = await functions.call(given.function, self.briefing, **given.parameters)
        if not isinstance(text, str):
            raise FunctionFailed(f"the function '{given.function}' gave {type(text).__name__}, not a text")
        return text

    def _context(self, values: Values) -> str:
        """The team's context, then that of its capabilities."""
        texts: list[str] = []
        owners: list[Team | Capability] = [self.team, *capabilities(self.team, values.catalog)]
        for owner in owners:
            given = owner.spec.context
            if isinstance(given, str):
                texts.append(given)
            else:
                texts += [f"{each.name}: {values.text(each, owner) or ''}" for each in given or ()]
        return "\n".join(texts)
