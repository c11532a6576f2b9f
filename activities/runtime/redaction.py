"""Finds secrets in texts, in any common encoding, and replaces them by ``[secret]``."""

import asyncio
import base64
import html
import json
import logging
import re
import threading
import time
import traceback
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote

from ahocorasick_rs import AhoCorasick, MatchKind
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ...contracts.errors import (
    MAX_ERROR_TEXT,
    OUTAGES,
    BatonError,
    JournalDamaged,
    JournalLost,
    JournalUnavailable,
    KeyRefused,
)
from ...contracts.message import Message, PersonDecision, ToolCall
from ...contracts.requests import CallRequest
from ...contracts.settings import REDACT
from ...contracts.text import truncate
from ...observability.log import note_request
from ...observability.metrics import JOURNAL_MISSING
from ...temporal.activity import is_last_attempt
from ...temporal.personal_data import PersonalData
from .http import outlasts_attempts, retry_delay

LEVELS = 3
"""How often a text is unescaped: JSON in a JSON string in a URL has three levels of escapes."""

LONGEST_CACHED = 12
"""Characters of an escape that is cached: four percent-encoded bytes."""

_ESCAPE = re.compile(
    r"%[0-7][0-9A-Fa-f]|(?:%[89A-Fa-f][0-9A-Fa-f])+"
    r"|\\+(?:u[0-9A-Fa-f]{4}|[\"\\/bfnrt])"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|amp|lt|gt|quot|apos);"
)
_OPEN_ESCAPE = re.compile(
    r"(?:%[0-9A-Fa-f]?|\\+(?:u[0-9A-Fa-f]{0,3})?|&(?:#[0-9]{0,7}|#[xX][0-9A-Fa-f]{0,6}|[a-z]{0,4}))$"
)
"""An escape at the end of a text that may go on."""

_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Level:
    """A text with some escapes undone, and a map from its positions to those of the original text."""

    def __init__(self, text: str, original: "Level | None" = None) -> None:
        self.text = text
        self._original = original
        # For every piece: its position, its position in the original, and its length there if it is an escape. Arrays,
        # because garbage collection of millions of tuples would hold the GIL.
        self._at = array("q", [0])
        self._begins = array("q", [0])
        self._escapes = array("q", [0])

    def undone(self) -> "Level | None":
        """The text with its escapes undone; None if there are none."""
        if not any(sign in self.text for sign in "%\\&"):
            return None
        parts: list[str] = []
        place = 0  # in this text
        size = 0  # length of the unescaped text up to here
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
        """The position in the original text at which the character at ``at`` begins."""
        if self._original is None:
            return at
        index = bisect_right(self._at, at) - 1
        begin, escape = self._begins[index], self._escapes[index]
        return self._original.start_of(begin if escape else begin + at - self._at[index])

    def end_of(self, at: int) -> int:
        """The position in the original text at which the character before ``at`` ends."""
        if self._original is None:
            return at
        index = bisect_right(self._at, at - 1) - 1
        begin, escape = self._begins[index], self._escapes[index]
        return self._original.end_of(begin + (escape or at - self._at[index]))


def levels(text: str) -> Iterator[Level]:
    """A text, and the same text unescaped once, twice, up to LEVELS times."""
    level: Level | None = Level(text)
    for _ in range(LEVELS + 1):
        if level is None:
            return
        yield level
        level = level.undone()


def _char_of(escape: str) -> str:
    """The characters of an escape. Several backslashes count as one; a long sequence of bytes is not cached."""
    if escape[0] == "\\":
        escape = "\\" + escape.lstrip("\\")
    return _char(escape) if len(escape) <= LONGEST_CACHED else _undo(escape)


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

SHORTEST_ENCODED = 8
"""Characters. A shorter form in base64 or hexadecimal digits would match in almost every text."""

PIECE = 1_000_000
"""Characters that are searched at once: the search holds the GIL (6 ms)."""

_HEAD = 6
_PATH = "/:@!$&'()*+,;=~"  # safe characters in the URLs of tools
_SURROGATE = re.compile("[\ud800-\udfff]")


class Redactor:
    """The known secrets of a worker. A text is searched for all of them at once, escaped or not.

    It is thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._secrets: dict[str, set[str]] = {}
        self._expiries: dict[str, float] = {}
        self._forms: set[str] = set()
        self._longest = 0
        self._search: AhoCorasick | None = None  # built by the next search, as is the next one
        self._head_search: AhoCorasick | None = None
        self._heads: dict[str, list[str]] = {}
        self._changing = threading.Lock()

    def add(self, secret: str, seconds: float | None = None) -> None:
        """Redacts a secret from now on; one that expires for at least ``seconds`` from its latest use."""
        with self._changing:
            now = self._clock()
            is_permanent = secret in self._secrets and secret not in self._expiries
            if seconds is None:
                self._expiries.pop(secret, None)
            elif not is_permanent:
                self._expiries[secret] = max(now + seconds, self._expiries.get(secret, 0))
            if secret not in self._secrets:
                self._secrets[secret] = {_valid(form) for form in forms_of(_valid(secret))}
                self._know(self._secrets[secret] - self._forms)
                self._forget([secret for secret, expiry in self._expiries.items() if expiry < now])

    def _know(self, new: set[str]) -> None:
        if new:
            _add_heads(self._heads, new)
            self._forms = self._forms | new
            self._longest = max(map(len, self._forms))
            self._search = self._head_search = None

    def _forget(self, expired: list[str]) -> None:
        if not expired:
            return
        for secret in expired:
            del self._secrets[secret]
            del self._expiries[secret]
        forms = set[str]().union(*self._secrets.values())
        heads: dict[str, list[str]] = {}
        _add_heads(heads, forms)
        self._heads = heads  # replaced as a whole: another thread may be searching
        self._forms = forms
        self._longest = max(map(len, forms))
        self._search = self._head_search = None

    def redact(self, text: str) -> str:
        """The text with ``[secret]`` in place of every secret."""
        return _replaced(text, sorted(self._matches(text))) if self._forms else text

    def redact_partial(self, text: str) -> str:
        """The same for an incomplete text: its end is cut off if a secret or an escape may start there."""
        clean = self.redact(text)
        if not self._forms:
            return clean
        longest = self._longest
        begin = max(0, len(clean) - 6 * longest)  # an escape has at most six characters, as in \\u0041
        cuts = []
        for level in levels(clean[begin:]):
            end = _OPEN_ESCAPE.search(level.text)
            whole = level.text[: end.start()] if end else level.text
            found = [self._partial_match(level.text, longest), self._partial_match(whole, longest), end and end.start()]
            cuts += [begin + level.start_of(cut) for cut in found if cut is not None]
        return clean[: min(cuts, default=len(clean))]

    def _matches(self, text: str) -> Iterator[tuple[int, int]]:
        """The start and end of every secret in a text."""
        with self._changing:
            search = self._search = self._search or AhoCorasick([*self._forms], matchkind=MatchKind.LeftmostLongest)
        for level in levels(text):
            text = _valid(level.text)
            for begin in range(0, len(text), PIECE):
                for _, start, end in search.find_matches_as_indexes(text[begin : begin + PIECE + self._longest]):
                    yield level.start_of(begin + start), level.end_of(begin + end)

    def _partial_match(self, text: str, longest: int) -> int | None:
        """The position near the end of a text at which a secret may start."""
        with self._changing:
            heads = self._heads
            if self._head_search is None:
                self._head_search = AhoCorasick([head for head in heads if len(head) == _HEAD])
            search = self._head_search
        begin = max(0, len(text) - longest + 1)
        found = search.find_matches_as_indexes(_valid(text[begin:]), overlapping=True)
        starts: list[int] = [begin + start for _, start, _ in found] + [
            *range(max(begin, len(text) - _HEAD + 1), len(text))
        ]
        for start in starts:
            if any(form.startswith(text[start:]) for form in heads.get(text[start : start + _HEAD], ())):
                return start
        return None


def _add_heads(heads: dict[str, list[str]], forms: Iterable[str]) -> None:
    """Adds forms under all their prefixes of up to _HEAD characters."""
    for form in forms:
        for length in range(1, min(_HEAD, len(form)) + 1):
            heads.setdefault(form[:length], []).append(form)


def forms_of(secret: str) -> set[str]:
    """The forms of a secret that are searched for: itself, its encodings, and its escaped and unescaped forms."""
    in_json = json.dumps(secret)[1:-1]
    forms = {secret, quote(secret, ""), quote(secret), quote(secret, _PATH), quote_plus(secret)}
    forms |= {in_json, json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(in_json)[1:-1]}
    forms |= {html.escape(secret), html.escape(secret, quote=False)}
    data = secret.encode()
    encoded = {data.hex(), data.hex().upper()}
    for shift in range(3):  # the secret's offset in the encoded data, modulo 3
        inside = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
        inside = inside[(0, 2, 3)[shift] : len(inside) - ((shift + len(data)) % 3 > 0)]
        encoded |= {inside, inside.replace("+", "-").replace("/", "_")}
    forms |= {level.text for level in levels(secret)}  # a secret may itself look escaped
    return forms | {form for form in encoded if len(form) >= SHORTEST_ENCODED}


def _valid(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates, which the search does not support; the length is unchanged."""
    try:
        text.encode()  # takes a tenth of the time of the search
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
"""Returns a text with every known secret replaced."""


def redacted(message: Message, redact: Redact) -> Message:
    """The message with redacted texts, including its tool calls, remote ids and decision."""
    changed: dict[str, object] = {"content": redact(message.content)}
    if message.model:
        changed["model"] = redact(message.model)
    if message.remote:
        remote = {name: redact(text) for name, text in message.remote.model_dump(by_alias=False).items()}
        changed["remote"] = message.remote.model_copy(update=remote)
    if message.decision:
        changed["decision"] = _redacted_decision(message.decision, redact)
    if message.reasoning and redact(message.reasoning.content) != message.reasoning.content:
        changed["reasoning"] = None  # servers check the signature of what they have sent
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
    texts = {name: getattr(decision, name) for name in ("reason", "arguments", "text", "by")}
    return decision.model_copy(update={name: redact(text) for name, text in texts.items() if text})


class RedactionInterceptor(Interceptor):
    """Removes secrets, and the causes, from every activity's error before it is sent to Temporal.

    It tells the workflow which calls may wait for the end of an outage; with ``waits_for_keys``, also those whose key
    was rejected, and with ``waits_for_rows`` all activities for which rows of the journal are missing: a backup may
    bring them back. ``personal_data`` is redacted, too.
    """

    def __init__(
        self,
        redact: Callable[[str], str],
        *,
        waits_for_keys: bool = False,
        waits_for_rows: bool = True,
        personal_data: PersonalData | None = None,
    ) -> None:
        for error in (JournalLost, JournalDamaged):
            JOURNAL_MISSING.record(0, error=error.__name__)  # so that Prometheus sees the increase with the first one
        self._redact = redact
        self._waits_for_keys = waits_for_keys
        self._waits_for_rows = waits_for_rows
        self._personal_data = personal_data

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        activities = super().intercept_activity(next)
        return _RedactingActivities(
            activities,
            self._redact,
            self._personal_data,
            waits_for_keys=self._waits_for_keys,
            waits_for_rows=self._waits_for_rows,
        )


class _RedactingActivities(ActivityInboundInterceptor):
    def __init__(
        self,
        next_interceptor: ActivityInboundInterceptor,
        redact: Callable[[str], str],
        personal_data: PersonalData | None,
        *,
        waits_for_keys: bool,
        waits_for_rows: bool,
    ) -> None:
        super().__init__(next_interceptor)
        self._redact = redact
        self._personal_data = personal_data
        self._waits_for_keys = waits_for_keys
        self._waits_for_rows = waits_for_rows

    def _waits(self, error: ApplicationError, request: object) -> bool:
        """Whether the run may wait: the same call may succeed later, when its server is back or its key was replaced.

        Without the journal, even calls that otherwise give up wait: they have no alternative.
        """
        if isinstance(error, JournalLost):
            return self._waits_for_rows and not isinstance(error, JournalDamaged)
        if isinstance(error, JournalUnavailable):  # such as for a worker that lacks a key
            return not error.non_retryable
        if not isinstance(request, CallRequest) or request.gives_up:
            return False
        if isinstance(error, KeyRefused):
            return self._waits_for_keys
        return isinstance(error, OUTAGES) and not error.non_retryable

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        note_request(input.args)
        try:
            self._check_redaction(input.args[0] if input.args else None)
            return await super().execute_activity(input)
        except asyncio.CancelledError:
            raise
        except ApplicationError as error:
            info = activity.info()
            is_last = is_last_attempt(info.attempt, info.retry_policy)
            if error.next_retry_delay and isinstance(input.args[0], CallRequest):
                is_last = is_last or outlasts_attempts(error.next_retry_delay, info.attempt, info.retry_policy)
            if isinstance(error, JournalLost):
                JOURNAL_MISSING.record(error=type(error).__name__)
            waits = self._waits(error, input.args[0])
            if waits and (is_last or error.non_retryable):
                requested = error.next_retry_delay.total_seconds() if error.next_retry_delay else 0.0
                details: tuple[object, ...] = ({"wait": requested},)
            else:
                details = ()
            if isinstance(error, BatonError) and error.usage:
                # In a list: workers of version 1.0 take a mapping that they do not know for a budget's.
                details = (*details, [error.paid.model_dump(mode="json", exclude_defaults=True)])
            raise ApplicationError(
                truncate(await self._clean(error.message), MAX_ERROR_TEXT),
                *(self._redact(detail) if isinstance(detail, str) else detail for detail in error.details),
                *details,
                *((info.attempt,) if error.details else ()),
                type=error.type,
                non_retryable=error.non_retryable or is_last,
                next_retry_delay=retry_delay(error.next_retry_delay, info.attempt),
            ) from None
        except Exception as error:  # a bug in Baton: Temporal retries the activity
            text = await self._clean(str(error))
            kind = type(error).__name__
            if self._personal_data:  # the traceback would repeat it, and the errors that have led to this one
                frames = "".join(traceback.format_tb(error.__traceback__))
                logging.getLogger(__name__).error("%s failed: %s: %s\n%s", input.fn.__name__, kind, text, frames)
            else:
                logging.getLogger(__name__).exception("%s failed", input.fn.__name__)
            raise ApplicationError(truncate(text, MAX_ERROR_TEXT), type=kind) from None

    def _check_redaction(self, request: object) -> None:
        """Raises JournalUnavailable if only a worker with a hook may continue the run: another one may have it."""
        if getattr(getattr(request, "thread", None), "redacted", None) and self._personal_data is None:
            raise JournalUnavailable(
                f"this worker does not redact personal data, and the run began on one that does: set {REDACT} for all "
                "workers"
            )

    async def _clean(self, text: str) -> str:
        """The text of an error without secrets and personal data."""
        clean = self._redact(text)
        return await self._personal_data.shown(clean) if self._personal_data else clean
