"""The log of a worker: its lines about runs, repeated warnings, and that all of its output is JSON."""

import asyncio
import io
import json
import logging
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import pytest_asyncio
from temporalio.client import Client

from baton.observability.log import CountingHandler
from baton.observability.run_log import FIELDS
from baton.starter.account import client_identity
from baton.starter.server.connection import ServerLocation
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Script
from tests.harness.environment import KEY, Json, agent, call, line, team
from tests.harness.killable import KillableWorker, wait_until
from tests.harness.processes import BATON, baton_process, process_env
from tests.harness.tool_server import Answer, ToolServer
from tests.workflows.test_approval import approve, pending, tool

QUESTION = "a question that no log line repeats"
ANSWER = "an answer that no log line repeats"
MESSAGE = "a message that no log line repeats"


def lines_of(worker: KillableWorker) -> list[Json]:
    """The lines of a worker's log, all of which are JSON; one that is being written is left out."""
    return [json.loads(each) for each in worker.worker.log.read_text().splitlines(keepends=True) if each[-1] == "\n"]


def events_of(worker: KillableWorker) -> list[Json]:
    """The lines about runs, without what every line has."""
    always = {"timestamp", "level", "logger", "message"}
    return [
        {"event": each["message"], **{name: value for name, value in each.items() if name not in always}}
        for each in lines_of(worker)
        if each["logger"] in ("baton.runs", "baton.calls")
    ]


def events(worker: KillableWorker, event: str) -> list[Json]:
    """The lines about runs of one kind."""
    return [each for each in events_of(worker) if each["event"] == event]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop() -> AsyncIterator[ToolServer]:
    with ToolServer().serving() as shop:
        yield shop


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def logged(
    client: Client, server: EmbeddedServer, shop: ToolServer, tmp_path_factory: Any
) -> AsyncIterator[tuple[KillableWorker, str, str]]:
    """The worker of a run that is paused, steered, resumed, approved, and then replayed by a second worker."""
    script = Script(lines=[line("a", call("buy", item="pen"), ANSWER), line("b", ANSWER, ANSWER)])
    folder = tmp_path_factory.mktemp("logged")
    settings = {"BATON_LOG_FORMAT": "json", "BATON_LOG_CALLS": "1"}
    async with KillableWorker.ready(client, server.address, folder, script.answer, **settings) as worker:
        shop.answers(Answer("bought"))
        members = [agent("a", "buy"), agent("b")]
        talks = team("talks", "a", "b", maxTurns=1, onMaxTurns="complete")
        run = await worker.start(
            "round-robin", team="talks", input=QUESTION, resources=[*members, talks, tool(shop, {})]
        )
        (asked,) = await pending(run)
        worker.restart()
        cli = await ServerLocation(server.address).connect()
        command = cli.get_workflow_handle(run.id)
        await command.signal("pause", {"name": "dana"})
        await command.execute_update("steer", {"text": MESSAGE, "name": "dana"})
        await command.signal("steer", "no message")
        await command.signal("resume", {"name": "dana"})
        await approve(run, asked, approved=True)
        await run.result()
        await wait_until(lambda: bool(events(worker, "run ended")))
        yield worker, run.id, run.first_execution_run_id or ""


Logged = tuple[KillableWorker, str, str]


@pytest.mark.full
def test_a_run_has_a_line_at_its_begin_and_its_end_also_if_another_worker_replays_it(logged: Logged) -> None:
    worker, run, run_id = logged
    ids = {"run": run, "run_id": run_id, "workflow_type": "round-robin"}
    (began,) = events(worker, "run began")
    assert {**ids, "target": "team/default/talks"}.items() <= began.items()
    assert re.fullmatch(r"\d+@\S+", began["via"]), "the identity of the client that has started the run"
    (ended,) = events(worker, "run ended")
    assert {**ids, "phase": "Completed", "reason": "max_turns", "turns": 2}.items() <= ended.items()
    assert ended["tokens"] > 0
    assert ended["seconds"] > 0


def test_each_turn_has_a_line_with_its_member_and_what_it_took(logged: Logged) -> None:
    worker, run, _ = logged
    began, ended = events(worker, "turn began"), events(worker, "turn ended")
    assert [(each["member"], each["turn"], each["run"]) for each in began] == [("a", 1, run), ("b", 2, run)]
    assert [(each["member"], each["turn"], each["outcome"]) for each in ended] == [
        ("a", 1, "completed"),
        ("b", 2, "completed"),
    ]
    assert all(each["tokens"] > 0 and each["seconds"] >= 0 for each in ended)


def test_each_wait_has_a_line_with_who_has_ended_it(logged: Logged) -> None:
    worker, _, _ = logged
    began = [(each["wait"], each.get("subject")) for each in events(worker, "wait began")]
    assert ("approval", "buy") in began
    (approval,) = [each for each in events(worker, "wait ended") if each["wait"] == "approval"]
    assert (approval["outcome"], approval["by"], approval["member"]) == ("approved", "ann@desk", "a")


def test_each_control_message_has_a_line_with_who_has_sent_it_and_from_which_client(logged: Logged) -> None:
    worker, run, _ = logged
    messages = events(worker, "control message")
    assert {each["run"] for each in messages} == {run}
    from_command = client_identity()
    shown = [(each["request"], each.get("by"), each["via"] == from_command, each.get("outcome")) for each in messages]
    assert sorted(shown, key=str) == sorted(
        [
            ("pause", "dana", True, None),
            ("steer", "dana", True, None),
            ("steer", None, True, "ignored"),
            ("resume", "dana", True, None),
            ("approve", "ann@desk", False, "approved"),
        ],
        key=str,
    )


def test_calls_are_logged_if_that_is_set(logged: Logged) -> None:
    worker, run, _ = logged
    calls = events(worker, "call")
    assert {each["run"] for each in calls} == {run}
    assert [(each["kind"], each["subject"], each["outcome"]) for each in calls if each["kind"] == "tool"] == [
        ("tool", "buy", "ok")
    ]
    models = [each for each in calls if each["kind"] == "model"]
    assert len(models) >= 3
    assert all(each["tokens"] > 0 and each["member"] in "ab" for each in models)


def test_no_line_about_a_run_has_a_text_of_it_or_a_secret(logged: Logged) -> None:
    worker, _, _ = logged
    text = worker.worker.log.read_text()
    assert [each for each in (QUESTION, ANSWER, MESSAGE, "pen", "bought", KEY) if each in text] == []
    common = {"event", "run", "run_id", "member", "turn", "temporal_workflow", "temporal_activity"}
    assert {name for each in events_of(worker) for name in each} - {*FIELDS} <= common


class Watched(CountingHandler):
    """A handler that says when it has written the counts."""

    def __init__(self, stream: TextIO, seconds: float) -> None:
        super().__init__(stream, seconds)
        self.written = threading.Event()

    def write_counts(self) -> None:
        super().write_counts()
        self.written.set()


def log_of(handler: logging.Handler) -> logging.Logger:
    logger = logging.Logger("counted")
    logger.addHandler(handler)
    return logger


def test_of_equal_warnings_the_first_is_written_and_then_one_a_minute_with_the_count() -> None:
    stream = io.StringIO()
    handler = Watched(stream, seconds=0.2)
    handler.setFormatter(logging.Formatter("%(message)s %(repeated)s", defaults={"repeated": 1}))
    logger = log_of(handler)
    with handler._locked():  # however long it takes, no count is written meanwhile
        for number in range(1_000):
            logger.warning("the call failed %d times", number)
        logger.warning("something else")
        logger.info("no warning")
        logger.info("no warning")
        assert stream.getvalue().splitlines() == [
            "the call failed 0 times 1",
            "something else 1",
            "no warning 1",
            "no warning 1",
        ]
    assert handler.written.wait(60)
    assert stream.getvalue().splitlines()[4:] == ["the call failed 999 times 999"]


def test_what_was_counted_is_written_when_the_log_ends() -> None:
    stream = io.StringIO()
    handler = CountingHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s %(repeated)s", defaults={"repeated": 1}))
    logger = log_of(handler)
    for _ in range(3):
        logger.error("away")
    handler.close()
    assert stream.getvalue().splitlines() == ["away 1", "away 2"]


def test_a_warning_that_can_not_be_written_does_not_fail_who_warns(capsys: pytest.CaptureFixture[str]) -> None:
    class Unprintable(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    logger = log_of(CountingHandler(io.StringIO()))
    logger.warning("%d calls", "many")
    logger.error("failed", exc_info=Unprintable())
    assert capsys.readouterr().err.count("--- Logging error ---") == 2


@pytest.mark.slow
async def test_all_output_of_a_gateway_is_json_and_says_what_is_served(server: EmbeddedServer, tmp_path: Path) -> None:
    environment = process_env(TEMPORAL_ADDRESS=server.address, BATON_HOME=str(tmp_path), BATON_LOG_FORMAT="json")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        BATON, "serve", "--port", "0", "-n", "*", env=environment, stderr=pipe
    )
    assert process.stderr
    first = json.loads(await process.stderr.readline())
    assert first["level"] == "INFO"
    assert first["message"].startswith("Serving teams and agents at http://127.0.0.1:")
    process.terminate()
    _, rest = await process.communicate()
    assert all(json.loads(each)["level"] for each in rest.splitlines())
    assert process.returncode == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "settings", "said"),
    [
        (["worker"], {"BATON_LOG_LEVEL": "loud"}, "BATON_LOG_LEVEL"),
        (["worker", "--nonsense"], {}, "No such option: --nonsense"),
        (["worker", "-f"], {}, "Option '-f' requires an argument"),
        (["worker", "none.yaml"], {}, "none.yaml"),
        (["serve"], {"BATON_LOG_LEVEL": "loud"}, "BATON_LOG_LEVEL"),
        (["serve", "--port", "x"], {}, "Invalid value for '--port'"),
        (["serve", "--host", "no.such.host.invalid"], {}, "the gateway can't listen at no.such.host.invalid"),
        (["serve", "--port", "0"], {"BATON_GATEWAY_KEYS": "none.yaml"}, "none.yaml"),
        (["serve", "--port", "0", "--host", "0.0.0.0"], {}, "needs keys"),
        (["serve", "--port", "0"], {"BATON_GATEWAY_RATE": "fast"}, "BATON_GATEWAY_RATE"),
        (["dev", "--port", "x"], {}, "Invalid value for '--port'"),
    ],
)
def test_what_prevents_the_start_of_a_server_is_reported_as_json(
    server: EmbeddedServer, tmp_path: Path, command: list[str], settings: dict[str, str], said: str
) -> None:
    environment = process_env(
        TEMPORAL_ADDRESS=server.address, BATON_HOME=str(tmp_path), BATON_LOG_FORMAT="json", **settings
    )
    done = baton_process(*command, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    lines = [json.loads(each) for each in done.stderr.splitlines()]
    assert [(line["level"], said in line["message"]) for line in lines] == [("ERROR", True)]


@pytest.mark.full
def test_warnings_and_uncaught_exceptions_at_the_start_are_json(server: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(
        "import threading, warnings\n"
        "warnings.warn('this is old')\n"
        "thread = threading.Thread(target=lambda: {}['gone'])\n"
        "thread.start()\n"
        "thread.join()\n"
        "raise ZeroDivisionError('of the program')\n"
    )
    environment = process_env(
        TEMPORAL_ADDRESS=server.address,
        BATON_HOME=str(tmp_path),
        BATON_TASK_QUEUE=uuid.uuid4().hex,
        BATON_LOG_FORMAT="json",
        BATON_FUNCTIONS="early",
        PYTHONPATH=str(tmp_path),
    )
    done = baton_process("worker", env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    lines = [json.loads(each) for each in done.stderr.splitlines()]
    text = str(lines)
    assert "this is old" in text and "KeyError: 'gone'" in text and "of the program" in text
    assert all(line["level"] in ("INFO", "WARNING", "ERROR", "CRITICAL") for line in lines)


@pytest.mark.full
def test_a_usage_error_of_the_module_worker_is_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "baton.worker", "--nonsense"],
        env=process_env(BATON_LOG_FORMAT="json"),
        capture_output=True,
        check=False,
    )
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (done.returncode, line["level"], "--nonsense" in line["message"]) == (2, "ERROR", True)
