"""Tests of approvals: calls that wait for a person's yes, who decides them, and what comes of it."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from baton.contracts.decisions import PendingDecision
from baton.contracts.status import Status
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team
from tests.harness.tool_server import ToolServer

BUY = call("buy", item="pen", amount=3)
ITEMS = {"item": {"type": "string"}, "amount": {"type": "integer"}}
SCHEMA: Json = {"type": "object", "properties": ITEMS, "required": ["item"]}


@pytest.fixture
def shop(tool_server: ToolServer) -> ToolServer:
    return tool_server


def tool(shop: ToolServer, approval: Json | None, name: str = "buy", **spec: object) -> Json:
    http = {"url": f"{shop.url}/buy?item={{item}}", "method": "POST", "body": "{{.input.amount}}"}
    given = {"type": "http", "http": http, "inputSchema": SCHEMA, **spec}
    return manifest("Tool", name, {**given, **({"approval": approval} if approval is not None else {})})


async def pending(handle: Handle, count: int = 1) -> tuple[PendingDecision, ...]:
    """What a run waits for, as soon as that are so many decisions."""
    while True:
        status: Status = await handle.query("status", result_type=Status)
        if len(status.pending_decisions or ()) == count:
            return status.pending_decisions or ()
        await asyncio.sleep(0.02)


async def approve(handle: Handle, asked: PendingDecision, **given: Any) -> Json:
    decision: Json = await handle.execute_update("approve", {"call": asked.id, "by": "ann@desk", **given})
    return decision


async def refused(handle: Handle, asked: PendingDecision | str, **given: Any) -> str:
    """Why a decision is refused."""
    id_ = asked if isinstance(asked, str) else asked.id
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await handle.execute_update("approve", {"call": id_, "by": "bob@desk", **given})
    assert isinstance(error.value.cause, ApplicationError)
    return error.value.cause.message


async def start_buyer(env: Environment, *tools: Json, **spec: Any) -> Handle:
    buyer = agent("buyer", *(each["metadata"]["name"] for each in tools), **spec)
    return await env.start("agent", {"agent": "buyer", "input": "Buy!", "resources": [buyer, *tools]})


def read_by_model(env: Environment) -> str:
    """The last message that the model has read."""
    content: str = env.model.requests[-1].body["messages"][-1]["content"]
    return content


async def test_a_call_is_carried_out_when_a_person_has_approved_it_and_not_before(
    env: Environment, shop: ToolServer
) -> None:
    env.script(line("buyer", BUY, "Bought."))
    handle = await start_buyer(env, tool(shop, {"required": True}))
    (asked,) = await pending(handle)
    assert (asked.tool, asked.arguments, asked.speaker) == ("buy", '{"item": "pen", "amount": 3}', "buyer")
    status: Status = await handle.query("status", result_type=Status)
    assert status.phase == "InputRequired"
    assert shop.seen == []
    await approve(handle, asked)
    turn = await env.turn_result(handle)
    assert [seen.path for seen in shop.seen] == ["/buy?item=pen"]
    (result,) = [each for each in turn.messages if each.role == "tool"]
    assert result.decision
    assert (result.decision.approved, result.decision.by) == (True, "ann@desk")


async def test_a_rejection_and_its_reason_are_told_to_the_model(env: Environment, shop: ToolServer) -> None:
    env.script(line("buyer", BUY, "Well."))
    handle = await start_buyer(env, tool(shop, {}))
    (asked,) = await pending(handle)
    await approve(handle, asked, approved=False, reason="Too dear.")
    turn = await env.turn_result(handle)
    assert (turn.message, shop.seen) == ("Well.", [])
    assert "a person rejected this call. Too dear." in read_by_model(env)
    (row,) = [row for row in env.rows() if row.get("role") == "tool"]
    assert (row["decision"]["by"], row["decision"]["reason"]) == ("ann@desk", "Too dear.")


async def test_changed_arguments_are_checked_carried_out_and_told_to_the_model(
    env: Environment, shop: ToolServer
) -> None:
    env.script(line("buyer", BUY, "Bought."))
    handle = await start_buyer(env, tool(shop, {"argumentMatches": [{"argument": "amount", "pattern": "."}]}))
    (asked,) = await pending(handle)
    assert "don't match its schema" in await refused(handle, asked, arguments={"amount": "many"})
    assert await pending(handle) == (asked,)
    await approve(handle, asked, arguments={"item": "ink", "amount": 1})
    await env.turn_result(handle)
    assert [seen.path for seen in shop.seen] == ["/buy?item=ink"]
    assert 'A person has changed the arguments of this call to {"item": "ink", "amount": 1}' in read_by_model(env)


@pytest.mark.parametrize(("on_timeout", "bought"), [("reject", 0), ("proceed", 1)])
async def test_a_call_that_nobody_decides_is_rejected_or_carried_out_after_its_timeout(
    env: Environment, shop: ToolServer, on_timeout: str, bought: int
) -> None:
    env.script(line("buyer", BUY, "Done."))
    handle = await start_buyer(env, tool(shop, {"timeout": "1s", "onTimeout": on_timeout}))
    turn = await env.turn_result(handle)
    (result,) = [each for each in turn.messages if each.role == "tool"]
    assert result.decision
    assert (result.decision.how, result.decision.approved, len(shop.seen)) == ("timeout", bool(bought), bought)
    if not bought:
        assert read_by_model(env) == "Not executed: this call was not approved in time."


async def test_only_calls_whose_arguments_match_wait(env: Environment, shop: ToolServer) -> None:
    env.script(line("buyer", BUY, call("buy", item="car", amount=10_000), "Done."))
    handle = await start_buyer(env, tool(shop, {"argumentMatches": [{"argument": "amount", "pattern": r"^\d{4,}$"}]}))
    (asked,) = await pending(handle)
    assert asked.arguments == '{"item": "car", "amount": 10000}'
    assert [seen.path for seen in shop.seen] == ["/buy?item=pen"]
    await approve(handle, asked)
    await env.turn_result(handle)
    assert len(shop.seen) == 2


async def test_other_calls_and_other_members_go_on_while_a_call_waits(env: Environment, shop: ToolServer) -> None:
    both = {"text": "", "calls": [BUY["calls"][0], {"name": "look", "arguments": {"item": "map"}}]}
    env.script(line("buyer", both, "Done."), line("other", "I am ready."))
    tools = [tool(shop, {}), tool(shop, None, "look")]
    members = [agent("buyer", "buy", "look", parallelToolCalls=True), agent("other")]
    handle = await env.start_team([team("team", "buyer", "other", strategy="parallel"), *members, *tools])
    buyer = await waiting_run(env, f"{handle.id}/turn-1/buyer")
    (asked,) = await pending(buyer)
    while not (shop.seen and any(row["content"] == "I am ready." for row in env.rows())):
        await asyncio.sleep(0.02)
    assert [seen.path for seen in shop.seen] == ["/buy?item=map"]
    await approve(buyer, asked)
    await env.turn_result(handle)
    assert len(shop.seen) == 2


@pytest.mark.full
async def test_a_decision_to_remember_holds_for_the_tool_in_the_whole_run(env: Environment, shop: ToolServer) -> None:
    env.script(line("lead", call("ask", input="?"), "Done."), line("buyer", BUY, BUY, "Bought."))
    asks = manifest("Tool", "ask", {"type": "agent", "agent": {"name": "buyer"}})
    handle = await env.start_query(
        [agent("lead", "ask"), agent("buyer", "buy"), asks, tool(shop, {})], "agent/lead", "agent/buyer"
    )
    first = await waiting_run(env, f"{handle.id}/target-2")
    second = await waiting_run(env, f"{handle.id}/target-1/lead/call")
    (asked,) = await pending(first)
    await pending(second)
    await approve(first, asked, remember=True)
    status = await env.status(handle)
    assert (status.phase, len(shop.seen)) == ("Completed", 4)


async def waiting_run(env: Environment, prefix: str) -> Handle:
    """The run whose id begins so."""
    (id_,) = await env.find_runs(f"WorkflowId STARTS_WITH '{prefix}' AND BatonPhase = 'InputRequired'", 1)
    return env.client.get_workflow_handle(id_)


async def test_a_tool_that_is_a_querys_target_waits_as_well(env: Environment, shop: ToolServer) -> None:
    handle = await env.start_query([tool(shop, {})], "tool/buy", input='{"item": "pen"}')
    run = await waiting_run(env, handle.id)
    await approve(run, (await pending(run))[0], approved=False, reason="No.")
    status = await env.status(handle)
    assert status.failure
    assert (status.failure.type, shop.seen) == ("CallRejected", [])


async def test_a_child_that_is_asked_by_a_tool_begins_after_the_yes_with_the_changed_question(env: Environment) -> None:
    env.script(line("lead", call("ask", input="The sum?"), "Done."), line("expert", "4."))
    asks = manifest("Tool", "ask", {"type": "agent", "agent": {"name": "expert"}, "approval": {}})
    given = [agent("lead", "ask"), agent("expert"), asks]
    handle = await env.start("agent", {"agent": "lead", "input": "?", "resources": given})
    (asked,) = await pending(handle)
    await approve(handle, asked, arguments={"input": "The product?"})
    await env.turn_result(handle)
    assert env.model.requests[1].body["messages"][-1]["content"] == "The product?"


@pytest.mark.full
async def test_a_long_run_continues_as_new_while_a_call_waits_and_repeats_nothing(
    env_with_short_histories: Environment, shop: ToolServer
) -> None:
    env = env_with_short_histories
    both = {"text": "", "calls": [BUY["calls"][0], {"name": "look", "arguments": {"item": "map"}}]}
    env.script(line("buyer", both, "Done."))
    tools = [tool(shop, {}), tool(shop, None, "look")]
    handle = await start_buyer(env, *tools, parallelToolCalls=True)
    (asked,) = await pending(handle)
    first = (await handle.describe()).run_id
    while (await handle.describe()).run_id == first:
        await handle.signal("pause")
        await handle.signal("resume")
    assert await pending(handle) == (asked,)
    assert await env.find_runs(f"WorkflowId = '{handle.id}' AND BatonPhase = 'InputRequired'", 1)
    assert "don't match its schema" in await refused(handle, asked, arguments={"amount": "many"})
    await approve(handle, asked)
    turn = await env.turn_result(handle)
    assert sorted(seen.path for seen in shop.seen) == ["/buy?item=map", "/buy?item=pen"]
    assert [each.name for each in turn.messages if each.role == "tool"] == ["buy", "look"]
    assert turn.usage.tool_calls == 2
