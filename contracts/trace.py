"""The trace context of a run or a call: read from Temporal's headers, and propagated in them."""

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
"""The header in which Temporal's SDKs propagate a trace: a JSON object with ``traceparent``."""

MAX_HEADER = 4_000
"""Bytes of a header that is read; a ``tracestate`` has 512 at most (W3C Trace Context)."""

_CONVERSATION = "baton-conversation"
_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_STATE = re.compile(r"[\x20-\x7e]{0,512}")


@dataclass(frozen=True)
class TraceContext:
    """A place in a trace: below ``span``, or at the root without one. What is not ``sampled`` is not reported.

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
        """The place in the format of W3C Trace Context. A root gets the id of a parent span that is never reported."""
        return f"00-{self.trace}-{self.span or derived_id(self.trace, size=8)}-{'01' if self.sampled else '00'}"

    def header(self) -> Payload:
        """The place as a header's value."""
        headers = {"traceparent": self.traceparent, "tracestate": self.state, _CONVERSATION: self.conversation}
        data = json.dumps({name: text for name, text in headers.items() if text}).encode()
        return Payload(metadata={"encoding": b"json/plain"}, data=data)

    @classmethod
    def in_headers(cls, headers: Mapping[str, Payload]) -> "TraceContext | None":
        """The place in untrusted headers; None if there is none, or it is malformed."""
        data = headers[HEADER].data if HEADER in headers else b""
        try:
            carrier = json.loads(data) if len(data) <= MAX_HEADER else None
        except ValueError:
            return None
        return cls.in_carrier(carrier) if isinstance(carrier, dict) else None

    @classmethod
    def in_carrier(cls, carrier: Mapping[str, object]) -> "TraceContext | None":
        """The place in ``traceparent`` and ``tracestate``; None if it is malformed."""
        match = _PARENT.fullmatch(f"{carrier.get('traceparent', '')}")
        if match is None:
            return None
        state, conversation = (f"{carrier.get(name) or ''}" for name in ("tracestate", _CONVERSATION))
        sampled = bool(int(match[3], 16) & 1)
        return cls(match[1], match[2], sampled, state if _STATE.fullmatch(state) else "", conversation[:200])


def root_of(run: str) -> TraceContext:
    """The root of the trace of a run that was started without a trace; ``run`` is the id of its first run."""
    return TraceContext(derived_id("trace", run, size=16))


def derived_id(*parts: object, size: int = 8) -> str:
    """A deterministic id of ``size`` bytes in hexadecimal digits, so that a repeated span has the same id."""
    text = "\0".join(map(str, parts))
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * size]


def call_span_id(key: str, label: str = "call") -> str:
    """The id of the span of a call, from the idempotency key of its activity; ``label`` distinguishes several calls."""
    return derived_id(key, label)


class SpanData(JsonModel):
    """An ended span. ``trace``, ``id`` and ``parent`` are hexadecimal, as in a ``traceparent``.

    ``error`` is its ``error.type``, if it has failed, and ``message`` says why. ``kind``: ``client`` for a call to a
    system outside Baton.
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
        """The span with ``change`` applied to all its texts, including those in lists."""

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
    """A span that a run begins and its successor ends: its id and its start time."""

    id: str
    start: datetime
