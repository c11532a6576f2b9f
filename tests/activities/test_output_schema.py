"""Tests of structured output: how a model gets its JSON Schema, and what happens to answers that do not fit."""

import contextlib
import io
import json
import sqlite3
from typing import Any, cast

import pytest
from rich.console import Console

from baton.activities.model.openai import is_strict
from baton.contracts.turn import TurnResult
from baton.starter.console.watch import Watch
from baton.starter.scripted_model import ScriptedUsage
from baton.testing import Reply, Request
from tests.harness.environment import Environment, Json, agent, call, line, team, texts
from tests.starter.test_ark_events import events
from tests.workflows.test_budgets import priced

SCORE = {
    "type": "object",
    "properties": {"score": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}
NO_NUMBER = "Your answer doesn't match its schema: $.score: 'high' is not of type 'integer'"
NO_JSON = "Your answer is not JSON: Expecting value: line 1 column 1 (char 0)"
AGAIN = "\nGive it again, as JSON that fits the schema."


async def judged(env: Environment, *say: str | Json, schema: Json = SCORE, **spec: Any) -> TurnResult:
    env.script(line("one", *say))
    resources = [agent("one", outputSchema=schema, **spec)]
    return await env.turn_result(await env.start("agent", {"agent": "one", "input": "Why?", "resources": resources}))


async def test_an_answer_that_fits_is_the_result_and_the_model_was_given_the_schema(env: Environment) -> None:
    turn = await judged(env, '{"score": 5}')
    assert (turn.stop_reason, turn.message, turn.usage.model_calls) == ("completed", '{"score": 5}', 1)
    (asked,) = env.model.requests
    sent = {"name": "answer", "schema": SCORE, "strict": True}
    assert asked.body["response_format"] == {"type": "json_schema", "json_schema": sent}
    prompt = asked.body["messages"][0]["content"]
    assert prompt.startswith("You are one.\n\n")
    assert prompt.endswith(json.dumps(SCORE))


async def test_the_schema_keeps_the_order_of_its_properties(env: Environment) -> None:
    await judged(env, "{}", schema={"properties": {"why": {"type": "string"}, "score": {}, "again": {}}})
    sent = env.model.requests[0].body["response_format"]["json_schema"]["schema"]
    assert [*sent["properties"]] == ["why", "score", "again"]


async def test_an_agent_without_a_schema_may_answer_anything(env: Environment) -> None:
    env.script(line("one", '```json\n{"score": 5}\n```'))
    turn = await env.turn_result(
        await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    )
    assert turn.message == '```json\n{"score": 5}\n```'
    assert "response_format" not in env.model.requests[0].body
    assert env.model.requests[0].body["messages"][0]["content"] == "You are one."


async def test_an_answer_that_does_not_fit_is_requested_again_with_the_error(env: Environment) -> None:
    turn = await judged(env, '{"score": "high"}', '{"score": 5}')
    said = ['{"score": "high"}', NO_NUMBER + AGAIN, '{"score": 5}']
    assert (turn.stop_reason, turn.message, texts(turn.messages)) == ("completed", '{"score": 5}', [*said])
    assert [row["content"] for row in env.transcript(turn.head.id)] == ["Why?", *said]
    received = env.model.requests[1].body["messages"]
    assert [message["role"] for message in received] == ["system", "user", "assistant", "user"]
    assert received[-1]["content"] == NO_NUMBER + AGAIN


async def test_an_answer_that_never_fits_fails_the_turn_and_all_attempts_are_stored_and_counted(
    env: Environment,
) -> None:
    turn = await judged(env, "Five.", '{"score": "high"}', '{"score": 5')
    assert turn.failure is not None
    assert (turn.failure.family, turn.failure.type, turn.failure.member) == ("ModelError", "OutputRejected", "one")
    missing = "Expecting ',' delimiter: line 1 column 12 (char 11)"
    assert turn.failure.message == f"agent one has no valid answer after 3 attempts: the answer is not JSON: {missing}"
    said = ["Five.", NO_JSON + AGAIN, '{"score": "high"}', NO_NUMBER + AGAIN, '{"score": 5']
    assert texts(turn.messages) == said
    rows = env.transcript(turn.head.id)
    assert [row["content"] for row in rows] == ["Why?", *said]
    tokens = [row["usage"]["totalTokens"] for row in rows if row["role"] == "assistant"]
    assert (len(tokens), turn.usage.model_calls, turn.usage.total_tokens) == (3, 3, sum(tokens))


@pytest.mark.parametrize(
    "said",
    [
        '\n {"score": 5} \n',
        '```json\n{"score": 5}\n```',
        'My answer:\n\n```JSON\n{"score": 5}\n```\nThat is all.',
        '```\n{"score": 5}```',
    ],
)
async def test_only_the_json_is_stored_of_an_answer_with_text_around_it(env: Environment, said: str) -> None:
    turn = await judged(env, said)
    assert (turn.message, turn.usage.model_calls) == ('{"score": 5}', 1)
    assert env.transcript(turn.head.id)[-1]["content"] == '{"score": 5}'


async def test_a_code_block_inside_the_json_is_kept(env: Environment) -> None:
    said = json.dumps({"code": "```json\n{}\n```"})
    assert (await judged(env, said, schema={"required": ["code"]})).message == said


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ('The score: {"score": 5}', "is not JSON: Expecting value"),
        ('```json\n{"score": "high"}\n```', "doesn't match its schema: $.score: 'high' is not"),
        ('{"score": NaN}', "is not JSON: it contains NaN"),
        ("", "is not JSON: Expecting value"),
        ("[" * 100_000, "is not JSON: it is nested too deeply"),
        (f'{{"score": "{"x" * 9000}"}}', f"doesn't match its schema: $.score: '{'x' * 149} … "),
    ],
)
async def test_the_error_is_a_sentence(env: Environment, said: str, wrong: str) -> None:
    turn = await judged(env, said, '{"score": 5}')
    assert turn.message == '{"score": 5}'
    complaint = env.model.requests[1].body["messages"][-1]["content"]
    assert complaint.startswith(f"Your answer {wrong}")
    assert len(complaint) < 500


async def test_only_a_final_answer_has_to_fit_and_not_a_text_with_tool_calls(env: Environment) -> None:
    see, so = call("noop", "Let me see.", message="hm"), call("noop", message="so")
    turn = await judged(env, see, "Five.", so, '{"score": 5}', tools=[{"name": "noop"}])
    assert texts(turn.messages) == ["Let me see.", "hm", "Five.", NO_JSON + AGAIN, "", "so", '{"score": 5}']


async def test_answers_that_do_not_fit_count_among_the_iterations(env: Environment) -> None:
    turn = await judged(env, "Five.", maxIterations=2)
    assert turn.failure is not None
    assert turn.failure.type == "MaxIterationsReached"
    assert turn.failure.message.endswith("2 model calls in one turn without a final answer")
    assert texts(turn.messages) == ["Five.", NO_JSON + AGAIN] * 2


async def test_a_server_that_refuses_the_schema_is_asked_without_it(env: Environment) -> None:
    def deepseek(request: Request) -> Reply:
        refused = Reply(status=400, text="This response_format type is unavailable now")
        return refused if "response_format" in request else Reply(text='{"score": 5}')

    env.script(line("one", "…"))
    env.answer = deepseek
    given = {"agent": "one", "input": "Why?", "resources": [agent("one", outputSchema=SCORE)]}
    turn = await env.turn_result(await env.start("agent", given))
    assert (turn.message, turn.usage.model_calls) == ('{"score": 5}', 1)
    forms = ["response_format" in asked.body for asked in env.model.requests]
    assert forms == [True, False]
    assert json.dumps(SCORE) in env.model.requests[1].body["messages"][0]["content"]


async def test_what_the_request_without_the_schema_has_used_is_charged_with_its_cost_though_it_fails(
    env: Environment,
) -> None:
    def deepseek(request: Request) -> Reply:
        filtered = Reply(text='{"sco', stop="content_filter", usage=ScriptedUsage(prompt=100, completion=20))
        return Reply(status=400, text="no response_format") if "response_format" in request else filtered

    env.answer = deepseek
    resources = [agent("one", outputSchema=SCORE), priced(env)]
    status = await env.status(await env.start_query(resources, "agent/one", budget={"cost": 1}))
    assert status.failure is not None
    assert status.failure.type == "ContentFiltered"
    with contextlib.closing(sqlite3.connect(env.folder / "journal.db")) as journal:
        assert journal.execute("select tokens, cost from baton_accounts").fetchall() == [(120, 140_000_000)]


async def test_a_server_that_refuses_everything_is_reported_with_its_own_text(env: Environment) -> None:
    turn = await judged(env, {"status": 400, "text": "no such model"})
    assert turn.failure is not None
    assert turn.failure.type == "ModelRejected"
    assert turn.failure.message.endswith("answered HTTP 400: no such model")
    assert len(env.model.requests) == 2


async def test_a_member_that_corrects_its_answer_takes_one_turn(env: Environment) -> None:
    env.script(line("one", "Five.", '{"score": 5}'), line("two", "Fine."))
    members = [agent("one", outputSchema=SCORE), agent("two"), team("team", "one", "two", strategy="sequential")]
    handle = await env.start_team(members)
    turn = await env.turn_result(handle)
    assert (turn.turns, turn.usage.model_calls) == (2, 3)
    assert texts(turn.messages) == ["Five.", NO_JSON + AGAIN, '{"score": 5}', "Fine."]
    sent = await events(env.client, handle)
    spent = [cast(Json, each.data["tokenUsage"]) for each in sent if each.name == "AgentExecutionCompleted"]
    assert [each["modelCalls"] for each in spent] == [2, 1]
    wrong = [each.data.get("wrong") for each in sent if each.name == "LLMCallCompleted"]
    assert wrong == [NO_JSON.removeprefix("Your answer "), None, None]


async def test_a_watcher_sees_why_an_answer_is_requested_again(env: Environment) -> None:
    env.script(line("one", "Five.", '{"score": 5}'))
    given = {"agent": "one", "input": "Why?", "resources": [agent("one", outputSchema=SCORE)]}
    handle = await env.start("agent", given)
    await env.turn_result(handle)
    seen = io.StringIO()
    await Watch(env.client, Console(file=seen, width=120)).follow(handle, wait=False)
    lines = seen.getvalue().splitlines()
    assert lines[lines.index("  Five.") + 1] == "  ✗ the answer is not JSON: Expecting value: line 1 column 1 (char 0)"


def closed(**properties: Any) -> Json:
    return {**SCORE, "properties": properties, "required": [*properties]}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (SCORE, True),
        (closed(a={"type": ["string", "null"]}, b={"type": "array", "items": SCORE}), True),
        (closed(a={"anyOf": [SCORE, {"$ref": "#/$defs/x"}]}) | {"$defs": {"x": SCORE}}, True),
        (closed(items={"type": "string", "format": "date", "description": "a day"}), True),
        ({}, False),
        ({"type": "array", "items": SCORE}, False),
        ({**SCORE, "required": []}, False),
        ({**SCORE, "additionalProperties": True}, False),
        (closed(a={"type": "object"}), False),
        (closed(a={"type": "object", "additionalProperties": {"type": "string"}}), False),
        (closed(a={"type": ["object", "null"]}), False),
        (closed(a={"type": "array"}), False),
        (closed(a={"type": "array", "items": {"type": "object"}}), False),
        (closed(a={"anyOf": [{"type": "object"}]}), False),
        (closed(a={"$ref": "#/$defs/x"}) | {"$defs": {"x": {"type": "object"}}}, False),
        (closed(a={"type": "string", "minLength": 1}), False),
        (closed(a={"type": "string", "format": "uri"}), False),
        (closed(a={"oneOf": [SCORE]}), False),
        (closed(a={}), False),
        (closed(a=True), False),
    ],
)
def test_a_schema_is_strict_if_it_is_closed_and_everything_is_required(schema: Json, strict: bool) -> None:
    assert is_strict(schema) is strict
