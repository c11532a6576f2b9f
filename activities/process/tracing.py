"""Exports spans with OpenTelemetry's SDK, as its environment variables say (OTEL_…); loaded only where they are set."""

import contextlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...conversation.contracts.traces import SpanData
from ...conversation.temporal.trace_context import TraceContext

if TYPE_CHECKING:
    from .span_export import SpanExport

_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WANTED = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

log = logging.getLogger("baton")


def tracing_of(environment: Mapping[str, str], folder: Path, redact: Callable[[str], str]) -> "Tracing":
    """What reports the spans of a worker, if they are asked for. Raises SettingsError.

    ``folder`` has what is not exported yet. ``redact`` removes secrets from every text.
    """
    if not _is_wanted(environment):
        return Tracing(None)
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        log.warning("no traces are reported, though OTEL_… asks for them: install opentelemetry-sdk")
        return Tracing(None)
    from .span_export import SpanExport  # noqa: PLC0415  # of the extra `otel`

    return Tracing(SpanExport.of(environment, folder, redact), captures_content=_captures(environment))


class Tracing:
    """Reports spans; without an ``export`` it does nothing. No call and no run fails because of that."""

    def __init__(self, export: "SpanExport | None", *, captures_content: bool = False) -> None:
        self._export, self.captures_content = export, captures_content

    @property
    def is_on(self) -> bool:
        """Whether spans are reported."""
        return self._export is not None

    def samples(self, place: TraceContext) -> bool:
        """Whether the sampler takes a run that begins at this place."""
        return self._export is not None and self._export.exporter.samples(place)

    @contextlib.contextmanager
    def attached(self, place: TraceContext) -> Iterator[None]:
        """Makes it the place of whatever libraries do in the block."""
        with self._export.exporter.attached(place) if self._export else contextlib.nullcontext():
            yield

    def headers(self, place: TraceContext) -> dict[str, str]:
        """The headers that hand a place on."""
        return self._export.exporter.headers(place) if self._export else {}

    async def report(self, spans: Sequence[SpanData]) -> None:
        """Takes spans over. When it returns, not even the death of this process loses them."""
        if self._export and spans:
            await self._export.add(spans)

    def take(self, spans: Sequence[SpanData]) -> None:
        """The same in a thread that is not the event loop's: that of a workflow."""
        if self._export:
            self._export.take(spans)

    async def close(self) -> None:
        """Exports what is left."""
        if self._export:
            await self._export.close()


def _is_wanted(environment: Mapping[str, str]) -> bool:
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and environment.get("OTEL_TRACES_EXPORTER") != "none" and any(map(environment.get, _WANTED))


def _captures(environment: Mapping[str, str]) -> bool:
    return environment.get(_CAPTURE, "").lower() in ("true", "1", "span_only", "span_and_event")
