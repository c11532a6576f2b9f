"""Measures the time from a word at the model to the same word in a program: ``python -m benchmarks.live_words``.

Each word is the time at which the model has sent it. The same answers are read with the journal and without it, where
text comes with heartbeats.
"""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping

from temporalio.client import Client

from baton import worker
from baton.resources.loader import Loaded
from baton.starter.history.stream import stream_events
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from benchmarks.environment import KEY, BenchmarkEnvironment
from tests.chaos.report import Report, arguments, percentiles
from tests.harness.environment import agent
from tests.harness.ports import own_port
from tests.harness.postgres import PostgresServer

PAUSE = 0.03
"""Seconds between two words."""


@contextlib.asynccontextmanager
async def serving_times(words: int, pause: float = PAUSE) -> AsyncIterator[str]:
    """A server that speaks OpenAI's API, whose answers are times, with a pause in seconds before each."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for _ in range(words):
            await asyncio.sleep(pause)
            writer.write(_chunk({"content": f"{time.time():.4f} "}))
            await writer.drain()
        writer.write(_chunk({}, "stop") + b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()

    port = own_port()
    async with await asyncio.start_server(answer, "127.0.0.1", port, backlog=2_048):
        yield f"http://127.0.0.1:{port}/v1"


def _chunk(delta: Mapping[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "times"}
    return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode()


async def delays(client: Client, queue: str, environment: Mapping[str, str]) -> list[float]:
    """The seconds from each word of an answer at the model to its event."""
    handle = await client.start_workflow(
        "agent",
        {"agent": "one", "input": "What time is it?", "resources": [agent("one")]},
        id=uuid.uuid4().hex,
        task_queue=queue,
        task_timeout=WORKFLOW_TASK_TIMEOUT,
    )
    found: list[float] = []
    begun = ""
    async for event in stream_events(client, handle, environment=environment):
        if event.type == "text.delta":
            now = time.time()
            *words, begun = (begun + event.text).split(" ")
            found += [now - float(word) for word in words]
    return found


async def measure(env: BenchmarkEnvironment, url: str, journal: str, answers: int) -> Mapping[str, list[float]]:
    """The delays of all words, by where the text is read from, with a journal at that URL."""
    queue = uuid.uuid4().hex
    settings = {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": KEY,
        "BATON_HOME": str(env.folder),
        "BATON_TASK_QUEUE": queue,
        "BATON_JOURNAL_URL": journal,
    }
    elsewhere = {"BATON_HOME": str(env.folder / "elsewhere")}
    found: dict[str, list[float]] = {"journal": [], "heartbeats": []}
    async with worker.run_worker(env.client, Loaded(), settings):
        for _ in range(answers):
            found["journal"] += await delays(env.client, queue, settings)
            found["heartbeats"] += await delays(env.client, queue, elsewhere)
    return found


async def main() -> None:
    """Measures and writes the results."""
    given = arguments(__doc__, answers=10, words=300)
    report = Report("live-words", given)
    async with serving_times(given["words"]) as url, BenchmarkEnvironment.running() as env:
        with PostgresServer.running(fsync=True) as postgres:
            for database, journal in (("sqlite", ""), ("postgresql", await postgres.database())):
                for way, seconds in (await measure(env, url, journal, given["answers"])).items():
                    row = {"journal": database, "text_from": way, "words": len(seconds), **percentiles(seconds)}
                    report.row(row)
    report.write()


if __name__ == "__main__":
    asyncio.run(main())
