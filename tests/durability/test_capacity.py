"""The figures of the capacity page are true: sizes are measured again, and the pods' memory suffices."""

import json
import re
from dataclasses import replace

import pytest

from baton.starter.errors import UsageError
from baton.starter.operations.capacity import Load, MeasuredRuns, measure, needs
from benchmarks.capacity import DATABASES, LOAD, PAGE, RESULTS, measured, paused, tables
from tests.durability.test_kubernetes import OVERLAYS, container, workers
from tests.harness.postgres import PostgresServer, execute
from tests.harness.user_machine import UserMachine


def test_the_tables_of_the_page_are_computed_from_the_results() -> None:
    text = PAGE.read_text()
    assert [each for each in tables() if each not in text] == []


def test_what_the_page_says_beside_its_tables_is_in_the_results_too() -> None:
    text = " ".join(PAGE.read_text().split())
    busy = measured()["PostgreSQL"][1].worker_ms
    assert busy
    assert f"1,000 ms / {busy:.1f} ms × 60 % = {600 / busy:.0f} per second" in text
    assert f"{paused()['worker']} MB with 10,000 of them" in text
    hostile = max(int(each) for each in re.findall(r'"worker, MB": (\d+)', (RESULTS / "hostile.json").read_text()))
    assert f"used up to {hostile} MB" in text


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
async def test_the_sizes_of_the_page_are_measured_again(database: str, postgres: PostgresServer) -> None:
    url = await postgres.database() if database == "PostgreSQL" else None
    again = await measure(replace(LOAD, runs=12, at_once=6), url, {}, encrypted=(False, True))
    for then, now in zip(measured()[database], again, strict=True):
        assert now.history_bytes == pytest.approx(then.history_bytes, rel=0.2)
        assert now.journal_bytes == pytest.approx(then.journal_bytes, rel=0.2)
        assert now.encrypted == then.encrypted
        assert now.worker_ms
        assert now.idle_mb
    if url:
        tables_left = "select count(*) from pg_class where relkind = 'r' and relname like 'baton%'"
        assert await execute(url, tables_left) == [(0,)]


async def test_a_database_that_is_in_use_is_not_measured_with(postgres: PostgresServer) -> None:
    url = await postgres.database()
    await execute(url, "create table of_somebody (id int)")
    with pytest.raises(UsageError, match="has tables: pass an empty database"):
        await measure(Load(turns=1, runs=1), url, {}, encrypted=(False,))
    assert await execute(url, "select count(*) from of_somebody") == [(0,)]


@pytest.mark.slow
def test_the_command_prints_what_was_measured_and_what_a_load_needs(machine: UserMachine) -> None:
    done = machine.run("capacity", "--runs", "2", "--turns", "3", "--runs-per-day", "864000", "-o", "json")
    found = json.loads(done.stdout)
    assert found["load"] == {"turns": 3, "reply": 1000, "runs": 2, "at_once": 20}
    assert [each["encrypted"] for each in found["measured"]] == [False, True]
    assert [each["turns_per_second"] for each in found["needs"]] == [90, 90]
    assert [each["workers_by_calls"] for each in found["needs"]] == [5, 5]


@pytest.mark.slow
def test_the_command_computes_with_the_calls_at_once_that_its_worker_makes(machine: UserMachine) -> None:
    load = ("capacity", "--runs", "1", "--turns", "3", "--runs-per-day", "864000")
    done = machine.run(*load, BATON_MAX_CONCURRENT_ACTIVITIES="100")
    (row,) = [each for each in done.stdout.splitlines() if "by calls" in each]
    assert re.fullmatch(r"… by calls \(100 at once each\) +9 +9", row)


def test_a_load_needs_workers_by_cpu_and_by_calls_and_at_least_two() -> None:
    one = MeasuredRuns(
        encrypted=False,
        history_bytes=80_000,
        journal_bytes=20_000,
        worker_ms=10.0,
        server_ms=20.0,
        runs_per_minute=100.0,
        idle_mb=None,
        loaded_mb=None,
        all_mb=None,
    )
    much = needs(one, 864_000, 10, call_seconds=1)
    assert (much.turns_per_second, much.workers_by_cpu, much.workers_by_calls, much.workers) == (300, 5, 2, 5)
    assert (much.server_cpus, much.histories_gb, much.journal_gb) == (6, 69.12, 17.28)
    assert needs(one, 864_000, 10, call_seconds=10).workers == 15
    assert needs(one, 1, 1, call_seconds=1).workers == 2


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_asks_for_the_memory_that_was_measured(overlay: str) -> None:
    approvals = json.loads((RESULTS / "waiting-approvals.json").read_text())["rows"][0]["waiting MB"]
    most = max(approvals, paused()["worker"]) * 1_000_000
    for pod in workers(overlay).values():
        resources = container(pod)["resources"]
        requested = int(resources["requests"]["memory"].removesuffix("Mi")) * 1024 * 1024
        assert most < requested < int(resources["limits"]["memory"].removesuffix("Gi")) * 1024**3
