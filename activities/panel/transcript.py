"""The transcript of a panel or a debate, read from its conversation: each row's ``part`` says what it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...conversation.contracts.panel_requests import SpeakerBrief
from ...conversation.errors import JournalLost
from ...conversation.messages.message import Message
from ...conversation.messages.panel import (
    Briefing,
    Contribution,
    Critique,
    DebateShape,
    Decision,
    PanelShape,
    Verdict,
    contributions_in,
)
from ...resources.team import Team
from ..context.context_window import past_rows
from ..journal.row import Row


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
        return tuple(each.model_copy(update={"stance": stances.get(each.agent_name)}) for each in said)

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
