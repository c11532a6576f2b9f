"""Workers and gateways that are killed while they write the audit log: each act has one row, in an unbroken chain."""

import asyncio
import contextlib
import random
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from temporalio.client import Client

from baton.journal.audit import AuditRow
from baton.starter.operations.audit import AuditFilter, audit_rows
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request, ScriptedModel
from tests.harness.environment import KEY, Handle, Json, agent, call
from tests.harness.gateway import key_file
from tests.harness.killable_gateways import GatewayProcess
from tests.harness.ports import own_port
from tests.harness.processes import WorkerProcess, baton_process, process_env
from tests.harness.tool_server import ToolServer
from tests.workflows.test_approval import tool

RUNS = 4

SIGNALS = {"steer": "steer", "pause": "pause", "resume": "resume"}
UPDATES = {"steer": "steer", "approve": "approve"}


def answer(request: Request) -> Reply:
    """Buys something once, also if a person's message comes after the result."""
    has_bought = any(message["role"] == "tool" for message in request["messages"])
    return Reply(text="Bought.") if has_bought else Reply.model_validate(call("buy", item="pen"))


class Caller:
    """A caller of the gateway, who sends each request until there is an answer, however often it is cut off."""

    def __init__(self, url: str, key: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=60, headers={"authorization": f"Bearer {key}"})
        self.acts = 0

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def send(self, method: str, path: str, **options: Any) -> Json:
        while True:
            with contextlib.suppress(httpx.TransportError):
                response = await self._http.request(method, path, **options)
                if response.status_code < 500:
                    answer: Json = response.json()
                    return answer
            await asyncio.sleep(0.1)

    async def act(self, path: str, body: Json) -> None:
        await self.send("POST", path, json=body, headers={"idempotency-key": uuid.uuid4().hex})
        self.acts += 1

    async def lead(self, number: int) -> str:
        """Starts a run, steers, pauses and resumes it, and approves its call; returns its id."""
        started = {"target": "agent/buyer", "input": f"Buy pen {number}!"}
        headers = {"idempotency-key": f"run-{number}-{uuid.uuid4().hex}"}
        run = (await self.send("POST", "/runs", json=started, headers=headers))["id"]
        self.acts += 1
        for act, body in (("steer", {"text": "Be quick."}), ("pause", {}), ("resume", {})):
            await self.act(f"/runs/{run}/{act}", body)
        while not (waiting := [each for each in await self.inbox() if each["root"] == run]):
            status = (await self.send("GET", f"/runs/{run}")).get("status", {})
            assert status.get("phase") not in ("Failed", "Completed"), status
            await asyncio.sleep(0.2)
        await self.act(f"/runs/{run}/approve", {"call": waiting[0]["decision"]["id"]})
        return str(run)

    async def inbox(self) -> list[Json]:
        waiting: list[Json] = (await self.send("GET", "/inbox")).get("waiting", [])
        return waiting


async def happened(run: Handle) -> Counter[str]:
    """What was done to a run and had an effect, by its history."""
    acts: Counter[str] = Counter(start=1, end=1)
    accepted: dict[int, str] = {}
    async for event in run.fetch_history_events():
        if event.HasField("workflow_execution_signaled_event_attributes"):
            name = event.workflow_execution_signaled_event_attributes.signal_name
            acts.update([SIGNALS[name]] if name in SIGNALS else [])
        elif event.HasField("workflow_execution_update_accepted_event_attributes"):
            request = event.workflow_execution_update_accepted_event_attributes.accepted_request
            accepted[event.event_id] = request.input.name
        elif event.HasField("workflow_execution_update_completed_event_attributes"):
            name = accepted[event.workflow_execution_update_completed_event_attributes.accepted_event_id]
            acts.update([UPDATES[name]] if name in UPDATES else [])
    return acts


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_each_act_has_one_row_in_an_unbroken_chain_while_workers_and_gateways_are_killed(
    client: Client, server: EmbeddedServer, tmp_path: Path, journal_url: str
) -> None:
    file = tmp_path / "manifests.yaml"
    keys_file, keys = key_file(tmp_path, {"ann": {"allRuns": True}})
    with ToolServer().serving() as shop, ScriptedModel(answer).serve() as url:
        file.write_text(yaml.safe_dump_all([agent("buyer", "buy"), tool(shop, {})]))
        environment = process_env(
            TEMPORAL_ADDRESS=server.address,
            BATON_HOME=str(tmp_path),
            BATON_TASK_QUEUE=uuid.uuid4().hex,
            BATON_JOURNAL_URL=journal_url,
            BATON_AUDIT="1",
            BATON_IDENTITY_KEY="k" * 32,
            BATON_GATEWAY_KEYS=str(keys_file),
            BATON_ALLOW_PRIVATE_HOSTS="1",
            OPENAI_BASE_URL=url,
            OPENAI_API_KEY=KEY,
        )
        worker = WorkerProcess(environment, tmp_path / "worker.log", file)
        gateway = GatewayProcess(environment, own_port(), tmp_path / "gateway.log")
        worker.start()
        gateway.start()
        ann = Caller(gateway.url, keys["ann"])
        try:
            await gateway.ready()
            while not (await ann.send("GET", "/targets")).get("targets"):
                await asyncio.sleep(0.1)

            leading = [asyncio.create_task(ann.lead(number)) for number in range(RUNS)]
            working = asyncio.gather(*leading)
            chance = random.Random(4711)
            processes: list[WorkerProcess | GatewayProcess] = [worker, worker, worker, gateway]
            chance.shuffle(processes)
            for killed in processes:
                until = ann.acts + chance.randint(1, RUNS)
                while ann.acts < until and not working.done():
                    await asyncio.sleep(0.01)
                killed.kill()
                killed.start()
            await working
            runs = [client.get_workflow_handle(each.result()) for each in leading]
            for run in runs:
                assert (await run.result())["phase"] == "Completed"
        finally:
            await ann.close()
            gateway.kill()
            await worker.stop()
    verified = baton_process("audit", "--verify", env=environment)
    assert (verified.returncode, "unbroken" in verified.stdout) == (0, True), verified.stderr
    rows: list[AuditRow] = [row async for row in audit_rows(AuditFilter(), environment)]
    for run in runs:
        of_run = [row.entry for row in rows if row.entry.name == run.id]
        assert Counter(entry.action for entry in of_run) == await happened(run)
        assert {entry.who for entry in of_run if entry.action != "end"} == {"ann"}
        assert all(entry.verified for entry in of_run if entry.action != "end")
