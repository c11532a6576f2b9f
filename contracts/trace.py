"""The place of a run or a call in a trace: read from Temporal's headers, and handed on in them."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from pydantic import JsonValue
from temporalio.api.common.v1 import Payload

from ..resources.base import JsonModel

HEADER = "_tracer-data"
"""The header in which Temporal's SDKs hand a trace on: a JSON object with ``traceparent``."""

MAX_HEADER = 4_000
"""Bytes of a header that is read; a ``tracestate`` has 512 at most (W3C Trace Context)."""

_CONVERSATION = "baton-conversation"
_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_STATE = re.compile(r"[\x20-\x7e]{0,512}")


@dataclass(frozen=True)
class TraceContext:
    """A place in a trace: below ``span``, or at its root where there is none. What is not ``sampled`` is not reported.

    ``conversation`` is the id of the conversation to which everything below belongs.
    """

    trace: str
    span: str | None = None
    sampled: bool = True
    state: str = ""
    conversation: str = ""

    def below(self, span: str) -> "TraceContext":
        """The place below a span of the same trace."""
        return replace(self, span=span)

    @property
    def traceparent(self) -> str:
        """The place as W3C Trace Context writes it. A root that is not reported has a span that nobody sees."""
        return f"00-{self.trace}-{self.span or derived_id(self.trace, size=8)}-{'01' if self.sampled else '00'}"

    def header(self) -> Payload:
        """The place as a header's value."""
        given = {"traceparent": self.traceparent, "tracestate": self.state, _CONVERSATION: self.conversation}
        data = json.dumps({name: text for name, text in given.items() if text}).encode()
        return Payload(metadata={"encoding": b"json/plain"}, data=data)

    @classmethod
    def in_headers(cls, headers: Mapping[str, Payload]) -> "TraceContext | None":
        """The place that headers name. None where they name none, or nothing that can be read: anybody can send one."""
        data = headers[HEADER].data if HEADER in headers else b""
        try:
            carrier = json.loads(data) if len(data) <= MAX_HEADER else None
        except ValueError:
            return None
        return cls.in_carrier(carrier) if isinstance(carrier, dict) else None

    @classmethod
    def in_carrier(cls, carrier: Mapping[str, object]) -> "TraceContext | None":
        """The place that ``traceparent`` and ``tracestate`` name."""
        found = _PARENT.fullmatch(f"{carrier.get('traceparent', '')}")
        if found is None:
            return None
        state, conversation = (f"{carrier.get(name) or ''}" for name in ("tracestate", _CONVERSATION))
        sampled = bool(int(found[3], 16) & 1)
        return cls(found[1], found[2], sampled, state if _STATE.fullmatch(state) else "", conversation[:200])


def root_of(run: str) -> TraceContext:
    """The root of the trace of a run that was started outside of any trace; ``run`` is the id of its first run."""
    return TraceContext(derived_id("trace", run, size=16))


def derived_id(*parts: object, size: int = 8) -> str:
    """An id of ``size`` bytes in hexadecimal digits: the same for the same parts, so that a repeated span is known."""
    text = "\0".join(map(str, parts))
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * size]


def call_span_id(key: str, label: str = "call") -> str:
    """The id of the span of a call, by the idempotency key of its activity; ``label`` tells several calls apart."""
    return derived_id(key, label)


class SpanData(JsonModel):
    """One span that has ended. ``trace``, ``id`` and ``parent`` are hexadecimal, as in a ``traceparent``.

    ``error`` is its ``error.type``, if it has failed, and ``message`` says why. ``kind``: ``client`` for a call of
    something outside of Baton.
    """

    trace: str
    id: str
    parent: str | None = None
    state: str = ""
    name: str
    kind: Literal["internal", "client"] = "internal"
    start: datetime
    end: datetime
    error: str | None = None
    message: str = ""
    attributes: dict[str, JsonValue] = {}

    def with_texts(self, change: Callable[[str], str]) -> "SpanData":
        """The span with every text in it changed, also those of lists."""

        def changed(value: JsonValue) -> JsonValue:
            if isinstance(value, list):
                return [changed(item) for item in value]
            return change(value) if isinstance(value, str) else value

        return SpanData(
            trace=self.trace,
            id=self.id,
            parent=self.parent,
            state=self.state,
            name=change(self.name),
            kind=self.kind,
            start=self.start,
            end=self.end,
            error=self.error,
            message=change(self.message),
            attributes={name: changed(value) for name, value in self.attributes.items()},
        )


class OpenSpan(JsonModel):
    """A span that a run has begun and its next run ends: its id, and when it began."""

    id: str
    start: datetime
