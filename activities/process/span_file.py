"""A file of spans that wait for their export: ``FOLDER/*.spans``, each span a line.

Whoever has a lock on a file writes it. A lock ends with its process, however it ends.
"""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from ...conversation.private_files import private_file

MAX_FILE = 1_000_000
"""Bytes after which a file is not written any further. It is deleted when all of its spans were exported."""


class SpanFile:
    """A file that this process has locked. It is cleared before it is deleted: another process may have opened it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self.size = self._needed = 0

    @classmethod
    def new(cls, folder: Path) -> "SpanFile":
        """A new file, which has its name when it is locked."""
        path = folder / f"{secrets.token_hex(8)}.spans"
        descriptor = private_file(unnamed := path.with_suffix(".new"), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(path)
        except OSError:
            os.close(descriptor)
            unnamed.unlink(missing_ok=True)
            raise
        return cls(path, descriptor)

    @classmethod
    def left(cls, path: Path) -> "SpanFile | None":
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
        left = cls(path, descriptor)
        left._needed = 1
        return left

    def write(self, line: bytes) -> None:
        """Adds a line. Raises OSError, and then it has added nothing."""
        whole = line + b"\n"
        if os.write(self._descriptor, whole) < len(whole):
            os.ftruncate(self._descriptor, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(whole)
        self._needed += 1

    def lines(self) -> Sequence[bytes]:
        """All lines of a file that was left."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            return file.read().splitlines()

    def is_done(self) -> bool:
        """Notes that one of its spans is needed no more. When that was the last one, the file is cleared."""
        self._needed -= 1
        if self._needed == 0:
            self.clear()
        return self._needed == 0

    def clear(self) -> None:
        """Notes that nothing in it is needed."""
        os.ftruncate(self._descriptor, 0)
        self.size = self._needed = 0

    def close(self) -> None:
        """Lets other processes have it, or deletes it if it holds nothing that is needed."""
        if self._needed == 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._descriptor)
