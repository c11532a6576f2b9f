"""Tests of approvals from outside: the commands, the Python interface, the list and the events."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml
from temporalio.common import SearchAttributePair, TypedSearchAttributes

import baton
from baton.starter.history.ark_events import EventRecorder
from baton.starter.history.follow import follow
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import PROGRAM, connect
from baton.temporal.search_attributes import PHASE
from baton.testing import Script
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team
from tests.harness.processes import BATON, PATIENCE, ROOT, process_env
from tests.harness.user_machine import UserMachine

SAMPLE = ROOT / "samples" / "purchase.yaml"
ORDER = call("order", input="12 desks")
TOOL = manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}, "approval": {}})


@pytest_asyncio.fixture(loop_scope="session")
async def temporal(
    env: Environment, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[baton.Connection]:
    for name, value in env.worker_env.items():
        monkeypatch.setenv(name, value)
    async with baton.connect(server.address, task_queue=env.task_queue) as connection:
        yield connection


async def start_order(env: Environment, *tail: str | Json) -> Handle:
    env.script(line("buyer", ORDER, *(tail or ("Ordered.",))), line("shop", "Confirmed."))
    manifests = [agent("buyer", "order"), agent("shop"), TOOL, team("desk", "buyer", strategy="sequential")]
    return await env.start_query(manifests, "team/desk")


async def waiting(handle: baton.Handle) -> baton.PendingDecision:
    while True:
        if found := await handle.approvals():
            return found[0]
        await asyncio.sleep(0.02)


async def events(env: Environment, handle: Handle) -> list[Json]:
    recorder, found = EventRecorder(), list[Json]()
    await follow(env.client, handle, lambda each: found.extend(e.value for e in recorder.record(each)))
    return found


@pytest.mark.full
async def test_the_events_tell_who_has_decided_what_and_how(temporal: baton.Connection, env: Environment) -> None:
    run = await start_order(env, ORDER, "Well.")
    handle = await temporal.attach(run.id)
    first = await waiting(handle)
    await handle.approve(first.id, arguments={"input": "1 desk"}, by="ann")
    while (second := await waiting(handle)).id == first.id:
        await asyncio.sleep(0.02)
    await handle.reject(second.id, "Too many.", by="bob")
    found = await events(env, run)
    decided = [each for each in found if each["event"] in ("ApprovalRequested", "CallApproved", "CallRejected")]
    assert [(each["event"], each["call"]) for each in decided] == [
        ("ApprovalRequested", first.id),
        ("CallApproved", first.id),
        ("ApprovalRequested", second.id),
        ("CallRejected", second.id),
    ]
    assert (decided[1]["by"], decided[1]["arguments"]) == ("ann", '{"input": "1 desk"}')
    assert (decided[3]["by"], decided[3]["reason"], decided[3]["how"]) == ("bob", "Too many.", "person")
    assert [each["event"] for each in found].count("AgentExecutionCompleted") == 2


async def test_a_call_whose_arguments_do_not_fit_waits_for_nobody(env: Environment) -> None:
    env.script(line("buyer", call("order", amount=1), "Well."))
    run = await env.start_query([agent("buyer", "order"), agent("shop"), TOOL], "agent/buyer")
    names = [each["event"] for each in await events(env, run)]
    assert "ApprovalRequested" not in names
    assert names.count("ToolCallFailed") == 1


@pytest.mark.slow
async def test_a_run_that_waits_for_its_client_says_so_and_asks_no_person(
    env: Environment, server: EmbeddedServer
) -> None:
    async def baton_prints(*arguments: str) -> str:
        variables = {**process_env(TEMPORAL_ADDRESS=server.address), **env.worker_env}
        process = await asyncio.create_subprocess_exec(
            BATON, *arguments, env=variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        return output.decode()

    env.script(line("one", call("weather", city="Bern"), "It rains."))
    client = {"tools": [{"name": "weather"}]}
    run = await env.start_query([agent("one", clients={"tools": True})], "agent/one", client=client)
    while not (asked := (await run.query("status")).get("pendingDecisions")):
        await asyncio.sleep(0.02)
    shown, questions, approvals = await asyncio.gather(
        baton_prints("status", run.id), baton_prints("inbox", run.id), baton_prints("approvals", run.id)
    )
    assert f"{run.id} {asked[0]['id']}  one\n  waits for the client's result of weather" in shown
    assert "Bern" in shown
    assert (questions, approvals) == ("No open questions.\n", "No pending approvals.\n")
    assert "is not waiting for approval" in await baton_prints("approve", run.id, asked[0]["id"])
    await run.execute_update("give_result", {"call": asked[0]["id"], "output": "rain", "by": "ann"})
    await run.result()
    watched = await baton_prints("watch", run.id)
    assert f"? weather waits for the client's result of {asked[0]['id']}" in watched
    assert "✓ weather got its result from ann" in watched


@pytest.mark.full
@pytest.mark.shared_server
def test_a_purchase_is_approved_from_another_terminal(machine: UserMachine) -> None:
    machine.script(*Script.read(ROOT / "samples" / "scripts" / "purchase.yaml").lines)
    buyer = machine.start("run", "-f", SAMPLE)
    machine.wait_for_calls(1)
    listed: list[Json] = []
    while not listed:
        done = machine.run("approvals", "-o", "json")
        listed = json.loads(done.stdout) if done.returncode == 0 and done.stdout else []
        assert buyer.poll() is None, buyer.communicate()
        time.sleep(0.2)
    (asked,) = listed
    assert json.loads(asked["arguments"]) == {"goods": "desk", "pieces": 12, "price": 4800}
    assert "InputRequired" in machine.run("list").stdout
    shown = machine.run("approvals").stdout
    assert shown.splitlines()[1] == '  order {"goods": "desk", "pieces": 12, "price": 4800}'
    wrong = machine.run("approve", "buy-desks", asked["id"], "--arguments", '{"goods": "desk"}')
    assert (wrong.returncode, "don't match its schema" in wrong.stderr) == (1, True)
    changed = '{"goods": "desk", "pieces": 10, "price": 4000}'
    assert shown in machine.run("status", "buy-desks").stderr
    events = machine.run("events", "buy-desks").stdout
    assert f"wait={asked['id']}" in events, "the id that 'approve' takes"
    done = machine.run("approve", "buy-desks", "--arguments", changed)
    assert (done.returncode, done.stderr) == (0, f"{asked['id']} approved.\n")
    out, err = buyer.communicate(timeout=60)
    assert out.strip() == "Twelve desks are ordered for 4,800 euros."
    assert f"? order needs approval: baton approve {asked['root']} {asked['id']}" in err
    assert re.search(rf"✓ order approved by \S+@\S+ with {re.escape(changed)}", err)
    late = machine.run("reject", "buy-desks", asked["id"])
    assert (late.returncode, "has ended" in late.stderr) == (1, True)
    late = machine.run("approve", "buy-desks")
    assert (late.returncode, late.stderr.count("waits for approval")) == (1, 1)
    assert "← order for office-buyer: " in err


async def start_stuck(address: str) -> None:
    """Starts a run that says it waits, on a queue of the machine's programs whose worker has ended."""
    client = await connect(address)
    waiting = TypedSearchAttributes([SearchAttributePair(PHASE, "InputRequired")])
    await client.start_workflow("query", {}, id="stuck", task_queue=f"baton{PROGRAM}x", search_attributes=waiting)


@pytest.mark.slow
def test_a_run_that_can_not_be_asked_hides_nothing_that_others_wait_for(machine: UserMachine) -> None:
    machine.script(*Script.read(ROOT / "samples" / "scripts" / "purchase.yaml").lines)
    machine.run("run", "-f", SAMPLE, "--detach")
    asyncio.run(start_stuck(machine.dev().address))
    end = time.monotonic() + PATIENCE
    while "buy-desks" not in (done := machine.run("approvals")).stdout or "stuck" not in done.stderr:
        assert time.monotonic() < end
    assert done.returncode == 0
    assert "note: the pending decisions of stuck are unknown: " in done.stderr
    assert "No pending approvals." in machine.run("approvals", "-n", "there").stdout
    assert "buy-desks" in machine.run("approvals", "-n", "default").stdout


def test_the_approval_of_the_page_stands_in_the_sample() -> None:
    shown, *_ = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "people.md").read_text(), re.DOTALL)
    sample = {each["metadata"]["name"]: each["spec"] for each in yaml.safe_load_all(SAMPLE.read_text())}
    assert yaml.safe_load(shown)["approval"] == sample["order"]["approval"]
