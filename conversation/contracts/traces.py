"""Spans of a trace as runs and activities report them, and the request that reports them."""

from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from ...resources.base import JsonModel


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


class ReportSpansRequest(JsonModel):
    """``report_spans``: hand spans of a run to the exporter of the worker."""

    spans: tuple[SpanData, ...]


class ReportSpansResult(JsonModel):
    """How many spans were handed on; 0 on a worker that exports no traces."""

    spans: int


class OpenSpan(JsonModel):
    """A span that a run has begun and its next run ends: its id, and when it began."""

    id: str
    start: datetime
