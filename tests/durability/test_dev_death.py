"""A local server that is killed: its runs continue unnoticed, or users read how to continue."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.starter.server.state_dir import LOGS, MAX_LOG_BYTES
from baton.testing import Reply, Request, Script
from tests.harness.environment import KEY, line
from tests.harness.processes import PATIENCE, ROOT, kill_server, process_env
from tests.harness.user_machine import UserMachine
from tests.starter.test_cli import DUO, QUERY

RESULT = ["1", "a", "2", "b", "2", "b"]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[UserMachine]:
    machine = UserMachine(tmp_path)
    machine.choose_ports()
    machine.script(line("one", "1", {"text": "2", "held": True}), line("two", "a", "b"))
    with machine.model.serve() as url:
        machine.env = process_env(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
        yield machine
        machine.shut_down()


def said_lines(text: str) -> list[str]:
    """What was said, of what a command has told: without the lines about failed attempts."""
    return [each.strip() for each in text.splitlines() if each.startswith("  ") and not each.startswith("  ✗")]


@pytest.mark.slow
def test_a_run_goes_on_before_ones_eyes_when_its_server_is_killed(machine: UserMachine) -> None:
    following = machine.start("run", "-f", machine.write(*DUO, QUERY))
    machine.wait_for_calls(3)
    kill_server(machine.dev().pid)
    machine.model.release()
    out, err = following.communicate(timeout=PATIENCE)
    assert (following.returncode, out, said_lines(err)) == (0, "b\n", RESULT), err
    assert len(machine.model.requests) == 6, "no call was made twice"
    log = (machine.state_dir.folder / "dev.log").read_text()
    assert "the Temporal server exited unexpectedly and is being restarted" in log


@pytest.mark.slow
def test_for_a_run_whose_server_and_worker_are_killed_the_command_to_come_back_is_printed(machine: UserMachine) -> None:
    following = machine.start("run", "-f", machine.write(*DUO, QUERY))
    machine.wait_for_calls(3)
    os.kill(machine.dev().pid, signal.SIGKILL)
    out, err = following.communicate(timeout=PATIENCE)
    assert (following.returncode, out) == (3, ""), err
    machine.model.release()
    assert "lost; the run continues when Temporal and a worker are back. Follow it with: baton watch talk-" in err
    assert "error: Temporal did not answer: " in err
    assert "; start a server and a worker with 'baton run' or 'baton dev'" in err
    assert "Traceback" not in err

    dev = machine.start("dev")
    while not machine.state_dir.read_dev_server():
        time.sleep(0.05)
    assert said_lines(machine.run("watch", "talk").stderr) == RESULT
    assert sum(each.answered for each in machine.model.requests) == 6, "no answered call was repeated"
    dev.terminate()
    dev.communicate(timeout=PATIENCE)


@pytest.mark.slow
def test_a_selector_over_nested_teams_with_a_graph_is_killed_comes_back_and_is_drawn(machine: UserMachine) -> None:
    sample = ROOT / "samples" / "newsroom.yaml"
    script = Script.read(ROOT / "samples" / "scripts" / "newsroom.yaml")

    def answer(request: Request) -> Reply:
        # Unanswered at the kill: what was sent, and is not yet written, would be asked for again.
        return script.answer(request).model_copy(update={"held": len(machine.model.requests) >= 5})

    machine.model._answer = answer
    following = machine.start("run", "-f", sample)
    machine.wait_for_calls(5)
    os.kill(machine.dev().pid, signal.SIGKILL)
    following.communicate(timeout=PATIENCE)
    machine.model.release()
    dev = machine.start("dev")
    while not machine.state_dir.read_dev_server():
        time.sleep(0.05)
    machine.run("watch", "headline")
    status = json.loads(machine.run("status", "headline", "-o", "json").stdout)["status"]
    assert (status["phase"], status["stopReason"]) == ("Completed", "terminated")
    assert status["message"] == "The article stands."
    (response,) = status["responses"]
    said = [each["name"] for each in response["messages"]]
    assert said == ["reporter", "fact-checker", "reporter", "shopkeeper", "resident", "writer", "newsroom"]
    answered = sum(each.answered and each.disconnected_at is None for each in machine.model.requests)
    assert answered == status["tokenUsage"]["modelCalls"] == 10, "no answered call was repeated"
    dev.terminate()
    dev.communicate(timeout=PATIENCE)
    drawn = machine.run("graph", "-f", sample, "-o", "svg").stdout
    assert drawn.startswith("<svg")
    assert all(f">{name}" in drawn for name in ("newsroom", "desk", "panel", "writer", "corrections = reporter"))


@pytest.mark.slow
def test_logs_that_grow_are_moved_away_and_written_on(machine: UserMachine) -> None:
    following = machine.start("run", "-f", machine.write(*DUO, QUERY))
    machine.wait_for_calls(3)
    logs = [machine.state_dir.folder / name for name in LOGS]
    for log in logs:
        with log.open("ab") as file:
            file.write(b"line\n" * (MAX_LOG_BYTES // 5))
    while any(log.stat().st_size > MAX_LOG_BYTES for log in logs):
        time.sleep(0.1)
    assert all(log.with_name(f"{log.name}.1").stat().st_size > MAX_LOG_BYTES for log in logs)
    kill_server(machine.dev().pid)
    machine.model.release()
    _, err = following.communicate(timeout=PATIENCE)
    assert following.returncode == 0, err
    while "Server:" not in logs[1].read_text():  # it serves a moment before it says so
        time.sleep(0.1)
    own, server = (log.read_text() for log in logs)
    assert "the Temporal server exited unexpectedly and is being restarted" in own
    assert len(own) + len(server) < 100_000
