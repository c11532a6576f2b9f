"""A long panel continues as new in the middle of a round, without any visible difference."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from baton.starter.history.tasks import list_tasks
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import connect
from baton.testing import Reply, Request
from tests.harness.continued_runs import continued_runs
from tests.harness.environment import Environment
from tests.harness.functions import ballot
from tests.harness.panels import panel, panel_result, role_member

pytestmark = pytest.mark.full

NAMES = "a", "b", "ballot"


@pytest_asyncio.fixture(loop_scope="session")
async def env_with_short_histories(
    server_with_short_histories: EmbeddedServer, tmp_path: Path
) -> AsyncIterator[Environment]:
    """A test environment with a function, on a server where runs continue as new after 50 events."""
    async with Environment.running(
        await connect(server_with_short_histories.address), tmp_path, functions=[ballot]
    ) as env:
        yield env


def count_replies(request: Request) -> Reply:
    """Members say who they are; the referee, how many contributions it reads."""
    system, user = (message["content"] for message in request["messages"])
    if system.startswith("You are the referee"):
        return Reply(text=f'{{"critique": "{user.count(": I am ") + user.count("ballot: ")}"}}', delay=0.05)
    return Reply(text=f"I am {system[8]}.", delay=0.05)


async def test_rounds_critiques_warnings_and_tasks_are_those_of_one_panel(
    env_with_short_histories: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    env_with_short_histories.answer = count_replies
    members = role_member("a"), role_member("b"), {"name": "ballot", "type": "activity"}
    spec = {"maxRounds": 8, "referee": True, "synthesizer": False, "terminateWhen": "has(session.enough)"}
    with caplog.at_level(logging.WARNING):
        handle = await env_with_short_histories.start_team([panel(*members, **spec)], "panel")
        turn = await env_with_short_histories.turn_result(handle)
    runs = await continued_runs(env_with_short_histories, handle)
    came_to = panel_result(turn)
    assert (came_to["rounds"], len(runs) > 2) == (8, True)
    said = [(each["round"], each["agentName"]) for each in came_to["contributions"]]
    assert said == [(number, name) for number in range(1, 9) for name in NAMES]
    assert [each["critique"] for each in came_to["refereeCritiques"]] == [str(3 * number) for number in range(1, 9)]
    assert len([each for each in caplog.records if "converted with str()" in each.getMessage()]) == 1
    tasks = await list_tasks(env_with_short_histories.client, handle)
    assert [(task.round, task.assignee, task.status) for task in tasks] == [(*each, "completed") for each in said]


async def test_what_people_ask_is_known_in_whatever_run_the_panel_is(env_with_short_histories: Environment) -> None:
    env_with_short_histories.answer = count_replies
    spec = {"maxRounds": 99, "synthesizer": False, "terminateWhen": "has(session.enough)", "session": {"kept": 1}}
    handle = await env_with_short_histories.start_team([panel(role_member("a"), role_member("b"), **spec)], "panel")
    await env_with_short_histories.wait_for_calls(2)
    assert await handle.execute_update("session", {"more": 2}) == {"kept": 1, "more": 2}
    while len(await continued_runs(env_with_short_histories, handle)) < 3:
        await asyncio.sleep(0.1)
    await handle.signal("pause")
    await handle.execute_update("steer", {"text": "Hurry."})
    await env_with_short_histories.wait_until_idle(handle)
    asked = len(env_with_short_histories.model.requests)
    assert await handle.execute_update("session", {"enough": True}) == {"kept": 1, "more": 2, "enough": True}
    assert len(env_with_short_histories.model.requests) == asked
    await handle.signal("resume")
    turn = await env_with_short_histories.turn_result(handle)
    assert turn.stop_reason == "condition"
    assert [row["content"] for row in env_with_short_histories.transcript(turn.head.id)].count("Hurry.") == 1
