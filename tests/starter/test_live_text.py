"""Live text reaches a reader at once beside Temporal, and only while one listens."""

import asyncio
import contextlib
import io
import json
import os
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from rich.console import Console
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from temporalio.client import Client

from baton.activities.runtime.redaction import Redactor
from baton.contracts.message import Head, Message
from baton.contracts.requests import AskModelRequest, AskModelResult, LiveText
from baton.contracts.settings import STATE_DIR
from baton.contracts.turn import Thread
from baton.journal.live_text import LEASE, FileChannel, LiveTextPublisher, channel_of, read_answer, read_live_text
from baton.starter.console.watch import Watch
from baton.starter.history.events import Event, TextDeltaEvent, TextRetractedEvent
from baton.starter.history.run_events import ActivityCall, RunInfo
from baton.starter.history.stream import _LiveCall, stream_events
from baton.starter.scripted_model import END_OF_STREAM
from baton.starter.scripted_model import stream as stream_of
from baton.temporal.activity import INTERVAL, Heartbeat, StreamingCall
from baton.temporal.encryption import Key, Keys
from baton.testing import Reply
from tests.harness.environment import Environment, Handle, Json, agent, line, manifest, team
from tests.harness.event_streams import check_stream, check_text, read_events
from tests.harness.postgres import PostgresServer, execute
from tests.harness.stand_in import StandIn

WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen " * 4
ONE = [agent("one"), team("team", "one", strategy="sequential")]


@pytest_asyncio.fixture
async def live(client: Client, journal_url: str, tmp_path: Path) -> AsyncIterator[Environment]:
    """An environment with a journal in each database."""
    url = journal_url if journal_url.startswith("postgres") else ""
    async with Environment.running(client, tmp_path, journal_url=url) as env:
        yield env


class PacedModel(StandIn):
    """A model that sends the next piece of its answer once ``send`` is called, and the first one at once."""

    def __init__(self) -> None:
        super().__init__(Route("/v1/chat/completions", self._complete, methods=["POST"]))
        self._allowed = 0
        self._sent = 0
        self.has_ended = False

    @property
    def manifest(self) -> Json:
        """The Model by which agents ask it."""
        config = {"openai": {"baseUrl": f"{self.url}/v1"}}
        return manifest("Model", "default", {"type": "openai", "model": "paced", "config": config})

    def send(self) -> None:
        """Lets it send the next piece."""
        self._allowed = self._sent + 1

    async def _complete(self, http: Request) -> Response:
        return StreamingResponse(self._events(await http.json()), media_type="text/event-stream")

    async def _events(self, request: Json) -> AsyncIterator[str]:
        self.send()
        async for event in stream_of(request, Reply(text=WORDS)):
            if any(choice["delta"].get("content") for choice in _choices_of(event)):
                while self._sent == self._allowed:
                    await asyncio.sleep(0.005)
                self._sent += 1
            self.has_ended = event == END_OF_STREAM
            yield event


def _choices_of(event: str) -> list[Json]:
    choices: list[Json] = [] if event == END_OF_STREAM else json.loads(event.removeprefix("data: "))["choices"]
    return choices


@pytest.fixture
def paced() -> Iterator[PacedModel]:
    """A model whose pieces a reader asks for."""
    with (model := PacedModel()).serving():
        yield model


async def read_live(
    env: Environment,
    handle: Handle,
    after: str | None = None,
    stop: int = 1_000,
    on_piece: Callable[[], None] = lambda: None,
) -> list[Event]:
    """The events of a run, up to so many pieces of text, for a reader with access to the journal."""
    events: list[Event] = []
    stream = stream_events(env.client, handle, after, environment=env.worker_env)
    async with contextlib.aclosing(stream):
        async for event in stream:
            events.append(event)
            if event.type == "text.delta":
                on_piece()
            if count_pieces(events) == stop:
                break
    return events


def count_pieces(events: list[Event]) -> int:
    return [event.type for event in events].count("text.delta")


def most_by_heartbeats(events: list[Event]) -> float:
    """The most pieces in which heartbeats bring an answer: one with each of them, and the rest at the end."""
    [called, answered] = [event.at for event in events if event.type in ("model.called", "model.answered")]
    return (answered - called).total_seconds() / INTERVAL + 1


async def test_each_piece_of_an_answer_arrives_by_itself(live: Environment, paced: PacedModel) -> None:
    handle = await live.start_team([*ONE, paced.manifest])
    events = await read_live(live, handle, on_piece=paced.send)
    assert count_pieces(events) > most_by_heartbeats(events)
    check_text(events)
    check_stream(events, await read_events(handle, live.client))


async def test_the_live_view_shows_each_piece_of_an_answer_by_itself(live: Environment) -> None:
    live.script(line("one", {"text": WORDS, "pause": 0.15}))
    handle = await live.start_team(ONE)
    seen = io.StringIO()
    terminal = Console(file=seen, force_terminal=True, force_interactive=True, width=500, height=24)
    watch = Watch(live.client, terminal, environment=live.worker_env)
    async with watch.live_view():
        await watch.follow(handle)
    drawn = seen.getvalue()[: seen.getvalue().index("scripted")]
    ends = {shown.split()[-1] for shown in re.findall(r"^  (one two .*)", drawn, re.MULTILINE)}
    assert len(ends) > most_by_heartbeats(await read_events(handle, live.client))


@pytest.mark.parametrize(("attempts", "restated"), [(1, False), (2, False), (1, True)])
def test_a_text_is_kept_only_if_the_answer_is_of_the_same_draft(attempts: int, restated: bool) -> None:
    """Whoever comes later takes all other drafts back, whether or not the texts are the same."""
    now = datetime.now(UTC)
    thread = Thread(catalog="c", question="q", head=Head())
    request = AskModelRequest(thread=thread, speaker="Agent/default/one", begun=0)
    call = ActivityCall("1", "ask_model", now, request, earlier=2)
    reader: Any = SimpleNamespace(place=SimpleNamespace(calls={}))
    live = _LiveCall(RunInfo("run", "run-1"), call, reader, event_id=5, cut=False)
    [delta] = live.add(LiveText(offset=0, text="Bec"))
    answer = AskModelResult(message=Message(role="assistant", content="Because."), head=Head(), restated=restated)
    [last] = live.end(answer, attempts)
    assert isinstance(delta, TextDeltaEvent)
    assert isinstance(last, TextDeltaEvent | TextRetractedEvent)
    assert (delta.draft, last.draft) == (3, 3)
    assert last.type == ("text.delta" if (attempts, restated) == (1, False) else "text.retracted")


async def test_a_second_reader_goes_on_within_an_answer(live: Environment, paced: PacedModel) -> None:
    handle = await live.start_team([*ONE, paced.manifest])
    events = await read_live(live, handle, stop=3, on_piece=paced.send)
    events += await read_live(live, handle, events[-1].cursor, stop=2, on_piece=paced.send)
    assert (count_pieces(events), paced.has_ended) == (5, False)
    events += await read_live(live, handle, events[-1].cursor, on_piece=paced.send)
    check_text(events)
    check_stream(events, await read_events(handle, live.client))


async def test_a_reader_that_goes_on_after_the_whole_text_is_told_where_it_ends(live: Environment) -> None:
    live.script(line("one", {"text": WORDS, "pause": 0.15, "held": True}))
    handle = await live.start_team(ONE)
    events = await read_live(live, handle, on_piece=live.model.release)
    last = [event for event in events if isinstance(event, TextDeltaEvent)][-1]
    assert last.offset + len(last.text) == len(WORDS)
    [end] = [event for event in await read_live(live, handle, last.cursor) if isinstance(event, TextDeltaEvent)]
    assert (end.offset, end.text) == (len(WORDS), "")
    assert end.id != last.id
    assert not [event for event in await read_live(live, handle, end.cursor) if event.type == "text.delta"]


@pytest.mark.full
async def test_what_a_failed_attempt_has_said_is_taken_back_once(live: Environment) -> None:
    wrong = {"text": "Nothing of this remains. " * 8, "pause": 0.15, "cut": 150, "held": True}
    live.script(line("one", {"text": WORDS, "pause": 0.15, "before": [wrong]}))
    events = await read_live(live, handle := await live.start_team(ONE), on_piece=live.model.release)
    assert [event.type for event in events].count("text.retracted") == 1
    check_text(events)
    check_stream(events, await read_events(handle, live.client))


@pytest.mark.full
async def test_nothing_is_written_while_nobody_listens_and_nothing_remains_after_a_reader(env: Environment) -> None:
    folder = env.folder / "journal.db-live"
    env.script(line("one", {"text": WORDS, "pause": 0.1}))
    await (await env.start_team(ONE)).result()
    assert not folder.exists()
    await read_live(env, await env.start_team(ONE))
    assert [*folder.iterdir()] == []


@pytest.mark.full
async def test_a_reader_without_the_journal_gets_the_text_of_heartbeats(env: Environment) -> None:
    env.script(line("one", {"text": WORDS, "held": True}))
    handle = await env.start_team(ONE)
    elsewhere = {"BATON_HOME": str(env.folder / STATE_DIR)}
    events: list[Event] = []
    async for event in stream_events(env.client, handle, environment=elsewhere):
        events.append(event)
        if event.type == "text.delta":
            env.model.release()
    assert count_pieces(events) >= 1
    check_text(events)


def sizes(folder: Path) -> list[int]:
    """The sizes of the files in a folder."""
    return [file.stat().st_size for file in folder.iterdir()]


class Sender:
    """A worker's call that receives text, and the pieces that a reader gets of it."""

    def __init__(self, folder: Path, keys: Keys, redactor: Redactor) -> None:
        (folder / "journal.db").touch()
        self.folder = folder / "journal.db-live"
        self.publisher = LiveTextPublisher(FileChannel(self.folder), "default", keys)
        self.heartbeat = Heartbeat(redactor.redact_partial)
        self.call = StreamingCall("run/turn-1/team", "1", "2", self.heartbeat, attempt=1)
        self.heartbeat.on_change = lambda: self.publisher.publish(self.call)

    async def received(self, environment: Mapping[str, str], size: int) -> str:
        """The first characters that a reader of the root run receives, whose pieces fit together."""
        text = ""
        async for pieces in read_live_text(environment, "default", "run"):
            for piece in pieces:
                if piece.offset <= len(text):
                    text = text[: piece.offset] + piece.text
            if len(text) >= size:
                break
        return text

    async def until_there_is_a_reader(self) -> None:
        while not (self.folder.exists() and any(file.suffix == ".lease" for file in self.folder.iterdir())):
            await asyncio.sleep(0.01)


SECRET = 'sk-"geheim"-ä/0123456789'


@pytest.mark.parametrize(
    "form", [SECRET, SECRET.replace('"', '\\"'), SECRET.replace("s", "\\u0073").replace('"', "%22")]
)
async def test_a_secret_is_not_sent_wherever_its_text_is_cut(tmp_path: Path, form: str) -> None:
    redactor = Redactor()
    redactor.add(SECRET)
    whole = f"The key is {form}, as you know."
    for cut in range(len(whole)):
        heartbeat = Heartbeat(redactor.redact_partial)
        sent = ""
        for piece in (whole[:cut], whole[cut:]):
            heartbeat.on_text(piece)
            sent += (await heartbeat.streamed()).text[len(sent) :]
        assert sent == "The key is [secret], as you know."


async def test_pieces_are_encrypted_as_the_rows_of_the_journal_are(tmp_path: Path) -> None:
    key = Key.generate("k1")
    sender = Sender(tmp_path, Keys(key), Redactor())
    reading = asyncio.create_task(
        sender.received({"BATON_HOME": str(tmp_path), "BATON_ENCRYPTION_KEYS": str(key)}, size=12)
    )
    spying = asyncio.create_task(sender.received({"BATON_HOME": str(tmp_path)}, size=12))
    await sender.until_there_is_a_reader()
    while not reading.done():
        sender.heartbeat.on_text("plain words ")
        await asyncio.sleep(0.05)
        assert not any(b"plain" in file.read_bytes() for file in sender.folder.iterdir())
    assert reading.result().startswith("plain words ")
    assert await spying == "", "a reader without the key ends"


async def test_offsets_of_a_long_text_are_those_of_the_whole_text(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.add(SECRET)
    heartbeat = Heartbeat(redactor.redact_partial)
    whole = ""
    for number in range(3_000):
        piece = f"{number} {SECRET} "
        whole += f"{number} [secret] "
        heartbeat.on_text(piece)
    assert await heartbeat.streamed() == LiveText(offset=0, text=whole)
    streamed = await heartbeat.streamed()
    assert streamed.offset > 0
    assert streamed.offset + len(streamed.text) == len(whole)
    assert streamed.text[100:] == whole[streamed.offset + 100 :]


async def test_a_reader_replaces_its_file_before_it_is_large(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path, max_bytes=1_000)
    receiving = channel.receive("a" * 32)
    readers = set[str]()
    lines: list[str] = []
    while len(readers) < 3:
        received = asyncio.ensure_future(anext(receiving))
        while not received.done():
            await channel.look()
            readers |= {*channel.readers.get("a" * 32, ())}
            await channel.send([(reader, "x" * 99) for reader in readers])
            await asyncio.sleep(0.01)
        lines += received.result()
    assert {*lines} == {"x" * 99}
    assert sum(sizes(tmp_path)) <= 2_000
    await receiving.aclose()
    assert sizes(tmp_path) == []


async def connections_to(url: str) -> int:
    """The number of connections to a database, but for that which asks."""
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    ((count,),) = await execute(url, f"select count(*) {others}")
    return int(str(count))


@pytest.mark.slow
async def test_all_readers_share_one_connection_to_postgresql_which_is_opened_again(postgres: PostgresServer) -> None:
    url = await postgres.database()
    channel, worker = channel_of(url), channel_of(url)
    assert channel and worker
    topics = [f"{number:032x}" for number in range(20)]
    readers = {topic: channel.receive(topic) for topic in topics}
    waiting = {topic: asyncio.ensure_future(anext(reader)) for topic, reader in readers.items()}

    async def send_until_all_have_received() -> None:
        while not all(each.done() for each in waiting.values()):
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):  # the connection is lost
                await worker.look()
                await worker.send([(reader, topic) for topic in topics for reader in worker.readers.get(topic, ())])
            await asyncio.sleep(0.05)

    await send_until_all_have_received()
    assert await connections_to(url) == 2, "that of the worker, and that of all readers"
    assert all({*each.result()} == {topic} for topic, each in waiting.items()), "each gets only its own lines"
    await readers.pop(topics[0]).aclose()
    waiting = {topic: asyncio.ensure_future(anext(reader)) for topic, reader in readers.items()}
    ended = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
    await execute(url, f"{ended} and pid <> pg_backend_pid()")
    while await connections_to(url) > 1:  # the readers connect again by themselves
        await asyncio.sleep(0.05)
    waiting = {
        topic: asyncio.ensure_future(anext(readers[topic])) if each.done() else each for topic, each in waiting.items()
    }
    await send_until_all_have_received()
    for reader in readers.values():
        await reader.aclose()
    await worker.close()
    while await connections_to(url):
        await asyncio.sleep(0.05)


async def test_a_worker_removes_the_files_of_a_reader_that_has_died(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    alive, dead = ("a" * 32, "b" * 32)
    for topic in (alive, dead):
        for kind in ("text", "lease"):
            (tmp_path / f"{topic}-{'0' * 32}.{kind}").touch()
    long_ago = time.time() - LEASE - 1
    os.utime(tmp_path / f"{dead}-{'0' * 32}.lease", (long_ago, long_ago))
    await channel.look()
    assert [*channel.readers] == [alive]
    assert not (tmp_path / f"{dead}-{'0' * 32}.text").exists()


LONG = "".join(f"word{number} " for number in range(9_000))
"""More than a history has of a message."""


def said_in(events: list[Event]) -> str:
    """The text that the pieces of an answer make."""
    said = ""
    for event in events:
        if isinstance(event, TextDeltaEvent):
            said = said[: event.offset] + event.text
    return said


async def test_a_long_answer_is_completed_when_it_ends(live: Environment) -> None:
    live.script(line("one", {"text": LONG, "pause": 0.001}))
    handle = await live.start_team(ONE)
    assert said_in(await read_live(live, handle)) == LONG


async def test_without_the_journal_a_long_answer_ends_with_the_mark_that_it_goes_on(
    env: Environment, tmp_path: Path
) -> None:
    env.script(line("one", {"text": LONG, "pause": 0.001}))
    handle = await env.start_team(ONE)
    elsewhere = {"BATON_HOME": str(tmp_path / "elsewhere")}
    stream = stream_events(env.client, handle, environment=elsewhere)
    said = said_in([event async for event in stream])
    mark = f"… [truncated: {len(LONG):,} characters in total]"
    assert said in ("", LONG) or (said.endswith(mark) and LONG.startswith(said.removesuffix(mark)))


@pytest.mark.parametrize("after", [3, 20, 40, 45])
@pytest.mark.parametrize("number", ["2", "40", "148,890"])
def test_a_model_may_write_the_mark_of_a_truncated_text(after: int, number: str) -> None:
    text = f"abc… [truncated: {number} characters in total]"
    call = SimpleNamespace(id="5", speaker="one", request=None, earlier=0, activity_type="ask_model")
    reader = SimpleNamespace(place=SimpleNamespace(calls={}))
    live = _LiveCall(RunInfo("run", "run-1"), call, reader, event_id=5, cut=False)  # type: ignore[arg-type]  # stand-ins
    events = [*live.add(LiveText(offset=0, text=text[:after]))]
    events += live.end(AskModelResult(message=Message(role="assistant", content=text), head=Head()), 1)
    assert said_in(events) == text


def test_a_reader_of_a_database_without_a_journal_creates_none(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    file.touch()
    assert asyncio.run(read_answer({"BATON_HOME": str(tmp_path)}, "default", "a-run/1")) is None
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute("select name from sqlite_master").fetchall() == []
