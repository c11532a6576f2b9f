"""Runs are found by team, strategy, phase and stop reason, and run as well on a server that knows none of these."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.client import Client

from baton.conversation.temporal import search_attributes
from baton.conversation.temporal.temporal_client import connect
from baton.starter.server.embedded import EmbeddedServer, free_ports
from baton.starter.server.state_dir import Home
from tests.harness.stage import Stage, agent, line
from tests.replay.scenarios import TEAM, TRIO, trio


async def found(stage: Stage, wanted: str, count: int) -> list[str]:
    """The ids of the runs that fit, as soon as there are so many: a server notes them a moment later."""
    while True:
        runs = [run.id async for run in stage.client.list_workflows(f"TaskQueue = '{stage.task_queue}' AND {wanted}")]
        if len(runs) >= count:
            return runs
        await asyncio.sleep(0.05)


async def test_a_run_is_found_by_its_team_and_strategy_and_by_how_it_ended(stage: Stage) -> None:
    trio(stage)
    asked = await stage.start_query([*TRIO, TEAM], "team/team")
    await stage.status(asked)
    stage.script(line("one", "Hello."))
    alone = await stage.start("agent", {"agent": "one", "input": "?", "resources": [agent("one")]})
    await stage.turn(alone)
    both = await found(stage, "BatonTeam = 'team' AND BatonStrategy = 'round-robin'", 2)
    assert set(both) == {asked.id, f"{asked.id}/target-1/team"}
    failed = await found(stage, "BatonPhase = 'Failed' AND BatonStopReason = 'max_turns'", 2)
    assert set(failed) == set(both)
    assert await found(stage, "BatonPhase = 'Completed' AND BatonStopReason = 'completed'", 1) == [alone.id]


async def test_a_run_is_found_while_it_runs(stage: Stage) -> None:
    trio(stage, slow=2)
    handle = await stage.start_team([*TRIO, TEAM])
    await stage.asked(5)
    assert await found(stage, "BatonPhase = 'Running'", 1) == [handle.id]
    await handle.cancel()
    assert await found(stage, "BatonPhase = 'Canceled'", 1) == [handle.id]


@pytest_asyncio.fixture(loop_scope="session")
async def bare(tmp_path: Path) -> AsyncIterator[Client]:
    """A server that knows none of the search_attributes."""
    home = Home(tmp_path / "bare")
    home.folder.mkdir()
    with home.lock("dev") as lock:
        assert lock is not None
        server = EmbeddedServer(home.folder, lock, *free_ports((0, 0)))
        client = await server.start()
        names = [key.name for key in search_attributes.ALL]
        request = RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=names)
        await client.operator_service.remove_search_attributes(request, retry=True)
        while await search_attributes.registered(client):
            await asyncio.sleep(0.05)
        yield await connect(server.address)
        await server.stop()


async def test_a_server_without_the_attributes_runs_teams_as_well(bare: Client, tmp_path: Path) -> None:
    async with Stage.set(bare, tmp_path) as stage:
        trio(stage)
        turn = await stage.turn(await stage.start_team([*TRIO, TEAM]))
    assert turn.stop_reason == "max_turns"
    await search_attributes.register(bare)
    await search_attributes.register(bare)
    assert await search_attributes.registered(bare)
