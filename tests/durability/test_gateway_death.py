"""Gateways that are killed under the programs that use them: nothing is lost, doubled or paid for twice."""

import asyncio
import contextlib
import itertools
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from baton.testing import Reply, Request
from benchmarks import gateway_kills
from tests.harness.environment import Environment, agent, team
from tests.harness.gateway import read_sse
from tests.harness.gateway_clients import CLIENTS
from tests.harness.killable_gateways import GatewayProcess
from tests.harness.ports import own_ports
from tests.harness.processes import process_env

MANIFESTS = [
    agent("one"),
    agent("two"),
    team("duo", "one", "two", maxTurns=4, onMaxTurns="complete"),
]


class Gateways:
    """Two gateways, which a dumb client uses in turn."""

    def __init__(self, env: Environment, processes: list[GatewayProcess]) -> None:
        self.env = env
        self.processes = processes
        self._turn = itertools.cycle(processes)
        self._http = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None))

    async def close(self) -> None:
        """Closes the client's connections."""
        await self._http.aclose()

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The response of the first gateway that gives one, however often requests are cut off."""
        while True:
            with contextlib.suppress(httpx.TransportError):
                response = await self._http.request(method, f"{next(self._turn).url}{path}", **options)
                if response.status_code < 500:
                    return response
            await asyncio.sleep(0.05)

    async def events(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream across gateways: each time after the last event that was received."""
        last = ""
        while True:
            headers = {"last-event-id": last} if last else {}
            with contextlib.suppress(httpx.TransportError):
                async with self._http.stream("GET", f"{next(self._turn).url}{path}", headers=headers) as response:
                    async for event in read_sse(response):
                        if event["event"] == "error":  # of an outage
                            break
                        last = event["id"]
                        yield event
                        if event["event"] == "run.ended" and "/" not in event["data"]["run"]:
                            return
            await asyncio.sleep(0.05)

    async def killing(self, kills: int) -> None:
        """Kills one gateway after the other, each as soon as the other one serves."""
        for number in range(kills):
            await asyncio.sleep(random.uniform(0.2, 0.8))
            process = self.processes[number % 2]
            process.kill()
            process.start()
            await process.ready()


@pytest_asyncio.fixture(loop_scope="session")
async def gateways(env: Environment, tmp_path: Path) -> AsyncIterator[Gateways]:
    """Two gateways before one worker that has the team."""
    async with env.with_manifests(MANIFESTS) as served:
        variables = {**served.worker_env, "BATON_JOURNAL_URL": served.journal_address}
        variables |= {"BATON_GATEWAY_RATE": "1000000"}
        given = process_env(**variables, TEMPORAL_ADDRESS=env.client.service_client.config.target_host)
        processes = [GatewayProcess(given, port, tmp_path / f"gateway-{port}.log") for port in own_ports()]
        gateways = Gateways(served, processes)
        for process in processes:
            process.start()
        for process in processes:
            await process.ready()
        yield gateways
        for process in processes:
            process.kill()
        await gateways.close()


RUNS = 12


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_each_event_is_received_once_and_no_call_is_paid_for_twice(gateways: Gateways) -> None:
    asked = Counter[str]()

    def answer(request: Request) -> Reply:
        question = request["messages"][1]["content"]
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        asked[f"{question}/{turn}/{len(request['messages'])}"] += 1
        return Reply(text=f"to {question}, turn {turn}", delay=0.2)

    gateways.env.answer = answer
    killing = asyncio.create_task(gateways.killing(8))

    async def ask(number: int) -> tuple[str, list[str]]:
        """The id of a run that is started twice with one key, and the ids of its events as they were received."""
        key = f"{uuid.uuid4()}"
        body = {"target": "team/duo", "input": f"question {number}"}
        starts = [gateways.request("POST", "/runs", json=body, headers={"idempotency-key": key}) for _ in range(2)]
        first, second = [response.json()["id"] for response in await asyncio.gather(*starts)]
        assert first == second
        return first, [event["data"]["id"] async for event in gateways.events(f"/runs/{first}/events")]

    received = await asyncio.gather(*map(ask, range(RUNS)))
    await killing
    for run, ids in received:
        durable = [event["data"]["id"] async for event in gateways.events(f"/runs/{run}/events?wait=false")]
        assert len(ids) == len(set(ids)), "no event comes twice"
        assert [each for each in ids if each in set(durable)] == durable, "each event comes, in its order"
    assert max(asked.values()) == 1, "no call is made twice"


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_decision_whose_answer_was_lost_is_carried_out_once(gateways: Gateways) -> None:
    gateways.env.answer = lambda request: Reply(text="done")
    body = {"target": "team/duo", "input": "Why?"}
    started = await gateways.request("POST", "/runs", json=body)
    assert started.status_code == 201, started.text
    run = started.json()["id"]
    killing = asyncio.create_task(gateways.killing(4))
    while not killing.done():
        response = await gateways.request("POST", f"/runs/{run}/terminate", json={"reason": "Enough."})
        assert response.status_code == 200, response.text
    await killing
    events = [event["data"] async for event in gateways.events(f"/runs/{run}/events")]
    assert (events[-1]["run"], events[-1]["phase"]) == (run, "Completed")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_clients_of_every_protocol_receive_each_word_once_whatever_is_killed(tmp_path: Path) -> None:
    """A small run of ``make bench-gateway-kills``: also the worker, the Temporal server and PostgreSQL are killed."""
    async with gateway_kills.running(tmp_path, words=20) as test:
        await test.run(clients=1, seconds=30, seed=1)
    assert not test.findings.wrong
    assert all(test.findings.asked[name] for name in CLIENTS)
    assert test.findings.approved
    assert len(test.env.kills) >= 2
