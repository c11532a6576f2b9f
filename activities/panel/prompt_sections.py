"""The prompt of a default agent, section by section: the goal, the round, and what was said so far."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...conversation.messages.panel import Briefing, Contribution
from ...resources.window import ContextWindow
from ..context.context_window import apply_window
from .transcript import Transcript

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
        spec, random_order = self.transcript.team.spec, random.Random(self.seed)
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
