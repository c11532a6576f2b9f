"""The tasks of a panel, one for each turn of a member, and how a panel is shown while it runs."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from temporalio.client import Client

from baton.contracts.panel import Briefing
from baton.resources.functions import function
from baton.starter.console.watch import Watch, describe_call
from baton.starter.history.tasks import TurnTask, list_tasks
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team
from tests.harness.panels import SYNTHESIS, debate, panel, panelist_line, prompt_line, role_member
from tests.harness.processes import baton, process_env
from tests.starter.test_ark_events import events, named


async def tasks(env: Environment, handle: Handle) -> list[TurnTask]:
    return await list_tasks(env.client, handle)


def short(found: list[TurnTask]) -> list[str]:
    """The tasks' goals and statuses."""
    return [f"{task.goal} {task.status}" for task in found]


async def test_there_is_one_task_for_each_member_and_round_and_none_for_other_roles(env: Environment) -> None:
    referee = prompt_line("You are the referee", '{"critique": "c"}')
    env.script(panelist_line("a", "a1", "a2"), panelist_line("b", "b1", "b2"), referee, SYNTHESIS)
    handle = await env.start_team([panel(role_member("a"), role_member("b"), maxRounds=2, referee=True)], "panel")
    await env.turn_result(handle)
    found = await tasks(env, handle)
    assert short(found) == [
        "a (round 1) completed",
        "b (round 1) completed",
        "a (round 2) completed",
        "b (round 2) completed",
    ]
    assert [task.output for task in found] == ["a1", "b1", "a2", "b2"]
    assert {(task.collection, task.attempts, task.stance, task.error) for task in found} == {("panel", 1, None, None)}
    assert len({task.id for task in found}) == 4
    ends = [(task.started, task.ended) for task in found]
    assert ends == sorted(ends)
    assert all(ended and started < ended for started, ended in ends)
    assert list(found[0].value) == [
        *("collection", "id", "goal", "assignee", "round", "status", "attempts"),
        *("startedAt", "completedAt", "seconds", "output"),
    ]


async def test_tool_calls_and_retried_calls_belong_to_one_task(env: Environment) -> None:
    flaky = {"text": "At last.", "before": [{"status": 500}, {"status": 500}]}
    uses = line("one", call("calculator", expression="6*7"), flaky)
    env.script(uses, SYNTHESIS)
    handle = await env.start_team([agent("one", "calculator"), panel("one", maxRounds=1)], "panel")
    await env.turn_result(handle)
    (task,) = await tasks(env, handle)
    assert (task.goal, task.status, task.attempts, task.output) == ("one (round 1)", "completed", 3, "At last.")


async def test_a_task_in_progress_and_a_failed_task_have_that_status(env: Environment) -> None:
    env.script(panelist_line("a", "a1", {"hang": True}), panelist_line("b", {"status": 400, "text": "no such thing"}))
    handle = await env.start_team([panel(role_member("a"), role_member("b"))], "panel")
    await env.turn_result(handle)
    assert short(await tasks(env, handle)) == ["a (round 1) completed", "b (round 1) errored"]
    assert "no such thing" in str((await tasks(env, handle))[1].error)
    env.script(panelist_line("a", {"hang": True}))
    handle = await env.start_team([panel(role_member("a"))], "panel")
    await env.wait_for_calls(3)
    (task,) = await tasks(env, handle)
    assert (task.status, task.ended, "completedAt" in task.value) == ("in_progress", None, False)
    await handle.signal("terminate_team", {"now": True})
    await env.turn_result(handle)
    assert short(await tasks(env, handle)) == ["a (round 1) cancelled"]


@pytest.mark.full
async def test_nested_teams_have_tasks_and_a_task_counts_the_attempts_of_all_its_activities(
    env: Environment,
) -> None:
    env.script(
        line("one", "1"),
        prompt_line("You are x", {"text": "x", "before": [{"status": 500}]}),
        prompt_line("You write what a panel, inner", "Inner says so."),
        SYNTHESIS,
    )
    members = [{"name": "x", "role": "one"}]
    spec = {"strategy": "round-robin", "members": members, "maxRounds": 1, "audit": "inside"}
    manifests = [agent("one"), manifest("Team", "inner", spec), panel("one", "inner", maxRounds=1)]
    handle = await env.start_query([*manifests, team("outer", "panel", strategy="sequential")], "team/outer")
    await env.status(handle)
    found = await tasks(env, handle)
    assert [(task.collection, task.goal, task.attempts, task.output) for task in found] == [
        ("panel", "one (round 1)", 1, "1"),
        ("panel", "inner (round 1)", 2, "Inner says so."),
        ("inside", "x (round 1)", 2, "x"),
    ]


async def test_the_output_of_a_panel_that_clients_may_not_see_is_not_in_its_tasks(env: Environment) -> None:
    env.script(panelist_line("a", "a1"), panelist_line("x", "The secret contribution."), SYNTHESIS)
    inner = manifest(
        "Team",
        "inner",
        {"strategy": "round-robin", "members": [role_member("x")], "maxRounds": 1, "synthesizer": False},
    )
    hidden = {"synthesizer": {"name": "inner", "type": "team"}, "synthesizerVisibility": {"client": False}}
    handle = await env.start_team([inner, panel(role_member("a"), maxRounds=1, **hidden)], "panel")
    assert "secret" in (await env.turn_result(handle)).message
    found = await tasks(env, handle)
    assert [(task.goal, task.status, task.output) for task in found] == [
        ("a (round 1)", "completed", "a1"),
        ("x (round 1)", "completed", None),
    ]


async def test_a_debater_who_speaks_twice_in_a_round_has_two_tasks_with_the_stance(env: Environment) -> None:
    opening = json.dumps({"nextSpeakers": ["ada", "bob", "ada"], "done": True})
    verdict = json.dumps({"verdict": "Tabs.", "winner": "Tabs", "reasoning": "So it is."})
    says_so = (
        prompt_line("You moderate", opening),
        prompt_line("You judge", verdict),
        prompt_line("You write", "Use tabs."),
    )
    env.script(*says_so, prompt_line("You are ada", "a"), prompt_line("You are bob", "b"))
    debaters = {"name": "ada", "stance": "Tabs"}, {"name": "bob", "stance": "Spaces"}
    handle = await env.start_team([debate(*debaters, moderator=True)], "debate")
    await env.turn_result(handle)
    found = await tasks(env, handle)
    assert [(task.goal, task.stance) for task in found] == [
        ("ada (round 1)", "Tabs"),
        ("bob (round 1)", "Spaces"),
        ("ada (round 1)", "Tabs"),
    ]
    assert [task.id.rpartition("/")[2] for task in found] == ["ada", "bob", "ada-2"]


@function
def desk(briefing: Briefing) -> str:
    return f"{briefing.agent_name} in round {briefing.round}"


async def test_a_function_as_a_member_has_a_task_and_events_and_is_printed(client: Client, tmp_path: Path) -> None:
    async with Environment.running(client, tmp_path, functions=[desk]) as env:
        member = {"name": "desk", "type": "activity", "as": "risk"}
        handle = await env.start_team([panel(member, maxRounds=1, synthesizer=False)], "panel")
        await env.turn_result(handle)
        (task,) = await tasks(env, handle)
        assert (task.goal, task.output) == ("risk (round 1)", "risk in round 1")
        recorded = [each.value for each in await events(env.client, handle)]
        (ended,) = named(recorded, "FunctionCallCompleted")
        assert (ended["member"], ended["function"], ended["round"]) == ("risk", "desk", 1)
        assert [(each["type"], each["turn"]) for each in named(recorded, "TeamTurn")] == [
            ("Start", 0),
            ("Completed", 0),
        ]
        assert re.search(r"risk  round 1 · function desk · \d+ s\n  risk in round 1\n", await watched(env, handle))


async def watched(env: Environment, handle: Handle) -> str:
    """The text that Watch prints for a run, from its start."""
    console = Console(file=io.StringIO(), width=200)
    watch = Watch(env.client, console)
    await watch.follow(handle)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_a_debate_is_printed_with_rounds_and_roles_and_each_message_once(env: Environment) -> None:
    opening = json.dumps({"nextSpeakers": ["bob", "ada"], "briefing": "Mind the width.", "done": True})
    verdict = json.dumps({"verdict": "Tabs it is.", "winner": "Tabs", "reasoning": "So it is."})
    judge = (line("solomon", verdict), prompt_line("You write", "Use tabs."), prompt_line("You moderate", opening))
    env.script(*judge, prompt_line("You are ada", "a"), prompt_line("You are bob", "b"))
    debaters = {"name": "ada", "stance": "Tabs"}, {"name": "bob", "stance": "Spaces"}
    spec: Json = {"moderator": True, "judge": "solomon"}
    handle = await env.start_team([agent("solomon"), debate(*debaters, **spec)], "debate")
    await env.turn_result(handle)
    lines = [re.sub(r" · scripted.*", "", each) for each in (await watched(env, handle)).splitlines()[1:]]
    assert lines == [
        "moderator  round 1",
        "  next speakers: bob, ada",
        "  Mind the width.",
        "  last round",
        "bob  round 1",
        "  b",
        "ada  round 1",
        "  a",
        "solomon  round 1 · judge",
        "  Tabs it is.",
        "  winner: Tabs",
        "  So it is.",
        "synthesizer  round 1",
        "  Use tabs.",
    ]


async def test_events_have_rounds_and_roles_and_each_turn_of_a_member_once(env: Environment) -> None:
    env.script(
        panelist_line("a", "a1", "a2"),
        prompt_line("You are the referee", '{"critique": "c"}'),
        line("one", "1"),
        SYNTHESIS,
    )
    inner = team("inner", "one", strategy="sequential")
    manifests = [agent("one"), inner, panel(role_member("a"), "inner", maxRounds=2, referee=True)]
    handle = await env.start_team(manifests, "panel")
    await env.turn_result(handle)
    recorded = [each.value for each in await events(env.client, handle)]
    turns = [
        (each["turn"], each["round"], each["maxRounds"], each["type"])
        for each in named(recorded, "TeamTurn")
        if "round" in each
    ]
    assert turns == [(0, 1, 2, "Start"), (0, 1, 2, "Completed"), (1, 2, 2, "Start"), (1, 2, 2, "Completed")]
    spoke = [(each["agent"], each.get("round"), each.get("part")) for each in named(recorded, "AgentExecutionStarted")]
    assert spoke == [
        ("a", 1, None),
        ("one", None, None),
        ("referee", 1, "referee"),
        ("a", 2, None),
        ("one", None, None),
        ("referee", 2, "referee"),
        ("synthesizer", 2, "synthesizer"),
    ]
    assert len(named(recorded, "AgentExecutionCompleted")) == len(spoke)


APPOINTED = {"default": None, "agent": "one", "team": {"name": "inner", "type": "team"}}


@pytest.mark.parametrize("appointed", APPOINTED.values(), ids=APPOINTED)
async def test_a_synthesizer_hidden_from_clients_is_in_the_result_alone(env: Environment, appointed: Any) -> None:
    env.script(
        panelist_line("a", "a1"),
        line("one", "The secret deliverable."),
        prompt_line("You write", "The secret deliverable."),
    )
    spec: Json = {"synthesizerVisibility": {"client": False}, **({"synthesizer": appointed} if appointed else {})}
    manifests = [
        agent("one"),
        team("inner", "one", strategy="sequential"),
        panel(role_member("a"), maxRounds=1, **spec),
    ]
    handle = await env.start_team(manifests, "panel")
    assert (await env.turn_result(handle)).message == "The secret deliverable."
    recorded = json.dumps([each.value for each in await events(env.client, handle)])
    assert "a1" in recorded
    assert "secret" not in recorded
    assert "secret" not in await watched(env, handle)


async def test_an_open_call_is_shown_with_its_round_and_a_hidden_one_is_not_shown(env: Environment) -> None:
    env.script(
        panelist_line("a", "a1"),
        prompt_line("You are the referee", {"hang": True}),
        prompt_line("You write", {"hang": True}),
    )
    visible = {"synthesizerVisibility": {"client": False}}
    open_, hidden = panel(role_member("a"), maxRounds=1, referee=True), panel(role_member("a"), maxRounds=1, **visible)
    shown = []
    for each in (open_, hidden):
        before = len(env.model.requests)
        handle = await env.start_team([each], "panel")
        await env.wait_for_calls(before + 2)
        watch = Watch(env.client, Console(file=io.StringIO()))
        await watch.follow(handle, wait=False)
        shown.append([(call.started.speaker, describe_call(call)) for call in watch.state.open_calls])
        await handle.terminate()
    assert shown == [[("referee", "panel · round 1 · default")], []]


async def test_temporals_ui_shows_rounds(env: Environment) -> None:
    env.script(panelist_line("a", "a1", "a2"), SYNTHESIS)
    handle = await env.start_team([panel(role_member("a"), maxRounds=2)], "panel")
    await env.turn_result(handle)
    said = [event.user_metadata.summary.data.decode() async for event in handle.fetch_history_events()]
    asked = [each for each in said if "round" in each]
    assert [each.rpartition(" · ")[0] for each in asked] == ['"round 1 · a', '"round 2 · a', '"round 2 · synthesizer']


async def test_a_team_gets_only_the_result_of_a_panel_that_is_its_member(env: Environment) -> None:
    env.script(panelist_line("a", "a1", "a2"), line("one", "1"), SYNTHESIS)
    manifests = [agent("one"), panel(role_member("a"), maxRounds=2), team("row", "panel", "one", strategy="sequential")]
    turn = await env.turn_result(await env.start_team(manifests, "row"))
    assert [(each.name, each.content, each.round) for each in turn.messages] == [
        ("panel", "The deliverable.", None),
        ("one", "1", None),
    ]


@pytest.mark.full
async def test_the_command_tasks_prints_them(env: Environment, server: EmbeddedServer) -> None:
    env.script(panelist_line("a", "a1"), panelist_line("b", {"status": 400, "text": "no"}))
    handle = await env.start_team([panel(role_member("a"), role_member("b"), audit="audit-7")], "panel")
    await env.turn_result(handle)
    variables = process_env(TEMPORAL_ADDRESS=server.address)
    table = baton("tasks", handle.id, env=variables)
    assert table.returncode == 0, table.stderr
    rows = [row.split("  ")[:4] for row in table.stdout.splitlines()]
    assert [row[0] for row in rows] == ["COLLECTION", "audit-7", "audit-7"]
    errored = json.loads(baton("tasks", handle.id, "--status", "errored", "-o", "json", env=variables).stdout)
    assert [(each["goal"], each["status"]) for each in errored] == [("b (round 1)", "errored")]
