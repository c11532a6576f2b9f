"""Readers of events that are killed at any time, while workers die too, get each event once and in order."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.starter.api.handle import Handle as RunHandle
from baton.starter.history.events import EVENTS, Event
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request, Script
from tests.harness.environment import Handle
from tests.harness.event_streams import AGENTS, SCRIPT, TEAMS, EventReader, check_stream, check_text, read_events
from tests.harness.killable import MANIFESTS, KillableEnvironment, KillableWorker

pytestmark = pytest.mark.timeout(300)
KILLS = 20
RESTARTS = 3
"""How often the worker is killed meanwhile."""


SERVER_DEATHS = 2

WORDS = "some more words of it, which come one after the other, "


def answer(request: Request) -> Reply:
    """The scripted reply; what is a number in the script comes with more words, in pieces."""
    reply = Script(lines=SCRIPT).answer(request).with_default_delay(0.02)
    text = f"{reply.text}: {WORDS * 3}" if reply.text.isdigit() else reply.text
    return reply.model_copy(update={"text": text, "pause": 0.03})


async def read_with_kills(
    address: str, handle: Handle, folder: Path, chance: random.Random, disturb: Callable[[int], Awaitable[None]]
) -> list[Event]:
    """What readers have written of a run, each of which was killed after a few events, and then ``disturb`` called."""
    file = folder / "events"
    for kill in range(KILLS):
        reader = EventReader(address, handle.id, file, folder)
        enough = reader.line_count() + chance.randint(0, 4)
        while reader.is_running and reader.line_count() < enough:
            await asyncio.sleep(0.002)
        reader.kill()
        await disturb(kill)
    reader = EventReader(address, handle.id, file, folder)
    while reader.is_running:
        await asyncio.sleep(0.02)
    return [EVENTS.validate_json(line) for line in file.read_bytes().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", TEAMS)
async def test_readers_that_are_killed_twenty_times_get_each_event_once_and_in_order(
    client: Client, server: EmbeddedServer, tmp_path: Path, name: str
) -> None:
    chance = random.Random(name)
    async with KillableWorker.ready(client, server.address, tmp_path, answer) as killable:
        manifests = [*AGENTS, *TEAMS[name]]
        strategy = manifests[-1]["spec"]["strategy"]
        handle = await killable.start(strategy, team="team", input="Why?", resources=manifests)
        restarts = chance.sample(range(KILLS), RESTARTS)

        async def disturb(kill: int) -> None:
            if kill in restarts:
                killable.restart()

        delivered = await read_with_kills(server.address, handle, tmp_path, chance, disturb)
        check_stream(delivered, await read_events(handle, client))
        check_text(delivered)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEAMS)
async def test_readers_get_each_event_once_while_the_server_and_the_worker_die_too(tmp_path: Path, name: str) -> None:
    chance = random.Random(name)
    async with KillableEnvironment.running(tmp_path, answer) as killable:
        manifests = [*AGENTS, *TEAMS[name]]
        given = {"team": "team", "input": "Why?", "resources": manifests}
        handle = await killable.start(manifests[-1]["spec"]["strategy"], given)
        deaths = chance.sample(range(KILLS // 2), SERVER_DEATHS + RESTARTS)

        async def disturb(kill: int) -> None:
            if kill in deaths[:SERVER_DEATHS]:
                await killable.stop_server_for(0)
            elif kill in deaths:
                killable.worker.kill()
                killable.worker.start()

        delivered = await read_with_kills(killable.server.address, handle, tmp_path, chance, disturb)
        check_stream(delivered, await read_events(handle, killable.client))
        check_text(delivered)


@pytest.mark.slow
async def test_a_reader_goes_on_when_the_server_and_the_worker_have_died(tmp_path: Path) -> None:
    async with KillableEnvironment.running(tmp_path) as killable:
        handle = await killable.start("round-robin", {"team": "team", "input": "Why?", "resources": MANIFESTS})
        events = []
        async for event in RunHandle(killable.client, handle).events():
            events.append(event)
            if len([each for each in events if each.type == "message"]) == 3 and event.type == "message":
                await killable.stop_server_for(0)
                killable.worker.kill()
                killable.worker.start()
        check_stream(events, await read_events(handle, killable.client))
        check_text(events)
        assert [event.text for event in events if event.type == "message"] == [f"answer {n}" for n in range(1, 10)]
