"""Summaries: what is older than a context window becomes one, once, and is read in its place."""

import asyncio
import json
import sqlite3

import pytest

import baton
from baton.contracts.decisions import ApproveRequest
from baton.contracts.status import Status
from baton.starter.runs import decisions
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Environment, Json, agent, manifest, team
from tests.harness.event_streams import read_events
from tests.harness.memory_server import MemoryServer
from tests.harness.remote_agents import engine, engine_agent, said
from tests.harness.tool_server import ToolServer

pytestmark = pytest.mark.full

WINDOW: Json = {"maxTokens": 50, "summarize": {"after": 100}}
LONG = "x" * 100


class Talk:
    """A model that says something long, and sums up with a number; ``asked`` are the conversations that it sums up."""

    def __init__(self, env: Environment) -> None:
        self.summed: list[str] = []
        self.read: list[list[Json]] = []
        env.answer = self.answer

    def answer(self, request: Request) -> Reply:
        messages = json.loads(json.dumps(request["messages"]))
        if str(messages[0]["content"]).startswith("Summarize"):
            self.summed.append(messages[1]["content"])
            return Reply(text=f"summary {len(self.summed)}")
        self.read.append(messages[1:])
        return Reply(text=f"answer {len(self.read)} {LONG}")


async def ask(env: Environment, question: str, *others: Json, **spec: object) -> Status:
    one = agent("one", **{"contextWindow": WINDOW, **spec})
    asked = {"conversationId": "c", "input": question}
    return await env.status(await env.start_query([one, *others], "agent/one", **asked))


async def test_older_messages_become_a_summary_which_is_made_once(env: Environment) -> None:
    talk = Talk(env)
    for number in range(1, 7):
        status = await ask(env, f"question {number}")
        assert status.phase == "Completed", status.error
    assert len(talk.summed) == 1
    assert talk.summed[0].startswith("user: question 1\n\none: answer 1")
    first, *later = [each["content"].split(" x")[0] for each in talk.read[-1]]
    assert first == "Summary of the earlier conversation:\nsummary 1"
    assert later[-1] == "question 6"
    told = talk.summed[0] + "".join(later)
    assert all(f"question {number}" in told and f"answer {number}" in told for number in range(1, 6))
    assert status.token_usage.model_calls == 1


async def test_the_cost_of_a_summary_counts(env: Environment) -> None:
    talk = Talk(env)
    calls = [(await ask(env, f"question {number}")).token_usage.model_calls for number in range(1, 6)]
    assert len(talk.summed) == 1
    assert calls == [1, 1, 1, 1, 2]


async def test_the_events_count_it_where_the_status_does(env: Environment) -> None:
    Talk(env)
    for number in range(1, 5):
        await ask(env, f"question {number}")
    one = agent("one", contextWindow=WINDOW)
    handle = await env.start_query([one], "agent/one", conversationId="c", input="question 5")
    status = await env.status(handle)
    ends = [event for event in await read_events(handle, env.client) if isinstance(event, baton.TurnEndedEvent)]
    assert [end.usage for end in ends] == [status.token_usage]
    assert status.token_usage.model_calls == 2


async def test_a_summary_is_charged_to_the_budget_before_it_is_made(env: Environment) -> None:
    talk = Talk(env)
    for number in range(1, 5):
        await ask(env, f"question {number}")
    one = agent("one", contextWindow=WINDOW)
    asked = {"conversationId": "c", "input": "question 5", "budget": {"modelCalls": 1}}
    handle = await env.start_query([one], "agent/one", **asked)
    assert (await env.status(handle)).stop_reason == "budget"
    assert (len(talk.summed), len(talk.read)) == (1, 4)  # the summary was the one call
    with sqlite3.connect(env.journal) as database:
        assert database.execute("select model_calls from baton_accounts").fetchall() == [(1,)]


async def test_a_summary_that_was_made_before_a_budget_asks_is_not_made_again_after_a_yes(env: Environment) -> None:
    talk = Talk(env)
    for number in range(1, 5):
        await ask(env, f"question {number}")
    one = agent("one", contextWindow=WINDOW)
    asked = {"conversationId": "c", "input": "question 5", "budget": {"modelCalls": 1, "onExceeded": "ask"}}
    handle = await env.start_query([one], "agent/one", **asked)
    while not (waiting := await decisions.pending_decisions(env.client, handle.id)):
        await asyncio.sleep(0.02)
    await decisions.decide(env.client, handle, ApproveRequest(call=waiting[0].id, arguments={"modelCalls": 5}))
    status = await env.status(handle)
    assert status.phase == "Completed", status.error
    assert (len(talk.summed), len(talk.read), status.token_usage.model_calls) == (1, 5, 2)
    with sqlite3.connect(env.journal) as database:
        assert database.execute("select model_calls from baton_accounts").fetchall() == [(2,)]


async def test_a_fallback_reads_the_summary_that_was_made_before_the_first_model_refused(env: Environment) -> None:
    talk = Talk(env)
    for number in range(1, 5):
        await ask(env, f"question {number}")
    plain = talk.answer

    def answer(request: Request) -> Reply:
        sums_up = str(request["messages"][0]["content"]).startswith("Summarize")
        return plain(request) if sums_up or request["model"] == "second" else Reply(status=400, text="no")

    env.answer = answer
    spec = {"type": "openai", "config": {"openai": {"baseUrl": {"value": env.model_url}}}}
    first = manifest("Model", "first", {**spec, "model": {"value": "first"}, "fallback": {"name": "second"}})
    second = manifest("Model", "second", {**spec, "model": {"value": "second"}})
    status = await ask(env, "question 5", first, second, modelRef={"name": "first"})
    assert status.phase == "Completed", status.error
    assert (len(talk.summed), len(talk.read), status.token_usage.model_calls) == (1, 5, 2)
    assert talk.read[-1][0]["content"].endswith("summary 1")


async def test_a_later_summary_sums_up_the_one_before(env: Environment) -> None:
    talk = Talk(env)
    for number in range(1, 9):
        await ask(env, f"question {number}")
    assert len(talk.summed) >= 2
    assert talk.summed[1].startswith("previous summary: summary 1")
    assert talk.read[-1][0]["content"].endswith(f"summary {len(talk.summed)}")


async def test_tool_calls_and_their_results_stay_together(env: Environment) -> None:
    talk = Talk(env)
    plain = talk.answer

    def answer(request: Request) -> Reply:
        last = request["messages"][-1]
        if last["role"] == "user" and not str(request["messages"][0]["content"]).startswith("Summarize"):
            talk.read.append(json.loads(json.dumps(request["messages"]))[1:])
            return Reply(calls=[ScriptedToolCall(name="calculator", arguments={"expression": "1+1"})])
        return plain(request)

    env.answer = answer
    for number in range(1, 6):
        one = agent("one", "calculator", contextWindow=WINDOW)
        asked = {"conversationId": "c", "input": f"question {number}"}
        status = await env.status(await env.start_query([one], "agent/one", **asked))
        assert status.phase == "Completed", status.error
    assert talk.summed
    for messages in talk.read:
        called = [call["id"] for each in messages for call in each.get("tool_calls") or ()]
        assert called == [each["tool_call_id"] for each in messages if each["role"] == "tool"]


async def test_another_model_sums_up_and_agents_without_that_read_everything(env: Environment) -> None:
    talk = Talk(env)
    spec = {"type": "openai", "model": {"value": "small"}, "config": {"openai": {"baseUrl": {"value": env.model_url}}}}
    for number in range(1, 6):
        await ask(
            env,
            f"question {number}",
            manifest("Model", "summarizer", spec),
            contextWindow={**WINDOW, "summarize": {"model": "summarizer", "after": 100}},
        )
    assert [each.body["model"] for each in env.model.requests].count("small") == len(talk.summed) == 1
    two = agent("two")
    await env.status(await env.start_query([two], "agent/two", conversationId="c", input="All?"))
    said = [each["content"] for each in talk.read[-1]]
    assert said[0] == "question 1"
    assert not [each for each in said if "summary" in each]


async def test_a_memory_service_is_given_the_messages_without_summaries(env: Environment) -> None:
    talk = Talk(env)
    with MemoryServer("items").serving() as service:
        service.records["c"] = [{"role": "user", "content": f"before {number} {LONG}"} for number in range(5)]
        memory = manifest("Memory", "default", {"address": service.url})
        for number in range(1, 3):
            status = await ask(env, f"question {number}", memory)
            assert status.phase == "Completed", status.error
    texts = [each.split(" x")[0] for each in service.texts()[5:]]
    assert texts == ["question 1", "answer 1", "question 2", "answer 2"]
    assert len(talk.summed) == 1
    assert "summary 1" in talk.read[-1][0]["content"], "the second query reads the summary that the first has made"


async def test_an_agent_that_is_executed_elsewhere_reads_the_latest_messages_where_nobody_sums_up(
    env: Environment, tool_server: ToolServer
) -> None:
    tool_server.answer = lambda number: said(f"far {number} {LONG}")
    far = engine_agent("far", contextWindow=WINDOW)
    for number in range(1, 7):
        asked = {"conversationId": "c", "input": f"question {number}"}
        status = await env.status(await env.start_query([far, engine(tool_server)], "agent/far", **asked))
        assert status.phase == "Completed", status.error
    read = [[each["content"].split(" x")[0] for each in json.loads(seen.body)["history"]] for seen in tool_server.seen]
    assert read[3] == ["question 1", "far 1", "question 2", "far 2", "question 3", "far 3"]
    assert read[5] == ["question 5", "far 5"]


async def test_an_agent_that_is_executed_elsewhere_and_a_selector_read_the_summary_of_others(
    env: Environment, tool_server: ToolServer
) -> None:
    talk = Talk(env)
    for number in range(1, 6):
        await ask(env, f"question {number}")
    plain, chosen = talk.answer, list[str]()

    def answer(request: Request) -> Reply:
        if "tools" not in request:
            return plain(request)
        chosen.append(request["messages"][0]["content"])
        return Reply(calls=[ScriptedToolCall(name="select-next-speaker", arguments={"name": "far"})])

    env.answer = answer
    tool_server.answer = lambda _: said("far")
    members = [engine_agent("far"), agent("one"), engine(tool_server)]
    led: Json = {"strategy": "selector", "maxTurns": 1, "onMaxTurns": "complete", "contextWindow": WINDOW}
    asked = {"conversationId": "c", "input": "question 6"}
    status = await env.status(
        await env.start_query([*members, team("team", "far", "one", **led)], "team/team", **asked)
    )
    assert status.phase == "Completed", status.error
    summary = "Summary of the earlier conversation:\nsummary 1"
    history = json.loads(tool_server.seen[0].body)["history"]
    later = ["question 4", "answer 4", "question 5", "answer 5"]
    assert [each["content"].split(" x")[0] for each in history] == [summary, *later]
    assert f"question 6\n\n# user:\n{summary}\n\n# user:\nquestion 4" in chosen[0]
    assert "answer 3" not in chosen[0]
