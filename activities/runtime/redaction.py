"""Finds secrets in texts, in whatever encoding they appear, and replaces them by ``[secret]``."""

import asyncio
import base64
import html
import json
import logging
import re
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote

from ahocorasick_rs import AhoCorasick, MatchKind
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ...contracts.errors import MAX_ERROR_TEXT
from ...contracts.message import Message, PersonDecision, ToolCall
from ...contracts.text import truncate
from ...observability.log import note_request
from ...temporal.activity import is_last_attempt
from .http import retry_delay

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
        self.text = text
        self._original = original
        # Of each piece: its place, its place in the original, and its length there if it is an escape. As arrays, since
        # the collection of garbage looks at millions of tuples with the interpreter's lock held.
        self._at = array("q", [0])
        self._begins = array("q", [0])
        self._escapes = array("q", [0])

    def undone(self) -> "Level | None":
        """The text with the escapes in it undone; None if there are none."""
        if not any(sign in self.text for sign in "%\\&"):
            return None
        parts: list[str] = []
        place = 0  # in this text
        size = 0  # of the undone text so far
        level = Level("", self)
        for escape in _ESCAPE.finditer(self.text):
            literal = self.text[place : escape.start()]
            char = _char_of(escape[0])
            level._at.extend((size, size + len(literal), size + len(literal) + len(char)))
            level._begins.extend((place, escape.start(), escape.end()))
            level._escapes.extend((0, len(escape[0]), 0))
            parts += (literal, char)
            place = escape.end()
            size += len(literal) + len(char)
        if not parts:
            return None
        level.text = "".join(parts) + self.text[place:]
        return level

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
        self._secrets: dict[str, set[str]] = {}
        self._passing: dict[str, None] = {}  # the oldest first
        self._forms: set[str] = set()
        self._longest = 0
        self._search: AhoCorasick | None = None  # built by the next search
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
                self._secrets[secret] = {_valid(form) for form in forms_of(_valid(secret))}
                self._know(self._secrets[secret] - self._forms)
            if len(self._passing) > MAX_PASSING:
                self._forget(next(iter(self._passing)))

    def _know(self, new: set[str]) -> None:
        if new:
            _add_heads(self._heads, new)
            self._forms = self._forms | new
            self._longest = max(map(len, self._forms))
            self._search = None

    def _forget(self, secret: str) -> None:
        del self._secrets[secret]
        del self._passing[secret]
        forms = set[str]().union(*self._secrets.values())
        heads: dict[str, list[str]] = {}
        _add_heads(heads, forms)
        self._heads = heads  # replaced as a whole: another thread may be looking for secrets
        self._forms = forms
        self._longest = max(map(len, forms))
        self._search = None

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
        cuts = []
        for level in levels(clean[begin:]):
            cut = self._begun(level.text, longest)
            if cut is not None:
                cuts.append(begin + level.start_of(cut))
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
    return forms | {form for form in encoded if len(form) >= SHORTEST_ENCODED}


def _valid(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, of which the search knows nothing; of the same length."""
    try:
        text.encode()  # a tenth of the time of the search
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _replaced(text: str, spans: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    place = 0
    for start, end in spans:
        if start >= place:
            parts += (text[place:start], PLACEHOLDER)
        place = max(place, end)
    return "".join(parts) + text[place:]


Redact = Callable[[str], str]
"""Gives a text with every known secret replaced."""


def redacted(message: Message, redact: Redact) -> Message:
    """The message with redacted texts, also those of its calls, of its place on a server, and of a decision."""
    changed: dict[str, object] = {"content": redact(message.content)}
    if message.model:
        changed["model"] = redact(message.model)
    if message.remote:
        remote = {name: redact(text) for name, text in message.remote.model_dump(by_alias=False).items()}
        changed["remote"] = message.remote.model_copy(update=remote)
    if message.decision:
        changed["decision"] = _redacted_decision(message.decision, redact)
    if message.tool_calls:
        changed["tool_calls"] = tuple(_redacted_call(call, redact) for call in message.tool_calls)
    return message.model_copy(update=changed)


def _redacted_call(call: ToolCall, redact: Redact) -> ToolCall:
    changed: dict[str, object] = {name: redact(getattr(call, name)) for name in ("id", "name", "arguments")}
    if call.extra:
        extra = {name: redact(text) for name, text in call.extra.model_dump(by_alias=False).items()}
        changed["extra"] = call.extra.model_copy(update=extra)
    return call.model_copy(update=changed)


def _redacted_decision(decision: PersonDecision, redact: Redact) -> PersonDecision:
    texts = {"reason": redact(decision.reason), "arguments": decision.arguments}
    if decision.arguments:
        texts["arguments"] = redact(decision.arguments)
    return decision.model_copy(update={name: text for name, text in texts.items() if text})


class RedactionInterceptor(Interceptor):
    """Removes secrets from every activity's error, and the errors that caused it, before Temporal gets it."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        return _RedactingActivities(super().intercept_activity(next), self._redact)


class _RedactingActivities(ActivityInboundInterceptor):
    def __init__(self, next_interceptor: ActivityInboundInterceptor, redact: Callable[[str], str]) -> None:
        super().__init__(next_interceptor)
        self._redact = redact

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        note_request(input.args)
        try:
            return await super().execute_activity(input)
        except asyncio.CancelledError:
            raise
        except ApplicationError as error:
            info = activity.info()
            raise ApplicationError(
                truncate(self._redact(error.message), MAX_ERROR_TEXT),
                *(self._redact(detail) if isinstance(detail, str) else detail for detail in error.details),
                *((info.attempt,) if error.details else ()),
                type=error.type,
                non_retryable=error.non_retryable or is_last_attempt(info.attempt, info.retry_policy),
                next_retry_delay=retry_delay(error.next_retry_delay, info.attempt),
            ) from None
        except Exception as error:  # a bug in Baton: Temporal retries the activity
            logging.getLogger(__name__).exception("%s failed", input.fn.__name__)
            raise ApplicationError(
                truncate(self._redact(str(error)), MAX_ERROR_TEXT), type=type(error).__name__
            ) from None
