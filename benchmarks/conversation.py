"""Measures a query in a conversation of 10,000 messages beside one in an empty conversation.

python -m benchmarks.conversation [--messages 10000] [--pairs 15]

For each query: bytes of history, and the time from its start to its first model call. Both are measured alternately, on
SQLite and on PostgreSQL, with ``contextWindow: {maxMessages: 20}`` and without a window; what counts is the ratio.
"""

import argparse
import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from baton import worker
from baton.contracts.message import Head, Message, RowRange
from baton.contracts.plan import ConversationPlan
from baton.contracts.settings import TASK_QUEUE
from baton.journal.journal import Conversations, Journal
from baton.resources.loader import Loaded
from baton.starter.scripted_model import Reply, ScriptedModel
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from benchmarks.environment import BenchmarkEnvironment, versions, write
from tests.harness.postgres import PostgresServer

Row = dict[str, Any]

SIZE, WINDOW = 200, 20
"""Characters of a message, and messages that a window keeps."""


@dataclass(frozen=True)
class Conversation:
    """Baton's worker, with a model that answers at once."""

    env: BenchmarkEnvironment
    model: ScriptedModel
    journal_url: str

    @classmethod
    @asynccontextmanager
    async def running(cls, env: BenchmarkEnvironment, journal_url: str) -> AsyncIterator["Conversation"]:
        """Runs the worker while the block runs."""
        model = ScriptedModel(lambda _: Reply(text="x" * SIZE))
        with model.serve() as url:
            given = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "scripted", "BATON_HOME": str(env.folder)}
            async with worker.run_worker(env.client, Loaded(), {**given, "BATON_JOURNAL_URL": journal_url}):
                yield cls(env, model, journal_url)

    async def fill(self, name: str, messages: int) -> None:
        """Makes a conversation of so many messages."""
        journal, plan = await Journal.open(self.journal_url, "default"), ConversationPlan(id=name, namespace="default")
        said = [Message(role=("user", "assistant")[number % 2], content="x" * SIZE) for number in range(messages)]
        head = await journal.append(Head(), said, f"{uuid.uuid4()}/1")
        await Conversations(journal).add(plan, Head(), [RowRange(after=Head(), to=head)], f"{uuid.uuid4()}/2")
        await journal.close()

    async def ask(self, name: str, window: int | None) -> tuple[float, int]:
        """Runs a query: the seconds until its model was called, and the bytes of its history."""
        spec = {"prompt": "You are one.", **({"contextWindow": {"maxMessages": window}} if window else {})}
        agent = {"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": "Agent", "metadata": {"name": "one"}, "spec": spec}
        query = {"input": "Why?", "targets": [{"type": "agent", "name": "one"}], "conversationId": name}
        run_id, calls = f"query-{uuid.uuid4().hex}", len(self.model.requests)
        options: Row = {"id": run_id, "task_queue": TASK_QUEUE, "task_timeout": WORKFLOW_TASK_TIMEOUT}
        began = time.time()
        status = await self.env.client.execute_workflow("query", {"spec": query, "resources": [agent]}, **options)
        assert status["phase"] == "Completed", status
        return self.model.requests[calls].received_at - began, await self.env.history(run_id)


async def compare(talk: Conversation, long: str, window: int | None, pairs: int) -> Row:
    """A row: both kinds of queries alternately; the first pair is not counted."""
    found: dict[str, list[tuple[float, int]]] = {"empty": [], "long": []}
    for number in range(pairs + 1):
        for kind in ("empty", "long") if number % 2 else ("long", "empty"):
            asked = await talk.ask(long if kind == "long" else uuid.uuid4().hex, window)
            if number:
                found[kind].append(asked)
    empty, full = ([seconds for seconds, _ in found[kind]] for kind in ("empty", "long"))
    line: Row = {"window": window, "pairs": pairs}
    for kind, seconds in (("empty", empty), ("long", full)):
        line[f"{kind}_ms"] = round(median(seconds) * 1_000, 1)
        line[f"{kind}_history"] = round(median(size for _, size in found[kind]))
    return {**line, "times": round(median(one / other for one, other in zip(full, empty, strict=True)), 3)}


async def measure(messages: int, pairs: int) -> Row:
    """All rows."""
    rows = list[Row]()
    with PostgresServer.running() as postgres:
        for database in ("sqlite", "postgresql"):
            async with BenchmarkEnvironment.running() as env:
                url = f"sqlite:///{env.folder / 'journal.db'}" if database == "sqlite" else await postgres.database()
                async with Conversation.running(env, url) as talk:
                    await talk.fill("long", messages)
                    for window in (WINDOW, None):
                        row = await compare(talk, "long", window, pairs)
                        rows.append({"journal": database, "messages": messages, **row})
                        print(*rows[-1].values(), sep="\t", flush=True)
    return {"versions": versions(), "rows": rows}


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000, help="messages of the long conversation")
    parser.add_argument("--pairs", type=int, default=15, help="how often each is measured")
    given = parser.parse_args()
    result = asyncio.run(measure(given.messages, given.pairs))
    print(json.dumps(result, indent=1))
    write("conversation", result)


if __name__ == "__main__":
    main()
