"""Queries with models and tools as targets: alone, with others, and several at once."""

import json
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.harness.environment import Environment, Json, agent, line, manifest, team, texts
from tests.harness.tool_server import Answer, ToolServer


def model(env: Environment, name: str, **spec: Any) -> Json:
    config = {"openai": {"baseUrl": {"value": env.model_url}}}
    return manifest("Model", name, {"type": "openai", "model": {"value": f"id-of-{name}"}, "config": config, **spec})


def echo(url: str, schema: Json | None = None, **http: Any) -> Json:
    given = {"inputSchema": schema} if schema else {}
    return manifest("Tool", "echo", {"type": "http", **given, "http": {"url": url, "method": "POST", **http}})


async def test_models_are_compared_by_asking_each_the_bare_question(env: Environment) -> None:
    env.answer = lambda request: line("", f"I am {request['model']}.").say[0]
    models = [model(env, "gpt"), model(env, "claude")]
    status = await env.status(await env.start_query(models, "model/gpt", "model/claude", input="Who are you?"))
    assert [(each.target.type, each.target.name, each.message) for each in status.responses] == [
        ("model", "gpt", "I am id-of-gpt."),
        ("model", "claude", "I am id-of-claude."),
    ]
    assert status.message == "gpt:\nI am id-of-gpt.\n\nclaude:\nI am id-of-claude."
    assert status.token_usage.model_calls == 2
    for asked in env.model.requests:
        assert asked.body["messages"] == [{"role": "user", "content": "Who are you?"}]
        assert "tools" not in asked.body


async def test_a_model_that_fails_is_replaced_by_its_fallback(env: Environment) -> None:
    env.answer = lambda request: line("", {"status": 400} if request["model"] == "id-of-a" else "Here.").say[0]
    models = [model(env, "a", fallback={"name": "b"}), model(env, "b")]
    status = await env.status(await env.start_query(models, "model/a"))
    assert (status.phase, status.message) == ("Completed", "Here.")


@pytest.mark.full
async def test_a_tool_gets_a_json_object_as_its_arguments_and_a_text_as_its_input(
    env: Environment, tool_server: ToolServer
) -> None:
    tool_server.answer = lambda _: Answer(tool_server.seen[-1].body)
    status = await env.status(await env.start_query([echo(tool_server.url)], "tool/echo", input='{"city": "Rome"}'))
    assert (status.phase, status.message, status.stop_reason) == ("Completed", '{"city": "Rome"}', "completed")
    assert status.token_usage.tool_calls == 1
    status = await env.status(await env.start_query([echo(tool_server.url)], "tool/echo", input="[1, 2]"))
    assert status.message == '{"input": "[1, 2]"}'
    head = status.responses[0].head
    assert head
    assert [(row["role"], row.get("name")) for row in env.transcript(head.id)] == [
        ("user", None),
        ("assistant", "echo"),
    ]


async def test_built_in_tools_are_targets_without_a_manifest(env: Environment) -> None:
    calculator = manifest("Tool", "calculator", {"type": "builtin", "description": "Counts."})
    targets = [f"tool/{name}" for name in ("noop", "terminate", "calculator", "format-text")]
    status = await env.status(await env.start_query([calculator], *targets, input="6*7"))
    assert [(each.status, each.message) for each in status.responses[:3]] == [
        ("Success", "6*7"),
        ("Success", "6*7"),
        ("Success", "42"),
    ]
    failure = status.responses[3].failure
    assert failure
    assert "is a text, and the tool has the arguments text, style, width: write JSON" in failure.message
    given = json.dumps({"text": "a b", "style": "upper"})
    status = await env.status(await env.start_query([], "tool/format-text", input=given))
    assert (status.phase, status.message) == ("Completed", "A B")
    handle = await env.start("tool", {"tool": "noop", "input": "hello"})
    assert (await env.turn_result(handle)).message == "hello"


async def test_a_tool_whose_arguments_do_not_fit_fails_its_target_alone(
    env: Environment, tool_server: ToolServer
) -> None:
    env.answer = lambda _: line("", "hello").say[0]
    schema = {"type": "object", "required": ["city"], "properties": {"city": {"type": "integer"}}}
    brought = [
        echo(tool_server.url, schema),
        agent("one"),
        team("duo", "one", strategy="sequential"),
        model(env, "gpt"),
    ]
    status = await env.status(
        await env.start_query(brought, "tool/echo", "agent/one", "team/duo", "model/gpt", input="weather?")
    )
    assert [each.status for each in status.responses] == ["Failed", "Success", "Success", "Success"]
    failure = status.responses[0].failure
    assert failure
    assert (failure.type, failure.target) == ("BadArguments", "tool/echo")
    assert "$.city: 'weather?' is not of type 'integer'" in failure.message
    assert not tool_server.seen


async def test_a_tool_target_fills_in_the_querys_parameters(env: Environment, tool_server: ToolServer) -> None:
    given = echo(tool_server.url + "/{{city}}", body="{{input.input}} in {{city}}")
    parameters = [{"name": "city", "value": "Rome"}]
    status = await env.status(
        await env.start_query([given], "tool/echo", input="weather of {{city}}", parameters=parameters)
    )
    assert status.phase == "Completed", status.error
    assert (tool_server.seen[0].path, tool_server.seen[0].body) == ("/Rome", "weather of Rome in Rome")


async def test_a_model_and_a_tool_can_be_started_by_themselves(env: Environment, tool_server: ToolServer) -> None:
    env.answer = lambda _: line("", "Hello.").say[0]
    asked = {"input": "Who?", "resources": [model(env, "gpt"), echo(tool_server.url)]}
    turn = await env.turn_result(await env.start("model", {"model": "gpt", **asked}))
    assert texts(turn.messages) == ["Hello."]
    turn = await env.turn_result(await env.start("tool", {"tool": "echo", **asked}))
    assert texts(turn.messages) == ["sunny"]


async def test_a_canceled_tool_target_ends_at_once(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(hang=True))
    status = await env.status(await env.start_query([echo(tool_server.url)], "tool/echo", timeout="1s"))
    assert (status.phase, status.stop_reason) == ("Failed", "timeout")
    assert status.responses[0].failure


async def test_the_result_of_a_run_its_status_and_the_details_of_its_failure_have_one_shape(env: Environment) -> None:
    env.script(line("one", "1"))
    resources = [agent("one"), team("good", "one", strategy="sequential"), team("bad", "one", maxTurns=1)]
    runs = [
        await env.start("sequential", {"team": "good", "input": "?", "resources": resources}),
        await env.start("round-robin", {"team": "bad", "input": "?", "resources": resources}),
    ]
    good, bad = (env.client.get_workflow_handle(run.id) for run in runs)
    result = await good.result()
    with pytest.raises(WorkflowFailureError) as failed:
        await bad.result()
    assert isinstance(failed.value.cause, ApplicationError)
    for found, run in ((result, good), (failed.value.cause.details[0], bad)):
        assert found == await run.query("status")
        assert {"phase", "message", "stopReason", "tokenUsage", "turns", "messages", "head"} <= found.keys()
