"""What lists read of each run: callers share it fairly, and a request that fails leaves nothing behind."""

import asyncio

import pytest

from baton.resources.rights import DEFAULT_ACCOUNT, AccountName
from baton.starter.gateway.access import LOCAL, Caller
from baton.starter.gateway.app import Gateway
from baton.starter.gateway.run import Run
from baton.starter.gateway.runs import READS_OF_A_CALLER, Runs
from baton.starter.runs.listing import ListedRun, RunFilter
from tests.harness.environment import Environment, line
from tests.harness.gateway import GatewayServer

ANN, BOB = (Caller(name, AccountName("default", DEFAULT_ACCOUNT), sees_all=True) for name in ("ann", "bob"))


def runs_of(env: Environment) -> Runs:
    """The runs of a gateway."""
    return Gateway.of(env.client, {**env.worker_env, "BATON_GATEWAY_NAMESPACES": "*"}).runs


async def listed_run(gateway: GatewayServer, runs: Runs) -> ListedRun:
    """A run that has ended, as it is listed."""
    gateway.env.script(line("one", "a"))
    started = await gateway.post("/runs", {"target": "agent/one", "input": "Why?"}, 201)
    await gateway.finished(started["id"])
    while not (page := await runs.page(LOCAL, 1, RunFilter())).runs:
        await asyncio.sleep(0.05)
    return page.runs[0]


async def test_the_long_lists_of_one_caller_do_not_hold_up_another(gateway: GatewayServer) -> None:
    runs = runs_of(gateway.env)
    listed = await listed_run(gateway, runs)
    reading = 0
    begun = asyncio.Event()
    released = asyncio.Event()

    async def slow(run: Run, _: ListedRun) -> str:
        nonlocal reading
        reading += 1
        if reading == READS_OF_A_CALLER:
            begun.set()
        await released.wait()
        return run.id

    async def fast(run: Run, _: ListedRun) -> str:
        return run.id

    slow_lists = [asyncio.create_task(runs.read_each(ANN, [listed] * 20, slow, lambda run: run.id)) for _ in range(5)]
    await begun.wait()
    own_progress = asyncio.create_task(runs.progress(ANN, [listed.id] * 2))
    async with asyncio.timeout(60):
        assert [run for run, _ in await runs.progress(BOB, [listed.id] * 2)] == [listed.id] * 2
        assert await runs.read_each(BOB, [listed] * 3, fast, lambda run: run.id) == [listed.id] * 3
    assert reading == READS_OF_A_CALLER
    assert not own_progress.done()
    released.set()
    assert [run for run, _ in await own_progress] == [listed.id] * 2
    assert await asyncio.gather(*slow_lists) == [[listed.id] * 20] * 5


async def test_a_list_that_fails_reads_no_further_run(gateway: GatewayServer) -> None:
    runs = runs_of(gateway.env)
    listed = await listed_run(gateway, runs)
    is_first = True
    reads_on = asyncio.Event()
    was_canceled = False

    async def failing(run: Run, _: ListedRun) -> str:
        nonlocal is_first, was_canceled
        if is_first:
            is_first = False
            await reads_on.wait()
            raise KeyError(run.id)
        reads_on.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_canceled = True
            raise
        raise AssertionError

    with pytest.raises((ExceptionGroup, KeyError)):
        await runs.read_each(ANN, [listed] * 2, failing, lambda run: run.id)
    assert was_canceled
