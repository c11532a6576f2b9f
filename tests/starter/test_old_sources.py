"""The records of catalogs in the state folder: they are removed when no run and no schedule can need them."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from baton.activities.runtime.secrets import SecretStore
from baton.resources.secret import Secrets
from baton.starter.server.dev import remove_old_sources
from baton.starter.server.embedded import RETENTION
from baton.starter.server.state_dir import StateDir
from baton.temporal.client import connect
from tests.harness.environment import agent, line, manifest
from tests.harness.user_machine import UserMachine

DAY = timedelta(days=1)


@pytest.fixture
def state_dir(tmp_path: Path) -> StateDir:
    """A state folder."""
    return StateDir(tmp_path / ".baton")


def record(state_dir: StateDir, name: str, age: timedelta) -> None:
    """A record that was last used some time ago."""
    state_dir.write_sources(name, [])
    age_record(state_dir, name, age)


def age_record(state_dir: StateDir, name: str, age: timedelta) -> None:
    """Makes a record as old as if it was last used some time ago."""
    used = time.time() - age.total_seconds()
    os.utime(state_dir.file(f"sources/{name}.json"), (used, used))


def records(state_dir: StateDir) -> set[str]:
    """The catalogs that have records."""
    return {file.stem for file in state_dir.file("sources").iterdir()}


def test_a_record_is_removed_by_its_last_use_unless_it_is_needed(state_dir: StateDir) -> None:
    record(state_dir, "old", 3 * DAY)
    record(state_dir, "young", DAY)
    record(state_dir, "needed", 3 * DAY)
    state_dir.remove_sources(datetime.now(UTC) - 2 * DAY, {"needed"})
    assert records(state_dir) == {"young", "needed"}


def test_a_catalog_that_is_run_again_is_renewed_by_its_client(state_dir: StateDir) -> None:
    record(state_dir, "again", 3 * DAY)
    state_dir.write_sources("again", [])
    state_dir.remove_sources(datetime.now(UTC) - DAY, ())
    assert records(state_dir) == {"again"}


async def test_a_run_that_uses_its_secrets_renews_the_record(state_dir: StateDir) -> None:
    record(state_dir, "running", 3 * DAY)
    await SecretStore(Secrets(), {}, state_dir.file("sources")).of_run("running")
    state_dir.remove_sources(datetime.now(UTC) - DAY, ())
    assert records(state_dir) == {"running"}


def test_a_catalog_whose_record_was_removed_is_not_trusted(state_dir: StateDir) -> None:
    record(state_dir, "old", 3 * DAY)
    secrets = SecretStore(Secrets(), {}, state_dir.file("sources"))
    assert secrets.is_local("old")
    state_dir.remove_sources(datetime.now(UTC) - DAY, ())
    assert not secrets.is_local("old")


@pytest.mark.slow
async def test_the_local_server_removes_what_neither_an_open_run_nor_a_schedule_can_need(machine: UserMachine) -> None:
    """It does so when it starts, and every hour: however old the oldest open run is."""
    state_dir = machine.state_dir
    query = manifest("Query", "q", {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]})
    schedule = manifest("Schedule", "yearly", {"schedule": "0 0 1 1 *", "query": "q"})
    waits = {"strategy": "sequential", "members": [{"name": "person", "type": "human"}]}
    before = machine.write(agent("one", description="before"), query, schedule)
    assert machine.run("schedules", "apply", "-f", before).returncode == 0
    replaced = records(state_dir)
    file = machine.write(agent("one"), query, schedule, manifest("Team", "waiting", waits))
    assert machine.run("run", "--detach", "team/waiting", "-f", file, "Why?").returncode == 0
    assert machine.run("schedules", "apply", "-f", file).returncode == 0
    needed = records(state_dir) - replaced
    machine.script(line("one", "done"))
    assert machine.run("run", "agent/one", "-f", file, "Why?").returncode == 0
    recent = records(state_dir) - needed - replaced
    for name in (*needed, *replaced):
        age_record(state_dir, name, RETENTION + DAY)
    assert (len(needed), len(replaced), len(recent)) == (2, 1, 1)
    await remove_old_sources(state_dir, await connect(machine.dev().address))
    assert records(state_dir) == needed | recent
