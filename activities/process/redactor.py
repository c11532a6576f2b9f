"""Finds secrets in texts, in whatever form they stand there, and puts ``[secret]`` in their place."""

import base64
import html
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote

from ahocorasick_rs import AhoCorasick, MatchKind

PLACEHOLDER = "[secret]"

LEVELS = 3
"""How often escapes are undone: a JSON text in a JSON text in an address has three."""

SHORTEST_ENCODED = 8
"""Characters. What is shorter in base64 or in hexadecimal digits would be found in every text."""

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
    """Knows the secrets of a worker. Each text is searched for all of them at once, escaped or not."""

    def __init__(self) -> None:
        self._forms: set[str] = set()
        self._search: AhoCorasick | None = None
        self._heads: dict[str, list[str]] = {}

    def add(self, secret: str) -> None:
        """Finds a secret from now on."""
        new = {_valid(each) for each in forms_of(_valid(secret))} - self._forms
        if new:
            self._forms |= new
            self._search = None
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
        longest = max(map(len, self._forms))
        begin = max(0, len(clean) - 6 * longest)  # an escape has at most six characters, as in \\u0041
        found = ((level, self._begun(level.text, longest)) for level in _levels(clean[begin:]))
        cuts = [begin + level.start_of(cut) for level, cut in found if cut is not None]
        return clean[: min(cuts, default=len(clean))]

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        """Where secrets are in a text."""
        if self._search is None:
            self._search = AhoCorasick([*self._forms], matchkind=MatchKind.LeftmostLongest)
        for level in _levels(text):
            for _, start, end in self._search.find_matches_as_indexes(_valid(level.text)):
                yield level.start_of(start), level.end_of(end)

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
        self._at: list[int] = [0]
        self._pieces: list[tuple[int, int]] = [(0, 0)]  # where it begins in the original; its length if it is an escape

    def undone(self) -> "_Level | None":
        """The text with the escapes in it undone; None if there are none."""
        if not any(sign in self.text for sign in "%\\&"):
            return None
        parts, place, size = list[str](), 0, 0
        made = _Level("", self)
        for escape in _ESCAPE.finditer(self.text):
            literal, char = self.text[place : escape.start()], _char(escape[0])
            made._at += (size, size + len(literal), size + len(literal) + len(char))
            made._pieces += ((place, 0), (escape.start(), len(escape[0])), (escape.end(), 0))
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
        begin, escape = self._pieces[index]
        return self._original.start_of(begin if escape else begin + at - self._at[index])

    def end_of(self, at: int) -> int:
        """The place in the original text at which the character before ``at`` ends."""
        if self._original is None:
            return at
        index = bisect_right(self._at, at - 1) - 1
        begin, escape = self._pieces[index]
        return self._original.end_of(begin + (escape or at - self._at[index]))


def _levels(text: str) -> Iterator[_Level]:
    level: _Level | None = _Level(text)
    for _ in range(LEVELS + 1):
        if level is None:
            return
        yield level
        level = level.undone()


def _char(escape: str) -> str:
    if escape[0] == "%":
        return unquote(escape, errors="replace")
    if escape[0] == "&":
        return html.unescape(escape)
    named = escape.lstrip("\\")
    return chr(int(named[1:], 16)) if len(named) == 5 else _SHORT.get(named, named or "\\")


def _valid(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, of which the search knows nothing; of the same length."""
    return _SURROGATE.sub("\ufffd", text)


def _replaced(text: str, spans: list[tuple[int, int]]) -> str:
    parts, place = list[str](), 0
    for start, end in spans:
        if start >= place:
            parts += (text[place:start], PLACEHOLDER)
        place = max(place, end)
    return "".join(parts) + text[place:]
