"""A scripted selector with faults. From a seed, both its intended choice and its faulty reply are known."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.starter.scripted_model import Reply, Request, ScriptedToolCall

MEMBERS = ("writer", "critic", "editor", "reader")
SHARE = 0.3
"""The share of faulty replies, where not all are."""


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
"""For each fault the share of replies that are faulty, and the faulty reply."""


@dataclass
class Discussion:
    """One team's discussion at the model server: the intended speakers, the actual ones, and calls to the selector.

    The intended choice and the faults depend on seed, turn and attempt alone, so that each system gets the same.
    """

    seed: str
    fault: str
    meant: list[str] = field(default_factory=list)
    spoken: list[str] = field(default_factory=list)
    asked: int = 0
    attempt: int = 0

    def answer(self, request: Request) -> Reply:
        """The reply to a member or to the selector."""
        words = " ".join(str(each.get("content")) for each in request["messages"])
        speaker = re.search(r"You are (\w+)\.", words)
        if speaker:
            self.spoken.append(speaker[1])
            self.attempt = 0
            return Reply(text=f"Thought number {len(self.spoken)}.")
        name = self._choose()
        if request.get("tools") and name in MEMBERS:
            return Reply(calls=[ScriptedToolCall(name="select-next-speaker", arguments={"name": name})])
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
        """How often another member spoke than the intended one."""
        return sum(meant != spoke for meant, spoke in zip(self.meant, self.spoken, strict=False))

    @property
    def repeated(self) -> int:
        """How often a member spoke twice in a row."""
        return sum(one == other for one, other in zip(self.spoken, self.spoken[1:], strict=False))
