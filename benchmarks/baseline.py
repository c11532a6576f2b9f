"""The baselines: the least that a turn can cost, one activity that calls the model and writes one row.

One is as durable as Baton, with the library and the stream that Baton uses; the other is as lean as can be.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    import aiosqlite
    import httpx
    import openai
    from openai.types.chat import ChatCompletionMessageParam

MEMBERS = ("writer", "critic")
PROMPT = "You are the {}. Say what you think of it."
QUESTION = "How do we write a good report?"


@dataclass(frozen=True)
class TurnPlace:
    """A turn in a run."""

    run: str
    turn: int
    model: str


@workflow.defn(name="baseline")
class BaselineWorkflow:
    """A workflow that takes turn after turn, and does nothing else."""

    @workflow.run
    async def run(self, turns: int, model: str) -> int:
        for turn in range(turns):
            place = TurnPlace(workflow.info().workflow_id, turn, model)
            await workflow.execute_activity("say", place, start_to_close_timeout=timedelta(minutes=5))
        return turns


@dataclass(frozen=True)
class Say:
    """The activity: reads the conversation, calls the model, and writes its reply."""

    database: aiosqlite.Connection
    model: openai.AsyncOpenAI

    @activity.defn(name="say")
    async def say(self, place: TurnPlace) -> int:
        rows = await self.database.execute_fetchall("select said from turns where run = ? order by turn", [place.run])
        names = (MEMBERS[turn % len(MEMBERS)] for turn in range(place.turn))
        speaker = MEMBERS[place.turn % len(MEMBERS)]
        messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": PROMPT.format(speaker)}]
        messages += [{"role": "user", "content": QUESTION}]
        messages += [
            {"role": "assistant", "content": said, "name": name} for (said,), name in zip(rows, names, strict=True)
        ]
        said = await self._ask(place.model, messages)
        await self.database.execute("insert into turns values (?, ?, ?)", [place.run, place.turn, said])
        return place.turn

    async def _ask(self, model: str, messages: list[ChatCompletionMessageParam]) -> str:
        options = {"include_usage": True}
        stream = await self.model.chat.completions.create(
            model=model, messages=[], extra_body={"messages": messages, "stream_options": options}, stream=True
        )
        async with stream:
            pieces = [piece.choices[0].delta.content or "" async for piece in stream if piece.choices]
        return "".join(pieces)


@dataclass(frozen=True)
class LeanSay(Say):
    """The same with one plain HTTP request, without a client library and without a stream."""

    http: httpx.AsyncClient

    @activity.defn(name="say")
    async def say(self, place: TurnPlace) -> int:
        return await super().say(place)

    async def _ask(self, model: str, messages: list[ChatCompletionMessageParam]) -> str:
        answer = await self.http.post("chat/completions", json={"model": model, "messages": messages})
        return str(answer.json()["choices"][0]["message"]["content"])


@dataclass(frozen=True)
class Baseline:
    """A worker for a baseline in this process, with the same settings as Baton's worker.

    The ``lean`` one may lose its latest rows when the machine loses its power (SQLite: synchronous=NORMAL).
    """

    client: Client
    queue: str

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, address: str, folder: Path, url: str, *, lean: bool = False) -> AsyncIterator["Baseline"]:
        """Runs the worker while the block runs, with a plain Temporal client."""
        client, name = await Client.connect(address), "lean" if lean else "baseline"
        async with (
            aiosqlite.connect(folder / f"{name}.db", isolation_level=None) as database,
            openai.AsyncOpenAI(base_url=url, api_key="scripted", max_retries=0) as model,
            httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None)) as http,
        ):
            synchronous = f"pragma synchronous={'NORMAL' if lean else 'FULL'}"
            for statement in ("pragma journal_mode=WAL", synchronous, _TABLE):
                await database.execute(statement)
            say = LeanSay(database, model, http) if lean else Say(database, model)
            async with Worker(
                client,
                task_queue=name,
                workflows=[BaselineWorkflow],
                activities=[say.say],
                workflow_runner=UnsandboxedWorkflowRunner(),
                max_cached_workflows=1_000,
                max_concurrent_workflow_tasks=4,
                sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
            ):
                yield cls(client, name)

    async def run_team(self, turns: int, size: int) -> None:
        """Runs one team for so many turns, with replies of so many characters."""
        given = [turns, f"random-{size}"]
        run_id = f"{self.queue}-{uuid.uuid4().hex}"
        await self.client.execute_workflow("baseline", args=given, id=run_id, task_queue=self.queue)


_TABLE = "create table turns (run text, turn integer, said text, primary key (run, turn))"
