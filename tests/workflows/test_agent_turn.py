"""One agent's turn: asking, using tools, asking again, and what becomes of tools that fail (ARK: agent execution)."""

import asyncio
import json

import pytest

from baton.contracts.requests import MISSED_HEARTBEATS
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team, texts
from tests.harness.tool_answers import plain_answer
from tests.harness.tool_server import Answer, ToolServer


async def test_an_agent_asks_its_model_until_it_calls_for_no_more_tools(env: Environment) -> None:
    env.script(line("one", call("calculator", "Let me see.", expression="6 * 7"), "It is 42."))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one", "calculator")]})
    turn = await env.turn_result(handle)
    assert texts(turn.messages) == ["Let me see.", "42", "It is 42."]
    assert [message.name for message in turn.messages] == ["one", "calculator", "one"]
    assert (turn.usage.model_calls, turn.usage.tool_calls) == (2, 1)
    second = env.model.requests[1].body["messages"]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "tool"]
    assert second[3] == {"role": "tool", "content": "42", "tool_call_id": second[2]["tool_calls"][0]["id"]}


async def test_the_model_gets_the_tools_in_the_manifests_order_and_in_the_manifests_words(
    env: Environment,
) -> None:
    tools = [
        {"name": "noop"},
        {"name": "terminate_team", "description": "Call this at the end."},
        {"name": "calculator"},
    ]
    manifest = agent("one")
    manifest["spec"]["tools"] = tools
    env.script(line("one", "hello"))
    await env.turn_result(await env.start("agent", {"agent": "one", "input": "Why?", "resources": [manifest]}))
    expected = [tool["function"] for tool in env.model.requests[0].body["tools"]]
    assert [tool["name"] for tool in expected] == ["noop", "terminate_team", "calculator"]
    assert expected[1]["description"] == "Call this at the end."


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"expression": "1/0"}', "Error: division by zero"),
        ('{"expression": ', "Error: the arguments of calculator are not JSON"),
        ("[1]", "Error: the arguments of calculator must be a JSON object"),
        ('{"expression": 5}', "Error: the arguments of calculator don't match its schema: $.expression"),
        ("", "Error: the arguments of calculator don't match its schema: $: 'expression' is a required property"),
    ],
)
async def test_a_tools_failure_is_sent_to_the_model(env: Environment, arguments: str, expected: str) -> None:
    env.script(line("one", {"calls": [{"name": "calculator", "arguments": arguments}]}, "I see."))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one", "calculator")]})
    turn = await env.turn_result(handle)
    assert turn.stop_reason == "completed"
    assert turn.messages[1].content.startswith(expected)
    assert env.model.requests[1].body["messages"][-1]["content"] == turn.messages[1].content


async def test_a_call_for_a_tool_that_the_agent_does_not_have_is_answered_with_those_it_has(env: Environment) -> None:
    env.script(line("one", call("web-search"), "Then not."))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one", "noop")]})
    turn = await env.turn_result(handle)
    assert texts(turn.messages) == ["", "Error: there is no tool 'web-search'; your tools: noop", "Then not."]


async def test_a_tools_failure_ends_the_turn_where_the_manifest_says_so_with_every_call_answered(
    env: Environment,
) -> None:
    manifest = agent("one", "calculator", "noop")
    manifest["spec"]["tools"][0]["onError"] = "fail"
    calls = [
        *call("noop", message="a")["calls"],
        *call("calculator", expression="1/0")["calls"],
        *call("noop")["calls"],
    ]
    env.script(line("one", {"calls": calls}))
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "Why?", "resources": [manifest]}))
    assert turn.failure is not None
    assert (turn.failure.family, turn.failure.type) == ("ToolError", "ToolFailed")
    assert turn.failure.message == "division by zero"
    results = ["a", "Error: division by zero", "Not executed: the turn ended first."]
    assert texts(turn.messages) == ["", *results]
    assert [row["content"] for row in env.transcript(turn.head.id)] == ["Why?", "", *results]


@pytest.mark.full
async def test_a_tool_is_tried_again_where_the_manifest_says_so_and_then_its_failure_is_sent(
    env: Environment,
) -> None:
    manifest = agent("one", "calculator")
    manifest["spec"]["tools"][0]["onError"] = "retry"
    env.script(line("one", call("calculator", expression="1/0"), "Well."))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [manifest]})
    turn = await env.turn_result(handle)
    assert texts(turn.messages) == ["", "Error: division by zero", "Well."]
    events = (await handle.fetch_history()).events
    failed = [event.activity_task_failed_event_attributes for event in events]
    started = {e.event_id: e.activity_task_started_event_attributes for e in events}
    assert [started[f.started_event_id].attempt for f in failed if f.started_event_id] == [4]


@pytest.mark.parametrize("at_once", [False, True], ids=["one-after-the-other", "all-at-once"])
async def test_tool_calls_of_one_message_are_answered_in_their_order(env: Environment, at_once: bool) -> None:
    names = ["a", "b", "c"]
    calls = [each for name in names for each in call("noop", message=name)["calls"]]
    calls.insert(1, call("calculator", expression="no sum")["calls"][0])
    env.script(line("one", {"calls": calls}, "Done."))
    manifest = agent("one", "noop", "calculator", parallelToolCalls=at_once)
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "Why?", "resources": [manifest]}))
    said = ["", "a", "Error: 'no sum' is not an arithmetic expression", "b", "c", "Done."]
    assert texts(turn.messages) == said
    assert [row["content"] for row in env.transcript(turn.head.id)] == ["Why?", *said]
    received = [message.get("content") for message in env.model.requests[1].body["messages"]]
    assert received == ["You are one.", "Why?", *said[:-1]]


async def test_an_agent_that_never_stops_calling_for_tools_is_stopped(env: Environment) -> None:
    env.script(line("one", call("noop", message="again")))
    manifest = agent("one", "noop", maxIterations=3)
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "Why?", "resources": [manifest]}))
    assert len(env.model.requests) == 3
    assert turn.failure is not None
    assert (turn.failure.family, turn.failure.type) == ("TimeoutError", "MaxIterationsReached")
    assert texts(turn.messages) == ["", "again"] * 3


@pytest.mark.full
async def test_a_history_has_previews_of_calls_and_results_that_are_whole_in_the_journal(env: Environment) -> None:
    words = "word " * 100_000
    env.script(line("one", {"text": words, "calls": call("noop", message=words)["calls"]}, "Done."))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one", "noop")]})
    turn = await env.turn_result(handle)
    asked, answered, done = turn.messages
    assert (len(asked.content) < 2_100, len(asked.tool_calls[0].arguments) < 600, len(answered.content) < 600) == (
        True,
        True,
        True,
    )
    assert done.content == "Done."
    rows = env.transcript(turn.head.id)
    assert rows[1]["content"] == words
    assert json.loads(rows[1]["toolCalls"][0]["arguments"]) == {"message": words}
    assert rows[2]["content"] == words
    assert env.model.requests[1].body["messages"][-1]["content"] == words
    size = sum(event.ByteSize() for event in (await handle.fetch_history()).events)
    assert size < 20_000
    scheduled = [e.activity_task_completed_event_attributes for e in (await handle.fetch_history()).events]
    assert any(b"truncated: 500,000 characters in total" in done.result.SerializeToString() for done in scheduled)


DOWN = {"status": 500, "headers": {"retry-after-ms": "20"}}


@pytest.mark.parametrize(("failure", "calls"), [({"status": 400, "text": "no"}, 1), (DOWN, 6)], ids=["refuses", "down"])
async def test_a_fallback_is_asked_when_a_model_refuses_or_its_retries_are_spent(
    env: Environment, failure: Json, calls: int
) -> None:
    def model(name: str, **spec: object) -> dict[str, object]:
        config = {"openai": {"baseUrl": {"value": env.model_url}}}
        return {
            "apiVersion": "ark.mckinsey.com/v1alpha1",
            "kind": "Model",
            "metadata": {"name": name},
            "spec": {"type": "openai", "model": {"value": name}, "config": config, **spec},
        }

    models = [model("main", fallback={"name": "spare"}), model("spare")]
    fails = line("one", failure).model_copy(update={"model": "main"})
    env.script(fails, line("one", "I am the spare one."))
    manifests = [agent("one", modelRef={"name": "main"}), *models]
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": manifests})
    assert (await env.turn_result(handle)).message == "I am the spare one."
    scheduled = (each.activity_task_scheduled_event_attributes for each in (await handle.fetch_history()).events)
    attempts = [each.retry_policy.maximum_attempts for each in scheduled if each.activity_type.name == "ask_model"]
    assert attempts == [6 + MISSED_HEARTBEATS, 5 + MISSED_HEARTBEATS], "for the last one, the run then waits"
    assert [asked.body["model"] for asked in env.model.requests] == [*["main"] * calls, "spare"]


async def test_the_final_words_are_the_answer_whatever_else_was_called_for(env: Environment) -> None:
    calls = [*call("terminate", response="So be it.")["calls"], *call("calculator", expression="1+1")["calls"]]
    env.script(line("one", {"text": "Well.", "calls": calls}))
    manifests = [agent("one", "terminate", "calculator"), team("team", "one", maxTurns=3)]
    turn = await env.turn_result(await env.start_team(manifests))
    assert (turn.stop_reason, turn.message) == ("terminated", "So be it.")
    assert [message.content for message in turn.messages] == ["Well.", "So be it.", "2"]
    assert turn.usage.tool_calls == 2


async def test_heartbeats_that_a_tool_call_misses_do_not_use_up_its_attempts(env: Environment) -> None:
    env.script(line("one", call("noop", message="x"), "Done."))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one", "noop")]})
    assert (await env.turn_result(handle)).message == "Done."
    scheduled = (each.activity_task_scheduled_event_attributes for each in (await handle.fetch_history()).events)
    attempts = [each.retry_policy.maximum_attempts for each in scheduled if each.activity_type.name == "use_tool"]
    assert attempts == [4 + MISSED_HEARTBEATS]


INTERRUPTED = "Interrupted: the turn ended first, and whether this call was executed is unknown."


@pytest.mark.parametrize(
    ("answers", "limit", "expected"),
    [
        (Answer("down", 500), "1m", "Error: HOST answered HTTP 500 Internal Server Error: down"),
        (Answer(hang=True), "1s", "Error: HOST did not respond within 1 s; whether it was executed is unknown"),
    ],
    ids=["refused", "too late"],
)
async def test_the_next_query_reads_why_a_tool_has_failed_the_turn_after_its_request_was_sent(
    env: Environment, tool_server: ToolServer, answers: Answer, limit: str, expected: str
) -> None:
    tool_server.answers(answers)
    failing = agent("one", "order")
    failing["spec"]["tools"][0]["onError"] = "fail"
    http = {"url": tool_server.url, "method": "POST", "timeout": limit}
    manifests = [failing, manifest("Tool", "order", {"type": "http", "http": http})]
    env.script(line("one", call("order"), "I see."))
    status = await env.status(await env.start_query(manifests, "agent/one", sessionId="s"))
    assert (status.phase, len(tool_server.seen)) == ("Failed", 1)
    await env.status(await env.start_query(manifests, "agent/one", sessionId="s"))
    [result] = [each["content"] for each in env.model.requests[-1].body["messages"] if each["role"] == "tool"]
    assert plain_answer(result) == expected.replace("HOST", tool_server.host)


async def test_the_next_query_reads_that_the_outcome_of_a_call_is_unknown_which_a_cancel_has_interrupted(
    env: Environment, tool_server: ToolServer
) -> None:
    tool_server.answers(Answer(hang=True))
    buy = manifest("Tool", "order", {"type": "http", "http": {"url": tool_server.url, "method": "POST"}})
    manifests = [agent("one", "order"), buy]
    calls = [*call("order")["calls"], *call("order")["calls"]]
    env.script(line("one", {"calls": calls}, "I see."))
    handle = await env.start_query(manifests, "agent/one", sessionId="s")
    while not tool_server.seen:
        await asyncio.sleep(0.01)
    await handle.signal("cancel")
    assert (await env.status(handle)).phase == "Canceled"
    await env.status(await env.start_query(manifests, "agent/one", sessionId="s"))
    results = [each["content"] for each in env.model.requests[-1].body["messages"] if each["role"] == "tool"]
    assert results == [INTERRUPTED, "Not executed: the turn ended first."]
    assert len(tool_server.seen) == 1
