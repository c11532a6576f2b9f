"""Queued spans: in memory, and in files from which other processes take them over if this one crashes."""

import base64
import contextlib
import errno
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from ..contracts.settings import private_file
from ..contracts.trace import SpanData
from ..temporal.encryption import Keys, UnknownKeyError, WrongKeyError

# A process writes only files that it has locked. The lock is released when the process ends or crashes.

MAX_FILE = 1_000_000
"""Bytes after which a new file is started. A file is deleted once all its spans are exported."""


class SpanFile:
    """A file that this process has locked. It is cleared before it is deleted: another process may have opened it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.size = 0
        self._needed = 0  # spans in it that are not exported yet

    @classmethod
    def new(cls, folder: Path) -> "SpanFile":
        """A new file, which gets its name once it is locked."""
        path = folder / f"{secrets.token_hex(8)}.spans"
        unnamed = path.with_suffix(".new")  # until it is locked, or another process would take it over
        descriptor = private_file(unnamed, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            _lock(descriptor)
            unnamed.rename(path)
        except OSError:
            os.close(descriptor)
            unnamed.unlink(missing_ok=True)
            raise
        return cls(path, descriptor)

    @classmethod
    def abandoned(cls, path: Path) -> "SpanFile | None":
        """A file of a process that has ended; None if that process is alive, or another one has locked the file."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            return None
        try:
            _lock(descriptor)
        except OSError:
            os.close(descriptor)
            return None
        file = cls(path, descriptor)
        file._needed = 1  # the file is needed until its spans are in a file of this process
        return file

    def write(self, line: bytes) -> None:
        """Appends a line atomically. Raises OSError."""
        data = line + b"\n"
        if os.write(self._descriptor, data) < len(data):
            os.ftruncate(self._descriptor, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(data)
        self._needed += 1

    def lines(self) -> Sequence[bytes]:
        """All lines of an abandoned file."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            return file.read().splitlines()

    def release(self) -> bool:
        """Releases one span; clears the file after the last one, and returns whether it was the last."""
        self._needed -= 1
        if self._needed == 0:
            self.clear()
        return self._needed == 0

    def clear(self) -> None:
        """Releases all its spans."""
        os.ftruncate(self._descriptor, 0)
        self.size = 0
        self._needed = 0

    def close(self) -> None:
        """Unlocks the file for other processes, or deletes it if none of its spans is needed."""
        if self._needed == 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._descriptor)


def _lock(descriptor: int) -> None:
    """Locks a file. Raises OSError if another process has locked it, or the system has no such locks."""
    try:
        import fcntl  # noqa: PLC0415  # not on Windows
    except ImportError:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)) from None
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


MAX_WAITING = 64_000_000
"""The maximum size of the queued spans, in bytes."""

_PLACE = b"baton span"
"""The associated data of an encrypted span."""

log = logging.getLogger("baton")


class SpanQueue:
    """A thread-safe queue of spans.

    It holds at most ``max_spans`` spans and MAX_WAITING bytes; beyond that the oldest spans are dropped. With ``keys``
    the files are encrypted.
    """

    def __init__(self, folder: Path, keys: Keys, max_spans: int) -> None:
        self._folder = folder
        self._keys = keys
        self._max_spans = max_spans
        self._waiting = dict[str, tuple[SpanData, bytes, SpanFile | None]]()
        self._size = 0
        self._file: SpanFile | None = None
        self._unreadable = set[Path]()
        self._is_safe = True  # whether new spans are in files
        self._drops = False  # whether the warning about dropped spans was logged
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, spans: Sequence[SpanData]) -> None:
        """Adds spans; once it returns, a crash of this process does not lose them."""
        lines = [self._encoded(span) for span in spans]
        with self._changing:
            for span, line in zip(spans, lines, strict=True):
                self._put(span, line)
            while len(self._waiting) > self._max_spans or self._size > MAX_WAITING:
                if not self._drops:
                    log.warning("spans are dropped because the trace collector is too slow or unreachable")
                self._drops = True
                self._remove(next(iter(self._waiting)))

    def first(self, count: int) -> Sequence[SpanData]:
        """The oldest spans."""
        with self._changing:
            return [span for span, _, _ in islice(self._waiting.values(), count)]

    def remove(self, spans: Iterable[SpanData]) -> None:
        """Removes spans that were exported."""
        with self._changing:
            for span in spans:
                if self._waiting.get(span.id, (None,))[0] is span:  # not the span of a later attempt of the same call
                    self._remove(span.id)
            self._drops = self._drops and len(self._waiting) > self._max_spans // 2

    def put_last(self, spans: Iterable[SpanData]) -> None:
        """Moves spans to the end of the queue, and into the newest file, so that old files can be deleted."""
        with self._changing:
            for span in spans:
                if span.id in self._waiting:
                    waiting, line, _ = self._waiting[span.id]
                    self._put(waiting, line)

    def begin_file(self) -> None:
        """Begins a new file, so that the current one can be deleted once its spans are exported."""
        with self._changing:
            if self._file and self._file.size:
                self._file = None

    def take_over(self) -> None:
        """Adds the spans of processes that have ended, as far as there is room."""
        for path in sorted({*self._folder.glob("*.spans")} - self._unreadable):
            if len(self._waiting) > self._max_spans // 2:
                break
            file = SpanFile.abandoned(path)
            if file is None:
                continue
            try:
                self.add([*self._read(file)])
                file.clear()
            except (OSError, UnknownKeyError) as error:  # another worker may read it
                self._unreadable.add(path)
                log.warning("the spans of an ended process can't be read: %s", error)
            finally:
                file.close()

    def close(self) -> None:
        """Closes the files and empties the queue; another process takes over the remaining spans."""
        with self._changing:
            for file in {self._file, *(file for _, _, file in self._waiting.values())}:
                if file:
                    file.close()
            self._waiting.clear()
            self._file = None

    def _put(self, span: SpanData, line: bytes) -> None:
        file = self._written(line)
        self._remove(span.id)
        self._waiting[span.id] = span, line, file
        self._size += len(line)

    def _remove(self, span_id: str) -> None:
        _, line, file = self._waiting.pop(span_id, (None, b"", None))
        self._size -= len(line)
        if file and file.release() and file is not self._file:
            file.close()

    def _written(self, line: bytes) -> "SpanFile | None":
        """Writes a span and returns its file; None, with a warning, if that fails."""
        try:
            if self._file is None or self._file.size >= MAX_FILE:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._file = SpanFile.new(self._folder)
            self._file.write(line)
        except OSError as error:
            if self._is_safe:
                log.warning("a crash of this process would lose its last spans: %s: %s", self._folder, error.strerror)
            self._is_safe = False
            return None
        self._is_safe = True
        return self._file

    def _encoded(self, span: SpanData) -> bytes:
        plain = span.model_dump_json().encode()
        if not self._keys.all:
            return plain
        key = self._keys.all[0]
        return f"{key.id}:".encode() + base64.b64encode(key.encrypt(plain, _PLACE))

    def _read(self, file: "SpanFile") -> Iterable[SpanData]:
        for line in file.lines():
            try:
                yield SpanData.model_validate_json(self._decoded(line))
            except (ValueError, WrongKeyError):  # the line is incomplete
                log.warning("a span of an ended process in %s can't be read", self._folder)

    def _decoded(self, line: bytes) -> bytes:
        key, colon, sealed = line.partition(b":")
        if line.startswith(b"{") or not colon:
            return line
        return self._keys.decrypt(key.decode(), base64.b64decode(sealed), _PLACE)
