"""Does a discussion get anywhere? Turns in a row that only repeat what their speaker has said before."""

import re

from resources.strategy import NoProgress

ALIKE = 0.9
"""The share of words that two texts have in common, of those in either, from which on one repeats the other."""


class Progress:
    """What each member has said lately, as the words in it, and how many turns in a row were repetitions."""

    def __init__(self, rule: NoProgress | None) -> None:
        self.rule = rule
        self.said: dict[str, list[dict[str, None]]] = {}
        self.repeated = 0

    def is_stuck(self, speaker: str, text: str) -> bool:
        """Notes what was said, and tells whether the discussion gets nowhere now."""
        if self.rule is None:
            return False
        words = dict.fromkeys(re.findall(r"\w+", text.casefold()))
        before = self.said.setdefault(speaker, [])
        self.repeated = self.repeated + 1 if any(_alike(words, each) for each in before) else 0
        self.said[speaker] = [*before, words][-self.rule.window :]
        return self.repeated >= self.rule.window


def _alike(one: dict[str, None], other: dict[str, None]) -> bool:
    common = sum(word in other for word in one)
    return common >= ALIKE * (len(one) + len(other) - common)
