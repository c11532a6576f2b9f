"""Does a discussion get anywhere? Turns in a row that only repeat what their speaker has said before."""

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from ...resources.strategy import NoProgress

ALIKE = 0.9
"""The share of words that two texts have in common, of those in either, from which on one repeats the other."""

WORDS = 300
"""How many words of a text are looked at."""


class Progress:
    """What each member has said lately, as the words in it, and how many turns in a row were repetitions."""

    def __init__(
        self, rule: NoProgress | None, said: Mapping[str, Sequence[str]] = MappingProxyType({}), repeated: int = 0
    ) -> None:
        self.rule, self.repeated = rule, repeated
        self.said = {speaker: tuple(texts) for speaker, texts in said.items()}

    def is_stuck(self, speaker: str, text: str) -> bool:
        """Notes what was said, and tells whether the discussion gets nowhere now."""
        if self.rule is None:
            return False
        words = dict.fromkeys(re.findall(r"\w+", text.casefold())[:WORDS])
        before = self.said.get(speaker, ())
        self.repeated = self.repeated + 1 if any(_alike(words, each.split()) for each in before) else 0
        self.said[speaker] = (*before, " ".join(words))[-self.rule.window :]
        return self.repeated >= self.rule.window


def _alike(one: Collection[str], other: Collection[str]) -> bool:
    common = sum(word in other for word in one)
    return common >= ALIKE * (len(one) + len(other) - common)
