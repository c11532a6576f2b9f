"""The command line as a user runs it: processes, exit codes, stdout and stderr."""

import json
import os
import shlex
import signal
import subprocess
import time
import uuid
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from baton.starter.account import account_name, client_identity
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request
from tests.harness.environment import agent, call, line, manifest, team
from tests.harness.processes import BATON, PATIENCE, ROOT, WorkerProcess, baton, process_env
from tests.harness.tool_server import ToolServer
from tests.harness.user_machine import UserMachine
from tests.recordings.record import FOLDER

SAMPLE = ROOT / "samples" / "brainstorming.yaml"


DUO = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=3, onMaxTurns="complete")]
QUERY = {
    "apiVersion": "ark.mckinsey.com/v1alpha1",
    "kind": "Query",
    "metadata": {"name": "talk"},
    "spec": {"input": "Why?", "targets": [{"type": "team", "name": "team"}]},
}


@pytest.mark.shared_server
def test_run_prints_the_discussion_on_stderr_and_only_the_result_on_stdout(machine: UserMachine) -> None:
    done = machine.run("run", "-f", SAMPLE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Greet new users with one of three finished examples")
    assert done.stdout.count("\n") == 3
    assert "(the answers below are scripted: no language model is called)" in done.stderr
    assert "turn 1 of 9 · scripted:gpt-4" in done.stderr
    assert "→ terminate_team" in done.stderr
    assert "Completed (terminated)" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr, "no colours where there is no terminal"


@pytest.mark.shared_server
def test_run_prints_the_query_with_its_status_as_json_and_yaml(machine: UserMachine) -> None:
    as_json = machine.run("run", "-f", SAMPLE, "-o", "json")
    query = json.loads(as_json.stdout)
    assert (query["kind"], query["metadata"]["name"]) == ("Query", "brainstorming-session")
    assert (query["status"]["phase"], query["status"]["stopReason"]) == ("Completed", "terminated")
    assert query["status"]["tokenUsage"]["modelCalls"] == 6
    shown = yaml.safe_load(machine.run("status", "brainstorming-session", "-o", "yaml").stdout)
    assert shown == query


@pytest.mark.shared_server
def test_an_image_and_a_file_are_attached_to_the_question(machine: UserMachine, tmp_path: Path) -> None:
    machine.script(line("one", "A heron."))
    file = machine.write(agent("one"))
    (tmp_path / "heron.png").write_bytes(b"pixels")
    asked = ("run", "-f", file, "agent/one", "What is this?", "--attach")
    done = machine.run(*asked, tmp_path / "heron.png", "--attach", "https://example.com/map.jpg")
    assert done.stdout == "A heron.\n", done.stderr
    content = machine.model.requests[0].body["messages"][-1]["content"]
    assert content[0] == {"type": "text", "text": "What is this?"}
    assert [part["image_url"]["url"] for part in content[1:]] == [
        "data:image/png;base64,cGl4ZWxz",
        "https://example.com/map.jpg",
    ]
    missing = machine.run(*asked, tmp_path / "nothing.png")
    assert missing.returncode == 1
    assert "--attach: " in missing.stderr and "nothing.png: No such file" in missing.stderr


@pytest.mark.shared_server
def test_a_target_runs_without_a_query(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    file = machine.write(agent("one"), team("team", "one", strategy="sequential"))
    done = machine.run("run", "-f", file, "team/team", "How are you?", "-o", "json")
    assert done.returncode == 0, done.stderr
    query = json.loads(done.stdout)
    assert (query["spec"]["input"], query["status"]["message"]) == ("How are you?", "hello")
    assert machine.model.requests[0].body["messages"][-1]["content"] == "How are you?"


@pytest.mark.shared_server
def test_a_parameter_on_the_command_line_replaces_the_one_in_the_file(machine: UserMachine) -> None:
    received: list[str] = []

    def answer(request: Request) -> Reply:
        received.append(request["messages"][-1]["content"])
        return Reply(text="Sunny.")

    machine.model._answer = answer
    spec = {"input": "{{city}}, {{day}}?", "targets": [{"type": "agent", "name": "one"}]}
    asked = {**QUERY, "spec": {**spec, "parameters": [{"name": "city", "value": "Rome"}]}}
    file = machine.write(asked, agent("one"))
    refused = machine.run("run", "-f", file)
    assert refused.returncode == 1
    assert "spec.input: unknown name 'day'; known: city" in refused.stderr
    done = machine.run("run", "-f", file, "-p", "day=today = now", "-p", "city=Turin")
    assert (done.returncode, done.stdout) == (0, "Sunny.\n"), done.stderr
    done = machine.run("run", "agent/one", "{{city}}?", "-f", file, "-p", "city=Bari", "-p", "day=x")
    assert done.returncode == 0, done.stderr
    assert received == ["Turin, today = now?", "Bari?"]
    assert "'city' is not a parameter: write -p name=value" in machine.run("run", "-f", file, "-p", "city").stderr


@pytest.mark.shared_server
def test_a_model_and_a_tool_run_without_a_query(machine: UserMachine, tool_server: ToolServer) -> None:
    tool = manifest("Tool", "weather", {"type": "http", "http": {"url": tool_server.url}})
    model = {
        "type": "openai",
        "model": {"value": "x"},
        "config": {"openai": {"baseUrl": machine.env["OPENAI_BASE_URL"]}},
    }
    machine.model._answer = lambda _: Reply(text="I am.")
    file = machine.write(tool, manifest("Model", "gpt", model))
    assert machine.run("run", "model/gpt", "Who?", "-f", file).stdout == "I am.\n"
    assert machine.run("run", "tool/weather", '{"city": "Rome"}', "-f", file).stdout == "sunny\n"
    assert tool_server.seen[0].path == "/?city=Rome"


@pytest.mark.shared_server
def test_several_queries_run_at_once_and_are_printed_as_a_list(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    queries = [
        {**QUERY, "metadata": {"name": name}, "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
        for name in ("first", "second")
    ]
    done = machine.run("run", "-f", machine.write(agent("one"), *queries), "-o", "json")
    listed = json.loads(done.stdout)
    assert listed["kind"] == "List"
    assert [item["metadata"]["name"] for item in listed["items"]] == ["first", "second"]


@pytest.mark.shared_server
def test_a_failed_query_exits_with_2_and_keeps_its_messages(machine: UserMachine) -> None:
    machine.script(line("one", "hello"), line("two", {"status": 400, "text": "no such model"}))
    done = machine.run("run", "-f", machine.write(*DUO, QUERY), "-o", "json")
    assert done.returncode == 2
    status = json.loads(done.stdout)["status"]
    assert (status["phase"], status["responses"][0]["messages"][-1]["content"]) == ("Failed", "hello")
    assert status["message"].endswith("answered HTTP 400: no such model")
    assert "ModelRejected" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_refused_manifest_exits_with_1_and_lists_every_error(machine: UserMachine) -> None:
    bad = {**QUERY, "spec": {"inptu": "x", "targets": [{"type": "team", "name": "team"}]}}
    done = machine.run("run", "-f", machine.write(bad, {**DUO[2], "spec": {"strategy": "chaos", "members": []}}))
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    file = machine.folder / "team.yaml"
    assert f"{file}:6: Query/default/talk: spec.inptu: is not a field of Query; did you mean 'input'?" in lines
    missing = f"{file}:5: Query/default/talk: spec.input: is missing; it must be the text of the question"
    assert any(each.startswith(missing) for each in lines)
    assert any("Team/default/team: spec.strategy: 'chaos' is unknown" in each for each in lines)
    assert any("Team/default/team: spec.members: is empty" in each for each in lines)
    assert lines[-1] == "4 problems"
    assert not machine.state_dir.folder.exists(), "nothing was started"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run",), "nothing to run: pass -f FILE"),
        (("run", "-f", "nowhere.yaml"), "nowhere.yaml: can't be read: No such file or directory"),
        (
            ("run", "-f", SAMPLE, "team/nobody", "Hi"),
            "is neither in the files nor on the workers",
        ),
        (("run", "-f", SAMPLE, "team/brainstorming-team"), "'team/brainstorming-team' needs an input"),
        (("run", "-f", SAMPLE, "-o", "xml"), "'xml' is not one of"),
        (("nonsense",), "No such command 'nonsense'"),
        (("scripted-model", "nowhere.yaml"), "No such file"),
        (("scripted-model", ROOT / "docker-compose.yml"), "services: is not a field of Script"),
    ],
    ids=str,
)
def test_bad_usage_exits_with_1_and_says_what_is_wrong(
    machine: UserMachine, arguments: tuple[str | Path, ...], says: str
) -> None:
    done = machine.run(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["", "127.0.0.1:1"], ids=["none", "wrong"])
def test_without_a_server_a_command_exits_with_3_and_says_how_to_start_one(machine: UserMachine, address: str) -> None:
    done = machine.run("status", "talk", **({"TEMPORAL_ADDRESS": address} if address else {}))
    assert (done.returncode, done.stdout) == (3, "")
    assert "baton dev" in done.stderr
    assert "Traceback" not in done.stderr


def test_validate_warns_of_references_outside_the_files_and_strict_refuses_them(machine: UserMachine) -> None:
    file = machine.write(QUERY, agent("one"), {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}})
    done = machine.run("validate", "-f", file)
    assert (done.returncode, done.stdout) == (0, "2 manifests are valid\n")
    missing = f"{file}:8: Query/default/talk: spec.targets[0].name: Team default/team is not in the files"
    assert f"warning: {missing}" in done.stderr
    assert done.stderr.count("note: ignored") == 1
    strict = machine.run("validate", "-f", file, "--strict")
    assert strict.returncode == 1
    assert missing in strict.stderr
    run = machine.run("run", "-f", file)
    assert run.returncode == 1
    assert "Team default/team is neither in the files nor on the workers" in run.stderr


@pytest.mark.shared_server
def test_validate_reports_what_run_refuses(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    config = manifest("ArkConfig", "default", {"defaultMemory": {"name": "m"}})
    unset = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"token": "${API_KEY}"}}
    for given, text in (
        (config, "defaultMemory is valid but not supported yet: remove it to run this"),
        (unset, "data.token: '${API_KEY}' was not replaced: set the variable and run 'envsubst < FILE > RENDERED'"),
    ):
        done = machine.run("validate", "-f", machine.write(agent("one"), given))
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert text in done.stderr
    parameter = {"name": "city", "valueFrom": {"queryParameterRef": {"name": "town"}}}
    asks = manifest("Query", "q", {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]})
    file = machine.write(agent("one", parameters=[parameter]), asks)
    for strict, code in (([], 0), (["--strict"], 1)):
        done = machine.run("validate", "-f", file, *strict)
        assert done.returncode == code
        assert "the query has no parameter 'town'; it has: none" in done.stderr
    assert machine.run("run", "-f", file).returncode == 1
    assert machine.run("run", "-f", file, "-p", "town=Rome").returncode == 0


@pytest.mark.slow
@pytest.mark.shared_server
def test_manifests_are_read_from_standard_input(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))

    def piped(text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [str(BATON), *arguments, "-f", "-"]
        return subprocess.run(
            command, env=machine.env, cwd=machine.folder, input=text, capture_output=True, text=True, timeout=PATIENCE
        )

    done = piped(yaml.safe_dump(agent("one")), "run", "agent/one", "Why?")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    wrong = piped(yaml.safe_dump({**agent("one"), "spec": {}}), "validate")
    assert wrong.stderr.startswith("-:")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "abcdefg"}}
    refused = piped(yaml.safe_dump_all([agent("one"), secret]), "run", "agent/one", "Why?")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Secrets and keys can't be read from stdin" in refused.stderr
    machine.write(agent("one"), secret, name="secret.yaml")

    def of_command(command: str, file: str) -> "subprocess.CompletedProcess[str]":
        line = f"{shlex.quote(str(BATON))} {command} -f <(cat {file})"
        return subprocess.run(
            ["bash", "-c", line], env=machine.env, cwd=machine.folder, capture_output=True, text=True, timeout=PATIENCE
        )

    assert of_command("validate", "secret.yaml").stdout == "1 manifest is valid\n"
    refused = of_command("run agent/one Why?", "secret.yaml")
    assert (refused.returncode, "can't be read from stdin or a pipe" in refused.stderr) == (1, True)


def test_a_folder_is_read_without_the_folders_in_it_unless_they_are_asked_for(machine: UserMachine) -> None:
    (machine.folder / "manifests" / "more").mkdir(parents=True)
    machine.write(agent("one"), name="manifests/one.yaml")
    machine.write(agent("two"), agent("three"), name="manifests/more/two.yaml")
    assert machine.run("validate", "-f", "manifests").stdout == "1 manifest is valid\n"
    assert machine.run("validate", "-R", "-f", "manifests").stdout == "3 manifests are valid\n"
    (machine.folder / "manifests" / "one.yaml").unlink()
    empty = machine.run("validate", "-f", "manifests")
    assert (empty.returncode, empty.stdout) == (1, "")
    assert "manifests: contains no manifest; -R reads its subfolders" in empty.stderr


@pytest.mark.full
@pytest.mark.shared_server
def test_a_detached_run_can_be_watched_terminated_and_canceled(machine: UserMachine) -> None:
    machine.script(line("one", "1", {"text": "2", "hang": True}), line("two", "a", "b"))
    file = machine.write(*DUO, QUERY)
    assert machine.run("run", "-f", file, "--detach").returncode == 0
    machine.wait_for_calls(3)
    assert machine.run("terminate", "talk", "--reason", "enough").returncode == 0
    machine.released.set()
    watched = machine.run("watch", "talk")
    assert watched.returncode == 0
    assert "Completed (terminated)" in watched.stderr
    status = json.loads(machine.run("status", "talk", "-o", "json").stdout)["status"]
    assert (status["phase"], status["note"]) == ("Completed", "enough")
    assert status["message"] in ("2", "b"), "the team hears of it a little later than the query"
    printed = machine.run("transcript", "talk").stdout
    assert [word for word in printed.split() if word in ("1", "a", "2")].count("2") >= 1

    machine.model.requests.clear()
    machine.released.clear()
    machine.run("run", "-f", file, "--detach")
    machine.wait_for_calls(3)
    assert machine.run("cancel", "talk").returncode == 0
    machine.released.set()
    machine.run("watch", "talk")
    assert json.loads(machine.run("status", "talk", "-o", "json").stdout)["status"]["phase"] == "Canceled"
    assert machine.run("status", "nobody").returncode == 1


@pytest.mark.full
@pytest.mark.shared_server
def test_ctrl_c_detaches_and_the_run_continues(machine: UserMachine) -> None:
    machine.script(line("one", "1", {"text": "2", "hang": True}), line("two", "a", "b"))
    following = machine.start("run", "-f", machine.write(*DUO, QUERY))
    machine.wait_for_calls(3)
    following.send_signal(signal.SIGINT)
    _, printed = following.communicate(timeout=PATIENCE)
    machine.released.set()
    assert following.returncode == 130
    assert "Detached; the run continues. Follow it with: baton watch talk-" in printed
    assert "Traceback" not in printed
    assert "Completed (max_turns)" in machine.run("watch", "talk").stderr


@pytest.mark.slow
def test_the_server_and_worker_are_shared_and_end_together(machine: UserMachine) -> None:
    machine.script(line("one", {"text": "hello", "delay": 0.5}))
    query = {**QUERY, "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
    file = machine.write(agent("one"), query)
    both = [machine.start("run", "-f", file) for _ in range(2)]
    for each in both:
        out, printed = each.communicate(timeout=PATIENCE)
        assert (each.returncode, out) == (0, "hello\n"), printed
    machine.kill_dev()
    end = time.monotonic() + 60
    while machine.state_dir.is_held("dev"):
        assert time.monotonic() < end, "the server outlives its worker"
        time.sleep(0.05)
    assert "Completed" in machine.run("status", "talk").stderr, "they are started again"


@pytest.mark.slow
def test_unfinished_runs_continue_when_the_server_and_worker_are_restarted(machine: UserMachine) -> None:
    machine.script(line("one", "1", {"text": "2", "delay": 1}), line("two", "a", "b"))
    file = machine.write(*DUO, QUERY)
    machine.run("run", "-f", file, "--detach")
    machine.wait_for_calls(3)
    machine.kill_dev()
    spec = {"input": "?", "targets": [{"type": "agent", "name": "one"}]}
    other = {**QUERY, "metadata": {"name": "other"}, "spec": spec}
    assert machine.run("run", "-f", machine.write(agent("one"), other, name="other.yaml")).returncode == 0
    assert "Completed (max_turns)" in machine.run("watch", "talk").stderr
    status = json.loads(machine.run("status", "talk", "-o", "json").stdout)["status"]
    assert [message["content"] for message in status["responses"][0]["messages"]] == ["1", "a", "2", "b", "2", "b"]


@pytest.mark.slow
def test_a_server_and_worker_without_clients_and_runs_end_by_themselves(machine: UserMachine) -> None:
    dev = machine.start("dev", "--linger", "2")
    _, printed = dev.communicate(timeout=PATIENCE)
    assert dev.returncode == 0
    assert "UI: http" in printed


@pytest.mark.slow
def test_dev_in_the_foreground_stays_and_ends_with_ctrl_c(machine: UserMachine) -> None:
    dev = machine.start("dev")
    while not machine.state_dir.read_dev_server():
        time.sleep(0.05)
    again = machine.run("dev")
    assert again.returncode == 1
    assert "already running" in again.stderr
    time.sleep(0.5)
    assert dev.poll() is None
    os.killpg(dev.pid, signal.SIGINT)  # as a terminal does: to all of the group
    _, printed = dev.communicate(timeout=PATIENCE)
    assert dev.returncode == 0
    assert "UI: http://127.0.0.1" in printed
    assert not machine.state_dir.is_held("dev"), "the server has ended before"


@pytest.mark.slow
def test_a_worker_is_restarted_when_the_api_key_has_changed(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    query = {**QUERY, "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
    file = machine.write(agent("one"), query)
    without = {key: value for key, value in machine.env.items() if not key.startswith("OPENAI")}
    failed = baton("run", "-f", file, env=without, cwd=machine.folder)
    assert failed.returncode == 2
    assert "has no OPENAI_API_KEY" in failed.stderr
    done = machine.run("run", "-f", file)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "OPENAI_API_KEY and OPENAI_BASE_URL have changed: restarting the worker" in done.stderr


@pytest.mark.full
@pytest.mark.shared_server
def test_an_open_run_of_the_given_id_is_joined(machine: UserMachine) -> None:
    machine.script(line("one", {"text": "hello", "hang": True}))
    query = {**QUERY, "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
    file = machine.write(agent("one"), query)
    assert machine.run("run", "-f", file, "--id", "mine", "--detach").returncode == 0
    joined = machine.start("run", "-f", file, "--id", "mine")
    assert joined.stderr
    assert "mine" in joined.stderr.readline()
    machine.released.set()
    assert (joined.communicate(timeout=PATIENCE)[0], joined.returncode) == ("hello\n", 0)
    assert "Completed" in machine.run("status", "talk", "-o", "text").stderr, "it answers to its Query's name, too"
    assert len(machine.model.requests) == 1
    assert machine.run("status", "mine", "-o", "text").stdout == "hello\n"


@pytest.mark.full
def test_a_remote_server_and_worker_are_used_if_the_environment_names_them(
    machine: UserMachine, server: EmbeddedServer
) -> None:
    machine.script(line("one", "hello"))
    query = {**QUERY, "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
    file = machine.write(agent("one"), query)
    elsewhere = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": uuid.uuid4().hex}
    env = machine.env | elsewhere | {"BATON_HOME": str(machine.folder / "elsewhere")}
    worker = WorkerProcess(env, machine.folder / "worker.log")
    worker.start()
    done = machine.run("run", "-f", file, **elsewhere)
    worker.kill()
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert not machine.state_dir.folder.exists(), "nothing was started here"


@pytest.mark.slow
def test_a_worker_with_open_runs_keeps_its_api_key(machine: UserMachine) -> None:
    machine.script(line("one", {"text": "hello", "hang": True}))
    query = {**QUERY, "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
    file = machine.write(agent("one"), query)
    first = machine.start("run", "-f", file)
    machine.wait_for_calls(1)
    second = machine.run("run", "-f", file, "--detach", OPENAI_API_KEY="sk-another-key-of-mine")
    [note] = [each for each in second.stderr.splitlines() if "note: the local worker" in each]
    assert "was started with a different OPENAI_API_KEY and keeps it, because talk-" in note
    assert note.endswith(" is still open")
    assert "another-key" not in second.stderr + (machine.state_dir.folder / "dev.json").read_text()
    machine.released.set()
    out, _ = first.communicate(timeout=PATIENCE)
    assert (first.returncode, out) == (0, "hello\n")


@pytest.mark.slow
def test_many_runs_at_once_start_one_server_and_worker(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    query = {**QUERY, "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
    file = machine.write(agent("one"), query)
    runs = [machine.start("run", "-f", file) for _ in range(5)]
    assert [run.communicate(timeout=PATIENCE)[0] for run in runs] == ["hello\n"] * 5
    assert "already running" not in (machine.state_dir.folder / "dev.log").read_text()


@pytest.mark.full
@pytest.mark.shared_server
def test_a_run_that_was_terminated_in_temporal_has_failed_and_the_others_are_printed(machine: UserMachine) -> None:
    machine.script(line("one", "hello"), line("two", {"text": "late", "delay": PATIENCE}))
    queries = [
        {**QUERY, "metadata": {"name": f"q-{n}"}, "spec": {"input": "Why?", "targets": [{"type": "agent", "name": n}]}}
        for n in ("one", "two")
    ]
    run = machine.start("run", "-f", machine.write(agent("one"), agent("two"), *queries), "-o", "json")
    machine.wait_for_calls(2)
    temporal = BATON.parent / "temporal"
    ask = ("workflow", "terminate", "--yes", "--query", "WorkflowId STARTS_WITH 'q-two-' AND WorkflowType = 'query'")
    subprocess.run(
        [temporal, "--address", machine.dev().address, *ask, "--reason", "x"], check=True, capture_output=True
    )
    out, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 2
    ended = {item["metadata"]["name"]: item["status"] for item in json.loads(out)["items"]}
    assert ended["q-one"]["message"] == "hello"
    assert (ended["q-two"]["phase"], ended["q-two"]["failure"]["type"]) == ("Failed", "RunClosed")


@pytest.mark.shared_server
def test_queries_of_the_same_name_in_two_namespaces_are_different(machine: UserMachine) -> None:
    machine.script(line("one", "here"), line("two", "there"))
    spec = {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}
    here = {**QUERY, "spec": spec}
    there = {**QUERY, "metadata": {"name": "talk", "namespace": "there"}, "spec": spec}
    other = {**agent("two"), "metadata": {"name": "one", "namespace": "there"}}
    assert machine.run("run", "-f", machine.write(agent("one"), other, here, there)).returncode == 0
    assert machine.run("status", "talk", "-o", "text").stdout == "here\n"
    assert machine.run("status", "talk", "-n", "there", "-o", "text").stdout == "there\n"


@pytest.mark.full
@pytest.mark.parametrize(
    "env",
    [{"TEMPORAL_PROFILE": "nope"}, {"BATON_JOURNAL_URL": "garbage"}, {"BATON_HOME": "/proc/none"}],
    ids=lambda env: next(iter(env)),
)
def test_an_invalid_setting_is_an_error_without_a_traceback(machine: UserMachine, env: dict[str, str]) -> None:
    done = machine.run("run", "-f", SAMPLE, **env)
    assert done.returncode in (1, 3)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.shared_server
def test_no_command_aborts_at_its_end(machine: UserMachine) -> None:
    machine.script(line("one", call("noop", message="x"), "hello"))
    query = {**QUERY, "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
    machine.run("run", "-f", machine.write(agent("one", "noop"), query))
    for _ in range(2):
        asking = [machine.start("status", "talk") for _ in range(5)]
        ended = [(each.communicate(timeout=PATIENCE)[0], each.returncode) for each in asking]
        assert ended == [("hello\n", 0)] * 5


def test_the_version_is_printed(machine: UserMachine) -> None:
    assert machine.run("version").stdout.strip().count(".") == 2
    assert machine.run("--version").stdout == machine.run("version").stdout


def test_a_shell_completes_commands_and_options(machine: UserMachine) -> None:
    env = {**machine.env, "HOME": str(machine.folder)}
    # Typer looks for the shell among the processes above it.
    subprocess.run(["bash", "-c", f"'{BATON}' --install-completion; exit $?"], env=env, check=True)
    assert "baton.sh" in (machine.folder / ".bashrc").read_text()
    asked = {"_BATON_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    assert machine.run(**asked, COMP_WORDS="baton st").stdout.split() == ["status", "steer"]
    assert machine.run(**asked | {"COMP_CWORD": "2"}, COMP_WORDS="baton run --det").stdout.split() == ["--detach"]


@pytest.mark.full
@pytest.mark.shared_server
def test_a_shell_completes_kinds_names_targets_and_runs(machine: UserMachine) -> None:
    def completed(*words: str) -> list[str]:
        asked = {
            "_BATON_COMPLETE": "complete_bash",
            "COMP_CWORD": str(len(words)),
            "COMP_WORDS": f"baton {' '.join(words)}",
        }
        done = machine.run(**asked)
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("status", "to-be") == completed("get", "agent", "o") == []
    machine.script(line("one", "hello"))
    file = machine.write(agent("one"), agent("other"), team("ring", "one", "other", maxTurns=2))
    assert machine.run("apply", "-f", file).returncode == 0
    assert machine.run("run", "-f", file, "agent/one", "Why?", "--id", "to-be-completed").returncode == 0

    def found(*words: str) -> list[str]:
        """What is completed; a busy machine may be too slow for that, and is asked again."""
        return next(filter(None, (completed(*words) for _ in range(5))), [])

    assert found("get", "ag") == ["agent"]
    assert found("get", "agents", "o") == ["one", "other"]
    assert found("status", "to-be") == ["to-be-completed"]
    assert found("run", "team/") == ["team/ring"]
    assert found("run", "-f", str(file), "agent/") == ["agent/one", "agent/other"]
    assert found("run", "-f", "-", "team/") == ["team/ring"], "standard input is left to the command"


@pytest.mark.full
@pytest.mark.shared_server
def test_a_run_can_be_paused_steered_and_resumed(machine: UserMachine) -> None:
    machine.script(line("one", {"text": "a", "delay": 0.5}))
    file = machine.write(agent("one"), team("team", "one", maxTurns=500))
    machine.run("run", "-f", file, "team/team", "Why?", "--id", "steered", "--detach")
    machine.wait_for_calls(1)
    assert "steered: pause requested" in machine.run("pause", "steered").stderr
    assert f" (paused by {client_identity()} since " in machine.run("status", "steered").stderr
    assert "the message takes effect" in machine.run("steer", "steered", "Be kind.").stderr
    assert '{"enough": true, "note": "x"}' in machine.run("session", "steered", "enough=true", "note=x").stderr
    assert machine.run("session", "steered", "nonsense").returncode == 1
    large = machine.run("session", "steered", "enough=false", "rate=[1e999]")
    assert (large.returncode, large.stderr) == (1, "error: rate=[1e999]: the number 1e999 is too large\n")
    words = '{"enough": true, "note": "NaN", "rate": "-Infinity"}'
    assert words in machine.run("session", "steered", "note=NaN", "rate=-Infinity").stderr, "words, as x is one"
    assert "a text of 1 to" in machine.run("steer", "steered", " ").stderr
    asked = len(machine.model.requests)
    assert "steered: resume requested" in machine.run("resume", "steered").stderr
    machine.wait_for_calls(asked + 2)
    machine.run("terminate", "steered")
    received = [message["content"] for message in machine.model.requests[-1].body["messages"]]
    assert received.count("Be kind.") == 1
    assert f'"by": "{account_name()}", "text": "Be kind."' in machine.run("events", "steered", "-o", "json").stdout
    machine.run("watch", "steered")  # to its end: its calls would count in the next test


@pytest.mark.shared_server
def test_a_detached_run_prints_its_id(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    file = machine.write(agent("one"))
    done = machine.run("run", "-f", file, "agent/one", "Why?", "--id", "first", "--detach")
    assert (done.returncode, done.stdout) == (0, "first\n")
    done = machine.run("run", "-f", file, "agent/one", "Why?", "--id", "second", "--detach", "-o", "json")
    assert json.loads(done.stdout)["metadata"]["uid"] == "second"
    machine.wait_for_calls(2)  # they would count in the next test


@pytest.mark.shared_server
@pytest.mark.parametrize("command", ["cancel", "terminate", "pause", "resume", "steer", "session"])
def test_a_run_that_has_ended_is_not_controlled(machine: UserMachine, command: str) -> None:
    machine.script(line("one", "hello"))
    name = f"ended-{command}"
    machine.run("run", "-f", machine.write(agent("one")), "agent/one", "Why?", "--id", name)
    text = {"steer": ["Be kind."], "session": ["a=1"]}.get(command, [])
    done = machine.run(command, name, *text)
    assert (done.returncode, done.stderr) == (1, f"error: {name} has ended: completed\n")


@pytest.mark.full
@pytest.mark.shared_server
def test_a_reader_that_closes_the_pipe_is_no_error(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    machine.run("run", "-f", machine.write(agent("one")), "agent/one", "Why?", "--id", "piped")
    for command in (["events", "piped"], ["transcript", "piped"], ["list"], ["schema"], ["run", "--help"]):
        ours, its = os.pipe()
        os.close(ours)
        done = subprocess.run(
            [BATON, *command], env=machine.env, cwd=machine.folder, stdout=its, stderr=subprocess.PIPE
        )
        os.close(its)
        assert (done.returncode, done.stderr.count(b"Traceback")) == (0, 0), command


def test_every_command_has_a_short_option_for_help(machine: UserMachine) -> None:
    for command in ([], ["run"], ["schedules", "list"]):
        done = machine.run(*command, "-h")
        assert (done.returncode, "Usage: baton" in done.stdout) == (0, True)


def test_a_failed_validation_says_nothing_of_a_start(machine: UserMachine) -> None:
    done = machine.run("validate", "-f", machine.write(team("team", "nobody", maxTurns=0)))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(("1 problem", "problems"))


@pytest.mark.shared_server
def test_several_runs_are_controlled_at_once_and_one_that_has_ended_stops_none(machine: UserMachine) -> None:
    machine.script(line("one", {"text": "a", "delay": 0.5}))
    file = machine.write(agent("one"), team("team", "one", maxTurns=500))
    for name in ("left", "right"):
        machine.run("run", "-f", file, "team/team", "Why?", "--id", name, "--detach")
    done = machine.run("cancel", "left", "nobody", "right")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "left: cancellation requested",
        "error: there is no run 'nobody': no run has this id, and no Query in default this name",
        "right: cancellation requested",
    ]
    assert "run.ended" in machine.run("logs", "right", "-f").stdout


@pytest.mark.full
def test_an_invalid_recording_is_an_error_of_the_junit_report_and_the_others_are_replayed(tmp_path: Path) -> None:
    recording = json.loads((FOLDER / "support.run.json").read_text())
    (tmp_path / "differs\x1b.run.json").write_text(json.dumps({**recording, "answer": "Só."}))
    (tmp_path / "invalid.run.json").write_text('{"calls": 1}')
    files = "missing.run.json", "invalid.run.json", "differs\x1b.run.json", FOLDER / "support.run.json"
    command = "test", "-f", ROOT / "samples" / "support.yaml", "--junit", "report.xml", *files
    done = baton(*command, env=process_env(), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stdout.endswith("1 of 4 unchanged\n")
    assert "invalid.run.json is not a recording of a run" in done.stderr
    suite = ElementTree.fromstring((tmp_path / "report.xml").read_bytes())[0]
    assert [suite.get(name) for name in ("tests", "errors", "failures")] == ["4", "2", "1"]
    assert [[child.tag for child in case] for case in suite] == [["error"], ["error"], ["failure"], []]
    (failure,) = suite.iter("failure")
    assert 'recorded: "Só."' in (failure.text or "")
    assert suite[2].get("name") == "differs␛.run.json"
