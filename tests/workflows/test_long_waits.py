"""Tests of runs that wait, for a person or while they are paused, and become so long that they continue as new."""

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import NullPool, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus

from baton.contracts.decisions import PendingDecision
from baton.contracts.status import Status
from baton.starter.runs.decisions import pending_decisions
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import connect
from baton.testing import Reply, Request
from baton.worker import run_worker
from tests.harness.continued_runs import continued_runs
from tests.harness.environment import Environment, Handle, Json, agent, call, line, team
from tests.harness.panels import SYNTHESIS, debate, panel, panelist_line, prompt_line, role_member
from tests.harness.postgres import PostgresServer
from tests.harness.tool_server import ToolServer
from tests.replay.scenarios import kinds_of
from tests.workflows.test_approval import BUY, approve, pending, refused, tool, waiting_run
from tests.workflows.test_people import ANN, people, reply

pytestmark = pytest.mark.full

UPDATE_ACCEPTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED

SIGNALS = 60
"""More than the 50 events after which a run continues as new on the server of these tests."""


async def lengthen(env: Environment, id_: str) -> None:
    """Makes a run long, and waits until it has read that."""
    handle = env.client.get_workflow_handle(id_)
    for number in range(SIGNALS):
        await handle.signal("session", {"n": number})
    await handle.query("status")


async def execution(env: Environment, id_: str) -> str:
    """The current execution of a run."""
    return (await env.client.get_workflow_handle(id_).describe()).run_id


async def cut(env: Environment, handle: Handle) -> None:
    """Lengthens a run that waits until it has continued as new, or a run below it has, if it has any."""
    latest = env.client.get_workflow_handle(handle.id)
    ids = [handle.id, *(await latest.query("status")).get("runs", ())]
    before = [await execution(env, each) for each in ids]
    await lengthen(env, handle.id)
    while [await execution(env, each) for each in ids] == before:
        await asyncio.sleep(0.02)


async def ends_before_it_is_idle(env: Environment, handle: Handle) -> bool:
    """Waits until a run is idle, or over; whether it is over."""
    idle = asyncio.create_task(env.wait_until_idle(handle))
    ended = asyncio.create_task(handle.result())
    done, waiting = await asyncio.wait([idle, ended], return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    return ended in done


Start = Callable[[Environment], Awaitable[Handle]]

NAMES = "one", "two"
PAIR = [*map(agent, NAMES)]
EDGES = {"edges": [{"from": "one", "to": "two"}]}
CHOICE = call("select-next-speaker", name="two")
REFEREE = prompt_line("You are the referee", *['{"critique": "More."}'] * 2)
VERDICT = prompt_line("You judge", json.dumps({"verdict": "Tabs.", "winner": "Tabs", "reasoning": "…"}))
MODERATOR = prompt_line("You moderate", *[json.dumps({"nextSpeakers": ["a"]})] * 2)


async def one_agent(env: Environment) -> Handle:
    env.script(line("one", call("noop", message="x"), "Done."))
    return await env.start_query([agent("one", "noop")], "agent/one")


async def one_after_the_other(env: Environment) -> Handle:
    env.script(line("one", "1", "2"), line("two", call("noop", message="x"), "3", "4"))
    members = [agent("one"), agent("two", "noop")]
    return await env.start_team([*members, team("team", *NAMES, maxTurns=2, onMaxTurns="complete")])


async def along_a_graph(env: Environment) -> Handle:
    env.script(line("one", "1"), line("two", "2"))
    return await env.start_team([*PAIR, team("team", *NAMES, strategy="graph", graph=EDGES, maxTurns=2)])


async def as_a_selector_chooses(env: Environment) -> Handle:
    env.script(prompt_line("You moderate", CHOICE, CHOICE), line("one", "1"), line("two", "2", "3"))
    spec: Json = {"strategy": "selector", "maxTurns": 2, "onMaxTurns": "complete"}
    return await env.start_team([*PAIR, agent("three"), team("team", *NAMES, "three", **spec)])


async def all_at_once(env: Environment) -> Handle:
    env.script(line("one", call("noop", message="x"), "1"), line("two", "2"), line("sum", call("noop"), "3"))
    members = [agent("one", "noop"), agent("two"), agent("sum", "noop")]
    return await env.start_team([*members, team("team", *NAMES, strategy="parallel", aggregator="sum")])


async def in_a_panel(env: Environment) -> Handle:
    env.script(panelist_line("a", "a1", "a2"), panelist_line("b", "b1", "b2"), REFEREE, SYNTHESIS)
    return await env.start_team([panel(role_member("a"), role_member("b"), maxRounds=2, referee=True)], "panel")


async def in_a_debate(env: Environment) -> Handle:
    debaters = {"name": "a", "stance": "Tabs"}, {"name": "b", "stance": "Spaces"}
    env.script(panelist_line("a", "a1", "a2"), panelist_line("b", "b1"), MODERATOR, VERDICT, SYNTHESIS)
    return await env.start_team([debate(*debaters, maxRounds=2, moderator=True)], "debate")


SHAPES = [
    one_agent,
    one_after_the_other,
    along_a_graph,
    as_a_selector_chooses,
    all_at_once,
    in_a_panel,
    in_a_debate,
]


async def outcome(env: Environment, handle: Handle) -> tuple[Json, int]:
    """The end of a run, and how many requests the model got for it."""
    with contextlib.suppress(Exception):
        await handle.result()
    status: Json = await handle.query("status")
    (response,) = status.get("responses") or [status]
    ended = {"phase": status["phase"], "message": status["message"], "usage": status["tokenUsage"]}
    said = [each["content"] for each in env.transcript(response["head"]["id"])]
    return {**ended, "said": said, "turns": response.get("turns")}, len(env.model.requests)


@pytest.mark.slow
@pytest.mark.parametrize("start", SHAPES)
async def test_a_run_that_is_paused_and_cut_before_each_of_its_steps_comes_to_the_same_end(
    env_with_short_histories: Environment, start: Start
) -> None:
    env = env_with_short_histories
    calm, asked = await outcome(env, await start(env))
    env.model.requests.clear()
    handle = await start(env)
    scripted = env.answer
    is_paused = threading.Event()

    def answer_once_paused(request: Request) -> Reply:
        is_paused.wait(60)
        return scripted(request)

    env.answer = answer_once_paused
    latest = env.client.get_workflow_handle(handle.id)
    cuts = 0
    while len(env.model.requests) < asked:
        await env.wait_for_calls(max(1, len(env.model.requests)))
        await latest.signal("pause", {"name": "ann"})
        is_paused.set()
        if await ends_before_it_is_idle(env, latest):
            break
        seen = len(env.model.requests)
        await cut(env, handle)
        cuts += 1
        assert len(env.model.requests) == seen, "nobody is asked while the run is paused"
        is_paused.clear()
        await latest.signal("resume", {"name": "ann"})
        await env.wait_for_calls(min(asked, seen + 1))
    is_paused.set()
    assert await outcome(env, latest) == (calm, asked)
    assert cuts >= 1


async def test_a_member_of_a_parallel_team_waits_for_the_yes_in_a_run_that_continues_as_new(
    env_with_short_histories: Environment, tool_server: ToolServer
) -> None:
    env = env_with_short_histories
    env.script(line("buyer", BUY, "Bought."), line("other", "Ready."), line("third", "Ready as well."))
    team_of = team("team", "buyer", "other", "third", strategy="parallel", maxConcurrency=2)
    members = [agent("buyer", "buy"), agent("other"), agent("third")]
    handle = await env.start_team([team_of, *members, tool(tool_server, {})])
    below = env.client.get_workflow_handle(f"{handle.id}/turn-1/buyer")
    while not await pending_decisions(env.client, handle.id):
        await asyncio.sleep(0.05)
    (asked,) = await pending(below)
    await cut(env, below)
    assert await pending(below) == (asked,)
    await approve(below, asked)
    turn = await env.turn_result(handle)
    assert [each.path for each in tool_server.seen] == ["/buy?item=pen"]
    assert sorted(turn.message.split("\n\n")) == ["buyer:\nBought.", "other:\nReady.", "third:\nReady as well."]
    assert turn.usage.tool_calls == 1


async def test_a_tool_that_is_a_querys_target_waits_for_the_yes_in_a_run_that_continues_as_new(
    env_with_short_histories: Environment, tool_server: ToolServer
) -> None:
    env = env_with_short_histories
    handle = await env.start_query([tool(tool_server, {})], "tool/buy", input='{"item": "pen"}')
    (asked,) = await pending(await waiting_run(env, handle.id))
    await cut(env, handle)
    latest = env.client.get_workflow_handle(handle.id)
    status: Status = await latest.query("status", result_type=Status)
    assert (status.phase, status.waiting_runs, await pending(latest)) == ("InputRequired", None, (asked,))
    await approve(latest, asked)
    assert (await env.status(latest)).phase == "Completed"
    assert [each.path for each in tool_server.seen] == ["/buy?item=pen"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sequential", "parallel", "round-robin"])
async def test_a_person_is_waited_for_in_a_run_that_continues_as_new(
    env_with_short_histories: Environment, strategy: str
) -> None:
    """The last one is a panel, in which people see what others say meanwhile, and are still asked the same."""
    env = env_with_short_histories
    env.script(line("one", "A contract."), panelist_line("one", "A contract."), SYNTHESIS)
    is_panel = strategy == "round-robin"
    first: str | Json = role_member("one") if is_panel else "one"
    bound: dict[str, Any] = {"maxRounds": 1} if is_panel else {}
    given = people(first, ANN, strategy=strategy, **bound)
    handle = await env.start_team([agent("one"), given])
    (asked,) = await pending(handle)
    await env.wait_until_idle(handle)
    await cut(env, handle)
    latest = env.client.get_workflow_handle(handle.id)
    await latest.execute_update("steer", {"text": "Hurry."})
    await cut(env, handle)
    assert await pending(latest) == (asked,)
    await reply(latest, "Yes.")
    turn = await env.turn_result(latest)
    said = [row["content"] for row in env.transcript(turn.head.id)]
    assert (turn.stop_reason, said.count("Yes."), said.count("Hurry."), said.count("A contract.")) == (
        "completed",
        1,
        1,
        1,
    )


async def test_more_budget_is_waited_for_in_a_run_that_continues_as_new(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    env.script(line("one", call("noop", message="x"), "Done."))
    budget = {"modelCalls": 1, "onExceeded": "ask"}
    handle = await env.start_query([agent("one", "noop")], "agent/one", budget=budget)
    (asked,) = await pending(handle)
    await cut(env, handle)
    latest = env.client.get_workflow_handle(handle.id)
    assert [each.id for each in await pending(latest)] == [asked.id]
    await approve(latest, asked)
    status = await env.status(latest)
    assert (status.phase, status.message, len(env.model.requests)) == ("Completed", "Done.", 2)


@contextlib.asynccontextmanager
async def locked(url: str, table: str) -> AsyncIterator[None]:
    """Lets whoever reads or writes a table of a PostgreSQL database wait while the block runs."""
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"), poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.execute(text(f"lock table {table} in access exclusive mode"))
        yield
    await engine.dispose()


@pytest_asyncio.fixture(loop_scope="session")
async def audited(
    server_with_short_histories: EmbeddedServer, postgres: PostgresServer, tmp_path: Path
) -> AsyncIterator[Environment]:
    """Runs that write the audit log into PostgreSQL, and continue as new after 50 events.

    A test runs the worker that executes workflows.
    """
    client = await connect(server_with_short_histories.address)
    url = await postgres.database()
    queues = {"BATON_MODEL_TASK_QUEUE": uuid.uuid4().hex, "BATON_TOOL_TASK_QUEUE": uuid.uuid4().hex}
    settings = {"BATON_AUDIT": "1", "BATON_ROLES": "models,tools", **queues}
    async with Environment.running(client, tmp_path, journal_url=url, variables=settings) as env:
        yield env


def workflows_worker(env: Environment) -> AbstractAsyncContextManager[object]:
    """A worker that executes workflows, and knows no row of the journal yet."""
    return run_worker(env.client, env.catalog, {**env.worker_env, "BATON_ROLES": "workflows"})


async def buyer_waits(env: Environment, shop: ToolServer) -> tuple[Handle, PendingDecision]:
    """A team whose member waits for an approval."""
    env.script(line("buyer", BUY, "Bought."))
    manifests = [agent("buyer", "buy"), tool(shop, {}), team("team", "buyer", strategy="sequential")]
    handle = await env.start_team(manifests)
    (asked,) = await pending(handle)
    await env.wait_until_idle(handle)
    return handle, asked


async def test_a_decision_that_is_checked_when_its_run_is_about_to_continue_as_new_has_its_effect(
    audited: Environment, tool_server: ToolServer
) -> None:
    async with workflows_worker(audited):
        handle, asked = await buyer_waits(audited, tool_server)
    latest = audited.client.get_workflow_handle(handle.id)
    run_id = await execution(audited, handle.id)
    run = audited.client.get_workflow_handle(handle.id, run_id=run_id)
    async with workflows_worker(audited):
        async with locked(audited.journal_url, "baton_messages"):
            async with locked(audited.journal_url, "baton_audit"):
                await lengthen(audited, handle.id)
                deciding = asyncio.create_task(approve(latest, asked, arguments={"item": "ink"}))
                await until_accepted(run)
            await until_only(run, "review")
        assert (await deciding)["arguments"] == '{"item": "ink"}'
        await audited.turn_result(latest)
    assert [each.path for each in tool_server.seen] == ["/buy?item=ink"]
    assert await execution(audited, handle.id) != run_id


@pytest.mark.slow
async def test_a_decision_that_no_call_can_check_before_its_run_continues_as_new_is_refused(
    audited: Environment, tool_server: ToolServer
) -> None:
    """The run is paused, so its call has not yet come to wait again."""
    async with workflows_worker(audited):
        handle, asked = await buyer_waits(audited, tool_server)
        latest = audited.client.get_workflow_handle(handle.id)
        await latest.signal("pause")
        await cut(audited, handle)
        run_id = await execution(audited, handle.id)
        run = audited.client.get_workflow_handle(handle.id, run_id=run_id)
        async with locked(audited.journal_url, "baton_audit"):
            await lengthen(audited, handle.id)
            deciding = asyncio.create_task(refused(latest, asked, arguments={"item": "ink"}))
            await until_accepted(run)
        assert "decide again" in await deciding
        while await execution(audited, handle.id) == run_id:
            await asyncio.sleep(0.02)
        await latest.signal("resume")
        await approve(latest, asked, arguments={"item": "ink"})
        await audited.turn_result(latest)
    assert [each.path for each in tool_server.seen] == ["/buy?item=ink"]


async def until_only(run: Handle, activity: str) -> None:
    """Waits until a run waits for an activity of this type alone, or is closed."""
    while (described := await run.describe()).status == WorkflowExecutionStatus.RUNNING:
        raw = described.raw_description
        waits_for = {pending.activity_type.name for pending in raw.pending_activities}
        if waits_for == {activity} and not raw.HasField("pending_workflow_task"):
            return
        await asyncio.sleep(0.05)


async def until_accepted(run: Handle) -> None:
    """Waits until a run has accepted an update."""
    while UPDATE_ACCEPTED not in kinds_of(await run.fetch_history()):
        await asyncio.sleep(0.02)


async def test_a_paused_team_keeps_whom_a_selector_has_chosen(env_with_short_histories: Environment) -> None:
    """A choice is paid for: it is not made again because the run has continued as new before the member's turn."""
    env = env_with_short_histories
    env.script(prompt_line("You moderate", {**CHOICE, "held": True}), line("one", "1"), line("two", "2"))
    spec: Json = {"strategy": "selector", "maxTurns": 1, "onMaxTurns": "complete"}
    handle = await env.start_team([*PAIR, team("team", *NAMES, **spec)])
    await env.wait_for_calls(1)
    await handle.signal("pause")
    env.model.release()
    await env.wait_until_idle(handle)
    await cut(env, handle)
    latest = env.client.get_workflow_handle(handle.id)
    await latest.signal("resume")
    turn = await env.turn_result(latest)
    assert ([each.name for each in turn.messages], len(env.model.requests)) == (["two"], 2)
    assert len(await continued_runs(env, latest)) >= 2
