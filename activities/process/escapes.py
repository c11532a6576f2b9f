"""Undoes the escapes in a text, and finds the place of what stands there in the original text."""

import html
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote

LEVELS = 3
"""How often escapes are undone: a JSON text in a JSON text in an address has three."""

LONGEST_KEPT = 12
"""Characters of an escape whose meaning is kept: four bytes in an address."""

_ESCAPE = re.compile(
    r"%[0-7][0-9A-Fa-f]|(?:%[89A-Fa-f][0-9A-Fa-f])+"
    r"|\\+(?:u[0-9A-Fa-f]{4}|[\"\\/bfnrt])"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|amp|lt|gt|quot|apos);"
)
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Level:
    """A text with some escapes undone; a place in it leads to its place in the original text."""

    def __init__(self, text: str, original: "Level | None" = None) -> None:
        self.text, self._original = text, original
        # Of each piece: its place, its place in the original, and its length there if it is an escape. As arrays, since
        # the collection of garbage looks at millions of tuples with the interpreter's lock held.
        self._at, self._begins, self._escapes = array("q", [0]), array("q", [0]), array("q", [0])

    def undone(self) -> "Level | None":
        """The text with the escapes in it undone; None if there are none."""
        if not any(sign in self.text for sign in "%\\&"):
            return None
        parts, place, size = list[str](), 0, 0
        made = Level("", self)
        for escape in _ESCAPE.finditer(self.text):
            literal, char = self.text[place : escape.start()], _char_of(escape[0])
            made._at.extend((size, size + len(literal), size + len(literal) + len(char)))
            made._begins.extend((place, escape.start(), escape.end()))
            made._escapes.extend((0, len(escape[0]), 0))
            parts += (literal, char)
            place, size = escape.end(), size + len(literal) + len(char)
        if not parts:
            return None
        made.text = "".join(parts) + self.text[place:]
        return made

    def start_of(self, at: int) -> int:
        """The place in the original text at which the character at ``at`` begins."""
        if self._original is None:
            return at
        index = bisect_right(self._at, at) - 1
        begin, escape = self._begins[index], self._escapes[index]
        return self._original.start_of(begin if escape else begin + at - self._at[index])

    def end_of(self, at: int) -> int:
        """The place in the original text at which the character before ``at`` ends."""
        if self._original is None:
            return at
        index = bisect_right(self._at, at - 1) - 1
        begin, escape = self._begins[index], self._escapes[index]
        return self._original.end_of(begin + (escape or at - self._at[index]))


def levels(text: str) -> Iterator[Level]:
    """A text, and what becomes of it when its escapes are undone once, twice, and LEVELS times."""
    level: Level | None = Level(text)
    for _ in range(LEVELS + 1):
        if level is None:
            return
        yield level
        level = level.undone()


def _char_of(escape: str) -> str:
    """What an escape stands for. Any number of backslashes escapes the same; a long row of bytes is not kept."""
    if escape[0] == "\\":
        escape = "\\" + escape.lstrip("\\")
    return _char(escape) if len(escape) <= LONGEST_KEPT else _undo(escape)


@lru_cache(maxsize=10_000)
def _char(escape: str) -> str:
    return _undo(escape)


def _undo(escape: str) -> str:
    if escape[0] == "%":
        return unquote(escape, errors="replace")
    if escape[0] == "&":
        return html.unescape(escape)
    named = escape.lstrip("\\")
    return chr(int(named[1:], 16)) if len(named) == 5 else _SHORT.get(named, named or "\\")
