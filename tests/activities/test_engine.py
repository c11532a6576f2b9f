"""Agents of ExecutionEngines: one request executes an agent, and its messages join the conversation."""

import json
from datetime import timedelta
from typing import Any

import pytest

from baton.resources.secret import Secret
from tests.harness.environment import Environment, Json, agent, line, manifest, team
from tests.harness.manifests import prealpha
from tests.harness.remote_agents import engine, said
from tests.harness.remote_agents import engine_agent as remote
from tests.harness.tool_server import Answer, ToolServer

KEY = "model-key-0123456789"
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"model": KEY}}


async def asked(env: Environment, *manifests: Json, **options: Any) -> Any:
    """The result of an agent that is asked by itself."""
    given = {"agent": "oracle", "input": "Why?", "resources": [*manifests]}
    return await env.turn_result(await env.start("agent", given, **options))


async def test_an_engine_gets_the_agent_with_its_prompt_model_tools_and_schema(
    env: Environment, tool_server: ToolServer
) -> None:
    env.catalog.secrets.add(Secret.model_validate(SECRET))
    schema = {"type": "object", "required": ["why"]}
    tool_server.answers(said('{"why": "because"}'))
    key = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "model"}}}
    config = {"openai": {"baseUrl": "http://models", "apiKey": key, "properties": {"temperature": "0.2"}}}
    gpt = manifest("Model", "gpt", {"type": "completions", "provider": "openai", "model": "gpt-9", "config": config})
    oracle = remote(
        "oracle",
        "calculator",
        prompt="You are {{.mood}}.",
        description="Knows",
        parameters=[{"name": "mood", "value": "calm"}, {"name": "hidden", **key}],
        modelRef={"name": "gpt"},
        outputSchema=schema,
    )
    turn = await asked(env, oracle, gpt, engine(tool_server))
    assert turn.message == '{"why": "because"}'
    (request,) = tool_server.seen
    assert (request.method, request.path) == ("POST", "/v1/execute")
    assert request.headers["idempotency-key"]
    body = json.loads(request.body)
    (tool,) = body.pop("tools")
    assert (tool["name"], tool["parameters"]["type"]) == ("calculator", "object")
    assert body == {
        "agent": {
            "name": "oracle",
            "namespace": "default",
            "prompt": "You are calm.",
            "description": "Knows",
            "labels": {},
            "parameters": [{"name": "mood", "value": "calm"}],
            "model": {
                "name": "gpt-9",
                "type": "openai",
                "config": {"openai": {"baseUrl": "http://models", "properties": {"temperature": "0.2"}}},
            },
            "outputSchema": schema,
        },
        "userInput": {"role": "user", "content": "Why?"},
        "history": [],
    }


async def test_an_engine_is_asked_an_empty_question_as_any_other(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(said("because"))
    given = {"agent": "oracle", "input": "", "resources": [remote("oracle"), engine(tool_server)]}
    turn = await env.turn_result(await env.start("agent", given, execution_timeout=timedelta(seconds=30)))
    assert turn.message == "because"
    assert json.loads(tool_server.seen[0].body)["userInput"] == {"role": "user", "content": ""}


async def test_keys_of_the_model_are_sent_only_to_an_engine_whose_manifest_asks_for_them(
    env: Environment, tool_server: ToolServer
) -> None:
    env.catalog.secrets.add(Secret.model_validate(SECRET))
    tool_server.answers(said("I know nothing."), said(f"I know {KEY}"))
    key = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "model"}}}
    config = {"openai": {"baseUrl": "http://models", "apiKey": key}}
    gpt = manifest("Model", "default", {"type": "completions", "provider": "openai", "model": "g", "config": config})
    for sends in (False, True):
        handle = await env.start(
            "agent",
            {
                "agent": "oracle",
                "input": "?",
                "resources": [remote("oracle"), gpt, engine(tool_server, sendKeys=sends)],
            },
        )
        turn = await env.turn_result(handle)
        assert (KEY in tool_server.seen[-1].body) is sends
    assert turn.message == "I know [secret]"
    assert KEY not in str(await handle.fetch_history()) + json.dumps(env.rows())


async def test_all_messages_of_an_engine_join_the_conversation_and_its_usage_counts(
    env: Environment, tool_server: ToolServer
) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    tool_server.answers(said("First, look.", "Then, see.", token_usage=usage))
    env.script(line("one", "One."), line("three", "Three."))
    members = team("team", "one", "oracle", "three", strategy="sequential")
    manifests = [agent("one"), remote("oracle"), agent("three"), engine(tool_server), members]
    turn = await env.turn_result(await env.start_team(manifests))
    assert [(each.name, each.content) for each in turn.messages] == [
        ("one", "One."),
        ("oracle", "First, look."),
        ("oracle", "Then, see."),
        ("three", "Three."),
    ]
    body = json.loads(tool_server.seen[0].body)
    assert body["history"] == [{"role": "assistant", "content": "One.", "name": "one"}]
    assert body["userInput"]["content"] == "Why?"
    others = sum(each.usage.total_tokens for each in turn.messages if each.usage and each.name != "oracle")
    assert (turn.usage.total_tokens, turn.usage.model_calls) == (12 + others, 3)
    read = [message["content"] for message in env.model.requests[-1].body["messages"]]
    assert [text for text in read if text in ("First, look.", "Then, see.")] == ["First, look.", "Then, see."]
    assert [row["content"] for row in env.transcript(turn.head.id)] == [
        "Why?",
        "One.",
        "First, look.",
        "Then, see.",
        "Three.",
    ]


async def test_an_answer_that_does_not_fit_its_schema_is_sent_back_to_the_engine(
    env: Environment, tool_server: ToolServer
) -> None:
    tool_server.answers(said("Because."), said('{"why": "because"}'))
    schema = {"type": "object", "required": ["why"]}
    turn = await asked(env, remote("oracle", outputSchema=schema), engine(tool_server))
    assert turn.message == '{"why": "because"}'
    second = json.loads(tool_server.seen[1].body)
    assert [each["content"] for each in second["history"]] == ["Why?", "Because."]
    assert second["userInput"]["content"].startswith("Your answer is not JSON")
    first, again = (seen.headers["idempotency-key"] for seen in tool_server.seen)
    assert first != again


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (said(error="no tools today"), "AgentFailed", "agent oracle has failed in its engine: no tools today"),
        (Answer("not json"), "AgentFailed", "the engine engine sent an invalid response"),
        (said(), "AgentFailed", "the engine returned no answer from agent oracle"),
        (Answer("boom", status=500), "AgentFailed", "answered HTTP 500 Internal Server Error: boom"),
        (Answer("who?", status=401), "KeyRefused", "answered HTTP 401 Unauthorized: who?"),
        (Answer("bad", status=422), "AgentRejected", "answered HTTP 422"),
        (Answer("", status=307, headers={"location": "http://x"}), "AgentRejected", "answered HTTP 307"),
        (Answer("x" * 100, cut=10), "OutcomeUnknown", "did not complete its response"),
        (Answer("[" * 60_000), "AgentFailed", "sent more than"),
        (Answer(b" " * 9_000_000), "AgentFailed", "sent more than 8,000,000 bytes"),
        (Answer(hang=True), "OutcomeUnknown", "did not respond within 2 s; whether it was executed is unknown"),
    ],
    ids=["error", "no json", "empty", "500", "401", "422", "307", "cut", "objects", "bytes", "timeout"],
)
async def test_a_failed_execution_says_what_happened_and_is_not_repeated(
    env: Environment, tool_server: ToolServer, answer: Answer, kind: str, says: str
) -> None:
    tool_server.answers(answer)
    turn = await asked(env, remote("oracle"), engine(tool_server, timeout="2s" if answer.hang else "60s"))
    assert turn.failure
    assert turn.failure.type == kind
    assert says in turn.failure.message
    assert len(tool_server.seen) == 1


@pytest.mark.parametrize(("idempotent", "first"), [(False, 503), (False, 429), (True, 503), (True, 500)])
async def test_an_engine_that_has_not_begun_or_is_idempotent_is_asked_again(
    env: Environment, tool_server: ToolServer, idempotent: bool, first: int
) -> None:
    tool_server.answers(Answer("busy", status=first), said("Because."))
    turn = await asked(env, remote("oracle"), engine(tool_server, idempotent=idempotent))
    assert turn.message == "Because."
    assert len({seen.headers["idempotency-key"] for seen in tool_server.seen}) == 1
    assert len(tool_server.seen) == 2


async def test_an_engine_that_can_not_be_reached_is_tried_until_it_is_there(env: Environment) -> None:
    absent = ToolServer()
    with absent.serving():
        url = absent.url
    given = prealpha("ExecutionEngine", "engine", {"type": "x", "address": url})
    handle = await env.start("agent", {"agent": "oracle", "input": "?", "resources": [remote("oracle"), given]})
    port = int(url.rpartition(":")[2])
    late = ToolServer()
    late.answers(said("Here I am."))
    with late.serving(port):
        turn = await env.turn_result(handle)
    assert turn.message == "Here I am."
    assert len(late.seen) == 1


async def test_an_agent_without_a_model_names_the_model_that_the_worker_would_call(
    env: Environment, tool_server: ToolServer
) -> None:
    """The default of the worker, not the word 'default'; and the agent's labels are sent."""
    tool_server.answers(said("because"))
    oracle = remote("oracle")
    oracle["metadata"]["labels"] = {"team": "blue"}
    assert (await asked(env, oracle, engine(tool_server))).message == "because"
    sent = json.loads(tool_server.seen[0].body)["agent"]
    assert (sent["model"]["name"], sent["labels"]) == ("gpt-4.1-mini", {"team": "blue"})
