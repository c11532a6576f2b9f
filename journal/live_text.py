"""Carries the text of open calls from workers to readers beside Temporal, and only while a reader listens.

A reader announces itself for a run under a lease, and receives the text of the calls of that run and its child runs.
Nothing is kept: text that a reader misses is in heartbeats and in the answer. With a journal in SQLite, a *channel* is
a folder next to it, which is never synced; in PostgreSQL it is ``NOTIFY``.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from ..contracts.errors import BatonError
from ..contracts.requests import LiveText
from ..contracts.settings import STATE_DIR, SettingsError, private_file
from ..temporal.activity import StreamingCall
from ..temporal.encryption import Keys
from ..temporal.threads import ThreadPool

if TYPE_CHECKING:
    from asyncpg import Connection  # type: ignore[import-untyped]

RENEWAL = 2.0
"""Seconds after which a reader renews its lease."""

LEASE = 10.0
"""Seconds after which a reader that has not renewed its lease gets no more text."""

LOOK_INTERVAL = 0.5
"""Seconds after which a worker whose calls receive text looks again for readers."""

FLUSH_INTERVAL = 0.05
"""Seconds in which a worker collects text before it sends it."""

POLL_INTERVAL = 0.05
"""Seconds between two looks of a reader into its file."""

RETRY = 5.0
"""Seconds between two attempts to connect."""

MAX_PIECE = 800
"""Characters of one piece. Encrypted, they fit into the 8,000 bytes of a notification, however they are escaped."""

MAX_FILE = 1_000_000
"""Bytes after which a reader replaces its file."""

FILES = ThreadPool("baton-live-text", 1)
"""For the files of readers: a disk may be slow."""

_log = logging.getLogger(__name__)


class LivePiece(LiveText):
    """A piece of the text of an open call, at an ``offset`` in the text of that attempt.

    ``run`` is Temporal's run id, and ``call`` the activity's id.
    """

    run: str
    call: str
    attempt: int


class Channel(ABC):
    """A way from workers to readers. ``readers`` are those that a worker knows: their ids, by topic."""

    def __init__(self) -> None:
        self.readers: Mapping[str, Sequence[str]] = {}

    @abstractmethod
    async def look(self) -> None:
        """Updates ``readers``. Raises an error of the system or the database."""

    @abstractmethod
    async def send(self, lines: Sequence[tuple[str, str]]) -> None:
        """Sends lines, each to the reader with that id. Raises an error of the system or the database."""

    @abstractmethod
    def receive(self, topic: str) -> AsyncGenerator[Sequence[str], None]:
        """The lines for a reader, which is announced for that topic meanwhile."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the connection."""


class FileChannel(Channel):
    """A folder in which each reader has two files: one that it touches, and one to which workers append lines."""

    def __init__(self, folder: Path, max_bytes: int = MAX_FILE) -> None:
        super().__init__()
        self._folder = folder
        self._max_bytes = max_bytes

    async def look(self) -> None:
        self.readers = await FILES.run(self._look)

    def _look(self) -> Mapping[str, Sequence[str]]:
        readers: dict[str, list[str]] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                reader, _, kind = entry.name.partition(".")
                if kind != "lease":
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - entry.stat().st_mtime < LEASE:
                        readers.setdefault(reader.partition("-")[0], []).append(reader)
                    else:
                        self._remove(reader)
        return readers

    async def send(self, lines: Sequence[tuple[str, str]]) -> None:
        await FILES.run(self._append, lines)

    def _append(self, lines: Iterable[tuple[str, str]]) -> None:
        texts: dict[str, bytes] = {}
        for reader, line in lines:
            texts[reader] = texts.get(reader, b"") + line.encode() + b"\n"
        for reader, text in texts.items():
            with contextlib.suppress(FileNotFoundError):  # its reader has ended
                file = os.open(self._file(reader, "text"), os.O_WRONLY | os.O_APPEND)
                try:
                    os.write(file, text)  # one write, as several workers may append
                finally:
                    os.close(file)

    async def receive(self, topic: str) -> AsyncGenerator[Sequence[str], None]:
        while True:
            reader = f"{topic}-{secrets.token_hex(16)}"
            self._announce(reader)
            try:
                async for lines in self._read(reader):
                    yield lines
            finally:
                self._remove(reader)

    def _announce(self, reader: str) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for kind in ("text", "lease"):  # in this order: workers look for the second one
            os.close(private_file(self._file(reader, kind), os.O_CREAT | os.O_WRONLY))

    async def _read(self, reader: str) -> AsyncGenerator[Sequence[str], None]:
        """The lines of a reader's file, until it is large or gone; the next file begins with all text again."""
        renewed = time.monotonic()
        with self._file(reader, "text").open("rb") as file:
            begun = b""
            while file.tell() < self._max_bytes:
                read = begun + file.read()
                *lines, begun = read.split(b"\n")
                if lines:
                    yield [line.decode() for line in lines]
                if time.monotonic() - renewed >= RENEWAL:
                    renewed = time.monotonic()
                    try:
                        os.utime(self._file(reader, "lease"))
                    except FileNotFoundError:  # this process was suspended, and a worker has removed the file
                        return
                await asyncio.sleep(POLL_INTERVAL)

    def _remove(self, reader: str) -> None:
        for kind in ("lease", "text"):
            with contextlib.suppress(OSError):
                self._file(reader, kind).unlink()

    def _file(self, reader: str, kind: str) -> Path:
        return self._folder / f"{reader}.{kind}"

    async def close(self) -> None:
        """There is none."""


ANNOUNCEMENTS = "baton_live"
"""The channel in PostgreSQL on which readers announce themselves; each has a channel of its own for the text."""


class PostgresChannel(Channel):
    """Notifications, over one connection of a worker, and one of all readers in an event loop.

    A connection pool that shares connections by transaction supports none.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._connection: Connection[Any] | None = None
        self._tried = -RETRY
        self._leases: dict[str, float] = {}

    async def look(self) -> None:
        now = time.monotonic()
        if (self._connection is None or self._connection.is_closed()) and now - self._tried >= RETRY:
            self._tried = now
            self._connection = await _connect(self._url)
            await self._connection.add_listener(ANNOUNCEMENTS, self._announced)
        self._leases = {reader: until for reader, until in self._leases.items() if until > now}
        self._update()

    def _announced(self, _connection: object, _process: int, _channel: str, reader: str) -> None:
        if re.fullmatch("[0-9a-f]{32}-[0-9a-f]{32}", reader):
            is_new = reader not in self._leases
            self._leases[reader] = time.monotonic() + LEASE
            if is_new:
                self._update()

    def _update(self) -> None:
        readers: dict[str, list[str]] = {}
        for reader in self._leases:
            readers.setdefault(reader.partition("-")[0], []).append(reader)
        self.readers = readers

    async def send(self, lines: Sequence[tuple[str, str]]) -> None:
        if self._connection is None or self._connection.is_closed():
            raise ConnectionError("not connected")
        names = [_text_channel(reader) for reader, _ in lines]
        texts = [line for _, line in lines]
        sent = "SELECT pg_notify(name, line) FROM unnest($1::text[], $2::text[]) AS sent (name, line)"
        await self._connection.execute(sent, names, texts)

    async def receive(self, topic: str) -> AsyncGenerator[Sequence[str], None]:
        with _Listener.joined(self._url, topic) as lines:
            while True:
                line = await lines.get()
                yield [line, *(lines.get_nowait() for _ in range(lines.qsize()))]

    async def close(self) -> None:
        if self._connection:
            self._connection.terminate()


@dataclass(eq=False)
class _Reader:
    """A reader on a shared connection: the lines that have arrived for it."""

    topic: str
    lines: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    def add(self, _connection: object, _process: int, _channel: str, line: str) -> None:
        """Adds a notification."""
        self.lines.put_nowait(line)


class _Listener:
    """The connection to a database on which all readers of an event loop listen, as a database has few of them.

    It is opened for the first reader, again whenever it is lost, and closed after the last reader. Nothing but its own
    task uses it, so a reader may leave at any time.
    """

    def __init__(self, url: str) -> None:
        self._readers: dict[_Reader, None] = {}
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(url))

    @staticmethod
    @contextlib.contextmanager
    def joined(url: str, topic: str) -> Iterator[asyncio.Queue[str]]:
        """The lines for a new reader, which is announced for that topic meanwhile."""
        place = asyncio.get_running_loop(), url
        listener = _LISTENERS.get(place) or _LISTENERS.setdefault(place, _Listener(url))
        reader = _Reader(topic)
        listener._readers[reader] = None
        listener._changed.set()
        try:
            yield reader.lines
        finally:
            del listener._readers[reader]
            listener._changed.set()
            if not listener._readers:
                del _LISTENERS[place]
                listener._task.cancel()

    async def _run(self, url: str) -> None:
        while self._readers:  # a library may swallow a cancellation
            try:
                connection = await _connect(url)
                try:
                    await self._serve(connection)
                finally:
                    connection.terminate()
            except Exception as error:  # of the database, which may be lost at any time
                _log.debug("no live text: %s", error)
            await asyncio.sleep(RETRY)

    async def _serve(self, connection: "Connection[Any]") -> None:
        """Listens for the readers and renews their leases, until the connection is lost.

        On each connection a reader has another id, so that workers send it all text again. The lease of one that does
        not take its lines is not renewed.
        """
        ids: dict[_Reader, str] = {}
        renewed = -RENEWAL
        while self._readers and not connection.is_closed():
            for reader in ids.keys() - self._readers.keys():
                await connection.remove_listener(_text_channel(ids.pop(reader)), reader.add)
            added = [reader for reader in self._readers if reader not in ids]
            for reader in added:
                ids[reader] = f"{reader.topic}-{secrets.token_hex(16)}"
                await connection.add_listener(_text_channel(ids[reader]), reader.add)
            if time.monotonic() - renewed >= RENEWAL:
                renewed = time.monotonic()
                added = [*ids]
            if announced := [ids[reader] for reader in added if reader.lines.empty()]:
                notify = "SELECT pg_notify($1, reader) FROM unnest($2::text[]) AS announced (reader)"
                await connection.execute(notify, ANNOUNCEMENTS, announced)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEWAL):
                    await self._changed.wait()
            self._changed.clear()


_LISTENERS: dict[tuple[asyncio.AbstractEventLoop, str], _Listener] = {}


async def _connect(url: str) -> "Connection[Any]":
    import asyncpg  # noqa: PLC0415  # of the extra `postgres`

    connection: Connection[Any] = await asyncpg.connect(url, timeout=RETRY, command_timeout=RETRY)
    try:
        await connection.execute("SET synchronous_commit TO off")  # a notification commits, but needs no sync
    except BaseException:  # also if the reader has left
        connection.terminate()
        raise
    return connection


def _text_channel(reader: str) -> str:
    return f"{ANNOUNCEMENTS}_{reader.partition('-')[2]}"


def channel_of(journal: str) -> Channel | None:
    """The channel of the journal at this URL; None if there can be none, as for a journal that does not exist."""
    scheme, _, rest = journal.partition("://")
    if scheme.partition("+")[0] in ("postgresql", "postgres"):
        return PostgresChannel(f"postgresql://{rest}")
    file = Path(unquote(rest.partition("?")[0].removeprefix("/")))
    if scheme.partition("+")[0] == "sqlite" and file.is_file():
        return FileChannel(file.with_name(f"{file.name}-live"))
    return None


@lru_cache(maxsize=10_000)
def _topics(namespace: str, workflow_id: str) -> Sequence[str]:
    """The topics of a run and of all runs above it, whose ids are the beginnings of its own."""
    parts = workflow_id.split("/")
    names = ["/".join(parts[: length + 1]) for length in range(len(parts))]
    return [hashlib.sha256(f"{namespace}\n{name}".encode()).hexdigest()[:32] for name in names]


def _place(topic: str) -> str:
    """What a piece is encrypted for: its topic is authenticated, so that it can't be sent to readers of another."""
    return f"live text {topic}"


class LiveTextPublisher:
    """Sends the text of a worker's calls to the readers that listen; does nothing while there are none."""

    def __init__(self, channel: Channel | None, namespace: str, keys: Keys) -> None:
        self._channel = channel
        self._namespace = namespace
        self._keys = keys
        self._changed: dict[StreamingCall, None] = {}
        self._sent: WeakKeyDictionary[StreamingCall, dict[str, tuple[int, int]]] = WeakKeyDictionary()
        self._task: asyncio.Task[None] | None = None
        self._looked = 0.0
        self._lost = False

    def start(self) -> None:
        """Begins to look for readers."""
        if self._channel:
            self._task = asyncio.create_task(self._run(self._channel))

    def publish(self, call: StreamingCall) -> None:
        """Sends the new text of a call soon, if somebody listens."""
        if self._channel is None:
            return
        if self._channel.readers or time.monotonic() - self._looked >= LOOK_INTERVAL:
            self._changed[call] = None
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(self._channel))

    async def _run(self, channel: Channel) -> None:
        while True:
            calls = [*self._changed]
            self._changed.clear()
            try:
                if time.monotonic() - self._looked >= LOOK_INTERVAL:
                    self._looked = time.monotonic()
                    await channel.look()
                if lines := [line for call in calls for line in await self._lines(call, channel)]:
                    await channel.send(lines)
                self._lost = False
            except Exception as error:  # of the system or the database: readers still have heartbeats
                self._sent.clear()
                if not self._lost:
                    self._lost = True
                    _log.warning("no live text is sent to readers: %s", str(error) or type(error).__name__)
            if not self._changed:
                return
            await asyncio.sleep(FLUSH_INTERVAL)

    async def _lines(self, call: StreamingCall, channel: Channel) -> list[tuple[str, str]]:
        """The lines for the readers of a call: its new text, or for a new reader all that is known of it."""
        topics = [topic for topic in _topics(self._namespace, call.workflow_id) if topic in channel.readers]
        if not topics:
            return []
        known = await call.streamed()
        sent = self._sent.setdefault(call, {})
        lines: list[tuple[str, str]] = []
        for topic in topics:
            for reader in channel.readers[topic]:
                attempt, end = sent.get(reader, (0, 0))
                start = max(end, known.offset) if attempt == call.attempt else known.offset
                sent[reader] = call.attempt, known.offset + len(known.text)
                for piece in _pieces(call, known, start):
                    lines.append((reader, self._keys.seal(piece.model_dump_json(), _place(topic))))
        return lines

    async def close(self) -> None:
        """Ends sending."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._channel:
            await self._channel.close()


def _pieces(call: StreamingCall, known: LiveText, start: int) -> Iterator[LivePiece]:
    text = known.text[start - known.offset :]
    for index in range(0, len(text), MAX_PIECE):
        yield LivePiece(
            run=call.run_id,
            call=call.activity_id,
            attempt=call.attempt,
            offset=start + index,
            text=text[index : index + MAX_PIECE],
        )


def _journal_url(environment: Mapping[str, str]) -> str:
    folder = Path(environment.get("BATON_HOME") or STATE_DIR)
    return environment.get("BATON_JOURNAL_URL") or f"sqlite:///{folder / 'journal.db'}"


async def read_live_text(
    environment: Mapping[str, str], namespace: str, workflow_id: str
) -> AsyncGenerator[Sequence[LivePiece], None]:
    """The text that open calls of a run and its child runs receive, as it arrives; nothing without their journal.

    The journal is that of BATON_JOURNAL_URL, or of the local worker.
    """
    channel = channel_of(_journal_url(environment))
    if channel is None:
        return
    topic = _topics(namespace, workflow_id)[-1]
    try:
        keys = Keys.from_environment(environment)
        async with contextlib.aclosing(channel.receive(topic)) as received:
            async for lines in received:
                yield [LivePiece.model_validate_json(keys.unseal(line, _place(topic))) for line in lines]
    except (OSError, ImportError, SettingsError, ValidationError) as error:
        _log.debug("no live text: %s", error)


async def read_answer(environment: Mapping[str, str], namespace: str, row: str) -> str | None:
    """The whole text of the message in a row of the journal; None without the journal, or if it can't be read."""
    url = _journal_url(environment)
    if channel_of(url) is None:
        return None
    try:
        from .journal import Journal  # noqa: PLC0415  # of the extra `worker`

        async with asyncio.timeout(RETRY):
            keys = Keys.from_environment(environment)
            journal = await Journal.open(url, namespace, keys, upgrade=False, create=False)
            try:
                return (await journal.row(row)).message.content
            finally:
                await journal.close()
    except (OSError, ImportError, SettingsError, BatonError) as error:
        _log.debug("a long answer can't be read whole: %s", error)
        return None
