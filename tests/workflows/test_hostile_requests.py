"""What a client or a model sends ends in one of Baton's own errors, and is tried once, whatever it is made of."""

from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowUpdateFailedError
from temporalio.common import RawValue

from baton.testing import Reply, ScriptedToolCall
from tests.chaos.fuzz import check_history, ended
from tests.harness.environment import Environment, agent, line, team

DEEP = "[" * 9_000 + "]" * 9_000
OBJECT = '{"a":' * 9_000 + "1" + "}" * 9_000


def raw(text: str) -> RawValue:
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=text.encode()))


INPUTS = {
    "list": DEEP,
    "object": OBJECT,
    "field": f'{{"agent": "a", "input": {DEEP}}}',
    "resources": f'{{"agent": "a", "input": "x", "resources": {DEEP}}}',
    "null": "null",
    "empty": "[]",
    "number": "1e999",
}


@pytest.mark.parametrize("text", INPUTS.values(), ids=INPUTS)
async def test_an_input_of_any_depth_is_refused_in_words(env: Environment, text: str) -> None:
    await ended(await env.start("agent", raw(text)))


@pytest.mark.full
@pytest.mark.parametrize("update", ["steer", "session", "pause", "resume", "decide"])
@pytest.mark.parametrize("text", ["null", DEEP, '{"text": null}'], ids=["null", "deep", "field"])
async def test_an_update_with_null_or_deep_json_is_refused_and_the_run_goes_on(
    env: Environment, update: str, text: str
) -> None:
    env.script(line("a", "Well."))
    given = {"team": "team", "input": "Why?", "resources": [agent("a"), team("team", "a", maxTurns=1)]}
    handle = await env.start("round-robin", given, start_signal="pause")
    try:
        await handle.execute_update(update, raw(text))
    except WorkflowUpdateFailedError as refused:
        assert refused.cause
    await handle.signal(update, raw(text))
    await handle.signal("resume")
    await ended(handle)


@pytest.mark.parametrize("tool", ["noop", "calculator", "terminate", "unknown"])
@pytest.mark.parametrize("arguments", [DEEP, OBJECT, f'{{"message": {DEEP}}}'], ids=["list", "object", "field"])
async def test_a_tool_call_of_any_depth_is_told_to_the_model(env: Environment, tool: str, arguments: str) -> None:
    replies = [Reply(calls=[ScriptedToolCall(name=tool, arguments=arguments, id="1")]), Reply(text="Done.")]
    env.answer = lambda _: replies.pop(0)
    brought = [agent("a", "noop", "calculator", "terminate")]
    turn = await env.turn_result(
        handle := await env.start("agent", {"agent": "a", "input": "Why?", "resources": brought})
    )
    assert turn.message == "Done."
    check_history(await handle.fetch_history())


async def test_an_answer_of_any_depth_does_not_fit_its_schema(env: Environment) -> None:
    env.answer = lambda _: Reply(text=DEEP)
    schema: dict[str, Any] = {"type": "object"}
    handle = await env.start("agent", {"agent": "a", "input": "Why?", "resources": [agent("a", outputSchema=schema)]})
    await ended(handle)
