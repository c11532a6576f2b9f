"""What can be checked of the containers without a container engine: the commands and settings in their files."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
import yaml
from temporalio.client import Client

from activities.settings import Settings
from conversation.errors import JournalUnavailable
from conversation.wire import connect
from starter.embedded import EmbeddedServer, free_ports
from tests.processes import ROOT, WorkerProcess, environment

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()


async def test_the_server_of_the_compose_file_starts_with_its_command_and_is_healthy(tmp_path: Path) -> None:
    temporal = str(Path(sys.executable).parent / "temporal")
    port, _ = free_ports((0, 0))
    command = [part.replace("/data", str(tmp_path)) for part in COMPOSE["services"]["temporal"]["command"]]
    server = await asyncio.create_subprocess_exec(temporal, *command, "--port", str(port))
    test = COMPOSE["services"]["temporal"]["healthcheck"]["test"]
    assert test[:2] == ["CMD", "/temporal"]
    check = [temporal, *(part.replace("7233", str(port)) for part in test[2:])]
    code: int | None = 1
    while code:
        code = await (await asyncio.create_subprocess_exec(*check, stderr=asyncio.subprocess.DEVNULL)).wait()
    assert (await connect(f"127.0.0.1:{port}")).namespace == "default"
    server.terminate()
    await server.wait()


async def test_the_worker_of_the_compose_file_runs_with_its_command_and_ends_gracefully(
    client: Client, server: EmbeddedServer, tmp_path: Path
) -> None:
    service = COMPOSE["services"]["worker"]
    assert service["command"] == ["python", "worker.py", "/manifests"]
    given = {key: value.replace("/data", str(tmp_path)) for key, value in service["environment"].items() if value}
    worker = WorkerProcess(environment(**(given | {"TEMPORAL_ADDRESS": server.address})), tmp_path / "log", tmp_path)
    worker.start()
    while "working on the task queue baton" not in worker.log.read_text():
        await asyncio.sleep(0.05)
    assert await worker.stop() == 0
    assert (tmp_path / "journal.db").exists()


def test_the_image_holds_every_package_and_only_what_the_lock_names() -> None:
    copied = {line.split()[1] for line in DOCKERFILE.splitlines() if line.startswith("COPY") and len(line.split()) == 3}
    for package in ("resources", "conversation", "workflows", "activities", "starter"):
        assert package in copied
    assert "--require-hashes" in DOCKERFILE
    assert "USER baton" in DOCKERFILE


def test_nothing_is_published_beyond_this_machine_and_no_key_stands_in_the_file() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    keys = COMPOSE["services"]["worker"]["environment"]
    assert keys["OPENAI_API_KEY"] is None
    assert "password" not in json.dumps(COMPOSE).lower()


@pytest.mark.parametrize("address", ["temporal:7233", "10.0.0.5:7233", "example.com:7233", "[2001:db8::1]:7233"])
def test_a_worker_far_from_temporal_refuses_the_default_journal(address: str) -> None:
    with pytest.raises(JournalUnavailable, match="set BATON_JOURNAL_URL"):
        Settings.of({}).check(address)
    Settings.of({"BATON_JOURNAL_URL": "sqlite:////data/journal.db"}).check(address)


@pytest.mark.parametrize("address", ["localhost:7233", "127.0.0.1:7233", "[::1]:7233"])
def test_a_worker_beside_temporal_takes_the_default_journal(address: str) -> None:
    Settings.of({}).check(address)
