"""Kills workers and servers under queries of conversations with budgets: ``python -m tests.chaos.budget_kills``.

A storm is eight queries in two conversations, four of them at once, and four kills. ``--each 2`` storms of each kind.
Compared are the accounts and the charges of the journal, the calls that the model's server has answered, and the
messages of each conversation.
"""

import asyncio
import contextlib
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from baton.contracts.plan import ConversationPlan
from baton.contracts.settings import TASK_QUEUE
from baton.contracts.status import Status
from baton.starter.operations.conversations import read_conversation
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, Request
from tests.chaos.environment import ProcessEnvironment
from tests.chaos.kills import TARGETS
from tests.chaos.report import Report, arguments
from tests.chaos.teams import LABEL, MARK, ModelCall
from tests.harness.environment import Handle, Json, agent, team

T = TypeVar("T")

BUDGETS: dict[str, Json] = {"parallel": {"modelCalls": 3}, "round-robin": {"tokens": 700}}
"""The budget of the queries to each team."""

NAMES = "abcd"
MANIFESTS = [
    *(agent(name, modelRef={"name": "secret-model"}) for name in NAMES),
    team("parallel", *NAMES, strategy="parallel"),
    team("round-robin", *NAMES, maxTurns=3, onMaxTurns="complete"),
]
KILLS_OF_STORM = 4


class CountingModel:
    """Answers with the number of the answer, and notes by run and question which numbers it has given."""

    def __init__(self) -> None:
        self.said, self.questions = 0, dict[str, dict[str, list[int]]]()

    def answer(self, request: Request) -> Reply:
        """A reply that names the query that asks: the last one that its conversation has."""
        asked, self.said = ModelCall(request), self.said + 1
        label = LABEL.findall(json.dumps(request["messages"]))[-1]
        self.questions.setdefault(label, {}).setdefault(asked.question, []).append(self.said)
        return Reply(text=f"<{self.said}> to {label}", delay=0.15)


@dataclass
class Storm:
    """What was found in a storm; ``wrong`` has a line for everything that is not as it should be."""

    target: str
    workers: int
    wrong: list[str] = field(default_factory=list)
    queries: int = 0
    stopped: int = 0
    calls: int = 0
    in_flight: int = 0
    repeated: int = 0
    messages: int = 0


@dataclass
class BudgetedQuery:
    """A query of a conversation to a team."""

    label: str
    team: str
    handle: Handle
    status: Status

    def texts(self) -> list[str]:
        """What stands in its conversation: its question, and what its members have said."""
        return [f"{self.label}?", *(each.content for each in self.status.responses[0].messages)]


class BudgetKillTest:
    """Runs storms in one environment."""

    def __init__(self, env: ProcessEnvironment, model: CountingModel, chance: random.Random) -> None:
        self._env, self._model, self._chance, self._number, self._killed = env, model, chance, 0, 0

    async def storm(self, target: str, kills: int) -> Storm:
        """Starts the queries, kills so many times, and examines every query and every conversation."""
        self._number += 1
        storm, talks = Storm(target, len(self._env.workers)), [f"talk-{self._number}-{each}" for each in "xy"]
        orders = [tuple(BUDGETS), tuple(reversed(BUDGETS))]
        asked = [self._ask(talk, f"{talk[5:]}-{n}", order) for talk in talks for n, order in enumerate(orders)]
        tasks = [asyncio.create_task(each) for each in asked]
        for _ in range(kills):
            await self._kill(storm, tasks)
        pairs = await asyncio.gather(*tasks)
        for queries in pairs:
            for query in queries:
                self._examine(storm, query)
        for number, talk in enumerate(talks):
            await self._examine_conversation(storm, talk, pairs[2 * number : 2 * number + 2])
        return storm

    async def _ask(self, talk: str, name: str, teams: Sequence[str]) -> list[BudgetedQuery]:
        """Asks the teams one after the other in a conversation."""
        return [await self._query(talk, f"run-{each}-{name}", each) for each in teams]

    async def _query(self, talk: str, label: str, to: str) -> BudgetedQuery:
        spec: Json = {"input": f"{label}?", "targets": [{"type": "team", "name": to}], "conversationId": talk}
        given = {"spec": {**spec, "budget": BUDGETS[to]}, "resources": MANIFESTS}
        handle = await _patiently(lambda: self._start(label, given))
        result = await _patiently(handle.result)
        return BudgetedQuery(label, to, handle, Status.model_validate_json(json.dumps(result)))

    async def _start(self, label: str, given: Json) -> Handle:
        """Starts a query, or joins the one that an earlier attempt has started."""
        options: Json = {"task_queue": TASK_QUEUE, "task_timeout": WORKFLOW_TASK_TIMEOUT}
        joined = WorkflowIDConflictPolicy.USE_EXISTING
        return await self._env.client.start_workflow("query", given, id=label, id_conflict_policy=joined, **options)

    async def _kill(self, storm: Storm, tasks: Sequence["asyncio.Task[list[BudgetedQuery]]"]) -> None:
        """Kills once the model was asked a few times more, and counts the calls that were under way."""
        await self._env.workers_ready()
        asked = self._model.said + self._chance.randint(2, 8)
        while self._model.said < asked and not all(task.done() for task in tasks):  # or they have ended before
            await asyncio.sleep(0.005)
        await asyncio.sleep(self._chance.uniform(0, 0.15))
        written = {*MARK.findall(json.dumps(self._env.rows()))}
        storm.in_flight += sum(f"<{number}>" not in written for number in range(self._killed + 1, self._model.said + 1))
        self._killed = self._model.said
        await self._env.kill(**TARGETS[storm.target])

    def _examine(self, storm: Storm, query: BudgetedQuery) -> None:
        """Compares a query's account with its charges, its limits, its status and the calls that were answered."""
        status = query.status
        # Empty if all calls that the budget allows were in flight at a kill and none had reached the model's server.
        asked = self._model.questions.get(query.label, {})
        storm.queries, storm.calls = storm.queries + 1, storm.calls + len(asked)
        storm.stopped += status.stop_reason == "budget"
        storm.repeated += sum(len(numbers) - 1 for numbers in asked.values())
        account, charges = self._account(query)
        replies = Counter(mark for row in self._replies(query.label) for mark in MARK.findall(row))
        limits, used = BUDGETS[query.team], {"modelCalls": account[0], "tokens": account[1]}
        told = (status.token_usage.model_calls, status.token_usage.total_tokens)
        found = {
            "phase": status.phase == "Completed" and status.stop_reason in ("budget", "completed"),
            "limit": all(used[name] <= limit for name, limit in limits.items()),
            "charges": account == tuple(map(sum, zip(*charges, strict=True))),
            "each request is charged": account[0] >= sum(map(len, asked.values())),
            "status": told[0] <= account[0] and told[1] <= account[1],
            # A call that was in flight at a kill is charged, so the budget may end before it can be repeated.
            "each answer is written once": all(
                sum(replies[f"<{n}>"] for n in asked[each]) in ((0, 1) if status.stop_reason == "budget" else (1,))
                for each in asked
            ),
        }
        about = f"{status.phase} {status.stop_reason} {account} {charges} {told} {[*asked.values()]} {replies}"
        storm.wrong += [f"{query.label}: {name}: {about}" for name, holds in found.items() if not holds]

    def _account(self, query: BudgetedQuery) -> tuple[tuple[int, int], list[tuple[int, int]]]:
        """The model calls and the tokens of a query's account and of its charges."""
        where = (f"{query.handle.first_execution_run_id}/%",)
        with contextlib.closing(sqlite3.connect(self._env.journal)) as database:
            [account] = database.execute("select model_calls, tokens from baton_accounts where id like ?", where)
            charges = "select model_calls, tokens from baton_charges where account like ?"
            return account, [*database.execute(charges, where)]

    def _replies(self, label: str) -> list[str]:
        """The answers to the calls of a query, without the copies of them in conversations."""
        wanted = "select message from baton_messages where id like '%/reply' and message like ?"
        with contextlib.closing(sqlite3.connect(self._env.journal)) as database:
            return [json.loads(row)["content"] for (row,) in database.execute(wanted, (f'% to {label}"%',))]

    async def _examine_conversation(self, storm: Storm, talk: str, asked: Sequence[Sequence[BudgetedQuery]]) -> None:
        """The messages of each query stand together, once, in their order, and a later query's after an earlier's."""
        journal = {"BATON_JOURNAL_URL": f"sqlite:///{self._env.journal}"}
        said = await read_conversation("default", ConversationPlan(id=talk, namespace="default"), 1_000, journal) or []
        texts = [each.content for each in said]
        storm.messages += len(texts)
        blocks = {label: [*block] for label, block in groupby(texts, lambda text: LABEL.findall(text)[-1])}
        expected = {query.label: query.texts() for queries in asked for query in queries}
        places = [[[*blocks].index(query.label) for query in queries if query.label in blocks] for queries in asked]
        if sum(map(len, blocks.values())) != len(texts) or blocks != expected or any(p != sorted(p) for p in places):
            storm.wrong.append(f"{talk}: {texts} and not {expected}")


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """What a call to the Temporal server gives, as soon as the server is there."""
    async with asyncio.timeout(240):
        while True:
            with contextlib.suppress(RPCError):
                return await call()
            await asyncio.sleep(0.1)


async def run_storms(workers: int, targets: Sequence[str], seed: int, kills: int = KILLS_OF_STORM) -> list[Storm]:
    """Runs storms in one environment; what was found."""
    model, done = CountingModel(), list[Storm]()
    async with ProcessEnvironment.running(model.answer, workers) as env:
        tests = BudgetKillTest(env, model, random.Random(seed))
        for number, target in enumerate(targets):
            done.append(await tests.storm(target, kills))
            await env.workers_ready()
            print(f"{workers} workers, storm {number + 1} of {len(targets)}: {done[-1]}", flush=True)
    return done


def summary(storms: Sequence[Storm]) -> Json:
    """All storms of one kind as one row of the table."""
    row: Json = {"killed": storms[0].target, "workers": storms[0].workers, "kills": len(storms) * KILLS_OF_STORM}
    for name in ("queries", "stopped", "calls", "repeated", "messages"):
        row[name] = sum(getattr(each, name) for each in storms)
    return {**row, "wrong": [text for each in storms for text in each.wrong]}


async def main() -> None:
    """Runs everything, prints the table and writes the results."""
    given = arguments(__doc__, each=2, seed=2026)
    report = Report("budget-kills", given)
    for workers in (1, 2):
        targets = [*TARGETS] * given["each"]
        done = await run_storms(workers, targets, given["seed"])
        for target in TARGETS:
            report.row(summary([storm for storm in done if storm.target == target]))
    report.write()


if __name__ == "__main__":
    asyncio.run(main())
