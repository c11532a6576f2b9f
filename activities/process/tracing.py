"""Exports spans with OpenTelemetry's SDK, as its environment variables say (OTEL_…); loaded only where they are set."""

import asyncio
import contextlib
import importlib.util
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ...conversation.contracts.traces import SpanData
from ...conversation.temporal.trace_context import TraceContext

if TYPE_CHECKING:
    from .span_exporter import SpanExporter

EXPORT_SECONDS = 2.0
"""How long a call waits for the export of its span. A collector that takes longer is not waited for."""

UNHURRIED_SECONDS = 30.0
"""For how long after that no call waits."""

CLOSE_SECONDS = 5.0

_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WANTED = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

log = logging.getLogger("baton")


def tracing_of(environment: Mapping[str, str], redact: Callable[[str], Awaitable[str]]) -> "Tracing":
    """What reports the spans of a worker, if they are asked for. Raises SettingsError.

    ``redact`` removes secrets from every text.
    """
    if not _is_wanted(environment):
        return Tracing(None, redact)
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        log.warning("no traces are reported, though OTEL_… asks for them: pip install 'baton[otel]'")
        return Tracing(None, redact)
    from .span_exporter import SpanExporter  # noqa: PLC0415  # of the extra `otel`

    return Tracing(SpanExporter(environment), redact, captures_content=_captures(environment))


class Tracing:
    """Reports spans; without an ``exporter`` it does nothing. No call and no run fails because of that."""

    def __init__(
        self,
        exporter: "SpanExporter | None",
        redact: Callable[[str], Awaitable[str]],
        *,
        captures_content: bool = False,
    ) -> None:
        self._exporter, self._redact, self.captures_content = exporter, redact, captures_content
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spans")
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._unhurried_until = 0.0

    @property
    def is_on(self) -> bool:
        """Whether spans are reported."""
        return self._exporter is not None

    def samples(self, place: TraceContext) -> bool:
        """Whether the sampler takes a run that begins at this place."""
        return self._exporter is not None and self._exporter.samples(place)

    @contextlib.contextmanager
    def attached(self, place: TraceContext) -> Iterator[None]:
        """Makes it the place of whatever libraries do in the block."""
        with self._exporter.attached(place) if self._exporter else contextlib.nullcontext():
            yield

    def headers(self, place: TraceContext) -> dict[str, str]:
        """The headers that hand a place on."""
        return self._exporter.headers(place) if self._exporter else {}

    async def report(self, spans: Sequence[SpanData]) -> None:
        """Exports spans, without secrets, and waits until that is done, or EXPORT_SECONDS."""
        if self._exporter is None or not spans:
            return
        for span in spans:
            self._exporter.add(await self._clean(span))
        if self._next is None:
            self._next = asyncio.create_task(self._export_after(self._running, self._exporter))
        loop = asyncio.get_running_loop()
        if loop.time() < self._unhurried_until:
            return
        done, _ = await asyncio.wait([self._next], timeout=EXPORT_SECONDS)
        if not done:
            self._unhurried_until = loop.time() + UNHURRIED_SECONDS
            log.warning("the collector of traces has not answered in %g s: calls go on without it", EXPORT_SECONDS)

    async def _export_after(self, running: "asyncio.Task[None] | None", exporter: "SpanExporter") -> None:
        """Exports at once all that was added while the export before was under way."""
        if running:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        await asyncio.get_running_loop().run_in_executor(self._thread, exporter.flush)

    async def _clean(self, span: SpanData) -> SpanData:
        attributes = {name: await self._clean_value(value) for name, value in span.attributes.items()}
        name, message = await self._redact(span.name), await self._redact(span.message)
        return span.model_copy(update={"name": name, "message": message, "attributes": attributes})

    async def _clean_value(self, value: JsonValue) -> JsonValue:
        if isinstance(value, list):
            return [await self._clean_value(each) for each in value]
        return await self._redact(value) if isinstance(value, str) else value

    async def close(self) -> None:
        """Exports what is left, in CLOSE_SECONDS at most."""
        if self._exporter is None:
            return
        ending = asyncio.get_running_loop().run_in_executor(self._thread, self._exporter.close)
        await asyncio.wait([ending], timeout=CLOSE_SECONDS)
        self._thread.shutdown(wait=False, cancel_futures=True)


def _is_wanted(environment: Mapping[str, str]) -> bool:
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and environment.get("OTEL_TRACES_EXPORTER") != "none" and any(map(environment.get, _WANTED))


def _captures(environment: Mapping[str, str]) -> bool:
    return environment.get(_CAPTURE, "").lower() in ("true", "1", "span_only", "span_and_event")
