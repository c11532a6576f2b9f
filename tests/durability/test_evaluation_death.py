"""Evaluations whose program and worker are killed: they go on, and no case and no verdict is paid for twice."""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.contracts.settings import TASK_QUEUE
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from baton.testing import Reply, Request
from tests.harness.environment import agent, team
from tests.harness.killable import KillableEnvironment, wait_until
from tests.harness.processes import BATON, process_env


class CountingModel:
    """A model that counts the answers that it is paid for. While it is stopped, it is unavailable."""

    def __init__(self) -> None:
        self.answers = Counter[str]()
        self._lock = threading.Lock()
        self._stops: int | None = None

    def stop_after(self, answers: int | None) -> None:
        """Is unavailable once it has answered so often; None for never."""
        with self._lock:
            self._stops = answers

    @property
    def is_stopped(self) -> bool:
        """Whether it is unavailable."""
        return self._stops is not None and self.answers.total() >= self._stops

    def answer(self, request: Request) -> Reply:
        """Answers a question with its number, and a judge with a verdict."""
        question = request["messages"][-1]["content"]
        with self._lock:
            if self.is_stopped:
                return Reply(status=503)
            self.answers[question] += 1
        judged = "<Criteria>" in question
        return Reply(text=json.dumps({"reason": "fine", "passed": True}) if judged else f"answer to {question}")


class Program:
    """``baton eval`` in a process of its own."""

    def __init__(self, arguments: list[str], env: dict[str, str], folder: Path) -> None:
        self.report = folder / "report.json"
        self.log = folder / "eval.log"
        with self.report.open("wb") as out, self.log.open("ab") as log:
            self.process = subprocess.Popen([BATON, *arguments], env=env, cwd=folder, stdout=out, stderr=log)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kills it as ``kill -9`` does."""
        self.process.kill()
        self.process.wait()


def write_files(folder: Path, count: int) -> list[str]:
    """The arguments of ``baton eval`` for so many cases with a judge."""
    cases = [{"name": f"case {number}", "inputs": f"question {number}"} for number in range(count)]
    evaluators = [{"AgentJudge": {"rubric": "Is it an answer?", "agent": "judge"}}]
    (folder / "cases.yaml").write_text(yaml.safe_dump({"cases": cases, "evaluators": evaluators}))
    (folder / "agents.yaml").write_text(yaml.safe_dump_all([agent("one"), agent("judge")]))
    return ["eval", "agent/one", "-f", "cases.yaml", "-f", "agents.yaml", "--id", "killed", "--concurrency", "20"]


def answers_in(journal: Path) -> int:
    """How many answers of models the journal has."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(journal)) as database:
        rows = [json.loads(row[0]) for row in database.execute("select message from baton_messages")]
        return sum(row.get("role") == "assistant" for row in rows)
    return 0


async def stop_everything(killable: KillableEnvironment, model: CountingModel, program: Program) -> None:
    """Kills the program and the worker once the model has stopped and all of its answers have arrived."""
    await wait_until(lambda: model.is_stopped or program.has_ended)
    assert not program.has_ended, program.log.read_text()
    while answers_in(killable.journal) < model.answers.total():
        await asyncio.sleep(0.05)
    program.kill()
    killable.worker.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("cases", "kills"), [(20, (25,)), (200, (60, 190, 310))], ids=["quick", "thorough"])
async def test_no_case_and_no_verdict_is_paid_for_twice_whatever_is_killed(
    tmp_path: Path, cases: int, kills: tuple[int, ...]
) -> None:
    model = CountingModel()
    async with KillableEnvironment.running(tmp_path, model.answer) as killable:
        arguments = [*write_files(tmp_path, cases), "-o", "json"]
        env = process_env(TEMPORAL_ADDRESS=killable.server.address, BATON_HOME=str(tmp_path / "client"))
        for kill in kills:
            model.stop_after(kill)
            await stop_everything(killable, model, Program(arguments, env, tmp_path))
            killable.worker.start()
        model.stop_after(None)
        program = Program(arguments, env, tmp_path)
        while not program.has_ended:
            await asyncio.sleep(0.05)
        assert program.process.returncode == 0, program.log.read_text()
        report = json.loads(program.report.read_text())
        assert {case["output"] for case in report["cases"]} == {f"answer to question {n}" for n in range(cases)}
        assert all(case["assertions"]["judge_passed"]["value"] for case in report["cases"])
        assert set(model.answers.values()) == {1}, "no answer is paid for twice"
        assert model.answers.total() == 2 * cases


CREW = [agent("clerk"), agent("writer"), team("crew", "clerk", "writer", strategy="sequential"), agent("judge")]


class ForksModel(CountingModel):
    """A model that is asked by forks, which all ask the same: it counts what it is asked, and by whom."""

    def answer(self, request: Request) -> Reply:
        """Answers with the prompt, and a judge with a verdict."""
        first, *_, last = request["messages"]
        judged = "<Criteria>" in str(last["content"])
        with self._lock:
            if self.is_stopped:
                return Reply(status=503)
            self.answers["judge" if judged else first["content"]] += 1
        return Reply(text=json.dumps({"reason": "fine", "passed": True, "score": 1.0}) if judged else first["content"])


def write_variants(folder: Path, times: int) -> list[str]:
    """The arguments of ``baton compare`` for two variants of the run ``first``, so many times each."""
    variants = [{"name": "as it is"}, {"name": "kind", "set": {"agent/writer": {"prompt": "You are kind."}}}]
    settings = {"run": "first", "target": "team/crew", "times": times, "variants": variants, "files": ["crew.yaml"]}
    settings["judge"] = {"rubric": "Is it an answer?", "agent": "judge"}
    (folder / "variants.yaml").write_text(yaml.safe_dump(settings))
    (folder / "crew.yaml").write_text(yaml.safe_dump_all(CREW))
    return ["compare", "-f", "variants.yaml", "--at", "1", "--id", "killed"]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_no_fork_and_no_verdict_of_a_comparison_is_paid_for_twice_whatever_is_killed(tmp_path: Path) -> None:
    """The program, the worker and the Temporal server are killed, three times."""
    times = 12
    model = ForksModel()
    async with KillableEnvironment.running(tmp_path, model.answer) as killable:
        first = {"spec": {"input": "Why?", "team": {"name": "crew"}}, "resources": CREW}
        options: dict[str, Any] = {"task_queue": TASK_QUEUE, "task_timeout": WORKFLOW_TASK_TIMEOUT}
        await (await killable.client.start_workflow("query", first, id="first", **options)).result()
        assert model.answers == {"You are clerk.": 1, "You are writer.": 1}
        arguments = [*write_variants(tmp_path, times), "-o", "json"]
        env = process_env(TEMPORAL_ADDRESS=killable.server.address, BATON_HOME=str(tmp_path / "client"))
        for kill in (9, 22, 38):
            model.stop_after(kill)
            await stop_everything(killable, model, Program(arguments, env, tmp_path))
            await killable.stop_server_for(0)
            killable.worker.start()
        model.stop_after(None)
        program = Program(arguments, env, tmp_path)
        while not program.has_ended:
            await asyncio.sleep(0.05)
        assert program.process.returncode == 0, program.log.read_text()
        found = json.loads(program.report.read_text())["variants"]
    assert [(one["name"], one["runs"], one["failed"]) for one in found] == [("as it is", times, 0), ("kind", times, 0)]
    assert [one["quality"]["mean"] for one in found] == [1.0, 1.0]
    paid = {"You are clerk.": 1, "You are writer.": 1 + times, "You are kind.": times, "judge": 2 * times}
    assert model.answers == paid, "no call is paid for twice"
