"""Finds secrets in texts, in whatever form they stand there, and puts ``[secret]`` in their place."""

import base64
import html
import json
import re
import threading
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from ahocorasick_rs import AhoCorasick, MatchKind

from .escapes import levels

PLACEHOLDER = "[secret]"

MAX_PASSING = 100
"""Tokens that are replaced again and again: how many of them are known."""

SHORTEST_ENCODED = 8
"""Characters. What is shorter in base64 or in hexadecimal digits would be found in every text."""

PIECE = 1_000_000
"""Characters that are searched at once: the search keeps the interpreter's lock (6 ms)."""

_HEAD = 6
_PATH = "/:@!$&'()*+,;=~"  # as the addresses of tools are escaped
_SURROGATE = re.compile("[\ud800-\udfff]")


class Redactor:
    """Knows the secrets of a worker. Each text is searched for all of them at once, escaped or not.

    Threads may use it at the same time.
    """

    def __init__(self) -> None:
        self._secrets, self._passing = dict[str, set[str]](), dict[str, None]()
        self._forms, self._longest = set[str](), 0
        self._search: AhoCorasick | None = None
        self._heads: dict[str, list[str]] = {}
        self._changing = threading.Lock()

    def add(self, secret: str, *, passing: bool = False) -> None:
        """Finds a secret from now on; a ``passing`` one until there are MAX_PASSING newer ones."""
        with self._changing:
            if secret in self._secrets and secret not in self._passing:
                return
            self._passing.pop(secret, None)
            if passing:
                self._passing[secret] = None
            if secret not in self._secrets:
                self._secrets[secret] = {_valid(each) for each in forms_of(_valid(secret))}
                self._know(self._secrets[secret] - self._forms)
            if len(self._passing) > MAX_PASSING:
                self._forget(next(iter(self._passing)))

    def _know(self, new: set[str]) -> None:
        if new:
            _add_heads(self._heads, new)
            self._forms = self._forms | new
            self._search, self._longest = None, max(map(len, self._forms))

    def _forget(self, secret: str) -> None:
        del self._secrets[secret], self._passing[secret]
        forms, heads = set[str]().union(*self._secrets.values()), dict[str, list[str]]()
        _add_heads(heads, forms)  # all at once: another thread may be looking for secrets
        self._forms, self._heads, self._search, self._longest = forms, heads, None, max(map(len, forms))

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
        found = ((level, self._begun(level.text, longest)) for level in levels(clean[begin:]))
        cuts = [begin + level.start_of(cut) for level, cut in found if cut is not None]
        return clean[: min(cuts, default=len(clean))]

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        """Where secrets are in a text."""
        with self._changing:
            search = self._search = self._search or AhoCorasick([*self._forms], matchkind=MatchKind.LeftmostLongest)
        for level in levels(text):
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


def _add_heads(heads: dict[str, list[str]], forms: Iterable[str]) -> None:
    """Adds forms under each of their beginnings, of up to _HEAD characters."""
    for form in forms:
        for length in range(1, min(_HEAD, len(form)) + 1):
            heads.setdefault(form[:length], []).append(form)


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
    forms |= {level.text for level in levels(secret)}  # one whose own signs look escaped
    return forms | {each for each in encoded if len(each) >= SHORTEST_ENCODED}


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
