"""Python functions in a panel: as members, as conditions, as instructions, and in other parts."""

import asyncio
import json
import logging
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client

from baton.contracts.panel import Briefing, Decision, PanelShape, Verdict
from baton.resources.functions import function
from baton.starter.runs.start import retry_run
from tests.harness.environment import Environment, manifest
from tests.harness.panels import SYNTHESIS, debate, model_requests, panel, panel_result, panelist_line, role_member
from tests.replay.scenarios import a_function_that_is_canceled, run_scenario


@function
def risk_desk(briefing: Briefing) -> dict[str, str]:
    """Tells what it was handed."""
    said = ", ".join(f"{each.agent_name} {each.text}" for each in briefing.transcript)
    return {"text": f"{briefing.agent_name} {briefing.round}/{briefing.max_rounds} on {briefing.goal}: {said}"}


@function("vote")
async def votes(briefing: Briefing) -> dict[str, str]:
    await asyncio.sleep(0)
    return {"choice": "A"}


@function
def broken(briefing: Briefing) -> str:
    raise ValueError("out of order")


@function
def enough(briefing: Briefing, rounds: int) -> bool:
    return briefing.round >= rounds


@function
def not_a_yes(briefing: Briefing) -> str:
    return "yes"


@function
def instruct(briefing: Briefing, tone: str) -> str:
    return f"{briefing.agent_name}, be {tone} in round {briefing.round}."


@function
def count(shape: PanelShape) -> str:
    return f"{len(shape.contributions)} contributions in {shape.rounds} rounds"


_tries: list[int] = []


@function
def flaky(briefing: Briefing) -> str:
    _tries.append(briefing.round)
    if len(_tries) == 1:
        raise ConnectionError("gone for a moment")
    return "here"


_held: dict[str, int] = {}
"""How often each team's function has been called that waits, by the names of these members."""


@function
async def holds(briefing: Briefing) -> str:
    """Waits until the test says otherwise."""
    _held[briefing.agent_name] = 1
    while _held[briefing.agent_name] == 1:
        await asyncio.sleep(0.01)
    return "held"


_refusals: list[str] = []


@function
def refuses_once(briefing: Briefing) -> str:
    if not _refusals:
        _refusals.append(briefing.agent_name)
        raise ValueError("not now")
    return " | ".join(briefing.remarks or ())


@function
def leaves(briefing: Briefing) -> str:
    sys.exit(3)


@function
def runs_out(briefing: Briefing) -> str:
    return next(iter(()))


@function
async def gives_up(briefing: Briefing) -> str:
    raise asyncio.CancelledError("of my own")


@function
def reads(briefing: Briefing) -> str:
    """Fails in a library that it calls."""
    return str(json.loads(""))


@function
def takes_nothing() -> str:
    return "nothing"


@function
def strict(briefing: Briefing) -> dict[str, str]:
    return {"critique": f"Round {briefing.round} was vague."}


@function
def opens(briefing: Briefing) -> Decision:
    return Decision(next_speakers=("ada",), done=True)


@function
def judges(briefing: Briefing) -> Verdict:
    return Verdict(verdict="Tabs it is.", winner="Tabs", reasoning="Nobody else spoke.")


@function
def report(shape: PanelShape) -> dict[str, int]:
    return {"size": len(shape.contributions)}


FUNCTIONS = (
    holds,
    refuses_once,
    leaves,
    runs_out,
    gives_up,
    reads,
    takes_nothing,
    strict,
    opens,
    judges,
    report,
    flaky,
    risk_desk,
    votes,
    broken,
    enough,
    not_a_yes,
    instruct,
    count,
)


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A worker that has functions."""
    async with Environment.running(client, tmp_path, functions=FUNCTIONS) as env:
        yield env


def performs(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "activity", **more}


async def test_a_function_is_a_member_that_is_handed_a_briefing(env: Environment) -> None:
    env.script(panelist_line("a", "a1", "a2"))
    spec = {"maxRounds": 2, "synthesizer": False, "instructions": "Be brief."}
    handle = await env.start_team([panel(role_member("a"), performs("risk-desk"), **spec)], "panel")
    turn = await env.turn_result(handle)
    assert [each["text"] for each in panel_result(turn)["contributions"]] == [
        "a1",
        "risk-desk 1/2 on Why?: a a1",
        "a2",
        "risk-desk 2/2 on Why?: a a1, risk-desk risk-desk 1/2 on Why?: a a1, a a2",
    ]


async def test_what_is_no_text_is_made_one_with_one_warning_in_a_run(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        spec = {"maxRounds": 3, "synthesizer": False}
        turn = await env.turn_result(
            await env.start_team([panel(performs("vote", **{"as": "voter"}), **spec)], "panel")
        )
    assert [(each["agentName"], each["text"]) for each in panel_result(turn)["contributions"]] == [
        ("voter", "{'choice': 'A'}")
    ] * 3
    warnings = [each.getMessage() for each in caplog.records if "converted with str()" in each.getMessage()]
    assert len(warnings) == 1
    assert "voter" in warnings[0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "broken",
            "the function 'broken' failed: ValueError: out of order ({file}:{line}, in broken)",
        ),
        ("leaves", "the function 'leaves' failed: SystemExit: 3 ({file}:{line}, in leaves)"),
        ("runs-out", "the function 'runs-out' failed: StopIteration ({file}:{line}, in runs_out)"),
        ("gives-up", "the function 'gives-up' failed: CancelledError: of my own ({file}:{line}, in"),
        (
            "reads",
            "failed: JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({file}:{line}, in",
        ),
        ("takes-nothing", "takes 0 positional arguments but 1 was given ({file}:{line})"),
        ("unheard-of", "the worker has no function 'unheard-of'; known: broken, count, enough"),
    ],
)
async def test_a_function_that_fails_ends_the_panel_at_once(env: Environment, name: str, problem: str) -> None:
    env.script(panelist_line("a", "a1"), SYNTHESIS)
    turn = await env.turn_result(await env.start_team([panel(role_member("a"), performs(name))], "panel"))
    assert turn.failure is not None
    wanted = re.escape(problem).replace(r"\{file\}", Path(__file__).name).replace(r"\{line\}", r"\d+")
    assert re.search(wanted, turn.failure.message), turn.failure.message
    assert "/" not in turn.failure.message
    assert turn.failure.member == name
    assert [each.content for each in turn.messages] == ["a1"]


async def held(name: str) -> None:
    """Waits until the function ``holds`` waits for this member, and lets it end after the block."""
    while name not in _held:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("strategy", ["sequential", "parallel"])
async def test_a_message_to_a_function_that_fails_is_in_the_conversation_and_read_by_the_retry(
    env: Environment, strategy: str
) -> None:
    _refusals.clear()
    _held.clear()
    members = [performs("holds", **{"as": "first"}), performs("refuses-once", **{"as": "second"})]
    spec = {"strategy": strategy, "members": members, "maxConcurrency": 1 if strategy == "parallel" else None}
    spec = {name: value for name, value in spec.items() if value}
    handle = await env.start_query([manifest("Team", "team", spec)], "team/team")
    await held("first")
    await handle.execute_update("steer", {"text": "Hurry.", "name": "ann"})
    _held["first"] = 2
    status = await env.status(handle)
    [response] = status.responses
    assert status.phase == "Failed"
    assert response.head
    assert [row["content"] for row in env.transcript(response.head.id)] == ["Why?", "held", "Hurry."]
    _held["first"] = 2
    status = await env.status(await retry_run(env.client, handle))
    [response] = status.responses
    assert response.head
    said = [row["content"] for row in env.transcript(response.head.id)]
    assert said[:3] == ["Why?", "held", "Hurry."]
    assert "Hurry." in said[3]
    assert said.count("Hurry.") == 1


@pytest.mark.full
async def test_a_function_is_not_called_once_another_member_of_a_parallel_team_has_failed(
    client: Client, tmp_path: Path
) -> None:
    called = []

    @function
    def ballot(briefing: Briefing) -> str:
        called.append(briefing.agent_name)
        return "here"

    async with Environment.running(client, tmp_path, functions=(ballot,)) as env:
        handle = await run_scenario(env, a_function_that_is_canceled)
        turn = await env.turn_result(handle)
        assert turn.failure
        assert (turn.failure.type, turn.failure.member) == ("ReplyOverdue", "ann")
        assert [row["content"] for row in env.transcript(turn.head.id)] == ["Why?", "Hurry."]
    assert called == []


async def test_a_function_is_called_again_where_a_connection_has_failed(env: Environment) -> None:
    turn = await env.turn_result(
        await env.start_team([panel(performs("flaky"), maxRounds=1, synthesizer=False)], "panel")
    )
    assert [each["text"] for each in panel_result(turn)["contributions"]] == ["here"]
    assert len(_tries) == 2


async def test_a_function_ends_a_panel_with_the_parameters_of_the_manifest(env: Environment) -> None:
    env.script(panelist_line("a", "a"))
    ending = {"function": "enough", "parameters": {"rounds": 2}}
    spec = {"maxRounds": 9, "synthesizer": False, "terminateWhen": ending}
    turn = await env.turn_result(await env.start_team([panel(role_member("a"), **spec)], "panel"))
    assert (turn.stop_reason, panel_result(turn)["rounds"]) == ("condition", 2)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken", "ValueError: out of order (test_"),
        ("not-a-yes", "returned str, not True or False"),
        ("gone", "no function"),
    ],
)
async def test_a_function_that_can_not_judge_fails_the_panel(env: Environment, name: str, problem: str) -> None:
    env.script(panelist_line("a", "a"))
    turn = await env.turn_result(
        await env.start_team([panel(role_member("a"), terminateWhen={"function": name})], "panel")
    )
    assert turn.failure is not None
    assert turn.failure.type == "ConditionFailed"
    assert problem in turn.failure.message


async def test_a_function_gives_the_instructions_of_each_member_in_each_round(env: Environment) -> None:
    env.script(panelist_line("a", "a"), panelist_line("b", "b"), SYNTHESIS)
    instructions = {"function": "instruct", "parameters": {"tone": "kind"}}
    await env.turn_result(
        await env.start_team(
            [panel(role_member("a"), role_member("b"), maxRounds=2, instructions=instructions)], "panel"
        )
    )
    systems = [each.system for each in model_requests(env)]
    assert "b, be kind in round 1." in systems[1]
    assert "a, be kind in round 2." in systems[2]
    assert systems[4].startswith("# Instructions\nsynthesizer, be kind in round 2.")


async def test_a_function_synthesizes_what_the_panel_has_come_to(env: Environment) -> None:
    env.script(panelist_line("a", "a"))
    turn = await env.turn_result(
        await env.start_team([panel(role_member("a"), maxRounds=3, synthesizer=performs("count"))], "panel")
    )
    assert turn.message == "3 contributions in 3 rounds"


async def test_a_function_in_another_part_answers_with_what_that_part_answers_with(env: Environment) -> None:
    env.script(panelist_line("a", "a"), panelist_line("ada", "Indent!"))
    form = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    spec = {"maxRounds": 1, "referee": performs("strict"), "synthesizer": performs("report"), "outputSchema": form}
    turn = await env.turn_result(await env.start_team([panel(role_member("a"), **spec)], "panel"))
    said = [(each.part, each.content) for each in turn.messages]
    assert said == [("contribution", "a"), ("critique", "Round 1 was vague."), ("deliverable", '{"size":1}')]
    parts = {"moderator": performs("opens"), "judge": performs("judges"), "synthesizer": False}
    debaters = {"name": "ada", "stance": "Tabs"}, {"name": "bob", "stance": "Spaces"}
    turn = await env.turn_result(await env.start_team([debate(*debaters, **parts)], "debate"))
    assert [each["agentName"] for each in json.loads(turn.message)["transcript"]] == ["ada"]
    assert json.loads(turn.message)["verdict"]["winner"] == "Tabs"
