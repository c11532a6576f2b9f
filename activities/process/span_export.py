"""Exports spans behind the calls that they are of: no call waits for a collector of traces."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import JsonValue

from ...conversation.contracts.traces import SpanData
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.encryption import Keys
from ..runtime.threads import in_thread_if_long
from .span_exporter import SpanExporter
from .span_queue import SpanQueue

CLOSE_SECONDS = 5.0
"""For how long a worker that ends exports what is left; another one takes the rest over."""

LONGEST_PAUSE = 30.0
"""Seconds between two tries to export, where the collector takes nothing."""

DEFAULTS = {"OTEL_BSP_SCHEDULE_DELAY": 1_000, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": 512, "OTEL_BSP_MAX_QUEUE_SIZE": 2_048}
"""Milliseconds between two exports, and spans: in one export, and that wait at most."""

log = logging.getLogger("baton")


class SpanExport:
    """Takes spans, and exports them with an ``exporter`` every ``interval`` seconds, at most ``batch`` at once.

    ``redact`` removes secrets from every text.
    """

    def __init__(
        self, exporter: SpanExporter, queue: SpanQueue, redact: Callable[[str], str], interval: float, batch: int
    ) -> None:
        self.exporter, self._queue, self._interval, self._batch = exporter, queue, interval, batch
        self._redact, self._loop = redact, asyncio.get_running_loop()
        self._pause, self._size = interval, batch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="export-spans")
        self._is_due, self._is_closing = asyncio.Event(), False
        self._task = asyncio.create_task(self._run())

    @classmethod
    def of(cls, environment: Mapping[str, str], folder: Path, redact: Callable[[str], str]) -> "SpanExport":
        """As OpenTelemetry's variables say. Raises SettingsError."""
        delay, batch, most = (_number(environment, name) for name in DEFAULTS)
        queue = SpanQueue(folder, Keys.from_environment(environment), most)
        return cls(SpanExporter(environment), queue, redact, delay / 1_000, min(batch, most))

    async def add(self, spans: Sequence[SpanData]) -> None:
        """Takes spans over: when it returns, they will be exported, by this process or by another one."""
        size = sum(len(value) for each in spans for value in each.attributes.values() if isinstance(value, str))
        await in_thread_if_long(size, self.take, spans)

    def take(self, spans: Sequence[SpanData]) -> None:
        """The same, in any thread."""
        try:
            self._queue.add([self._clean(each) for each in spans])
            if len(self._queue) >= self._batch == self._size:
                self._loop.call_soon_threadsafe(self._is_due.set)
        except Exception:  # whatever it is, calls and runs go on
            log.exception("spans are lost")

    def _clean(self, span: SpanData) -> SpanData:
        whole = json.dumps([span.name, span.message, span.attributes], ensure_ascii=False)
        if self._redact(whole) == whole:  # which is nearly always so, and quicker than each text by itself
            return span
        attributes = {name: self._clean_value(value) for name, value in span.attributes.items()}
        texts = {"name": self._redact(span.name), "message": self._redact(span.message)}
        return span.model_copy(update={**texts, "attributes": attributes})

    def _clean_value(self, value: JsonValue) -> JsonValue:
        if isinstance(value, list):
            return [self._clean_value(each) for each in value]
        return self._redact(value) if isinstance(value, str) else value

    async def close(self) -> None:
        """Exports what is left, in CLOSE_SECONDS at most."""
        self._is_closing = True
        self._is_due.set()
        await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        self._task.cancel()
        self.exporter.close()
        await asyncio.to_thread(self._queue.close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        ends = False
        while not ends:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._is_due.wait()
            self._is_due.clear()
            ends = self._is_closing
            try:
                await self._loop.run_in_executor(self._thread, self._export_waiting)
            except Exception:  # whatever it is, the next spans are exported
                log.exception("spans could not be exported")

    def _export_waiting(self) -> None:
        """Exports the spans that wait now, and those that processes have left which live no more.

        After spans that are not taken, fewer are tried at once. One that is refused by itself, while others are taken,
        is dropped.
        """
        self._queue.take_over()
        if self._size == self._batch:
            self._queue.begin_file()
        left, taken, refused = len(self._queue), False, list[SpanData]()
        while left > 0 and (spans := self._queue.first(min(self._size, left))):
            left -= len(spans)
            if self._is_taken(spans):
                self._queue.remove(spans)
                taken, self._size, self._pause = True, min(self._size * 2, self._batch), self._interval
                continue
            self._queue.put_last(spans)
            if len(spans) > 1:
                self._size = len(spans) // 2
                break
            refused += spans
            if len(refused) > 1 and not taken:
                break
        if taken:
            self._drop(refused)
        elif refused:
            self._pause = min(max(self._pause, 0.5) * 2, LONGEST_PAUSE)

    def _drop(self, refused: Sequence[SpanData]) -> None:
        for each in refused:
            log.warning("a span was dropped, as the collector of traces refuses it: %s", each.name)
        self._queue.remove(refused)

    def _is_taken(self, spans: Sequence[SpanData]) -> bool:
        try:
            return self.exporter.export(spans)
        except Exception:  # whatever it is, the next spans are exported
            log.exception("spans could not be exported")
            return False


def _number(environment: Mapping[str, str], name: str) -> int:
    given = environment.get(name) or str(DEFAULTS[name])
    if not given.isdecimal() or not 0 < int(given) <= 10_000_000:
        raise SettingsError(f"{name} is '{given}', and not a number from 1 to 10,000,000")
    return int(given)
