"""Search attributes: runs are found by team, strategy, phase and stop reason; servers without them run teams, too."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.client import Client

from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.temporal import search_attributes
from baton.temporal.client import connect
from tests.harness.environment import Environment, agent, line, manifest
from tests.harness.ports import own_ports
from tests.replay.scenarios import TEAM, TRIO, trio


async def test_a_run_is_found_by_its_team_and_strategy_and_by_how_it_ended(env: Environment) -> None:
    trio(env)
    asked = await env.start_query([*TRIO, TEAM], "team/team")
    await env.status(asked)
    env.script(line("one", "Hello."))
    alone = await env.start("agent", {"agent": "one", "input": "?", "resources": [agent("one")]})
    await env.turn_result(alone)
    both = await env.find_runs("BatonTeam = 'team' AND BatonStrategy = 'round-robin'", 2)
    assert set(both) == {asked.id, f"{asked.id}/target-1/team"}
    failed = await env.find_runs("BatonPhase = 'Failed' AND BatonStopReason = 'max_turns'", 2)
    assert set(failed) == set(both)
    assert await env.find_runs("BatonPhase = 'Completed' AND BatonStopReason = 'completed'", 1) == [alone.id]


async def test_a_run_is_found_by_its_cost_where_prices_are_known(env: Environment) -> None:
    connection = {"openai": {"baseUrl": env.model_url}}
    priced = {"type": "openai", "model": "gpt", "config": connection, "pricing": {"input": 1000, "output": 1000}}
    env.script(line("one", "Hello."))
    given = [agent("one"), manifest("Model", "default", priced)]
    dear = await env.start("agent", {"agent": "one", "input": "?", "resources": given})
    usage = (await env.turn_result(dear)).usage
    assert usage.cost == usage.total_tokens / 1000
    await env.turn_result(await env.start("agent", {"agent": "one", "input": "?", "resources": [agent("one")]}))
    assert await env.find_runs("BatonCost > 0.001", 1) == [dear.id]


async def test_a_run_is_found_while_it_runs(env: Environment) -> None:
    trio(env, slow=600)  # the list is late
    handle = await env.start_team([*TRIO, TEAM])
    await env.wait_for_calls(5)
    assert await env.find_runs("BatonPhase = 'Running'", 1) == [handle.id]
    await handle.cancel()
    assert await env.find_runs("BatonPhase = 'Canceled'", 1) == [handle.id]


async def test_a_query_and_its_team_that_begin_paused_are_found_as_such(env: Environment) -> None:
    trio(env)
    spec = {"input": "Why?", "targets": [{"type": "team", "name": "team"}]}
    given = {"name": "q", "spec": spec, "resources": [*TRIO, TEAM]}
    handle = await env.start("query", given, start_signal="pause", start_signal_args=[{"name": "ann"}])
    child = f"{handle.id}/target-1/team"
    assert set(await env.find_runs("BatonPhase = 'Paused'", 2)) == {handle.id, child}
    await handle.signal("resume")
    assert set(await env.find_runs("BatonPhase = 'Failed'", 2)) == {handle.id, child}


@pytest_asyncio.fixture(loop_scope="session")
async def bare(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a server without the search attributes."""
    state = StateDir(tmp_path / "bare")
    state.folder.mkdir()
    with state.lock("dev") as lock:
        assert lock is not None
        server = EmbeddedServer(state.folder, lock, *own_ports())
        client = await server.start()
        names = [key.name for key in (*search_attributes.ALL, search_attributes.COST)]
        request = RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=names)
        await client.operator_service.remove_search_attributes(request, retry=True)
        while await search_attributes.registered(client):
            await asyncio.sleep(0.05)
        yield await connect(server.address)
        await server.stop()


@pytest.mark.full
async def test_a_server_without_the_attributes_runs_teams_as_well(bare: Client, tmp_path: Path) -> None:
    async with Environment.running(bare, tmp_path) as env:
        trio(env)
        turn = await env.turn_result(await env.start_team([*TRIO, TEAM]))
    assert turn.stop_reason == "max_turns"
    await search_attributes.register(bare)
    await search_attributes.register(bare)
    assert await search_attributes.registered(bare)
