"""Spans that wait for their export: in memory, and in files from which other processes take them if this one dies.

A file is one of ``FOLDER/*.spans``. Whoever has a lock on it writes it; a lock ends with its process, however it ends.
"""

import base64
import contextlib
import errno
import fcntl
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from ...conversation.contracts.traces import SpanData
from ...conversation.private_files import private_file
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.encryption import Keys

MAX_FILE = 1_000_000
"""Bytes after which a file is not written any further. It is deleted when all of its spans were exported."""

_PLACE = b"baton span"
"""The associated data of an encrypted span."""

log = logging.getLogger("baton")


class SpanQueue:
    """Threads may use it at the same time.

    ``most`` spans wait at once; then the oldest are dropped. With ``keys`` the files are encrypted.
    """

    def __init__(self, folder: Path, keys: Keys, most: int) -> None:
        self._folder, self._keys, self._most = folder, keys, most
        self._waiting = dict[str, tuple[SpanData, _File | None]]()
        self._file: _File | None = None
        self._is_safe = True
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, spans: Sequence[SpanData]) -> None:
        """Adds spans; when it returns, the death of this process does not lose them."""
        lines = [self._encoded(each) for each in spans]
        with self._changing:
            for span, line in zip(spans, lines, strict=True):
                self._remove(span.id)
                self._waiting[span.id] = span, self._written(line)
            if dropped := [*islice(self._waiting, max(len(self._waiting) - self._most, 0))]:
                log.warning("%d spans were dropped, as the collector of traces does not take them", len(dropped))
                for each in dropped:
                    self._remove(each)

    def first(self, count: int) -> Sequence[SpanData]:
        """The oldest spans."""
        with self._changing:
            return [span for span, _ in islice(self._waiting.values(), count)]

    def remove(self, spans: Iterable[SpanData]) -> None:
        """Removes spans that were exported."""
        with self._changing:
            for span in spans:
                if self._waiting.get(span.id, (None,))[0] is span:  # and not what a later attempt says of the same call
                    self._remove(span.id)

    def put_last(self, spans: Iterable[SpanData]) -> None:
        """Lets spans wait behind all others."""
        with self._changing:
            for span in spans:
                if found := self._waiting.pop(span.id, None):
                    self._waiting[span.id] = found

    def take_over(self) -> None:
        """Adds the spans that processes have left which live no more."""
        for path in sorted(self._folder.glob("*.spans")):
            if file := _File.left(path):
                self.add([*self._read(file)])
                file.clear()
                file.close()

    def close(self) -> None:
        """Ends the use of the files; another process takes the spans that still wait, this one knows them no more."""
        with self._changing:
            for file in {self._file, *(file for _, file in self._waiting.values())}:
                if file:
                    file.close()
            self._waiting.clear()
            self._file = None

    def _remove(self, span_id: str) -> None:
        _, file = self._waiting.pop(span_id, (None, None))
        if file and file.is_done() and file is not self._file:
            file.close()

    def _written(self, line: bytes) -> "_File | None":
        """The file to which a span is written; None, with a warning, where that is not possible."""
        try:
            if self._file is None or self._file.size >= MAX_FILE:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._file = _File.new(self._folder)
            self._file.write(line)
        except OSError as error:
            if self._is_safe:
                log.warning("if this process dies, its last spans are lost: %s: %s", self._folder, error.strerror)
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

    def _read(self, file: "_File") -> Iterable[SpanData]:
        for line in file.lines():
            try:
                yield SpanData.model_validate_json(self._decoded(line))
            except (ValidationError, ValueError, SettingsError):  # of a key that is not here, or not written to its end
                log.warning("a span that a process has left in %s can't be read", self._folder)

    def _decoded(self, line: bytes) -> bytes:
        key, colon, sealed = line.partition(b":")
        if line.startswith(b"{") or not colon:
            return line
        return self._keys.decrypt(key.decode(), base64.b64decode(sealed), _PLACE)


class _File:
    """A file that this process has locked. It is cleared before it is deleted: another process may have opened it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self.size = self._needed = 0

    @classmethod
    def new(cls, folder: Path) -> "_File":
        """A new file, which has its name when it is locked."""
        path = folder / f"{secrets.token_hex(8)}.spans"
        descriptor = private_file(unnamed := path.with_suffix(".new"), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        unnamed.rename(path)
        return cls(path, descriptor)

    @classmethod
    def left(cls, path: Path) -> "_File | None":
        """A file that a process has left; None if the process lives, or another one was quicker."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return cls(path, descriptor)

    def write(self, line: bytes) -> None:
        whole = line + b"\n"
        if os.write(self._descriptor, whole) < len(whole):
            os.ftruncate(self._descriptor, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(whole)
        self._needed += 1

    def lines(self) -> Sequence[bytes]:
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            return file.read().splitlines()

    def is_done(self) -> bool:
        """Notes that one of its spans is needed no more. When that was the last one, the file is cleared."""
        self._needed -= 1
        if self._needed == 0:
            self.clear()
        return self._needed == 0

    def clear(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self.size = self._needed = 0

    def close(self) -> None:
        """Lets other processes have it, or deletes it if it holds nothing that is needed."""
        if self._needed == 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._descriptor)
