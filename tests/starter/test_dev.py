"""The server and worker of one machine: those of different state folders stay apart."""

import asyncio
import contextlib
import itertools
import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.starter.server.dev import DevOptions, run_dev_server
from baton.starter.server.embedded import EmbeddedServer, ServerError
from baton.starter.server.state_dir import StateDir
from tests.harness.environment import KEY, agent, line, manifest, team
from tests.harness.event_loop import watched_loop
from tests.harness.ports import own_ports
from tests.harness.process_state import kept_loggers
from tests.harness.processes import BATON, PATIENCE, ROOT, baton_process, process_env
from tests.harness.user_machine import UserMachine

pytestmark = pytest.mark.full  # each test starts processes of its own

SAMPLE = ROOT / "samples" / "brainstorming.yaml"


async def test_one_of_two_servers_on_the_same_port_reports_that_it_did_not_start(tmp_path: Path) -> None:
    state_dirs, ports = [StateDir(tmp_path / name) for name in ("one", "other")], own_ports()
    with state_dirs[0].lock("dev") as one, state_dirs[1].lock("dev") as other:
        assert one
        assert other
        servers = [
            EmbeddedServer(state_dir.folder, lock, *ports)
            for state_dir, lock in zip(state_dirs, (one, other), strict=True)
        ]
        started = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
        alive = [server.is_alive for server in servers]
        await asyncio.gather(*(server.stop() for server in servers))
    assert [isinstance(each, ServerError) for each in started] == [not each for each in alive]
    assert sum(alive) == 1


@pytest.mark.slow
def test_two_servers_that_prefer_the_same_ports_both_start_on_different_ones(tmp_path: Path) -> None:
    machines, (port, ui) = [UserMachine(tmp_path / name) for name in ("one", "other")], own_ports()
    for machine in machines:
        last = {"address": f"127.0.0.1:{port}", "ui": f"http://127.0.0.1:{ui}"}
        machine.state_dir.file("dev.json").write_text(json.dumps(last))
        machine.env = process_env()
    with contextlib.ExitStack() as attached:
        for machine in machines:
            attached.enter_context(machine.state_dir.lock("clients", shared=True))  # none ends before the other begins
        began = [machine.start("dev", "--linger", "0") for machine in machines]
        while not all(machine.state_dir.read_dev_server() for machine in machines):
            assert [each.poll() for each in began] == [None, None]
            time.sleep(0.05)
    printed = [each.communicate(timeout=PATIENCE)[1] for each in began]
    assert [each.returncode for each in began] == [0, 0], printed
    assert "Temporal server: " in printed[0]
    assert printed[0].split(", its UI")[0] != printed[1].split(", its UI")[0]


@pytest.mark.slow
def test_all_lines_of_a_server_are_json_if_its_log_is(tmp_path: Path) -> None:
    machine = UserMachine(tmp_path)
    machine.env = process_env(BATON_LOG_FORMAT="json")
    port, ui = own_ports()
    file = machine.write(agent("one"), manifest("A2ATask", "unused", {}))
    dev = machine.start("dev", "-f", file, "--linger", "0", "--port", f"{port}", "--ui-port", f"{ui}")
    stdout, stderr = dev.communicate(timeout=PATIENCE)
    lines = [json.loads(line) for line in stderr.splitlines()]
    assert (dev.returncode, stdout) == (0, "")
    messages = [line["message"] for line in lines]
    assert "ignored, because no run needs them" in messages[0]
    assert any(message.startswith(f"Temporal server: 127.0.0.1:{port}") for message in messages)
    refused = baton_process("dev", "-f", machine.folder / "nowhere.yaml", env=machine.env)
    error, count = [json.loads(line) for line in refused.stderr.splitlines()]
    assert (refused.returncode, "nowhere.yaml" in error["message"]) == (1, True)
    assert (count["level"], count["message"]) == ("ERROR", "1 problem")


@pytest.mark.slow
def test_short_commands_keep_the_server_running(tmp_path: Path) -> None:
    machine = UserMachine(tmp_path)
    machine.env = process_env()
    dev = machine.start("dev", "--linger", "2")
    while not machine.state_dir.read_dev_server():
        time.sleep(0.05)
    seen = [time.monotonic()]
    for _ in range(12):
        with machine.state_dir.lock("clients", shared=True):
            seen.append(time.monotonic())
        time.sleep(0.5)
    longest = max(after - before for before, after in itertools.pairwise([*seen, time.monotonic()]))
    assert dev.poll() is None or longest > 1.5, "it ends only if the machine has held up this test for that long"
    assert dev.communicate(timeout=PATIENCE)
    assert dev.returncode == 0


async def test_the_worker_goes_on_while_a_command_is_attached(tmp_path: Path) -> None:
    state_dir, up = StateDir(tmp_path), asyncio.Event()
    with kept_loggers():  # the server takes its process for itself
        dev = asyncio.create_task(run_dev_server(state_dir, DevOptions(linger=30), lambda *_: up.set()))
        await up.wait()
        with state_dir.lock("clients", shared=True):
            longest = [1.0]
            while longest[-1] >= 0.09 and len(longest) < 60:  # until the machine leaves the test alone for a while
                async with watched_loop() as waits:
                    await asyncio.sleep(1.2)
                longest.append(waits.longest)
        dev.cancel()
        await asyncio.wait([dev])
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(number)
    assert longest[-1] < 0.09, "each second the worker looks whether a command is attached, for a tenth of a second"


def start_dev(machine: UserMachine, *arguments: str | Path) -> list[str]:
    """Starts a server in the foreground; what it has printed until it was up."""
    log = machine.folder / "dev.log"
    with log.open("w") as file:
        command = [BATON, "dev", *arguments]
        machine.background.append(subprocess.Popen(command, env=machine.env, cwd=machine.folder, stderr=file))
    while "export TEMPORAL_ADDRESS=" not in log.read_text():
        time.sleep(0.05)
    return log.read_text().splitlines()


@pytest.mark.slow
async def test_runs_may_name_the_manifests_of_dev_and_programs_copy_its_address(machine: UserMachine) -> None:
    port, ui = own_ports()
    printed = start_dev(machine, "-f", SAMPLE, "--port", str(port), "--ui-port", str(ui))
    assert printed[-1] == f"  export TEMPORAL_ADDRESS=127.0.0.1:{port}"
    assert "Worker started, 3 Agents, 1 Query, 1 Team loaded" in "".join(printed)
    assert f"http://127.0.0.1:{ui}" in printed[0]
    client = await Client.connect(f"127.0.0.1:{port}")
    team = {"team": "brainstorming-team", "input": "How do we greet new users?"}
    result = await client.execute_workflow("round-robin", team, id="by-name", task_queue="baton")
    assert result["stopReason"] == "terminated"


@pytest.mark.slow
def test_files_may_refer_to_manifests_that_only_a_worker_has_in_its_files(machine: UserMachine) -> None:
    own = agent("writer")
    own["metadata"]["labels"] = {"tier": "gold"}
    start_dev(
        machine, "-f", machine.write(own, agent("reviewer"), team("duo", "writer", "reviewer", strategy="sequential"))
    )
    machine.script(line("writer", "of the worker"), line("mine", "of the files"), line("reviewer", "reviewed"))
    while "files" not in machine.run("get", "agents").stdout:  # Temporal lists a worker some time after its start
        pass
    named = manifest("Query", "named", {"input": "Why?", "targets": [{"type": "agent", "name": "writer"}]})
    selected = manifest("Query", "selected", {"input": "Why?", "selector": {"matchLabels": {"tier": "gold"}}})
    for query in (named, selected):
        done = machine.run("run", "-f", machine.write(query, name="query.yaml"))
        assert (done.returncode, done.stdout.strip()) == (0, "of the worker"), done.stderr
    lost = manifest("Query", "lost", {"input": "Why?", "targets": [{"type": "agent", "name": "writr"}]})
    done = machine.run("run", "-f", machine.write(lost, name="query.yaml"))
    assert done.returncode == 1
    assert "writr is neither in the files nor on the workers; did you mean 'writer'?" in done.stderr
    # A manifest in the files takes the place of the worker's, also as a member of the worker's team.
    asks = manifest("Query", "ask", {"input": "Why?", "targets": [{"type": "team", "name": "duo"}]})
    done = machine.run("run", "-f", machine.write(asks, agent("writer", prompt="You are mine."), name="query.yaml"))
    assert done.returncode == 0, done.stderr
    assert "of the files" in done.stderr
    shown = machine.run("get", "agents").stdout.splitlines()
    assert [row.split() for row in shown] == [
        ["NAME", "NAMESPACE", "VERSION", "AGE", "SOURCE"],
        ["reviewer", "default", "-", "-", "files"],
        ["writer", "default", "-", "-", "files"],
    ]
    machine.run("apply", "-f", machine.write(agent("writer"), name="stored.yaml"))
    both = machine.run("get", "agent", "writer").stdout.splitlines()
    assert [row.split()[-1] for row in both] == ["SOURCE", "files", "store"]


@pytest.mark.slow
def test_a_port_that_is_taken_is_refused_if_it_was_asked_for_and_else_another_is_taken(machine: UserMachine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        refused = machine.run("dev", "--port", port)
        assert refused.returncode == 1
        assert f"port {port} is in use, perhaps by another Temporal server" in refused.stderr
        assert "--port" in refused.stderr
        last = {"address": f"127.0.0.1:{port}", "ui": "http://127.0.0.1:0"}
        machine.state_dir.file("dev.json").write_text(json.dumps(last))
        printed = start_dev(machine)
    assert f"port {port} is in use, perhaps by another Temporal server" in printed[0]
    assert not machine.dev().address.endswith(f":{port}")


@pytest.mark.slow
def test_dev_takes_the_place_of_a_server_that_a_command_has_started(machine: UserMachine) -> None:
    assert machine.run("run", "-f", SAMPLE).returncode == 0
    assert machine.dev().lingering
    printed = start_dev(machine, "-f", SAMPLE)
    assert not machine.dev().lingering
    assert machine.dev().address in printed[-1]


@pytest.mark.slow
def test_the_address_of_this_machines_own_server_may_be_exported(machine: UserMachine) -> None:
    key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"token": KEY}}
    api_key = {"valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}}
    config = {"openai": {"apiKey": api_key, "baseUrl": {"value": machine.env.pop("OPENAI_BASE_URL")}}}
    spec = {"type": "completions", "provider": "openai", "model": {"value": "gpt"}, "config": config}
    machine.script(line("one", "Hello."))
    file = machine.write(key, manifest("Model", "gpt", spec), agent("one", modelRef={"name": "gpt"}))
    del machine.env["OPENAI_API_KEY"]
    start_dev(machine)
    done = machine.run("run", "-f", file, "agent/one", "Hi", TEMPORAL_ADDRESS=machine.dev().address)
    assert (done.returncode, done.stdout) == (0, "Hello.\n")
    assert f"{machine.dev().gateway}/#/runs/one-" in done.stderr
