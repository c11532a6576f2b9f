"""Workers that freeze, die, or lose Temporal or the journal during a call: no second effect, no payment too many."""

import asyncio
import time
from pathlib import Path

import pytest
from sqlalchemy import make_url
from temporalio.client import Client

from baton.starter.server.embedded import EmbeddedServer
from tests.harness.long_calls import two_workers
from tests.harness.postgres import PostgresServer
from tests.harness.processes import WorkerProcess
from tests.harness.tcp_proxy import TcpProxy

pytestmark = pytest.mark.full


async def freeze(worker: WorkerProcess, seconds: float) -> None:
    """Stops a worker's process for a while: it does not die, and its sockets stay open."""
    with worker.frozen():
        await asyncio.sleep(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [4, 12])
async def test_the_answer_of_a_worker_that_freezes_shorter_than_its_lease_counts_and_nothing_is_repeated(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path, seconds: float
) -> None:
    where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url, "BATON_CALL_LEASE": "60"}
    async with two_workers(client, tmp_path, where) as two:
        begun = await two.begin("POST", "GET", "model", "engine")
        await freeze(two.workers[0], seconds)
        for calls in begun:
            await calls.check_answered()


@pytest.mark.slow
async def test_a_call_is_taken_over_only_when_the_lease_of_its_frozen_worker_has_ended(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path
) -> None:
    where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url, "BATON_CALL_LEASE": "2"}
    async with two_workers(client, tmp_path, where) as two:
        begun = await two.begin("POST", "GET", "model", "engine", "idempotent engine")
        await freeze(two.workers[0], 20)
        for calls in begun:
            await calls.check_repeated_where_allowed()


@pytest.mark.slow
async def test_the_calls_of_a_killed_worker_are_taken_over(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path
) -> None:
    """At once with a journal on this machine, as a process that has ended holds no lease there."""
    where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url}
    async with two_workers(client, tmp_path, where) as two:
        begun = await two.begin("POST", "GET", "model")
        two.workers[0].kill()
        killed = time.monotonic()
        for calls in begun:
            await calls.check_repeated_where_allowed()
        print(f"{time.monotonic() - killed:.1f} s from the kill to the last answer")


@pytest.mark.slow
async def test_a_worker_that_can_not_reach_temporal_goes_on_with_its_calls_and_their_answers_count(
    client: Client, server: EmbeddedServer, journal_url: str, tmp_path: Path
) -> None:
    async with TcpProxy(int(server.address.rpartition(":")[2])) as proxy:
        where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal_url}
        alone = {"TEMPORAL_ADDRESS": proxy.address}
        async with two_workers(client, tmp_path, where, alone) as two:
            begun = await two.begin("POST", "model", "engine")
            await proxy.cut(15)
            for calls in begun:
                await calls.check_answered()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [4, 12])
async def test_a_worker_that_can_not_reach_the_journal_for_a_while_writes_its_answers_when_it_can(
    client: Client, server: EmbeddedServer, postgres: PostgresServer, tmp_path: Path, seconds: float
) -> None:
    journal = make_url(await postgres.database())
    async with TcpProxy(postgres.port) as proxy:
        port = int(proxy.address.rpartition(":")[2])
        alone = {"BATON_JOURNAL_URL": journal.set(port=port).render_as_string(hide_password=False)}
        address = journal.render_as_string(hide_password=False)
        where = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": address, "BATON_CALL_LEASE": "6"}
        async with two_workers(client, tmp_path, where, alone) as two:
            begun = await two.begin("POST", "model", "engine")
            await proxy.cut(seconds)
            for calls in begun:
                await calls.check_answered()
