"""Readers of events that are killed at any time, while workers die too, get each event once and in order."""

import asyncio
import random
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.starter.api.handle import Handle as RunHandle
from baton.starter.history.events import EVENTS
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request, Script
from tests.harness.event_streams import AGENTS, SCRIPT, TEAMS, EventReader, check_stream, check_text, read_events
from tests.harness.killable import MANIFESTS, KillableEnvironment, KillableWorker

pytestmark = pytest.mark.timeout(300)
KILLS = 20
RESTARTS = 3
"""How often the worker is killed meanwhile."""


def answer(request: Request) -> Reply:
    return Script(lines=SCRIPT).answer(request).with_default_delay(0.05)


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
        file = tmp_path / "events"
        for kill in range(KILLS):
            reader = EventReader(server.address, handle.id, file)
            enough = reader.line_count() + chance.randint(0, 2)
            while reader.is_running and reader.line_count() < enough:
                await asyncio.sleep(0.002)
            reader.kill()
            if kill in restarts:
                killable.restart()
        reader = EventReader(server.address, handle.id, file)
        while reader.is_running:
            await asyncio.sleep(0.02)
        delivered = [EVENTS.validate_json(line) for line in file.read_bytes().splitlines()]
        check_stream(delivered, await read_events(handle, client))
        check_text(delivered)


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
