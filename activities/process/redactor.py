"""Finds secrets in texts, in whatever form they stand there, and puts ``[secret]`` in their place."""

import base64
import html
import json
import re
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote

from ahocorasick_rs import AhoCorasick, MatchKind

PLACEHOLDER = "[secret]"

LEVELS = 3
"""How often escapes are undone: a JSON text in a JSON text in an address has three."""

SHORTEST_ENCODED = 8
"""Characters. What is shorter in base64 or in hexadecimal digits would be found in every text."""

PIECE = 1_000_000
"""Characters that are searched at once: the search keeps the interpreter's lock (6 ms)."""

_HEAD = 6
_PATH = "/:@!$&'()*+,;=~"  # as the addresses of tools are escaped
_ESCAPE = re.compile(
    r"%[0-7][0-9A-Fa-f]|(?:%[89A-Fa-f][0-9A-Fa-f])+"
    r"|\\+(?:u[0-9A-Fa-f]{4}|[\"\\/bfnrt])"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|amp|lt|gt|quot|apos);"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Redactor:
    """Knows the secrets of a worker. Each text is searched for all of them at once, escaped or not.

    Threads may use it at the same time.
    """

    def __init__(self) -> None:
        self._forms, self._longest = set[str](), 0
        self._search: AhoCorasick | None = None
        self._heads: dict[str, list[str]] = {}
        self._changing = threading.Lock()

    def add(self, secret: str) -> None:
        """Finds a secret from now on."""
        with self._changing:
            new = {_valid(each) for each in forms_of(_valid(secret))} - self._forms
            if new:
                self._forms = self._forms | new
                self._search, self._longest = None, max(map(len, self._forms))
                for form in new:
                    for length in range(1, min(_HEAD, len(form)) + 1):
                        self._heads.setdefault(form[:length], []).append(form)

    def redact(self, text: str) -> str:
        """The text with ``[secret]`` in place of every secret."""
        return _replaced(text, sorted(self._found(text))) if self._forms else text

    def redact_partial(self, text: str) -> str:
        """The same for a text that is not complete: without an end that may be the beginning of a secret."""
        clean = self.redact(text)
        if not self._forms:
            return clean
        longest = self._longest
        begin = max(0, len(clean) - 6 * longest)  # an escape has at most six characters, as in \\u0041
        found = ((level, self._begun(level.text, longest)) for level in _levels(clean[begin:]))
        cuts = [begin + level.start_of(cut) for level, cut in found if cut is not None]
        return clean[: min(cuts, default=len(clean))]

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        """Where secrets are in a text."""
        with self._changing:
            search = self._search = self._search or AhoCorasick([*self._forms], matchkind=MatchKind.LeftmostLongest)
        for level in _levels(text):
            text = _valid(level.text)
            for begin in range(0, len(text), PIECE):
                for _, start, end in search.find_matches_as_indexes(text[begin : begin + PIECE + self._longest]):
                    yield level.start_of(begin + start), level.end_of(begin + end)

    def _begun(self, text: str, longest: int) -> int | None:
        """Where at the end of a text a secret may have begun."""
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if any(form.startswith(text[start:]) for form in self._heads.get(text[start : start + _HEAD], ())):
                return start
        return None


def forms_of(secret: str) -> set[str]:
    """The forms of a secret that undoing escapes does not find: those of secrets that look escaped, and encodings."""
    in_json = json.dumps(secret)[1:-1]
    forms = {secret, quote(secret, ""), quote(secret), quote(secret, _PATH), quote_plus(secret)}
    forms |= {in_json, json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(in_json)[1:-1]}
    forms |= {html.escape(secret), html.escape(secret, quote=False)}
    data = secret.encode()
    encoded = {data.hex(), data.hex().upper()}
    for shift in range(3):  # where the secret stands in what was encoded
        inside = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
        inside = inside[(0, 2, 3)[shift] : len(inside) - ((shift + len(data)) % 3 > 0)]
        encoded |= {inside, inside.replace("+", "-").replace("/", "_")}
    forms |= {level.text for level in _levels(secret)}  # one whose own signs look escaped
    return forms | {each for each in encoded if len(each) >= SHORTEST_ENCODED}


class _Level:
    """A text with some escapes undone; a place in it leads to its place in the original text."""

    def __init__(self, text: str, original: "_Level | None" = None) -> None:
        self.text, self._original = text, original
        # Of each piece: its place, its place in the original, and its length there if it is an escape. As arrays, since
        # the collection of garbage looks at millions of tuples with the interpreter's lock held.
        self._at, self._begins, self._escapes = array("q", [0]), array("q", [0]), array("q", [0])

    def undone(self) -> "_Level | None":
        """The text with the escapes in it undone; None if there are none."""
        if not any(sign in self.text for sign in "%\\&"):
            return None
        parts, place, size = list[str](), 0, 0
        made = _Level("", self)
        for escape in _ESCAPE.finditer(self.text):
            literal, char = self.text[place : escape.start()], _char(escape[0])
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


def _levels(text: str) -> Iterator[_Level]:
    level: _Level | None = _Level(text)
    for _ in range(LEVELS + 1):
        if level is None:
            return
        yield level
        level = level.undone()


@lru_cache(maxsize=10_000)
def _char(escape: str) -> str:
    if escape[0] == "%":
        return unquote(escape, errors="replace")
    if escape[0] == "&":
        return html.unescape(escape)
    named = escape.lstrip("\\")
    return chr(int(named[1:], 16)) if len(named) == 5 else _SHORT.get(named, named or "\\")


def _valid(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, of which the search knows nothing; of the same length."""
    try:
        text.encode()  # a tenth of the time of the search
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _replaced(text: str, spans: list[tuple[int, int]]) -> str:
    parts, place = list[str](), 0
    for start, end in spans:
        if start >= place:
            parts += (text[place:start], PLACEHOLDER)
        place = max(place, end)
    return "".join(parts) + text[place:]
