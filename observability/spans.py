"""The spans of an activity's calls to models, tools and remote agents."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pydantic import JsonValue
from temporalio import activity

from ..contracts.errors import BatonError, CircuitOpen
from ..contracts.trace import SpanData, TraceContext, call_span_id, derived_id
from ..temporal.activity import idempotency_key

if TYPE_CHECKING:
    from .span_export import SpanProcessor

Kind = Literal["internal", "client"]
Attributes = Mapping[str, JsonValue]


@dataclass
class CallSpan:
    """A call. ``error`` is set if it failed; ``is_call`` is False if nothing was sent."""

    name: str
    kind: Kind
    start: datetime
    place: TraceContext
    attributes: dict[str, JsonValue]
    end: datetime | None = None
    error: BaseException | None = None
    is_call: bool = True
    content: list[Callable[[], Attributes]] = field(default_factory=lambda: list[Callable[[], Attributes]]())


@dataclass
class CallSpans:
    """The calls of one attempt of an activity, below ``parent``.

    A span covers a call with all its attempts (OpenTelemetry: GenAI spans); its id is the same for every attempt. It is
    derived from the ``key``, by default that of the activity.
    """

    parent: TraceContext
    processor: "SpanProcessor"
    key: str = ""
    calls: list[CallSpan] = field(default_factory=lambda: list[CallSpan]())

    def spans(self, *, final: bool) -> list[SpanData]:
        """The spans to be reported: those of the calls, or of this attempt only if another one follows."""
        for call in self.calls:
            for content in call.content:
                call.attributes |= content()
        return [_span(call, self.parent) if final else _attempt(call, self.parent) for call in self.calls]


_spans: ContextVar[CallSpans | None] = ContextVar("call_spans", default=None)
_call: ContextVar[CallSpan | None] = ContextVar("call_span", default=None)


@contextlib.contextmanager
def collecting(spans: CallSpans) -> Iterator[None]:
    """A context manager that adds calls to ``spans``."""
    token = _spans.set(spans)
    try:
        yield
    finally:
        _spans.reset(token)


@contextlib.contextmanager
def call_span(
    operation: str, subject: str, attributes: Callable[[], Attributes], *, label: str = "call", kind: Kind = "client"
) -> Iterator[None]:
    """A context manager that reports a call. ``label`` distinguishes the calls of one activity.

    It does nothing in an untraced run, or if an open circuit breaker prevents the call.
    """
    if (spans := _spans.get()) is None:
        yield
        return
    call = _new(spans, operation, subject, attributes(), label, kind)
    token = _call.set(call)
    try:
        with spans.processor.exporter.attached(call.place):
            yield
    except CircuitOpen:
        call.is_call = False
        raise
    except (Exception, asyncio.CancelledError) as error:
        call.error = error
        raise
    finally:
        _call.reset(token)
        call.end = datetime.now(UTC)
        if call.is_call:
            spans.calls.append(call)


def recorded_call(
    operation: str, subject: str, attributes: Callable[[], Attributes], *, label: str = "call", kind: Kind = "client"
) -> None:
    """Adds a call whose result an earlier attempt stored, in case that attempt crashed before it reported the span."""
    if spans := _spans.get():
        call = _new(spans, operation, subject, attributes(), label, kind)
        call.end = datetime.now(UTC)
        spans.calls.append(call)


def note_call(attributes: Callable[[], Attributes]) -> None:
    """Adds attributes to the current call."""
    if call := _call.get():
        call.attributes |= attributes()


def note_content(attributes: Callable[[], Attributes]) -> None:
    """Adds message contents to the current call, if the worker is configured to capture them.

    ``attributes`` is called in a thread after the call, as contents may be long.
    """
    if (call := _call.get()) and (spans := _spans.get()) and spans.processor.captures_content:
        call.content.append(attributes)


def trace_headers() -> dict[str, str]:
    """The headers that propagate the trace context of the current call to a server."""
    call = _call.get()
    spans = _spans.get()
    return spans.processor.exporter.headers(call.place) if call and spans else {}


def _new(spans: CallSpans, operation: str, subject: str, attributes: Attributes, label: str, kind: Kind) -> CallSpan:
    place = spans.parent.below(call_span_id(spans.key or idempotency_key(), label))
    common: dict[str, JsonValue] = {"gen_ai.operation.name": operation}
    if spans.parent.conversation:
        common["gen_ai.conversation.id"] = spans.parent.conversation
    return CallSpan(
        name=f"{operation} {subject}".strip(),
        kind=kind,
        start=datetime.now(UTC),
        place=place,
        attributes={**common, **attributes},
    )


def _span(call: CallSpan, parent: TraceContext) -> SpanData:
    info = activity.info()
    assert call.end
    error, message = _error_of(call.error)
    again: dict[str, JsonValue] = {"baton.attempts": info.attempt} if info.attempt > 1 else {}
    return SpanData.model_construct(
        trace=parent.trace,
        id=call.place.span or "",
        parent=parent.span,
        state=parent.state,
        name=call.name,
        kind=call.kind,
        start=info.scheduled_time if info.attempt > 1 else call.start,
        end=call.end,
        error=error,
        message=message,
        attributes={**call.attributes, **again},
    )


def _attempt(call: CallSpan, parent: TraceContext) -> SpanData:
    """The span of an attempt that is followed by another one, below the span of the call."""
    info = activity.info()
    assert call.end
    error, message = _error_of(call.error)
    return SpanData.model_construct(
        trace=parent.trace,
        id=derived_id(call.place.span, info.attempt, info.scheduled_time.isoformat()),
        parent=call.place.span,
        state=parent.state,
        name=f"attempt {info.attempt}",
        start=call.start,
        end=call.end,
        error=error or "not_kept",
        message=message,
        attributes={"baton.attempt": info.attempt},
    )


def _error_of(error: BaseException | None) -> tuple[str | None, str]:
    if isinstance(error, asyncio.CancelledError):
        return "canceled", ""
    if isinstance(error, BatonError):
        return error.type or type(error).__name__, error.message
    return (type(error).__name__, str(error)) if error else (None, "")
