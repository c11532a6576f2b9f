"""Agents that are executed elsewhere take part in teams of every strategy, beside agents with a model and teams."""

import itertools
import json
from collections.abc import Iterator

import pytest

from baton.testing import Reply, ScriptedToolCall
from tests.harness.agent_server import AgentServer, Turn
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.remote_agents import a2a_agent, a2a_server, engine, engine_agent, said
from tests.harness.tool_server import ToolServer


@pytest.fixture
def agents() -> Iterator[AgentServer]:
    """A server of an agent that counts how often it was asked."""

    server = AgentServer()

    async def number(turn: Turn) -> None:
        await turn.reply(f"far {len(server.turns)}")

    server.behaviour = number
    with server.serving():
        yield server


def all_kinds(tool_server: ToolServer, agents: AgentServer) -> list[Json]:
    """A local agent, one of an engine, one of an A2A server, and a team of those."""
    tool_server.answer = lambda number: said(f"near {number}")
    inner = team("inner", "two", "three", strategy="sequential")
    return [
        agent("one"),
        engine_agent("two"),
        a2a_agent("three"),
        inner,
        engine(tool_server),
        a2a_server(agents),
    ]


MEMBERS = ("one", "two", "three", "inner")
EDGES = {"edges": [{"from": a, "to": b} for a, b in itertools.pairwise(MEMBERS)]}
IN_ORDER = ["local", "near 1", "far 1", "near 2", "far 2"]


@pytest.mark.parametrize(
    ("strategy", "spec"),
    [
        ("sequential", {}),
        ("round-robin", {"maxTurns": 1, "onMaxTurns": "complete"}),
        ("graph", {"graph": EDGES}),
        ("parallel", {}),
        ("parallel", {"aggregator": {"name": "two"}}),
    ],
    ids=["sequential", "round-robin", "graph", "parallel", "aggregator"],
)
async def test_all_kinds_of_members_speak_in_a_team(
    env: Environment, tool_server: ToolServer, agents: AgentServer, strategy: str, spec: Json
) -> None:
    env.script(line("one", "local"))
    manifests = [*all_kinds(tool_server, agents), team("team", *MEMBERS, strategy=strategy, **spec)]
    turn = await env.turn_result(await env.start_team(manifests))
    assert turn.stop_reason in ("completed", "max_turns")
    assert turn.failure is None
    found = [each.content for each in turn.messages]
    if strategy == "parallel":
        assert sorted(found) == sorted([*IN_ORDER, *(["near 3"] if spec else [])])
    else:
        assert found == IN_ORDER
        assert agents.turns[-1].texts[0].endswith("one: local\n\ntwo: near 1\n\nthree: far 1\n\ntwo: near 2")
        history = json.loads(tool_server.seen[-1].body)["history"]
        assert [each["content"] for each in history] == ["local", "near 1", "far 1"]
    assert [row["content"] for row in env.transcript(turn.head.id)][1:] == found


async def test_a_selector_chooses_among_agents_that_are_executed_elsewhere(
    env: Environment, tool_server: ToolServer, agents: AgentServer
) -> None:
    chosen = iter(("three", "two", "three"))
    env.answer = lambda _: Reply(calls=[ScriptedToolCall(name="select-next-speaker", arguments={"name": next(chosen)})])
    manifests = [*all_kinds(tool_server, agents), team("team", *MEMBERS, strategy="selector", maxTurns=3)]
    turn = await env.turn_result(await env.start_team(manifests))
    assert [each.content for each in turn.messages] == ["far 1", "near 1", "far 2"]


async def test_a_selector_is_told_what_the_card_of_an_agent_says_unless_its_manifest_says_that(
    env: Environment, tool_server: ToolServer, agents: AgentServer
) -> None:
    chosen = iter(("three", "four"))
    env.answer = lambda _: Reply(calls=[ScriptedToolCall(name="select-next-speaker", arguments={"name": next(chosen)})])
    four, away = a2a_agent("four"), a2a_agent("away")
    four["spec"]["description"] = "my own words"
    away["metadata"]["annotations"] = {"a2a.server/address": "http://127.0.0.1:9"}
    members = team("team", *MEMBERS, "four", "away", strategy="selector", maxTurns=2)
    turn = await env.turn_result(await env.start_team([*all_kinds(tool_server, agents), four, away, members]))
    assert [each.content for each in turn.messages] == ["far 1", "far 2"]
    told = [each.body["messages"][0]["content"] for each in env.model.requests]
    assert "three: It knows. Skills: Knowing: Knows things, inner, four: my own words, away." in told[0]
    assert "inner, four: my own words, away." in told[1]
    assert len([each for each in agents.seen if "well-known" in each.path]) == 3  # one for the run, one for each turn


async def test_a_selector_needs_an_agent_with_a_model(
    env: Environment, tool_server: ToolServer, agents: AgentServer
) -> None:
    chosen_by = {"agent": {"name": "three"}}
    members = team("team", *MEMBERS, strategy="selector", maxTurns=3, selector=chosen_by)
    turn = await env.start_team([*all_kinds(tool_server, agents), members])
    with pytest.raises(Exception, match="failed") as failure:
        await turn.result()
    assert "Agent/default/three is executed elsewhere: a selector needs a model" in str(failure.value.__cause__)


@pytest.mark.full
async def test_the_members_and_the_judge_of_a_panel_and_a_debate_are_briefed(
    env: Environment, tool_server: ToolServer, agents: AgentServer
) -> None:
    manifests = all_kinds(tool_server, agents)
    panel = manifest(
        "Team",
        "team",
        {
            "strategy": "round-robin",
            "maxRounds": 2,
            "members": [{"name": "two"}, {"name": "three"}],
            "synthesizer": {"name": "two"},
        },
    )
    turn = await env.turn_result(await env.start_team([*manifests, panel]))
    assert turn.message == "near 3"
    first, last, result = (json.loads(json.loads(seen.body)["userInput"]["content"]) for seen in tool_server.seen)
    assert (first["goal"], first["agentName"], first["round"], first["transcript"]) == ("Why?", "two", 1, [])
    assert [each["text"] for each in last["transcript"]] == ["near 1", "far 1"]
    assert [each["text"] for each in result["contributions"]] == ["near 1", "far 1", "near 2", "far 2"]
    brief = json.loads(agents.turns[0].texts[0])
    assert (brief["agentName"], [each["text"] for each in brief["transcript"]]) == ("three", ["near 1"])
    assert agents.turns[1].message.context_id == agents.turns[0].context.context_id

    agents.turns.clear()
    verdict = '{"verdict": "So.", "winner": "yes", "reasoning": "r"}'
    tool_server.seen.clear()
    tool_server.answer = lambda number: said("near" if number < 2 else verdict)
    debate = manifest(
        "Team",
        "team",
        {
            "strategy": "debate",
            "maxRounds": 1,
            "members": [{"name": "two", "stance": "yes"}, {"name": "three", "stance": "no"}],
            "judge": {"name": "two"},
            "synthesizer": False,
        },
    )
    turn = await env.turn_result(await env.start_team([*manifests, debate]))
    assert turn.failure is None
    assert json.loads(turn.message)["verdict"]["winner"] == "yes"


async def test_a_query_asks_agents_that_are_executed_elsewhere(
    env: Environment, tool_server: ToolServer, agents: AgentServer
) -> None:
    manifests = all_kinds(tool_server, agents)
    status = await env.status(await env.start_query(manifests, "agent/two", "agent/three"))
    assert status.phase == "Completed"
    assert [each.message for each in status.responses] == ["near 1", "far 1"]


async def test_a_message_of_a_person_reaches_an_agent_that_is_executed_elsewhere(
    env: Environment, tool_server: ToolServer, agents: AgentServer
) -> None:
    env.script(line("one", {"text": "local", "held": True}))
    members = team("team", "one", "three", "two", strategy="sequential")
    handle = await env.start_team([*all_kinds(tool_server, agents), members])
    await env.wait_for_calls(1)
    await handle.execute_update("steer", {"text": "Be brief.", "name": "ann"})
    env.model.release()
    turn = await env.turn_result(handle)
    assert turn.failure is None
    assert "Be brief." in "\n".join(agents.turns[0].texts)
    assert "Be brief." in tool_server.seen[0].body


async def test_a_member_that_fails_elsewhere_is_passed_over_where_the_team_says_so(
    env: Environment, tool_server: ToolServer, agents: AgentServer
) -> None:
    manifests = all_kinds(tool_server, agents)
    tool_server.answer = lambda _: said(error="broken")
    members = team("team", "two", "three", strategy="parallel", onMemberError="continue")
    turn = await env.turn_result(await env.start_team([*manifests, members]))
    assert turn.message == "three:\nfar 1"


@pytest.mark.full
async def test_an_agent_asks_agents_that_are_executed_elsewhere_by_a_tool(
    env: Environment, tool_server: ToolServer, agents: AgentServer
) -> None:
    tools = [manifest("Tool", f"ask-{name}", {"type": "agent", "agent": {"name": name}}) for name in ("two", "three")]
    env.script(line("one", call("ask-two", input="Two?"), call("ask-three", input="Three?"), "Thanks."))
    given = [*all_kinds(tool_server, agents), *tools]
    given[0] = agent("one", "ask-two", "ask-three")
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "Why?", "resources": given}))
    assert [each.content for each in turn.messages if each.content] == ["near 1", "far 1", "Thanks."]
    assert json.loads(tool_server.seen[0].body)["userInput"]["content"] == "Two?"
    assert agents.turns[0].texts == ["Three?"]
