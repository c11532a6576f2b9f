"""The input of a panel's speakers: its transcript, their prompts, and the messages for their models."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby

from ..contracts.attachment import Attachment
from ..contracts.errors import FunctionFailed, JournalLost, UnknownResource
from ..contracts.message import Head, Message, latest_within
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
from ..contracts.text import truncate
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
from ..temporal.activity import in_thread_if_long
from .context.call_record import fenced, with_changed_arguments
from .context.context_window import apply_window, model_messages, past_rows, window_end
from .context.lookup import find_team
from .context.value_resolver import ValueResolver, speaker_prompt
from .runtime.functions import FunctionRegistry


@dataclass(frozen=True)
class Transcript:
    """A panel's conversation: its goal, the messages before the panel, and the panel's own rows."""

    team: Team
    goal: str
    attachments: Sequence[Attachment]
    before: Sequence[Message]
    rows: Sequence[Row]

    @classmethod
    def of(cls, team: Team, rows: Sequence[Row], question: str, begun: int) -> "Transcript":
        """The transcript of a panel whose rows follow depth ``begun``; ``rows`` is the whole conversation.

        Raises JournalLost if the row with the id ``question`` is missing.
        """
        questions = [row.message for row in rows if row.id == question]
        if not questions:
            raise JournalLost(f"the conversation has no row {question}, its question")
        before = [row.message for row in past_rows(rows[:begun], question, begun) if row.message.role != "tool"]
        return cls(
            team=team,
            goal=questions[0].content,
            attachments=questions[0].attachments,
            before=[message for message in before if message.content],
            rows=rows[begun:],
        )

    @classmethod
    def after_question(cls, team: Team, rows: Sequence[Row], question: str) -> "Transcript":
        """The transcript of a team that is not a panel: what follows its question. Raises JournalLost."""
        places = [place for place, row in enumerate(rows, start=1) if row.id == question]
        return cls.of(team, rows, question, places[0] if places else 0)

    def shortened(self, limit: int) -> "Transcript":
        """The goal and the latest of the messages before and of the panel's own, with ``limit`` bytes of each.

        Of the moderator's decisions, it has the last one.
        """
        decisions = [row for row in self.rows if row.message.part == "decision"]
        said = [
            row for row in self.rows if row.message.part in ("contribution", "critique") or row.message.role == "user"
        ]
        latest = latest_within((row.message for row in said), limit)
        rows = [replace(row, message=m) for row, m in zip(said[len(said) - len(latest) :], latest, strict=True)]
        before = latest_within(self.before, limit)
        return replace(self, goal=truncate(self.goal, limit), before=before, rows=[*decisions[-1:], *rows])

    @property
    def length(self) -> int:
        """The characters of its messages."""
        return sum(len(row.message.content) for row in self.rows) + sum(len(message.content) for message in self.before)

    def part(self, name: str) -> list[Message]:
        """The messages with this ``part``, in order."""
        return [row.message for row in self.rows if row.message.part == name]

    @cached_property
    def contributions(self) -> tuple[Contribution, ...]:
        """The contributions; outside of a panel the messages of members, in rounds of as many as there are members."""
        if not self.team.spec.is_panel:
            said = [row.message for row in self.rows if row.message.role == "assistant" and row.message.content]
            count = len(self.team.spec.members)
            return tuple(
                Contribution(round=number // count + 1, agent_name=message.name or "", text=message.content)
                for number, message in enumerate(said)
            )
        stances = {member.name_in_team: member.stance for member in self.team.spec.members}
        return contributions_in((row.message for row in self.rows), stances)

    @property
    def critiques(self) -> tuple[Critique, ...]:
        return tuple(Critique(round=message.round or 1, critique=message.content) for message in self.part("critique"))

    @property
    def remarks(self) -> tuple[str, ...]:
        """The messages of people to the panel while it ran."""
        return tuple(f"{row.message.name}: {row.message.content}" for row in self.rows if row.message.role == "user")

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(Decision.model_validate_json(message.content) for message in self.part("decision"))

    def shape(self, rounds: int) -> PanelShape | DebateShape:
        """The result of the panel or debate after ``rounds`` rounds."""
        if self.team.spec.strategy != "debate":
            return PanelShape(rounds=rounds, contributions=self.contributions, referee_critiques=self.critiques)
        verdicts = [Verdict.model_validate_json(message.content) for message in self.part("verdict")]
        return DebateShape(
            rounds=rounds,
            question=self.goal,
            transcript=self.contributions,
            verdict=verdicts[-1] if verdicts else None,
            moderator_decisions=self.decisions,
        )

    @property
    def _rounds_by_turns(self) -> int:
        spec = self.team.spec
        turns = spec.max_turns or len(spec.members)
        return turns if spec.rules.turn_unit == "round" and spec.max_turns else -(-turns // len(spec.members))

    def briefing_at(self, turn: int, session: JsonObject, name: str) -> Briefing:
        """The briefing for turn ``turn`` of a team that is not a panel."""
        number = -(-max(turn, 1) // len(self.team.spec.members))
        return self.briefing(SpeakerBrief(team=self.team.id, round=number, begun=0, session=session), name)

    def briefing(self, brief: SpeakerBrief, name: str) -> Briefing:
        """The briefing for the speaker with this name."""
        members = {member.name_in_team: member for member in self.team.spec.members}
        decisions = [message for message in self.part("decision") if message.round == brief.round]
        return Briefing(
            goal=self.goal,
            round=brief.round,
            max_rounds=self.team.spec.rounds if self.team.spec.is_panel else self._rounds_by_turns,
            agent_name=name,
            transcript=self.contributions,
            referee_critiques=self.critiques,
            session=brief.session,
            remarks=self.remarks or None,
            stance=members[name].stance if name in members else None,
            decision=Decision.model_validate_json(decisions[-1].content) if decisions else None,
        )


Label = Callable[[Contribution], str]


@dataclass(frozen=True)
class PromptSections:
    """The user message of every role, by method. ``window`` limits contributions."""

    transcript: Transcript
    briefing: Briefing
    window: ContextWindow | None

    def member(self) -> str:
        """For a panel's member."""
        contributions = _lines(self._contributions(), _by_name)
        critiques = (indented(f"[round {entry.round}] {entry.critique}") for entry in self.transcript.critiques)
        return self._text(
            self._now(), self._before(), ("Contributions so far", contributions), ("The referee's critiques", critiques)
        )

    def referee(self) -> str:
        """For the referee: the whole transcript, not only the last round."""
        transcript = _lines(self.transcript.contributions, _by_name) or ["(empty)"]
        return self._text(
            ("The round that has just ended", [self._count()]), self._before(), ("The transcript", transcript)
        )

    def synthesizer(self) -> str:
        """For a panel's synthesizer."""
        contributions = _lines(self.transcript.contributions, _by_name)
        critiques = (indented(f"[round {entry.round}] {entry.critique}") for entry in self.transcript.critiques)
        rounds = ("Number of rounds", [str(self.briefing.round)])
        return self._text(
            rounds, self._before(), ("The contributions", contributions), ("The referee's critiques", critiques)
        )

    def debater(self) -> str:
        """For a debater: arguments are labeled with their stance, not with a name."""
        decision = self.briefing.decision
        return self._text(
            self._now(),
            self._before(),
            ("Arguments so far", _lines(self._contributions(), _by_stance)),
            ("The moderator's briefing for this round", [decision.briefing] if decision and decision.briefing else []),
            ("The angle of this round", [decision.new_angle] if decision and decision.new_angle else []),
        )

    def moderator(self) -> str:
        """For the moderator, who opens the round."""
        members = (f"{member.name_in_team}: {member.stance}" for member in self.transcript.team.spec.members)
        past = (
            f"[round {n}] {decision.model_dump_json()}" for n, decision in enumerate(self.transcript.decisions, start=1)
        )
        return self._text(
            ("The round that you open", [self._count()]),
            ("The debaters and their stances", members),
            self._before(),
            ("Arguments so far", _lines(self.transcript.contributions, _by_both)),
            ("Your decisions so far", past),
        )

    def judge(self) -> str:
        """For the judge: by default without names, and with every round in random order."""
        spec = self.transcript.team.spec
        # The same debate is read in the same order by each attempt, by a fallback, and in the replay of a recording.
        random_order = random.Random("\n".join(entry.text for entry in self.transcript.contributions))
        contributions: list[Contribution] = []
        for _, entries in groupby(self.transcript.contributions, lambda contribution: contribution.round):
            this_round = [*entries]
            contributions += random_order.sample(this_round, len(this_round)) if spec.shuffle_for_judge else this_round
        label = _by_stance if spec.anonymize_transcript else _by_both
        stances = (f"- {member.stance}" for member in spec.members)
        return self._text(("The stances", stances), self._before(), ("The debate", _lines(contributions, label)))

    def debate_synthesizer(self) -> str:
        """For a debate's synthesizer."""
        verdicts = [message.content for message in self.transcript.part("verdict")]
        angles = (decision.new_angle for decision in self.transcript.decisions if decision.new_angle)
        contributions = _lines(self.transcript.contributions, _by_stance)
        return self._text(
            self._before(),
            ("The debate", contributions),
            ("The angles of the rounds", angles),
            ("The verdict", verdicts),
        )

    def _text(self, *sections: tuple[str, Iterable[str]]) -> str:
        """The goal and all sections that are not empty, with headings."""
        goal = "The question" if self.transcript.team.spec.strategy == "debate" else "The goal"
        remarks = "Messages from people", map(indented, self.transcript.remarks)
        texts = ((title, "\n".join(lines)) for title, lines in ((goal, [self.briefing.goal]), *sections, remarks))
        return "\n\n".join(f"# {title}\n{text}" for title, text in texts if text)

    def _count(self) -> str:
        last = " (the last round)" if self.briefing.round == self.briefing.max_rounds else ""
        return f"Round {self.briefing.round} of {self.briefing.max_rounds}{last}"

    def _now(self) -> tuple[str, Iterable[str]]:
        return "This round", [self._count()]

    def _before(self) -> tuple[str, Iterable[str]]:
        lines = (indented(f"{message.name or message.role}: {message.content}") for message in self.transcript.before)
        return "Earlier messages", lines

    def _contributions(self) -> Sequence[Contribution]:
        if self.window is None:
            return self.transcript.contributions
        rows = apply_window(self.transcript.rows, self.window)
        return replace(self.transcript, rows=rows).contributions


def _lines(contributions: Iterable[Contribution], label: Label) -> list[str]:
    """The contributions, with a heading for every round."""
    lines = []
    for number, entries in groupby(contributions, lambda contribution: contribution.round):
        lines += [f"## Round {number}", *(indented(f"{label(entry)}: {entry.text}") for entry in entries)]
    return lines


def indented(text: str) -> str:
    """An entry with its later lines indented, so that they can't look like another entry or a heading."""
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
    """The resource or the default agent with an id. Raises UnknownResource."""
    kind, namespace, *names = speaker_id.split("/")
    if kind in (MEMBER, ROLE):
        team = catalog.get("Team", namespace, names[0])
        if isinstance(team, Team):
            return default_agent(team, "member" if kind == MEMBER else names[1], names[1], catalog)
    elif resource := catalog.by_id(speaker_id):
        return resource
    raise UnknownResource(f"the run's catalog has no {speaker_id}")


def panel_output_schema(catalog: Catalog, brief: SpeakerBrief | None) -> JsonObject | None:
    """The JSON Schema for the answer of a panel's synthesizer, if it has one (round-robin pattern: output schema)."""
    team = catalog.by_id(brief.team) if brief and brief.part == "synthesizer" else None
    return team.spec.output_schema if isinstance(team, Team) else None


def default_agent(team: Team, role: str, name: str, catalog: Catalog) -> Agent:
    """The default agent of a member or role. Its prompt is a template of ``resources.panel.PROMPT_NAMES``."""
    spec = team.spec
    custom_prompt = getattr(team.spec.prompts or Prompts(), role)
    model = spec.model
    return Agent(
        api_version=API_VERSION,
        metadata=Metadata(name=name, namespace=team.namespace),
        spec=AgentSpec(
            prompt=custom_prompt or default_prompt(spec.strategy, role),
            model=InlineModel(name=model.name) if model and not model.namespace else None,
            model_ref=Ref(name=model.name, namespace=model.namespace) if model and model.namespace else None,
            tools=_tools(team, catalog),
            output_schema=_schema(team, role),
            context_window=spec.context_window,
        ),
    )


def capabilities(team: Team, catalog: Catalog) -> list[Capability]:
    """The capabilities of the team's default agents."""
    refs = [catalog.get("Capability", ref.namespace or team.namespace, ref.name) for ref in team.spec.uses]
    return [capability for capability in refs if isinstance(capability, Capability)]


def _tools(team: Team, catalog: Catalog) -> tuple[AgentTool, ...]:
    """The team's own tools, then those of its capabilities; of two tools with the same name the first."""
    tools = [*team.spec.tools, *(tool for capability in capabilities(team, catalog) for tool in capability.spec.tools)]
    return tuple({tool.name: tool for tool in reversed(tools)}[name] for name in dict.fromkeys(t.name for t in tools))


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
    """The panel from one speaker's view: ``rows`` is the conversation, ``question`` the id of the question's row.

    Raises UnknownResource if the catalog does not have the brief's team.
    """

    def __init__(self, brief: SpeakerBrief, values: ValueResolver, rows: Sequence[Row], question: str) -> None:
        self.team = find_team(values.catalog, brief.team)
        self.brief = brief
        self.values = values
        self.transcript = Transcript.of(self.team, rows, question, brief.begun)

    @property
    def name(self) -> str:
        """The speaker's name: that of the member or of the role."""
        if self.brief.member_index is None:
            return self.brief.part
        return self.team.spec.members[self.brief.member_index].name_in_team

    @property
    def briefing(self) -> Briefing:
        """The briefing for this speaker."""
        return self.transcript.briefing(self.brief, self.name)

    def as_json(self) -> str:
        """The input of a speaker with its own prompt: the panel's result for a synthesizer, otherwise its briefing."""
        if self.brief.part == "synthesizer":
            return self.transcript.shape(self.brief.round).model_dump_json(by_alias=True)
        return self.briefing.model_dump_json(by_alias=True)

    def for_person(self, limit: int) -> str:
        """What a default agent would read in the place of a person, with ``limit`` bytes of each kind of text."""
        return truncate(self._sections(self.transcript.shortened(limit), None), 4 * limit)

    async def messages(self, agent: Agent, speaker: str, functions: FunctionRegistry) -> list[Message]:
        """The messages for the model of the agent with the id ``speaker``."""
        if speaker.partition("/")[0] not in (MEMBER, ROLE):
            prompt = speaker_prompt(agent, self.values)
            compose = self.as_json
        else:
            prompt = await self._prompt(agent, functions)
            compose = partial(self._sections, self.transcript, agent.spec.context_window)
        text = await in_thread_if_long(self.transcript.length, compose)
        system = [Message(role="system", content=prompt)] if prompt else []
        return [*system, Message(role="user", content=text).with_attachments(self.transcript.attachments)]

    def _sections(self, transcript: Transcript, window: ContextWindow | None) -> str:
        """The user message of the speaker's role."""
        sections = PromptSections(transcript, transcript.briefing(self.brief, self.name), window)
        return _SECTIONS[self.team.spec.strategy, self.brief.part](sections)

    async def _prompt(self, agent: Agent, functions: FunctionRegistry) -> str:
        """The filled-in prompt, followed by the instructions and the context unless the prompt contains them."""
        values = await self._names(functions)
        used: set[str] = set()

        def value(name: str) -> str:
            used.add(name)
            return values[name]

        base = fill(agent.spec.prompt or "", value)
        unused = (name for name in ("Instructions", "Context") if name not in used)
        rest = [f"# {name}\n{values[name]}" for name in unused if values[name]]
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
        instructions = self.team.spec.instructions
        if not isinstance(instructions, FunctionRef):
            return instructions or ""
        text = await functions.invoke(instructions.function, self.briefing, **instructions.parameters)
        if not isinstance(text, str):
            raise FunctionFailed(f"the function '{instructions.function}' returned {type(text).__name__}, not a text")
        return text

    def _context(self) -> str:
        """The context of the team and of its capabilities, one entry a line."""
        texts: list[str] = []
        owners: list[Team | Capability] = [self.team, *capabilities(self.team, self.values.catalog)]
        for owner in owners:
            context = owner.spec.context
            if isinstance(context, str):
                texts.append(context)
            else:
                texts += [
                    f"{parameter.name}: {self.values.resolve(parameter, owner) or ''}" for parameter in context or ()
                ]
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
    return [with_changed_arguments(fenced(values.with_secrets(message))) for message in messages]
