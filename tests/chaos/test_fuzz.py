"""Odd manifests, replies, arguments and responses end in a clear error or a result; no run gets stuck."""

import asyncio
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from baton.testing import Reply, ScriptedToolCall
from tests.chaos import fuzz
from tests.harness.environment import Environment, agent
from tests.harness.tool_server import Answer, ToolServer

EXAMPLES = 2


def test_odd_manifests_are_read_or_refused_in_words(tmp_path: Path) -> None:
    assert fuzz.first_failure(lambda docs: fuzz.read(tmp_path, docs), 25 * EXAMPLES, docs=fuzz.DOCUMENTS) is None


async def test_odd_manifests_that_a_run_brings_get_nothing_stuck(env: Environment) -> None:
    check = fuzz.within(asyncio.get_running_loop(), lambda docs: fuzz.run_with_manifests(env, docs))
    assert await asyncio.to_thread(fuzz.first_failure, check, EXAMPLES, docs=fuzz.DOCUMENTS) is None


async def test_odd_answers_of_models_and_tools_get_nothing_stuck(env: Environment, tool_server: ToolServer) -> None:
    check = fuzz.within(
        asyncio.get_running_loop(),
        lambda replies, answers: fuzz.run_with_odd_replies(env, tool_server, replies, answers),
    )
    given = {"replies": fuzz.REPLIES, "answers": fuzz.ANSWERS}
    assert await asyncio.to_thread(fuzz.first_failure, check, EXAMPLES // 2, **given) is None


@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="half \ud800 of a character"),
        Reply(calls=[ScriptedToolCall(name="noop", arguments='{"message": "\\ud800"}', id="\x00")]),
        Reply(calls=[ScriptedToolCall(name="order", arguments='{"id": NaN}')]),
        Reply(raw='data: {"choices": null}\n\ndata: [DONE]\n\n'),
    ],
)
async def test_answers_that_were_odd_once_still_get_nothing_stuck(
    env: Environment, tool_server: ToolServer, reply: Reply
) -> None:
    await fuzz.run_with_odd_replies(
        env, tool_server, [reply], [Answer(b"\xff\x00", headers={"content-type": "application/json"})]
    )


async def test_an_error_that_is_none_of_ours_is_found(env: Environment) -> None:
    env.answer = lambda _: Reply(status=400, text="no")
    handle = await env.start("agent", {"agent": "a", "input": "Why?", "resources": [agent("a")]})
    await env.turn_result(handle)
    history = await handle.fetch_history()
    fuzz.check_history(history)
    failed = next(event for event in history.events if event.HasField("activity_task_failed_event_attributes"))
    failed.activity_task_failed_event_attributes.failure.application_failure_info.type = "KeyError"
    with pytest.raises(AssertionError):
        fuzz.check_history(WorkflowHistory(handle.id, [failed]))
