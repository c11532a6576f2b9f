"""The commands that show runs: on a terminal, through a pipe, from another machine."""

import json
import re
import time
import uuid

import pytest
import yaml

from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import Json, agent, call, line, team
from tests.harness.processes import PATIENCE, WorkerProcess
from tests.harness.user_machine import UserMachine

LONG = {"text": "These are the first words of a long answer, and here are those at its very end: finis", "pause": 1.5}


def query(name: str, kind: str, target: str) -> Json:
    spec = {"input": "Why?", "targets": [{"type": kind, "name": target}]}
    return {"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": "Query", "metadata": {"name": name}, "spec": spec}


def ended_runs(machine: UserMachine) -> list[Json]:
    """The runs that are listed, once none of them is listed as running: Temporal lists an end a moment later."""
    while True:
        listed: list[Json] = json.loads(machine.run("list", "-o", "json").stdout)
        if not any(run["state"] == "Running" for run in listed):
            return listed


TALK = [agent("one"), team("pair", "one", "one", strategy="sequential"), query("talk", "team", "pair")]


@pytest.mark.slow
@pytest.mark.shared_server
def test_run_shows_partial_answers_on_a_terminal_and_ctrl_c_restores_the_terminal(machine: UserMachine) -> None:
    machine.script(line("one", {**LONG, "held": True}))
    terminal = machine.terminal("run", "-f", machine.write(*TALK))
    terminal.wait_for("These are the first words")
    assert not machine.model.requests[0].answered
    assert "pair · turn 1 of 2 · default · " in terminal.text
    terminal.press_ctrl_c()
    assert terminal.end() == 130
    last = terminal.text[terminal.text.rindex("\x1b[?25h") :]
    assert "Detached; the run continues. Follow it with: baton watch talk-" in last
    assert "Traceback" not in terminal.text
    machine.model.release()
    watching = machine.terminal("watch", "talk")
    watching.wait_for("finis")
    assert watching.end() == 0
    assert "Completed" in watching.text
    assert watching.text.count("\x1b[?25l") == watching.text.count("\x1b[?25h") == 1, "the cursor is there again"


@pytest.mark.shared_server
def test_there_is_no_live_view_without_a_terminal_even_with_colours_forced(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    done = machine.run("run", "-f", machine.write(*TALK), FORCE_COLOR="1")
    assert "\x1b[1;32mone" in done.stderr
    assert "\x1b[2K" not in done.stderr
    assert "\x1b[?25l" not in done.stderr


@pytest.mark.full
@pytest.mark.shared_server
def test_a_transcript_ends_with_the_partial_answer_of_an_open_call(machine: UserMachine) -> None:
    machine.script(line("one", "Well.", {**LONG, "held": True}))
    machine.run("run", "-f", machine.write(*TALK), "--detach")
    machine.wait_for_calls(2)
    end = time.monotonic() + PATIENCE
    while "These are" not in (shown := machine.run("transcript", "talk")).stdout:
        assert time.monotonic() < end
    assert not machine.model.requests[1].answered
    lines = shown.stdout.splitlines()
    assert lines.index("  Well.") < lines.index("one  pair · turn 2 of 2 · default · unfinished")
    assert lines[-1].startswith("  These are the first words")
    assert lines[-1].endswith("…")
    assert "Running" in shown.stderr
    machine.model.release()
    machine.run("watch", "talk")
    shown = machine.run("transcript", "talk")
    assert "unfinished" not in shown.stdout
    assert shown.stdout.count("finis\n") == 1


@pytest.mark.slow
def test_runs_are_listed_newest_first_without_their_child_runs(machine: UserMachine) -> None:
    machine.script(line("one", "hello"), line("two", {"status": 400}))
    first = machine.write(agent("one"), team("pair", "one", strategy="sequential"), query("first", "team", "pair"))
    machine.run("run", "-f", first)
    other = query("second", "agent", "two") | {"metadata": {"name": "second", "namespace": "there"}}
    there = {**agent("two"), "metadata": {"name": "two", "namespace": "there"}}
    machine.run("run", "-f", machine.write(there, other, name="second.yaml"))
    listed = ended_runs(machine)
    assert [(run["name"], run["type"], run["state"]) for run in listed] == [
        ("second", "query", "Failed"),
        ("first", "query", "Completed"),
    ]
    assert yaml.safe_load(machine.run("list", "-n", "there", "-o", "yaml").stdout) == listed[:1]
    assert len(json.loads(machine.run("list", "--limit", "1", "-o", "json").stdout)) == 1
    plain = machine.run("list").stdout.splitlines()
    assert plain[0].split() == ["ID", "TYPE", "STATE", "DURATION", "AGE"]
    assert plain[2].split()[:3] == [listed[1]["id"], "query", "Completed"]
    wide = machine.run("list", "-A", "-o", "wide").stdout.splitlines()
    assert wide[0].split()[-5:] == ["QUERY", "NAMESPACE", "PARENT", "FORKED", "FROM"]
    assert [each.split()[-4:] for each in wide[1:]] == [["second", "there", "-", "-"], ["first", "default", "-", "-"]]
    ids = [run["id"] for run in listed]
    assert machine.run("list", "-o", "name").stdout.split() == ids
    assert machine.run("list", "-o", "jsonpath={[*].id}").stdout.split() == ids
    watching = machine.terminal("list", "-w")
    watching.wait_for(ids[1])
    machine.run("run", "-f", first)
    watching.wait_for(machine.run("list", "--limit", "1", "-o", "name").stdout.strip())
    watching.press_ctrl_c()
    assert watching.end() == 130
    terminal = machine.terminal("list")
    assert terminal.end() == 0
    assert "Completed" in terminal.text
    assert "\x1b[32m" in terminal.text


@pytest.mark.slow
def test_a_list_has_whole_ids_and_ages_on_a_terminal_of_80_columns(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    name = "a-question-with-a-rather-long-name-of-45-signs"
    machine.run("run", "-f", machine.write(agent("one"), query(name, "agent", "one")))
    ended_runs(machine)
    terminal = machine.terminal("list")
    assert terminal.end() == 0
    header, row = re.sub(r"\x1b\[[0-9;]*m", "", terminal.text).splitlines()
    assert re.fullmatch(name + r"-[a-z0-9]{6}  query  Completed  \d+ s +\d+s", row)
    assert header.index("AGE") == re.search(r"\d+s$", row).start()  # type: ignore[union-attr]  # it ends with an age


@pytest.mark.full
@pytest.mark.shared_server
def test_a_status_is_a_few_lines_that_say_what_a_run_waits_for(machine: UserMachine) -> None:
    machine.script(line("one", {"status": 503, "text": "busy", "headers": {"retry-after": "14"}}))
    machine.run("run", "-f", machine.write(*TALK), "--detach")
    machine.wait_for_calls(1)
    end = time.monotonic() + PATIENCE
    while "✗" not in (shown := machine.run("status", "talk")).stderr:
        assert time.monotonic() < end
    first, call, failure = shown.stderr.splitlines()
    assert first.startswith("Running talk-")
    assert re.match(r"one  pair · turn 1 of 2 · default · (waiting for )?attempt \d", call)
    assert "answered HTTP 503" in failure
    assert yaml.safe_load(machine.run("status", "talk", "-o", "yaml").stdout)["status"]["phase"] == "Running"
    machine.run("cancel", "talk")
    assert machine.run("watch", "talk").returncode == 2
    assert machine.run("status", "talk").stderr.startswith("Canceled (canceled) talk-")


@pytest.mark.full
@pytest.mark.parametrize("ends", [False, True], ids=["said", "with-a-tool"])
@pytest.mark.shared_server
def test_the_answer_is_printed_once_where_messages_and_results_go_to_one_terminal(
    machine: UserMachine, ends: bool
) -> None:
    last = call("terminate", response="The very last words.") if ends else "The very last words."
    machine.script(line("one", last))
    file = machine.write(agent("one", "terminate"), query("talk", "agent", "one"))
    terminal = machine.terminal("run", "-f", file)
    assert terminal.end() == 0
    assert terminal.screen.count("The very last words.") == 1
    piped = machine.run("run", "-f", file)
    assert piped.stdout == "The very last words.\n"
    assert "  The very last words.\n" in piped.stderr


@pytest.mark.slow
def test_what_has_run_is_shown_after_its_server_has_ended(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    assert machine.run("list").returncode == 3, "nothing has run here"
    machine.run("run", "-f", machine.write(agent("one"), query("talk", "agent", "one")))
    for command in (("list",), ("status", "talk"), ("events", "talk")):
        machine.shut_down()
        shown = machine.run(*command)
        assert shown.returncode == 0
        assert "talk" in shown.stdout + shown.stderr


@pytest.mark.full
@pytest.mark.shared_server
def test_events_are_lines_json_lines_and_yaml_documents(machine: UserMachine) -> None:
    machine.script(line("one", call("noop", message="x"), "hello \x1b[2J"))
    machine.run("run", "-f", machine.write(agent("one", "noop"), query("talk", "agent", "one")))
    shown = [json.loads(each) for each in machine.run("events", "talk", "-o", "json").stdout.splitlines()]
    assert [each["type"] for each in shown] == [
        "run.started",
        "turn.started",
        "model.called",
        "model.answered",
        "tool.called",
        "tool.returned",
        "model.called",
        "model.answered",
        "message",
        "turn.ended",
        "run.ended",
    ]
    assert [*yaml.safe_load_all(machine.run("events", "talk", "-o", "yaml").stdout)] == shown
    lines = machine.run("events", "talk").stdout.splitlines()
    assert [each.split()[1] for each in lines] == [each["type"] for each in shown]
    assert "\x1b" not in "".join(lines)
    rest = machine.run("events", "talk", "-o", "json", "--after", shown[4]["cursor"]).stdout.splitlines()
    assert [json.loads(each) for each in rest] == shown[5:]
    wrong = machine.run("events", "talk", "--after", "nonsense")
    assert (wrong.returncode, "not a cursor of an event" in wrong.stderr) == (1, True)
    with_arks_names = machine.run("events", "talk", "-o", "ark-json").stdout.splitlines()
    assert json.loads(with_arks_names[-1])["event"] == "QueryCompleted"
    assert "QueryCompleted" in machine.run("events", "talk", "-o", "ark").stdout


@pytest.mark.full
@pytest.mark.shared_server
def test_events_can_be_followed_while_the_run_goes_on(machine: UserMachine) -> None:
    machine.script(line("one", {"text": "hello", "hang": True}))
    machine.run("run", "-f", machine.write(*TALK), "--detach")
    following = machine.start("events", "talk", "--follow", "-o", "json")
    assert following.stdout
    while json.loads(following.stdout.readline())["type"] != "model.called":
        pass
    assert not any(each.answered for each in machine.model.requests)
    machine.released.set()
    rest, _ = following.communicate(timeout=PATIENCE)
    assert json.loads(rest.splitlines()[-1])["type"] == "run.ended"
    assert following.returncode == 0


@pytest.mark.slow
def test_a_run_is_watched_from_a_machine_without_a_worker_and_after_its_worker_has_gone(
    machine: UserMachine, server: EmbeddedServer
) -> None:
    machine.script(line("one", "hello"))
    elsewhere = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": uuid.uuid4().hex}
    env = machine.env | elsewhere | {"BATON_HOME": str(machine.folder / "elsewhere")}
    worker = WorkerProcess(env, machine.folder / "worker.log")
    worker.start()
    machine.run("run", "-f", machine.write(*TALK), "--id", "mine", **elsewhere)
    worker.kill()
    watched = machine.run("watch", "mine", **elsewhere)
    assert watched.returncode == 0
    assert watched.stderr.count("  hello\n") == 2
    assert re.search(r"Completed \(completed\) mine · 2 model calls, .* · \d+ s\n", watched.stderr)
    assert machine.run("transcript", "mine", **elsewhere).stdout.count("  hello\n") == 2
    assert "run.ended" in machine.run("events", "mine", **elsewhere).stdout
    assert "mine" in machine.run("list", **elsewhere).stdout


@pytest.mark.parametrize("command", ["watch", "transcript", "events"])
@pytest.mark.shared_server
def test_showing_a_run_that_does_not_exist_exits_with_1(machine: UserMachine, command: str) -> None:
    machine.script(line("one", "hello"))
    machine.run("run", "-f", machine.write(agent("one"), query("talk", "agent", "one")))
    done = machine.run(command, "nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no run 'nobody'" in done.stderr
