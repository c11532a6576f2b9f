"""How does a bad selector answer? By a script with a seed: what it means is known, and so is what it says instead."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.starter.scripted_model.script import Call, Reply, Request

MEMBERS = ("writer", "critic", "editor", "reader")
SHARE = 0.3
"""How many of the answers are faulty, where not all are."""


def _garbage(chance: random.Random, meant: str, last: str) -> str:
    other = next(name for name in MEMBERS if name != meant)
    return chance.choice(("I am not sure yet.", "The moderator", '{"next": ', f"{meant} or {other}", "nobody"))


FAULTS: dict[str, tuple[float, Callable[[random.Random, str, str], str]]] = {
    "none": (0, lambda _, meant, last: meant),
    "garbage, 30 %": (SHARE, _garbage),
    "names the last speaker, 30 %": (SHARE, lambda _, meant, last: last or "nobody"),
    "names the last speaker, always": (1, lambda _, meant, last: last or "nobody"),
    "never ends": (0, lambda _, meant, last: meant),
}
"""For each fault the share of answers that it spoils, and what is said in their place."""


@dataclass
class Discussion:
    """One team's discussion as the model's server sees it: whom the selector meant, who spoke, how often it was asked.

    What it means and when it fails depends on the seed, the turn and the attempt alone, so that each system is told
    the same.
    """

    seed: str
    fault: str
    meant: list[str] = field(default_factory=list)
    spoken: list[str] = field(default_factory=list)
    asked: int = 0
    attempt: int = 0

    def answer(self, request: Request) -> Reply:
        """What a member, or else the selector, says."""
        words = " ".join(str(each.get("content")) for each in request["messages"])
        speaker = re.search(r"You are (\w+)\.", words)
        if speaker:
            self.spoken.append(speaker[1])
            self.attempt = 0
            return Reply(text=f"Thought number {len(self.spoken)}.")
        name = self._choose()
        if request.get("tools") and name in MEMBERS:
            return Reply(calls=[Call(name="select-next-speaker", arguments={"name": name})])
        return Reply(text=name)

    def _choose(self) -> str:
        last = self.spoken[-1] if self.spoken else ""
        turn = len(self.spoken)
        if len(self.meant) == turn:
            others = [name for name in MEMBERS if name != last]
            self.meant.append(random.Random(f"{self.seed} {turn}").choice(others))
        self.asked, self.attempt = self.asked + 1, self.attempt + 1
        share, spoilt = FAULTS[self.fault]
        chance = random.Random(f"{self.seed} {turn} {self.attempt}")
        return spoilt(chance, self.meant[-1], last) if chance.random() < share else self.meant[-1]

    @property
    def wrong(self) -> int:
        """How often somebody else spoke than the selector meant."""
        return sum(meant != spoke for meant, spoke in zip(self.meant, self.spoken, strict=False))

    @property
    def repeated(self) -> int:
        """How often somebody spoke twice in a row."""
        return sum(one == other for one, other in zip(self.spoken, self.spoken[1:], strict=False))
