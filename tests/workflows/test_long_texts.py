"""However long the texts of models, tools and people are, histories hold the whole of few of them."""

import json
from collections.abc import Awaitable, Callable

import pytest

from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Environment, Handle, Json, agent, manifest, team
from tests.harness.panels import panel, role_member
from tests.harness.payloads import long_values
from tests.harness.tool_server import Answer, ToolServer
from tests.workflows.test_approval import pending
from tests.workflows.test_people import ANN, people

pytestmark = pytest.mark.full

TEXT = "long " * 8_000
TOOLS = "look", "ask"


def loud(request: Request) -> Reply:
    """A model that says 40 kB each time: first with tool calls, if it has tools, whose arguments are as long."""
    system = str(request["messages"][0]["content"])
    if system.startswith("You are the referee"):
        return Reply(text=json.dumps({"critique": TEXT}))
    tools = {tool["function"]["name"] for tool in request.get("tools", ())}
    if "select-next-speaker" in tools:
        return Reply(text=f"two, because {TEXT}")
    if tools and request["messages"][-1]["role"] != "tool":
        return Reply(text=TEXT, calls=[ScriptedToolCall(name=name, arguments={"input": TEXT}) for name in TOOLS])
    return Reply(text=TEXT)


def tools(server: ToolServer) -> list[Json]:
    """A tool that looks something up, and one that asks another agent."""
    look = {"type": "http", "description": "Looks.", "http": {"url": server.url}, "inputSchema": INPUT}
    return [manifest("Tool", "look", look), manifest("Tool", "ask", {"type": "agent", "agent": {"name": "expert"}})]


INPUT: Json = {"type": "object", "properties": {"input": {"type": "string"}}}
MEMBERS = [agent("one", *TOOLS, parallelToolCalls=True), agent("two", *TOOLS), agent("expert")]

Start = Callable[[Environment, list[Json]], Awaitable[Handle]]


async def query(env: Environment, given: list[Json]) -> Handle:
    return await env.start_query(given, "agent/one", "agent/two", input=TEXT)


async def tool_alone(env: Environment, given: list[Json]) -> Handle:
    return await env.start_query(given, "tool/look", input=json.dumps({"input": TEXT}))


async def parallel(env: Environment, given: list[Json]) -> Handle:
    return await env.start_team([*given, team("team", "one", "two", strategy="parallel", aggregator="expert")])


async def round_robin(env: Environment, given: list[Json]) -> Handle:
    handle = await env.start_team([*given, team("team", "one", "two", maxTurns=2, onMaxTurns="complete")])
    await handle.execute_update("steer", {"text": TEXT})
    return handle


async def selector(env: Environment, given: list[Json]) -> Handle:
    spec: Json = {"strategy": "selector", "maxTurns": 2, "onMaxTurns": "complete"}
    return await env.start_team([*given, team("team", "one", "two", "expert", **spec)])


async def nested(env: Environment, given: list[Json]) -> Handle:
    inner = team("inner", "two", "expert", strategy="parallel")
    outer = team("team", "one", "inner", strategy="sequential", terminateWhen="turn > 2")
    return await env.start_team([*given, inner, outer])


async def a_panel(env: Environment, given: list[Json]) -> Handle:
    inner = team("inner", "one", strategy="sequential")
    members = role_member("a"), {"name": "one"}, {"name": "inner"}
    return await env.start_team([*given, inner, panel(*members, maxRounds=2, referee=True)], "panel")


async def a_panel_without_synthesizer(env: Environment, given: list[Json]) -> Handle:
    return await env.start_team([*given, panel(role_member("a"), maxRounds=2, synthesizer=False)], "panel")


async def a_person(env: Environment, given: list[Json]) -> Handle:
    handle = await env.start_team([*given, people("one", ANN, "two")])
    await pending(handle)
    await env.client.get_workflow_handle(handle.id).execute_update("reply", {"text": TEXT})
    return handle


QUICK = query, round_robin
SLOW = tool_alone, parallel, selector, nested, a_panel, a_panel_without_synthesizer, a_person

ANSWER = "(assistant).content"
LISTED = {
    "what a client or a person has written": {
        ("workflow_execution_started query", "spec.input"),
        ("workflow_execution_update_accepted steer", "text"),
        ("workflow_execution_update_accepted reply", "text"),
        ("signal_external_workflow_execution_initiated steer", "text"),
        ("workflow_execution_signaled steer", "text"),
        ("activity_task_scheduled ask_model", "pending[](user).content"),
        ("activity_task_scheduled append", "items[](user).content"),
    },
    "the answer of a turn, which people read and strategies decide by": {
        ("activity_task_completed ask_model", f"message{ANSWER}"),
        ("activity_task_completed conclude", f"message{ANSWER}"),
        ("activity_task_completed use_tool", f"message{ANSWER}"),  # of a tool that is a query's target
        ("activity_task_scheduled use_tool", "answer"),  # of the agent that a tool asks
        ("activity_task_scheduled append", f"items[]{ANSWER}"),  # of a team in a panel, and of a person
        ("activity_task_scheduled evaluate", "answer"),  # of a nested team, if it is not its last message
    },
    "the result of a run, which its parent or its client reads": {
        (f"child_workflow_execution_completed {kind}", path)
        for kind in ("agent", "parallel", "sequential")
        for path in ("answer", f"messages[]{ANSWER}", "messages[](user).content", "…")
    }
    | {
        ("workflow_execution_completed", path)
        for path in (
            "answer",
            "message",
            "value.contributions[].text",  # the message as JSON
            f"messages[]{ANSWER}",
            "messages[](user).content",
            "responses[].message",
            f"responses[].messages[]{ANSWER}",
            "…",
        )
    },
}
"""Everything of which a history has more than ``payloads.LONG`` bytes: there is one for a message of a person, for a
turn and for a run. Of what a turn has any number, there are previews."""


@pytest.mark.parametrize("start", [*QUICK, *(pytest.param(each, marks=pytest.mark.full) for each in SLOW)])
async def test_a_history_holds_no_long_text_but_those_that_are_listed(
    env: Environment, tool_server: ToolServer, start: Start
) -> None:
    env.answer = loud
    tool_server.answers(Answer(TEXT))
    handle = await start(env, [*MEMBERS, *tools(tool_server)])
    await handle.result()
    histories = [await each.fetch_history() async for each in env.closed_runs()]
    found = long_values(histories)
    assert ("workflow_execution_completed", "message") in found
    assert found - set().union(*LISTED.values()) == set()
