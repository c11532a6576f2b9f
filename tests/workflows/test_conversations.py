"""Conversations: a query continues its conversation, and adds its messages."""

import asyncio
from pathlib import Path

import pytest
import yaml
from temporalio.client import Client

from baton.contracts.status import Status
from baton.resources.loader import load_files
from baton.starter.history.fork import ForkChanges, fork_run
from baton.starter.runs.start import retry_run
from baton.testing import Reply
from tests.harness.environment import Environment, agent, call, line, manifest, team
from tests.harness.tool_server import Answer, ToolServer

ONE = [agent("one"), agent("two"), team("team", "one", "two", strategy="sequential")]


def said_to(env: Environment, request: int = -1) -> list[str]:
    """What a request gave the model, without the system prompt."""
    messages = env.model.requests[request].body["messages"]
    return [str(each.get("content")) for each in messages if each["role"] != "system"]


async def ask(env: Environment, question: str, *targets: str, **spec: object) -> Status:
    """The status of a query in the conversation ``c``."""
    given = {"conversationId": "c", "input": question, **spec}
    return await env.status(await env.start_query(ONE, *(targets or ("agent/one",)), **given))


async def kept(env: Environment, **spec: object) -> list[str]:
    """What the conversation ``c`` holds, as the next query's model is told."""
    env.script(line("one", "done"), line("two", "done"))
    await ask(env, "What was said?", **spec)
    return said_to(env)[:-1]


async def test_a_query_goes_on_from_what_was_said_in_its_conversation(env: Environment) -> None:
    env.script(line("one", "I am one.", "As I said."))
    first = await ask(env, "Who are you?")
    second = await ask(env, "Say it again.")
    assert said_to(env) == ["Who are you?", "I am one.", "Say it again."]
    assert (first.conversation_id, second.message, second.notices) == ("c", "As I said.", None)


async def test_queries_in_other_conversations_read_nothing_of_it(env: Environment) -> None:
    env.script(line("one", "1", "2", "3", "4"))
    await ask(env, "first")
    for other in ({"conversationId": "d"}, {"memory": "other"}, {"conversationId": None}):
        await ask(env, "second", **other)
        assert said_to(env) == ["second"]


async def test_a_session_is_a_conversation_where_none_is_given(env: Environment) -> None:
    env.script(line("one", "1", "2", "3"))
    await ask(env, "first", conversationId=None, sessionId="s")
    status = await ask(env, "second", conversationId=None, sessionId="s")
    assert said_to(env) == ["first", "1", "second"]
    assert status.conversation_id == "s"
    await ask(env, "third", conversationId="s", sessionId="other")
    assert said_to(env) == ["first", "1", "second", "2", "third"]


async def test_a_memory_without_a_manifest_is_kept_in_the_journal_under_its_name(env: Environment) -> None:
    env.script(line("one", "1", "2"))
    memory = {"name": "user-conversation", "namespace": "default"}
    await ask(env, "first", conversationId=None, sessionId="s", memory=memory)
    await ask(env, "second", conversationId=None, sessionId="s", memory=memory)
    assert said_to(env) == ["first", "1", "second"]


async def test_what_the_members_of_a_team_said_is_kept_with_the_question(env: Environment) -> None:
    env.script(line("one", "one 1"), line("two", "two 1"))
    await ask(env, "Why?", "team/team")
    assert await kept(env) == ["Why?", "one 1", "two 1"]


async def test_tool_calls_and_their_results_are_kept(env: Environment) -> None:
    calculator = [agent("clerk", "calculator")]
    env.script(line("clerk", call("calculator", expression="6*7"), "42"))
    given = {"conversationId": "c", "input": "How much?"}
    await env.status(await env.start_query(calculator, "agent/clerk", **given))
    env.script(line("one", "done"))
    await ask(env, "And now?")
    roles = [each["role"] for each in env.model.requests[-1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


async def test_targets_of_one_query_are_kept_in_their_order_and_tools_are_not(env: Environment) -> None:
    env.script(line("one", {"text": "slow", "delay": 0.3}), line("two", "quick"))
    asked = {"conversationId": "c", "input": '{"expression": "1+1"}'}
    await env.status(await env.start_query(ONE, "agent/one", "tool/calculator", "agent/two", **asked))
    assert await kept(env) == ['{"expression": "1+1"}', "slow", "quick"]


async def test_a_query_that_failed_is_kept_with_its_error(env: Environment) -> None:
    env.script(line("one", {"status": 400, "text": "broken"}))
    assert (await ask(env, "Why?")).phase == "Failed"
    assert await kept(env) == ["Why?", f"Error: gpt-4.1-mini at {env.model_host} answered HTTP 400: broken"]


async def test_a_retry_adds_only_what_is_new_to_the_conversation(env: Environment) -> None:
    broken = {"status": 400, "text": "broken"}
    env.script(line("clerk", call("calculator", expression="6*7"), broken))
    handle = await env.start_query([agent("clerk", "calculator")], "agent/clerk", conversationId="c")
    assert (await env.status(handle)).phase == "Failed"
    env.script(line("one", "yes"))
    await ask(env, "Meanwhile?")
    for reply, phase in ((broken, "Failed"), ("It is 42.", "Completed")):
        env.script(line("clerk", reply))
        handle = await retry_run(env.client, handle)
        assert (await env.status(handle)).phase == phase
    error = f"Error: gpt-4.1-mini at {env.model_host} answered HTTP 400: broken"
    assert await kept(env) == ["Why?", "", "42", error, "Meanwhile?", "yes", error, "It is 42."]


async def test_a_retry_adds_nothing_again_of_targets_that_had_answered_and_of_what_a_person_had_said(
    env: Environment,
) -> None:
    broken = {"status": 400, "text": "broken", "held": True}
    env.script(line("one", "one 1"), line("two", broken))
    handle = await env.start_query(ONE, "agent/one", "agent/two", "team/team", conversationId="c")
    await env.wait_for_calls(4)
    await handle.execute_update("steer", {"text": "Be brief."})
    env.model.release()
    assert (await env.status(handle)).phase == "Failed"
    before = await kept(env)
    env.script(line("two", "two 1"))
    assert (await env.status(await retry_run(env.client, handle))).phase == "Completed"
    after = await kept(env)
    assert after == [*before, "What was said?", "done", "two 1", "two 1"]
    assert sum(text == "Be brief." for text in before) == 2, "once for each target that was still open"


async def test_the_result_of_a_tool_that_a_retry_adds_follows_its_call(
    env: Environment, tool_server: ToolServer
) -> None:
    tool_server.answers(Answer("no", status=400), Answer("paid"))
    pay = manifest("Tool", "pay", {"type": "http", "http": {"url": tool_server.url, "method": "POST"}})
    given = [agent("buyer", tools=[{"name": "pay", "onError": "fail"}]), pay]
    env.script(line("buyer", call("pay"), "Paid."))
    handle = await env.start_query(given, "agent/buyer", conversationId="c")
    assert (await env.status(handle)).phase == "Failed"
    assert (await env.status(await retry_run(env.client, handle))).phase == "Completed"
    said = await kept(env)
    roles = [each["role"] for each in env.model.requests[-1].body["messages"]]
    assert roles[1:-1] == ["user", "assistant", "tool", "assistant", "assistant", "tool", "assistant"]
    assert (said[0], "paid" in said[-2], said[-1]) == ("Why?", True, "Paid.")


async def test_a_fork_of_a_retried_query_adds_its_whole_exchange(env: Environment) -> None:
    env.script(line("one", {"status": 400, "text": "broken"}))
    handle = await env.start_query(ONE, "agent/one", conversationId="c")
    assert (await env.status(handle)).phase == "Failed"
    env.script(line("one", "yes", "no"))
    retried = await retry_run(env.client, handle)
    assert (await env.status(retried)).phase == "Completed"
    forked = await fork_run(env.client, retried, "1", ForkChanges())
    assert (await env.status(forked)).phase == "Completed"
    said = await kept(env)
    assert (said[0], said[2:4]) == ("Why?", ["yes", "Why?"])


@pytest.mark.parametrize("signal", ["cancel", "terminate_team"])
async def test_a_query_that_was_ended_is_kept_with_all_that_was_said(env: Environment, signal: str) -> None:
    env.script(line("one", "one 1"), line("two", {"text": "late", "delay": 30}))
    handle = await env.start_query(ONE, "team/team", conversationId="c")
    await env.wait_for_calls(2)
    await handle.signal(signal, {"reason": "enough", "now": True})
    await env.status(handle)
    said = await kept(env)
    assert said[:2] == ["Why?", "one 1"]
    assert len(said) == (3 if signal == "cancel" else 2)


async def test_a_query_that_ran_out_of_time_is_kept(env: Environment) -> None:
    env.script(line("one", {"text": "late", "delay": 30}))
    await ask(env, "Why?", timeout="1s")
    assert (await kept(env))[0] == "Why?"


@pytest.mark.full
async def test_queries_at_once_are_all_kept_in_one_order(env: Environment) -> None:
    env.answer = lambda _: Reply(text="yes")
    await asyncio.gather(*(ask(env, f"question {number}") for number in range(8)))
    first, second = await kept(env), await kept(env)
    assert sorted(first[::2]) == [f"question {number}" for number in range(8)]
    assert first[1::2] == ["yes"] * 8
    assert second[: len(first)] == first


async def test_a_secret_of_an_earlier_question_is_not_filled_in_again(client: Client, tmp_path: Path) -> None:
    """Another query may have another secret of that name, or none."""
    held = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"code": "swordfish"}}
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(held))
    async with Environment.running(client, tmp_path, load_files([tmp_path / "secret.yaml"])) as env:
        env.script(line("one", "1", "2"))
        code = {"name": "code", "valueFrom": {"secretKeyRef": {"name": "safe", "key": "code"}}}
        await ask(env, "The code is {{code}}.", parameters=[code])
        assert said_to(env) == ["The code is swordfish."]
        status = await ask(env, "And?", parameters=[{"name": "code", "value": "another"}])
        assert (status.phase, said_to(env)) == ("Completed", ["The code is [code].", "1", "And?"])
