"""The server and worker of one machine: those of different state folders stay apart."""

import asyncio
import json
import time
from pathlib import Path

from baton.starter.server.dev import run_dev_server
from baton.starter.server.embedded import EmbeddedServer, ServerError, free_ports
from baton.starter.server.state_dir import StateDir
from tests.harness.event_loop import watched_loop
from tests.harness.processes import process_env
from tests.harness.user_machine import UserMachine


async def test_one_of_two_servers_on_the_same_port_reports_that_it_did_not_start(tmp_path: Path) -> None:
    state_dirs, ports = [StateDir(tmp_path / name) for name in ("one", "other")], free_ports()
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


def test_two_servers_that_prefer_the_same_ports_both_start_on_different_ones(tmp_path: Path) -> None:
    machines, (port, ui) = [UserMachine(tmp_path / name) for name in ("one", "other")], free_ports()
    for machine in machines:
        last = {"address": f"127.0.0.1:{port}", "ui": f"http://127.0.0.1:{ui}"}
        machine.state_dir.file("dev.json").write_text(json.dumps(last))
        machine.env = process_env()
    began = [machine.start("dev", "--linger", "5") for machine in machines]
    printed = [each.communicate(timeout=60)[1] for each in began]
    assert [each.returncode for each in began] == [0, 0], printed
    assert "Temporal is at" in printed[0]
    assert printed[0].split(", its UI")[0] != printed[1].split(", its UI")[0]


def test_short_commands_keep_the_server_running(tmp_path: Path) -> None:
    machine = UserMachine(tmp_path)
    machine.env = process_env()
    dev = machine.start("dev", "--linger", "2")
    while not machine.state_dir.read_dev_server():
        time.sleep(0.05)
    for _ in range(12):
        with machine.state_dir.lock("clients", shared=True):
            pass
        time.sleep(0.5)
    assert dev.poll() is None
    assert dev.communicate(timeout=30)
    assert dev.returncode == 0


async def test_the_worker_goes_on_while_a_command_is_attached(tmp_path: Path) -> None:
    state_dir, up = StateDir(tmp_path), asyncio.Event()
    dev = asyncio.create_task(run_dev_server(state_dir, 30, lambda _: up.set()))
    await up.wait()
    with state_dir.lock("clients", shared=True):
        longest = []
        for _ in range(4):
            async with watched_loop() as waits:
                await asyncio.sleep(1.5)
            longest.append(waits.longest)
    dev.cancel()
    await asyncio.wait([dev])
    assert min(longest) < 0.09, "each second the worker looks whether a command is attached, for a tenth of a second"
