"""Detecting a stalled discussion: turns in a row that only repeat what their speaker has said before."""

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from ...resources.team_fields import NoProgress
from ..state.constants import STALL_SIMILARITY, STALL_WORDS


class StallDetection:
    """The latest texts of each member, as the words in them, and how many turns in a row were repetitions."""

    def __init__(
        self, rule: NoProgress | None, texts: Mapping[str, Sequence[str]] = MappingProxyType({}), repeated: int = 0
    ) -> None:
        self._rule, self.repeated = rule, repeated
        self.texts = {speaker: tuple(each) for speaker, each in texts.items()}

    def is_stalled(self, speaker: str, text: str) -> bool:
        """Notes a text, and tells whether the last turns, as many as the rule's window, were repetitions."""
        if self._rule is None:
            return False
        words = dict.fromkeys(re.findall(r"\w+", text.casefold())[:STALL_WORDS])
        before = self.texts.get(speaker, ())
        self.repeated = self.repeated + 1 if any(_similar(words, each.split()) for each in before) else 0
        self.texts[speaker] = (*before, " ".join(words))[-self._rule.window :]
        return self.repeated >= self._rule.window


def _similar(one: Collection[str], other: Collection[str]) -> bool:
    common = sum(word in other for word in one)
    return common >= STALL_SIMILARITY * (len(one) + len(other) - common)
