"""Tests of tools that ask an agent or a team: a turn of its own in a child run, whose answer is the tool's result."""

import asyncio
from pathlib import Path

import pytest
from temporalio.client import WorkflowHandle

from baton.starter.history.ark_events import EventRecorder
from baton.starter.history.follow import follow
from baton.workflows.discussion.agent_turn import NOT_ANSWERED
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, signaled, team
from tests.harness.manifests import Writer

ASKED = call("ask-expert", input="What is the sum?")


def asking(name: str, kind: str, whom: str, **spec: object) -> Json:
    return manifest("Tool", name, {"type": kind, kind: {"name": whom}, **spec})


async def children(handle: Handle) -> list[WorkflowHandle[object, object]]:
    """The child runs that a run has started, in their order."""
    events = (await handle.fetch_history()).events
    started = [e.child_workflow_execution_started_event_attributes.workflow_execution for e in events]
    return [handle._client.get_workflow_handle(each.workflow_id) for each in started if each.workflow_id]


async def only_child(handle: Handle) -> Handle:
    """The child run of a run, which notes a moment late that it has begun."""
    while not (begun := await children(handle)):
        await asyncio.sleep(0.02)
    (child,) = begun
    return child


def last_conversation(env: Environment, name: str) -> list[tuple[str, str]]:
    """What the agent of that name has read in its last call, after its prompt."""
    of = [r.body["messages"] for r in env.model.requests if f"You are {name}." in r.body["messages"][0]["content"]]
    return [(each["role"], each["content"] or "") for each in of[-1][1:]]


async def test_an_agent_asks_another_by_a_tool_and_reads_its_plain_answer(env: Environment) -> None:
    env.script(line("lead", ASKED, "So it is 4."), line("expert", "It is 4."))
    lead, expert = agent("lead", "ask-expert"), agent("expert", description="Knows sums.")
    handle = await env.start("agent", {"agent": "lead", "input": "2+2?", "resources": [lead, expert, TOOL]})
    turn = await env.turn_result(handle)
    assert [m.content for m in turn.messages] == ["", "It is 4.", "So it is 4."]
    assert last_conversation(env, "expert") == [("user", "What is the sum?")]
    assert last_conversation(env, "lead")[-1] == ("tool", "It is 4.")
    (sent,) = env.model.requests[0].body["tools"]
    assert sent["function"]["description"] == "Asks the agent expert."
    assert sent["function"]["parameters"]["required"] == ["input"]
    (child,) = await children(handle)
    assert child.id.startswith(f"{handle.id}/call-")
    assert child.id.endswith("-1/expert")


TOOL = asking("ask-expert", "agent", "expert")


async def test_the_usage_of_whom_a_tool_asks_counts_once(env: Environment) -> None:
    env.script(line("lead", ASKED, "Yes."), line("expert", "It is 4."))
    status = await env.status(await env.start_query([agent("lead", "ask-expert"), agent("expert"), TOOL], "agent/lead"))
    assert status.token_usage
    assert (status.token_usage.model_calls, status.token_usage.tool_calls) == (3, 1)
    counted = [row["usage"]["totalTokens"] for row in env.rows() if row.get("usage")]
    assert (len(counted), status.token_usage.total_tokens) == (3, sum(counted))


async def test_a_team_is_asked_by_a_tool_and_its_members_do_not_join_the_conversation(env: Environment) -> None:
    env.script(line("lead", ASKED, "Done."), line("one", "first"), line("two", "second"))
    pair = team("pair", "one", "two", strategy="sequential")
    given = [agent("lead", "ask-expert"), agent("one"), agent("two"), pair, asking("ask-expert", "team", "pair")]
    turn = await env.turn_result(await env.start("agent", {"agent": "lead", "input": "?", "resources": given}))
    assert [m.content for m in turn.messages] == ["", "second", "Done."]
    assert last_conversation(env, "two") == [("assistant", "first"), ("user", "What is the sum?")]


@pytest.mark.full
async def test_several_calls_of_one_message_ask_at_once(env: Environment) -> None:
    both = {"text": "", "calls": [{"name": "ask-expert", "arguments": {"input": str(n)}} for n in (1, 2)]}
    env.script(line("lead", both, "Done."), line("expert", {"text": "a", "held": True}))
    lead = agent("lead", "ask-expert", parallelToolCalls=True)
    handle = await env.start("agent", {"agent": "lead", "input": "?", "resources": [lead, agent("expert"), TOOL]})
    await env.wait_for_calls(3)
    assert "a" not in {row["content"] for row in env.rows()}
    env.model.release()
    turn = await env.turn_result(handle)
    assert sorted(m.content for m in turn.messages) == ["", "Done.", "a", "a"]
    assert len(await children(handle)) == 2


async def test_the_arguments_of_a_tool_with_a_schema_of_its_own_are_asked_as_json(env: Environment) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]}
    partial = {"parameters": [{"name": "b", "value": "2"}]}
    given = asking("ask-expert", "agent", "expert", inputSchema=schema, partial=partial)
    env.script(line("lead", call("ask-expert", b=9), call("ask-expert", a=1), "Done."), line("expert", "3"))
    turn = await env.turn_result(
        await env.start(
            "agent", {"agent": "lead", "input": "?", "resources": [agent("lead", "ask-expert"), agent("expert"), given]}
        )
    )
    assert (
        turn.messages[1].content
        == "Error: the arguments of ask-expert don't match its schema: $: 'a' is a required property"
    )
    assert last_conversation(env, "expert") == [("user", '{"a": 1, "b": 2}')]


@pytest.mark.full
async def test_the_answer_of_an_agent_can_be_filtered(env: Environment) -> None:
    env.script(line("lead", ASKED, "Done."), line("expert", '{"sum": 4}'))
    lead = agent("lead", tools=[{"name": "ask-expert", "functions": [{"name": "jq", "value": ".sum"}]}])
    turn = await env.turn_result(
        await env.start("agent", {"agent": "lead", "input": "?", "resources": [lead, agent("expert"), TOOL]})
    )
    assert turn.messages[1].content == "4"


async def test_a_failure_of_whom_a_tool_asks_is_told_or_ends_the_turn(env: Environment) -> None:
    broken = {"status": 400, "text": "no such thing"}
    env.script(line("lead", ASKED, "Then not."), line("expert", broken))
    brought = [agent("lead", "ask-expert"), agent("expert"), TOOL]
    turn = await env.turn_result(await env.start("agent", {"agent": "lead", "input": "?", "resources": brought}))
    assert turn.messages[1].content.startswith("Error: ")
    assert turn.messages[-1].content == "Then not."
    env.script(line("lead", ASKED, "Then not."), line("expert", broken))
    brought[0] = agent("lead", tools=[{"name": "ask-expert", "onError": "fail"}])
    turn = await env.turn_result(await env.start("agent", {"agent": "lead", "input": "?", "resources": brought}))
    assert turn.failure
    assert turn.failure.type == "ModelRejected"


async def test_a_stop_reaches_whom_a_tool_asks(env: Environment) -> None:
    env.script(line("lead", ASKED, "Done."), line("expert", {"text": "late", "delay": 100}))
    brought = [agent("lead", "ask-expert"), agent("expert"), TOOL]
    handle = await env.start("agent", {"agent": "lead", "input": "?", "resources": brought})
    await env.wait_for_calls(2)
    await handle.signal("terminate_team", {"reason": "enough", "now": True})
    turn = await asyncio.wait_for(env.turn_result(handle), 60)
    assert turn.stop_reason == "terminated"
    (child,) = await children(handle)
    assert (await child.describe()).status.name in ("CANCELED", "COMPLETED")  # type: ignore[union-attr]


async def test_an_agent_reads_that_a_team_was_not_asked_any_more_as_the_run_was_told_to_end(env: Environment) -> None:
    env.script(line("lead", {**ASKED, "held": True}, "Done."))
    brought = [agent("lead", "ask-expert"), agent("expert"), team("experts", "expert", strategy="sequential")]
    handle = await env.start(
        "agent", {"agent": "lead", "input": "?", "resources": [*brought, asking("ask-expert", "team", "experts")]}
    )
    await env.wait_for_calls(1)
    await handle.signal("terminate_team", {"reason": "enough"})
    await signaled(handle, "terminate_team")
    env.model.release()
    await env.turn_result(handle)
    assert len(env.model.requests) == 2
    assert last_conversation(env, "lead")[-1] == ("tool", NOT_ANSWERED)


@pytest.mark.parametrize("kind", ["agent", "team"])
async def test_a_pause_holds_whom_a_tool_asks(env: Environment, kind: str) -> None:
    env.script(line("lead", ASKED, "Done."), line("expert", {**call("noop", message="x"), "held": True}, "It is 4."))
    whom = [agent("expert", "noop"), team("experts", "expert", maxTurns=1, onMaxTurns="complete")]
    asks = asking("ask-expert", kind, "expert" if kind == "agent" else "experts")
    handle = await env.start_query([agent("lead", "ask-expert"), *whom, asks], "agent/lead")
    await env.wait_for_calls(2)
    await handle.signal("pause", {"name": "ann"})
    await signaled(await only_child(handle), "pause")
    env.model.release()
    await env.wait_until_idle(handle)
    assert len(env.model.requests) == 2, "the expert's model is not asked again while the run is paused"
    assert (await handle.query("status"))["paused"]["by"] == "ann"
    await handle.signal("resume")
    assert (await env.status(handle)).message == "Done."


@pytest.mark.full
async def test_a_message_of_a_person_reaches_whom_a_tool_asks(env: Environment) -> None:
    env.script(line("lead", ASKED, "Done."), line("expert", {**call("noop", message="x"), "held": True}, "Heard."))
    brought = [agent("lead", "ask-expert"), agent("expert", "noop"), TOOL]
    handle = await env.start("agent", {"agent": "lead", "input": "?", "resources": brought})
    await env.wait_for_calls(2)
    await handle.execute_update("steer", {"text": "Be brief.", "name": "Ada"})
    await signaled(await only_child(handle), "steer")
    env.model.release()
    await env.turn_result(handle)
    assert ("user", "Be brief.") in [
        (role, text.rpartition(": ")[2]) for role, text in last_conversation(env, "expert")
    ]


async def test_a_query_may_be_put_to_a_tool_that_asks(env: Environment) -> None:
    env.script(line("expert", "It is 4."))
    status = await env.status(await env.start_query([agent("expert"), TOOL], "tool/ask-expert"))
    assert status.responses[0].message == "It is 4."
    assert status.token_usage
    assert (status.token_usage.model_calls, status.token_usage.tool_calls) == (1, 1)


async def test_the_events_of_whom_a_tool_asks_stand_below_the_caller(env: Environment) -> None:
    env.script(line("lead", ASKED, "Done."), line("expert", "It is 4."))
    brought = [agent("lead", "ask-expert"), agent("expert"), TOOL]
    lead = team("team", "lead", strategy="sequential")
    handle = await env.start_team([*brought, lead])
    await env.turn_result(handle)
    recorder, names = EventRecorder(), list[tuple[str, bool]]()
    await follow(
        env.client, handle, lambda each: names.extend((e.name, e.run == handle.id) for e in recorder.record(each))
    )
    expert = [name for name, own in names if not own]
    assert expert == ["AgentExecutionStarted", "LLMCallStarted", "LLMCallCompleted", "AgentExecutionCompleted"]
    own = [name for name, own in names if own]
    assert own.count("TeamMemberStarted") == own.count("AgentExecutionStarted") == 1
    assert own.index("ToolCallStarted") < own.index("ToolCallCompleted")


def test_an_agent_that_would_ask_itself_is_refused(tmp_path: Path) -> None:
    said = Writer(tmp_path).refusal(agent("expert", "ask-expert"), TOOL)
    assert "contains itself (expert → ask-expert → expert)" in said[0]


def test_tools_that_ask_each_other_too_deep_are_refused(tmp_path: Path) -> None:
    chain = [agent(f"a{n}", f"t{n}") for n in range(9)] + [agent("a9")]
    tools = [asking(f"t{n}", "agent", f"a{n + 1}") for n in range(9)]
    said = Writer(tmp_path).refusal(*chain, *tools)
    assert "Tool/default/t0: spec.agent: tools are nested 9 deep" in said[0]
    Writer(tmp_path).load(*chain[1:], *tools[1:])
