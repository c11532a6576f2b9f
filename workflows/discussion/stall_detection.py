"""Detecting a stalled discussion: turns in a row that only repeat what their speaker has said before."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from temporalio import workflow

from ...resources.team_fields import NoProgress
from ..state.constants import STALL_PAIRS, STALL_SIMILARITY, STALL_WORDS

_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d"  # Japanese syllables
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
"""The characters of languages that put no spaces between words. Punctuation is not among them."""

_RUNS = re.compile(f"([{_UNSPACED}]+)|[^\\W{_UNSPACED}]+")


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
        words = dict.fromkeys(_words(text.casefold())[:STALL_WORDS])
        before = self.texts.get(speaker, ())
        self.repeated = self.repeated + 1 if any(_similar(words, each.split()) for each in before) else 0
        self.texts[speaker] = (*before, " ".join(words))[-self._rule.window :]
        return self.repeated >= self._rule.window


def _words(text: str) -> list[str]:
    pairs = [*_pairs(text)]
    words = re.findall(r"\w+", text)
    return pairs if pairs != words and workflow.patched(STALL_PAIRS) else words


def _pairs(text: str) -> Iterator[str]:
    """The words of a text; where there are no spaces between words, each two characters that follow each other."""
    for run in _RUNS.finditer(text):
        if run[1]:
            yield from (run[0][start : start + 2] for start in range(max(1, len(run[0]) - 1)))
        else:
            yield run[0]


def _similar(one: Collection[str], other: Collection[str]) -> bool:
    common = sum(word in other for word in one)
    return common >= STALL_SIMILARITY * (len(one) + len(other) - common)
