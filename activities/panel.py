"""What the speakers of a panel read: its transcript, their prompts, and the messages for their models."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..contracts.errors import FunctionFailed, JournalLost, UnknownResource
from ..contracts.message import Head, Message
from ..contracts.panel import (
    Briefing,
    Contribution,
    Critique,
    DebateShape,
    Decision,
    PanelShape,
    RefereeOutput,
    SpeakerBrief,
    Verdict,
    contributions_in,
)
from ..contracts.requests import AskModelRequest
from ..journal.journal import Journal
from ..journal.rows import Row
from ..resources.agent import Agent, AgentSpec, AgentTool, InlineModel
from ..resources.base import API_VERSION, JsonModel, JsonObject, Ref
from ..resources.catalog import Catalog, Resource
from ..resources.default_prompts import default_prompt
from ..resources.manifest import ContextWindow, Metadata
from ..resources.member import Member
from ..resources.model import Model
from ..resources.panel import Capability, FunctionRef, Prompts
from ..resources.team import Team
from ..resources.template import fill
from ..temporal.activity import idempotency_key
from .context.call_record import fenced, with_changed_arguments
from .context.context_window import apply_window, model_messages, past_rows, window_end
from .context.lookup import find_team
from .context.value_resolver import ValueResolver, speaker_prompt
from .runtime.functions import FunctionRegistry


@dataclass(frozen=True)
class Transcript:
    """A panel's conversation: its goal, the messages before the panel began, and the panel's own rows."""

    team: Team
    goal: str
    before: Sequence[Message]
    rows: Sequence[Row]

    @classmethod
    def of(cls, team: Team, rows: Sequence[Row], question: str, begun: int) -> "Transcript":
        """The transcript of a panel that began after depth ``begun``; ``rows`` is the whole conversation.

        Raises JournalLost if the row with the id ``question`` is missing.
        """
        asked = [row.message for row in rows if row.id == question]
        if not asked:
            raise JournalLost(f"the conversation does not hold its question {question}")
        before = [row.message for row in past_rows(rows[:begun], question, begun) if row.message.role != "tool"]
        return cls(team, asked[0].content, [each for each in before if each.content], rows[begun:])

    def part(self, name: str) -> list[Message]:
        """The messages with such a ``part``, in their order."""
        return [row.message for row in self.rows if row.message.part == name]

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        stances = {member.name_in_team: member.stance for member in self.team.spec.members}
        said = contributions_in(row.message for row in self.rows)
        return tuple(each.with_stance(stances.get(each.agent_name)) for each in said)

    @property
    def critiques(self) -> tuple[Critique, ...]:
        return tuple(Critique(round=each.round or 1, critique=each.content) for each in self.part("critique"))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What people said to the panel while it ran."""
        return tuple(f"{row.message.name}: {row.message.content}" for row in self.rows if row.message.role == "user")

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(Decision.model_validate_json(each.content) for each in self.part("decision"))

    def shape(self, rounds: int) -> PanelShape | DebateShape:
        """The result of the panel or debate so far, after ``rounds`` rounds."""
        if self.team.spec.strategy != "debate":
            return PanelShape(rounds=rounds, contributions=self.contributions, referee_critiques=self.critiques)
        verdicts = [Verdict.model_validate_json(each.content) for each in self.part("verdict")]
        return DebateShape(
            rounds=rounds,
            question=self.goal,
            transcript=self.contributions,
            verdict=verdicts[-1] if verdicts else None,
            moderator_decisions=self.decisions,
        )

    def briefing(self, brief: SpeakerBrief, name: str) -> Briefing:
        """The briefing for the speaker of that name."""
        members = {member.name_in_team: member for member in self.team.spec.members}
        opened = [each for each in self.part("decision") if each.round == brief.round]
        return Briefing(
            goal=self.goal,
            round=brief.round,
            max_rounds=self.team.spec.rounds,
            agent_name=name,
            transcript=self.contributions,
            referee_critiques=self.critiques,
            session=brief.session,
            remarks=self.remarks or None,
            stance=members[name].stance if name in members else None,
            decision=Decision.model_validate_json(opened[-1].content) if opened else None,
        )


Label = Callable[[Contribution], str]


@dataclass(frozen=True)
class PromptSections:
    """One method for each role. ``window`` limits the contributions; ``seed`` fixes the order that a judge sees."""

    transcript: Transcript
    briefing: Briefing
    window: ContextWindow | None
    seed: str

    def member(self) -> str:
        """For a panel's member."""
        said = _lines(self._contributions(), _by_name)
        critiques = (_indented(f"[round {each.round}] {each.critique}") for each in self.transcript.critiques)
        return self._text(
            self._now(), self._before(), ("Contributions so far", said), ("The referee's critiques", critiques)
        )

    def referee(self) -> str:
        """For the referee: the whole transcript, not only the last round."""
        said = _lines(self.transcript.contributions, _by_name) or ["(empty)"]
        return self._text(("The round that has just ended", [self._count()]), self._before(), ("The transcript", said))

    def synthesizer(self) -> str:
        """For a panel's synthesizer."""
        said = _lines(self.transcript.contributions, _by_name)
        critiques = (_indented(f"[round {each.round}] {each.critique}") for each in self.transcript.critiques)
        rounds = ("Rounds that were held", [str(self.briefing.round)])
        return self._text(rounds, self._before(), ("The contributions", said), ("The referee's critiques", critiques))

    def debater(self) -> str:
        """For a debater: arguments are labelled with their stance, not with a name."""
        opened = self.briefing.decision
        return self._text(
            self._now(),
            self._before(),
            ("Arguments so far", _lines(self._contributions(), _by_stance)),
            ("The moderator's briefing for this round", [opened.briefing] if opened and opened.briefing else []),
            ("What this round looks at", [opened.new_angle] if opened and opened.new_angle else []),
        )

    def moderator(self) -> str:
        """For the moderator, who opens the round."""
        members = (f"{each.name_in_team}: {each.stance}" for each in self.transcript.team.spec.members)
        past = (f"[round {n}] {each.model_dump_json()}" for n, each in enumerate(self.transcript.decisions, start=1))
        return self._text(
            ("The round that you open", [self._count()]),
            ("The debaters and their stances", members),
            self._before(),
            ("Arguments so far", _lines(self.transcript.contributions, _by_both)),
            ("Your decisions so far", past),
        )

    def judge(self) -> str:
        """For the judge: by default without names, and each round in random order."""
        spec = self.transcript.team.spec
        random_order = random.Random(self.seed)
        said: list[Contribution] = []
        for _, entries in groupby(self.transcript.contributions, lambda each: each.round):
            this_round = [*entries]
            said += random_order.sample(this_round, len(this_round)) if spec.shuffle_for_judge else this_round
        label = _by_stance if spec.anonymize_transcript else _by_both
        stances = (f"- {member.stance}" for member in spec.members)
        return self._text(("The stances", stances), self._before(), ("The debate", _lines(said, label)))

    def debate_synthesizer(self) -> str:
        """For a debate's synthesizer."""
        verdicts = [message.content for message in self.transcript.part("verdict")]
        angles = (each.new_angle for each in self.transcript.decisions if each.new_angle)
        said = _lines(self.transcript.contributions, _by_stance)
        return self._text(
            self._before(), ("The debate", said), ("What rounds looked at", angles), ("The verdict", verdicts)
        )

    def _text(self, *sections: tuple[str, Iterable[str]]) -> str:
        """The goal and the sections that are not empty, each under its heading."""
        goal = "The question" if self.transcript.team.spec.strategy == "debate" else "The goal"
        remarks = "What people have said to you all", map(_indented, self.transcript.remarks)
        whole = ((title, "\n".join(lines)) for title, lines in ((goal, [self.briefing.goal]), *sections, remarks))
        return "\n\n".join(f"# {title}\n{text}" for title, text in whole if text)

    def _count(self) -> str:
        last = " (the last round)" if self.briefing.round == self.briefing.max_rounds else ""
        return f"Round {self.briefing.round} of {self.briefing.max_rounds}{last}"

    def _now(self) -> tuple[str, Iterable[str]]:
        return "This round", [self._count()]

    def _before(self) -> tuple[str, Iterable[str]]:
        said = (_indented(f"{each.name or each.role}: {each.content}") for each in self.transcript.before)
        return "What was said before", said

    def _contributions(self) -> Sequence[Contribution]:
        kept = apply_window(self.transcript.rows, self.window)
        return Transcript(self.transcript.team, self.transcript.goal, (), kept).contributions


def _lines(contributions: Iterable[Contribution], label: Label) -> list[str]:
    """The contributions, each round under a heading."""
    lines = []
    for number, entries in groupby(contributions, lambda each: each.round):
        lines += [f"## Round {number}", *(_indented(f"{label(each)}: {each.text}") for each in entries)]
    return lines


def _indented(text: str) -> str:
    """An entry with its later lines indented, so that none of them looks like another entry or a heading."""
    return text.replace("\n", "\n  ")


def _by_name(entry: Contribution) -> str:
    return entry.agent_name


def _by_stance(entry: Contribution) -> str:
    return f"[{entry.stance}]" if entry.stance else "[a person]"


def _by_both(entry: Contribution) -> str:
    return f"{entry.agent_name} [{entry.stance}]" if entry.stance else entry.agent_name


MEMBER = "Seat"
ROLE = "Part"
"""The first word of the id of a default member, and of the default agent of another role. Both are stored."""


def default_agent_id(team: Team, role: str, name: str) -> str:
    """The id of a default agent, ``Seat/namespace/team/name`` or ``Part/namespace/team/role``."""
    return f"{MEMBER if role == 'member' else ROLE}/{team.namespace}/{team.name}/{name}"


def find_speaker(catalog: Catalog, speaker_id: str) -> Resource:
    """The resource of the catalog, or the default agent of a team, that has an id. Raises UnknownResource."""
    kind, namespace, *names = speaker_id.split("/")
    if kind in (MEMBER, ROLE):
        team = catalog.get("Team", namespace, names[0])
        if isinstance(team, Team):
            return default_agent(team, "member" if kind == MEMBER else names[1], names[1], catalog)
    elif found := catalog.by_id(speaker_id):
        return found
    raise UnknownResource(f"the run's catalog has no {speaker_id}")


def panel_output_schema(catalog: Catalog, brief: SpeakerBrief | None) -> JsonObject | None:
    """The JSON Schema for the answer of a panel's synthesizer, if it has one (round-robin pattern: output schema)."""
    team = catalog.by_id(brief.team) if brief and brief.part == "synthesizer" else None
    return team.spec.output_schema if isinstance(team, Team) else None


def default_agent(team: Team, role: str, name: str, catalog: Catalog) -> Agent:
    """The default agent of a member or role. Its prompt is a template of ``resources.panel.PROMPT_NAMES``."""
    spec = team.spec
    own = getattr(team.spec.prompts or Prompts(), role)
    model = spec.model
    return Agent(
        api_version=API_VERSION,
        metadata=Metadata(name=name, namespace=team.namespace),
        spec=AgentSpec(
            prompt=own or default_prompt(spec.strategy, role),
            model=InlineModel(name=model.name) if model and not model.namespace else None,
            model_ref=Ref(name=model.name, namespace=model.namespace) if model and model.namespace else None,
            tools=_tools(team, catalog),
            output_schema=_schema(team, role),
            context_window=spec.context_window,
        ),
    )


def capabilities(team: Team, catalog: Catalog) -> list[Capability]:
    """The capabilities that the team's default agents have."""
    refs = [catalog.get("Capability", ref.namespace or team.namespace, ref.name) for ref in team.spec.uses]
    return [found for found in refs if isinstance(found, Capability)]


def _tools(team: Team, catalog: Catalog) -> tuple[AgentTool, ...]:
    """The team's own tools, then those of its capabilities; of two with one name the first."""
    given = [*team.spec.tools, *(tool for each in capabilities(team, catalog) for tool in each.spec.tools)]
    return tuple({tool.name: tool for tool in reversed(given)}[name] for name in dict.fromkeys(t.name for t in given))


def _schema(team: Team, role: str) -> JsonObject | None:
    if role == "synthesizer":
        return team.spec.output_schema
    shapes: dict[str, type[JsonModel]] = {"referee": RefereeOutput, "moderator": Decision, "judge": Verdict}
    shape = shapes.get(role)
    return shape.model_json_schema(by_alias=True) if shape else None


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
    """The panel as one speaker finds it: ``rows`` is the conversation, ``question`` the id of the question's row.

    Raises UnknownResource if the catalog has not got the brief's team.
    """

    def __init__(self, brief: SpeakerBrief, values: ValueResolver, rows: Sequence[Row], question: str) -> None:
        self.team = find_team(values.catalog, brief.team)
        self.brief = brief
        self.values = values
        self.transcript = Transcript.of(self.team, rows, question, brief.begun)

    @property
    def name(self) -> str:
        """The speaker's name: the member's, or that of the role."""
        if self.brief.member_index is None:
            return self.brief.part
        return self.team.spec.members[self.brief.member_index].name_in_team

    @property
    def briefing(self) -> Briefing:
        """Everything that the speaker may know."""
        return self.transcript.briefing(self.brief, self.name)

    def as_json(self) -> str:
        """What a speaker gets that is no default agent: a synthesizer the panel's result, others their briefing."""
        if self.brief.part == "synthesizer":
            return self.transcript.shape(self.brief.round).model_dump_json(by_alias=True)
        return self.briefing.model_dump_json(by_alias=True)

    async def messages(self, agent: Agent, speaker: str, functions: FunctionRegistry) -> list[Message]:
        """The messages for the model of the agent with the id ``speaker``."""
        if speaker.partition("/")[0] not in (MEMBER, ROLE):
            prompt = speaker_prompt(agent, self.values)
            text = self.as_json()
        else:
            prompt = await self._prompt(agent, functions)
            sections = PromptSections(self.transcript, self.briefing, agent.spec.context_window, idempotency_key())
            text = _SECTIONS[self.team.spec.strategy, self.brief.part](sections)
        system = [Message(role="system", content=prompt)] if prompt else []
        return [*system, Message(role="user", content=text)]

    async def _prompt(self, agent: Agent, functions: FunctionRegistry) -> str:
        """The prompt with its names filled in. Instructions and context that it does not name follow under headings."""
        known = await self._names(functions)
        used: set[str] = set()

        def value(name: str) -> str:
            used.add(name)
            return known[name]

        base = fill(agent.spec.prompt or "", value)
        rest = [f"# {name}\n{known[name]}" for name in ("Instructions", "Context") if known[name] and name not in used]
        if self.brief.part == "synthesizer":
            return "\n\n".join((*rest, base))
        return "\n\n".join((base, *rest))

    async def _names(self, functions: FunctionRegistry) -> dict[str, str]:
        brief = self.brief
        spec = self.team.spec
        member = spec.members[brief.member_index] if brief.member_index is not None else Member(name=brief.part)
        return {
            "Name": self.name,
            "Role": member.role or "one of its members",
            "Stance": member.stance or "",
            "Team": self.team.name,
            "Goal": self.transcript.goal,
            "Round": str(brief.round),
            "MaxRounds": str(spec.rounds),
            "Instructions": await self._instructions(functions),
            "Context": self._context(),
        }

    async def _instructions(self, functions: FunctionRegistry) -> str:
        given = self.team.spec.instructions
        if not isinstance(given, FunctionRef):
            return given or ""
        text = await functions.invoke(given.function, self.briefing, **given.parameters)
        if not isinstance(text, str):
            raise FunctionFailed(f"the function '{given.function}' gave {type(text).__name__}, not a text")
        return text

    def _context(self) -> str:
        """The context of the team, then that of its capabilities, line by line."""
        texts: list[str] = []
        owners: list[Team | Capability] = [self.team, *capabilities(self.team, self.values.catalog)]
        for owner in owners:
            given = owner.spec.context
            if isinstance(given, str):
                texts.append(given)
            else:
                texts += [f"{each.name}: {self.values.resolve(each, owner) or ''}" for each in given or ()]
        return "\n".join(texts)


async def speaker_messages(
    request: AskModelRequest,
    head: Head,
    speaker: Agent | Model,
    values: ValueResolver,
    journal: Journal,
    functions: FunctionRegistry,
) -> list[Message]:
    """The messages for a speaker up to ``head``, with its system prompt first if it has one."""
    thread = request.thread
    begun = request.begun
    agent = speaker if isinstance(speaker, Agent) else None
    if agent and request.brief:
        rows = await journal.read(head)
        panel = SpeakerContext(request.brief, values, rows[:begun], thread.question)
        messages = await panel.messages(agent, request.speaker, functions)
        messages += [row.message for row in rows[begun:]]
    else:
        rows = await journal.read(head, window_end(thread.question, begun, request.window))
        question = await journal.row(thread.question)
        prompt = speaker_prompt(agent, values) if agent else None
        messages = model_messages(prompt, rows, question, begun, request.window)
    return [with_changed_arguments(fenced(values.with_secrets(each))) for each in messages]
