"""What a status tells: failed members, attempts, why a query ran out of time, and how a run below it stands."""

import json

from baton.contracts.status import Status
from baton.starter.runs.runs import live_status
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team, texts

BUSY: Json = {"status": 503, "text": "overloaded"}


async def plain_status(handle: Handle) -> Status:
    """The status as any Temporal client reads it."""
    return Status.model_validate_json(json.dumps(await handle.query("status")))


async def test_a_member_without_whom_a_parallel_team_has_gone_on_stands_in_the_status(env: Environment) -> None:
    env.script(line("one", "fine"), line("two", {"status": 400, "text": "broken"}))
    both = team("both", "one", "two", strategy="parallel", onMemberError="continue")
    outer = team("outer", "both", strategy="sequential")
    manifests = [agent("one"), agent("two"), both, outer]
    handle = await env.start_query(manifests, "team/both", "team/outer")
    status = await env.status(handle)
    assert (status.phase, status.error) == ("Completed", None)
    for response in status.responses:
        (failure,) = response.member_failures or ()
        assert (failure.member, failure.type, failure.turn, failure.attempts) == ("two", "ModelRejected", 2, 1)
        assert "broken" in failure.message
    handle = await env.start_team(manifests, "both")
    await handle.result()
    assert [each.member for each in (await plain_status(handle)).member_failures or ()] == ["two"]


async def test_a_failure_tells_how_often_the_call_was_tried(env: Environment) -> None:
    env.script(line("one", {"status": 400, "text": "no", "before": [BUSY, BUSY]}))
    status = await env.status(await env.start_query([agent("one")], "agent/one"))
    assert status.failure
    assert (status.failure.type, status.failure.attempts) == ("ModelRejected", 3)


async def test_a_timeout_tells_what_has_failed_before(env: Environment) -> None:
    nowhere = {"openai": {"baseUrl": "http://127.0.0.1:9/v1", "apiKey": "sk-none"}}
    env.script(line("one", "fine"), line("two", {"text": "late", "delay": 20}))
    gone = manifest("Model", "gone", {"type": "completions", "provider": "openai", "model": "m", "config": nowhere})
    del nowhere["openai"]["apiKey"]
    inner = team("inner", "lost", strategy="sequential")
    outer = team("outer", "one", "inner", strategy="sequential")
    manifests = [agent("one"), agent("two"), agent("lost", modelRef={"name": "gone"}), gone, inner, outer]
    status = await env.status(await env.start_query(manifests, "agent/two", "team/outer", timeout="4s"))
    assert (status.phase, status.stop_reason) == ("Failed", "timeout")
    slow, unreachable = (each.failure for each in status.responses)
    assert slow
    assert unreachable
    assert unreachable.cause
    assert (unreachable.type, unreachable.cause.type, unreachable.cause.family) == (
        "QueryTimeout",
        "ModelUnavailable",
        "ModelError",
    )
    assert (unreachable.cause.attempts or 0) >= 3
    assert unreachable.message.startswith("the query took longer than its timeout of 4 s; attempt ")
    assert "failed with ModelUnavailable: " in unreachable.message
    assert (slow.message, slow.cause) == ("the query took longer than its timeout of 4 s", None)
    assert status.failure
    assert status.failure.cause == unreachable.cause
    assert status.responses[1].message == "fine"


async def test_a_running_query_shows_what_its_targets_have_said_and_used(env: Environment) -> None:
    env.script(line("one", "first", "second"), line("two", "third", {"text": "late", "delay": 4}))
    inner = team("inner", "one", "two", "two", strategy="sequential")
    handle = await env.start_query(
        [agent("one"), agent("two"), inner, team("outer", "one", "inner", strategy="sequential")], "team/outer"
    )
    await env.wait_for_calls(4)
    plain = await plain_status(handle)
    (response,) = plain.responses
    assert (response.status, response.run) == ("Running", f"{handle.id}/target-1/outer")
    below = await plain_status(env.client.get_workflow_handle(response.run or ""))
    assert (texts(below.messages), below.turns) == (["first"], 1)
    assert below.runs == (f"{response.run}/turn-2/inner",)
    live = await live_status(env.client, handle)
    (response,) = live.responses
    assert (response.status, response.turns, response.message) == ("Running", 1, "third")
    assert texts(response.messages) == ["first", "second", "third"]
    assert (live.token_usage.model_calls, live.message) == (3, "third")
    status = await env.status(handle)
    (response,) = status.responses
    assert response.token_usage == status.token_usage
    assert (response.turns, status.token_usage.model_calls) == (2, 4)


async def test_a_running_query_shows_what_its_only_agent_and_whom_that_asks_have_said_and_used(
    env: Environment,
) -> None:
    ask = manifest("Tool", "ask", {"type": "agent", "agent": {"name": "two"}})
    env.script(
        line("one", call("noop", text="first"), call("ask", input="?")), line("two", {"text": "late", "delay": 3})
    )
    handle = await env.start_query([agent("one", "noop", "ask"), agent("two"), ask], "agent/one")
    await env.wait_for_calls(3)
    plain = await plain_status(handle)
    (response,) = plain.responses
    assert (response.status, response.run, response.token_usage) == ("Running", handle.id, plain.token_usage)
    assert (texts(response.messages)[0], plain.token_usage.model_calls) == ("first", 2)
    assert plain.runs
    assert plain.runs[0].startswith(f"{handle.id}/call-")
    assert (await live_status(env.client, handle)).token_usage.model_calls == 2
    await handle.cancel()
