"""The server and worker of one machine: they are never taken for those of another folder."""

import asyncio
import json
import time
from pathlib import Path

from baton.starter.server.embedded import EmbeddedServer, ServerError, free_ports
from baton.starter.server.state_dir import StateDir
from tests.harness.processes import process_env
from tests.harness.user_machine import UserMachine


async def test_of_two_servers_on_the_same_port_one_says_that_it_did_not_start(tmp_path: Path) -> None:
    homes, ports = [StateDir(tmp_path / name) for name in ("one", "other")], free_ports()
    with homes[0].lock("dev") as one, homes[1].lock("dev") as other:
        assert one
        assert other
        servers = [EmbeddedServer(home.folder, lock, *ports) for home, lock in zip(homes, (one, other), strict=True)]
        started = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
        alive = [server.is_alive for server in servers]
        await asyncio.gather(*(server.stop() for server in servers))
    assert [isinstance(each, ServerError) for each in started] == [not each for each in alive]
    assert sum(alive) == 1


def test_servers_that_want_the_same_ports_at_once_are_both_there_and_are_not_mixed_up(tmp_path: Path) -> None:
    machines, (port, ui) = [UserMachine(tmp_path / name) for name in ("one", "other")], free_ports()
    for machine in machines:
        last = {"address": f"127.0.0.1:{port}", "ui": f"http://127.0.0.1:{ui}"}
        machine.home.file("dev.json").write_text(json.dumps(last))
        machine.env = process_env()
    began = [machine.start("dev", "--linger", "5") for machine in machines]
    told = [each.communicate(timeout=60)[1] for each in began]
    assert [each.returncode for each in began] == [0, 0], told
    assert "Temporal is at" in told[0]
    assert told[0].split(", its UI")[0] != told[1].split(", its UI")[0]


def test_commands_that_come_and_go_in_a_moment_keep_the_server_up(tmp_path: Path) -> None:
    machine = UserMachine(tmp_path)
    machine.env = process_env()
    dev = machine.start("dev", "--linger", "2")
    while not machine.home.read_dev_server():
        time.sleep(0.05)
    for _ in range(12):
        with machine.home.lock("clients", shared=True):
            pass
        time.sleep(0.5)
    assert dev.poll() is None
    assert dev.communicate(timeout=30)
    assert dev.returncode == 0
