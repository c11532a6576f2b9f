"""The baseline: the least that a durable turn can cost, one activity that calls the model and writes one row."""

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
    import openai
    from openai.types.chat import ChatCompletionMessageParam

QUEUE = "baseline"
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
class Baseline:
    """A worker for the baseline in this process, with the same settings as Baton's worker."""

    client: Client

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, address: str, folder: Path, url: str) -> AsyncIterator["Baseline"]:
        """Runs the worker while the block runs, with a plain Temporal client."""
        client = await Client.connect(address)
        async with (
            aiosqlite.connect(folder / "baseline.db", isolation_level=None) as database,
            openai.AsyncOpenAI(base_url=url, api_key="scripted", max_retries=0) as model,
        ):
            for statement in ("pragma journal_mode=WAL", "pragma synchronous=FULL", _TABLE):
                await database.execute(statement)
            async with Worker(
                client,
                task_queue=QUEUE,
                workflows=[BaselineWorkflow],
                activities=[Say(database, model).say],
                workflow_runner=UnsandboxedWorkflowRunner(),
                max_cached_workflows=1_000,
                max_concurrent_workflow_tasks=4,
                sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
            ):
                yield cls(client)

    async def run_team(self, turns: int, size: int) -> None:
        """Runs one team for so many turns, with replies of so many characters."""
        given = [turns, f"random-{size}"]
        await self.client.execute_workflow("baseline", args=given, id=f"baseline-{uuid.uuid4().hex}", task_queue=QUEUE)


_TABLE = "create table turns (run text, turn integer, said text, primary key (run, turn))"
