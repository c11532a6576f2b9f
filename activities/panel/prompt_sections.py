"""How is a default speaker told what it speaks of? The goal, the round, and what was said, section by section."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...conversation.messages.panel import Briefing, Contribution
from ...resources.window import ContextWindow
from ..context.context_window import within
from .transcript import Transcript

Label = Callable[[Contribution], str]


@dataclass(frozen=True)
class Telling:
    """What a speaker is told of, and how much of it; ``seed`` decides how a debate is shuffled for its judge."""

    transcript: Transcript
    briefing: Briefing
    window: ContextWindow | None
    seed: str

    def member(self) -> str:
        """For a panel's member."""
        said = _lines(self._contributions(), _by_name)
        critiques = (_set_in(f"[round {each.round}] {each.critique}") for each in self.transcript.critiques)
        return self._text(
            self._now(), self._before(), ("Contributions so far", said), ("The referee's critiques", critiques)
        )

    def referee(self) -> str:
        """For the referee: the whole transcript, not the last round alone."""
        said = _lines(self.transcript.contributions, _by_name) or ["(empty)"]
        return self._text(("The round that has just ended", [self._count()]), self._before(), ("The transcript", said))

    def synthesizer(self) -> str:
        """For a panel's synthesizer."""
        said = _lines(self.transcript.contributions, _by_name)
        critiques = (_set_in(f"[round {each.round}] {each.critique}") for each in self.transcript.critiques)
        rounds = ("Rounds that were held", [str(self.briefing.round)])
        return self._text(rounds, self._before(), ("The contributions", said), ("The referee's critiques", critiques))

    def debater(self) -> str:
        """For a debater: arguments go by their stance, not by who has put them."""
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
        members = (f"{each.address}: {each.stance}" for each in self.transcript.team.spec.members)
        past = (f"[round {n}] {each.model_dump_json()}" for n, each in enumerate(self.transcript.decisions, start=1))
        return self._text(
            ("The round that you open", [self._count()]),
            ("The debaters and their stances", members),
            self._before(),
            ("Arguments so far", _lines(self.transcript.contributions, _by_both)),
            ("Your decisions so far", past),
        )

    def judge(self) -> str:
        """For the judge: as a rule without names, and each round in an order of its own."""
        spec, chance = self.transcript.team.spec, random.Random(self.seed)
        said: list[Contribution] = []
        for _, entries in groupby(self.transcript.contributions, lambda each: each.round):
            heard = [*entries]
            said += chance.sample(heard, len(heard)) if spec.shuffle_for_judge else heard
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
        """The goal and all sections in which anything stands."""
        goal = "The question" if self.transcript.team.spec.strategy == "debate" else "The goal"
        remarks = "What people have said to you all", map(_set_in, self.transcript.remarks)
        whole = ((title, "\n".join(lines)) for title, lines in ((goal, [self.briefing.goal]), *sections, remarks))
        return "\n\n".join(f"# {title}\n{text}" for title, text in whole if text)

    def _count(self) -> str:
        last = " (the last round)" if self.briefing.round == self.briefing.max_rounds else ""
        return f"Round {self.briefing.round} of {self.briefing.max_rounds}{last}"

    def _now(self) -> tuple[str, Iterable[str]]:
        return "This round", [self._count()]

    def _before(self) -> tuple[str, Iterable[str]]:
        said = (_set_in(f"{each.name or each.role}: {each.content}") for each in self.transcript.before)
        return "What was said before", said

    def _contributions(self) -> Sequence[Contribution]:
        kept = within(self.transcript.rows, self.window)
        return Transcript(self.transcript.team, self.transcript.goal, (), kept).contributions


def _lines(contributions: Iterable[Contribution], label: Label) -> list[str]:
    """The contributions, each round under its number."""
    lines = []
    for number, entries in groupby(contributions, lambda each: each.round):
        lines += [f"## Round {number}", *(_set_in(f"{label(each)}: {each.text}") for each in entries)]
    return lines


def _set_in(text: str) -> str:
    """An entry whose further lines are set in, so that none of them reads as another's entry or as a heading."""
    return text.replace("\n", "\n  ")


def _by_name(entry: Contribution) -> str:
    return entry.agent_name


def _by_stance(entry: Contribution) -> str:
    return f"[{entry.stance}]" if entry.stance else "[a person]"


def _by_both(entry: Contribution) -> str:
    return f"{entry.agent_name} [{entry.stance}]" if entry.stance else entry.agent_name
