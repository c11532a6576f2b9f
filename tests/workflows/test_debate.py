"""A debate: members argue for their stances, a moderator may open each round, and a judge decides."""

import json
from typing import Any

import pytest

from tests.harness.environment import Environment, Json
from tests.harness.panels import debate, model_requests, panel_result, prompt_line

FOR = {"name": "ada", "stance": "Tabs"}
AGAINST = {"name": "bob", "stance": "Spaces"}
VERDICT = {"verdict": "Tabs it is.", "winner": "Tabs", "reasoning": "Ada was never answered."}
JUDGE = prompt_line("You judge a debate", json.dumps(VERDICT))
SYNTHESIS = prompt_line("You write what comes out of a debate", "Use tabs.")


def argues(debater: Json, *say: str) -> Any:
    return prompt_line(f"You are {debater['name']}, ", *say)


def opens(*decisions: Json) -> Any:
    return prompt_line("You moderate a debate", *map(json.dumps, decisions))


async def test_everybody_argues_in_order_and_the_judge_decides(env: Environment) -> None:
    env.script(argues(FOR, "a1", "a2"), argues(AGAINST, "b1", "b2"), JUDGE, SYNTHESIS)
    turn = await env.turn_result(await env.start_team([debate(FOR, AGAINST)], "debate"))
    assert (turn.stop_reason, turn.failure, turn.message) == ("completed", None, "Use tabs.")
    said = [(each.part, each.name, each.round) for each in turn.messages]
    assert said == [
        ("contribution", "ada", 1),
        ("contribution", "bob", 1),
        ("contribution", "ada", 2),
        ("contribution", "bob", 2),
        ("verdict", "judge", 2),
        ("deliverable", "synthesizer", 2),
    ]


async def test_debaters_read_arguments_by_their_stances_and_not_by_names(env: Environment) -> None:
    env.script(argues(FOR, "a1", "a2"), argues(AGAINST, "b1", "b2"), JUDGE, SYNTHESIS)
    await env.turn_result(await env.start_team([debate(FOR, AGAINST)], "debate"))
    third = model_requests(env)[2]
    assert "The position you argue for is: Tabs" in third.system
    assert third.user == (
        "# The question\nWhy?\n\n# This round\nRound 2 of 2 (the last round)\n\n"
        "# Arguments so far\n## Round 1\n[Tabs]: a1\n[Spaces]: b1"
    )


@pytest.mark.full
async def test_a_judge_reads_no_names_and_each_round_in_an_order_of_its_own(env: Environment) -> None:
    debaters = [{"name": f"d{n}", "stance": f"S{n}"} for n in range(6)]
    lines = [argues(each, f"says {each['stance']}") for each in debaters]
    verdict = prompt_line("You judge", json.dumps({"verdict": "Some of each.", "reasoning": "All were good."}))
    env.script(*lines, verdict)
    spec = {"maxRounds": 3, "synthesizer": False}
    turn = await env.turn_result(await env.start_team([debate(*debaters, **spec)], "debate"))
    expected = model_requests(env)[-1].user
    assert "# The stances\n- S0\n- S1" in expected
    assert "d0" not in expected
    orders = [[row for row in part.splitlines() if row.startswith("[")] for part in expected.split("## Round")[1:]]
    assert all(sorted(order) == [f"[S{n}]: says S{n}" for n in range(6)] for order in orders)
    assert any(order != sorted(order) for order in orders)
    assert panel_result(turn)["verdict"] == {"verdict": "Some of each.", "reasoning": "All were good."}


async def test_a_judge_may_read_names_in_the_order_of_the_debate(env: Environment) -> None:
    env.script(argues(FOR, "a1"), argues(AGAINST, "b1"), JUDGE)
    spec = {"maxRounds": 1, "anonymizeTranscript": False, "shuffleForJudge": False, "synthesizer": False}
    await env.turn_result(await env.start_team([debate(FOR, AGAINST, **spec)], "debate"))
    assert model_requests(env)[-1].user.endswith("## Round 1\nada [Tabs]: a1\nbob [Spaces]: b1")


async def test_without_a_synthesizer_a_debate_comes_to_its_shape(env: Environment) -> None:
    env.script(argues(FOR, "a1"), argues(AGAINST, "b1"), JUDGE)
    turn = await env.turn_result(await env.start_team([debate(FOR, AGAINST, maxRounds=1, synthesizer=False)], "debate"))
    assert panel_result(turn) == {
        "rounds": 1,
        "question": "Why?",
        "transcript": [
            {"round": 1, "agentName": "ada", "text": "a1", "stance": "Tabs"},
            {"round": 1, "agentName": "bob", "text": "b1", "stance": "Spaces"},
        ],
        "verdict": VERDICT,
        "moderatorDecisions": [],
    }


@pytest.mark.full
async def test_a_moderator_opens_each_round_and_can_end_the_debate(env: Environment) -> None:
    env.script(
        opens(
            {"nextSpeakers": ["bob", "ada", "bob"], "briefing": "Costs matter.", "done": False},
            {"nextSpeakers": ["ada"], "newAngle": "Think of tests.", "done": True},
        ),
        argues(FOR, "a1", "a2"),
        argues(AGAINST, "b1"),
        JUDGE,
    )
    spec = {"maxRounds": 4, "moderator": True, "synthesizer": False}
    turn = await env.turn_result(await env.start_team([debate(FOR, AGAINST, **spec)], "debate"))
    came_to = panel_result(turn)
    assert [each["agentName"] for each in came_to["transcript"]] == ["bob", "ada", "bob", "ada"]
    assert (came_to["rounds"], len(came_to["moderatorDecisions"])) == (2, 2)
    calls = model_requests(env)
    assert ["Costs matter." in each.user for each in calls if "You are" in each.system] == [True, True, True, False]
    assert calls[5].user.endswith("# The angle of this round\nThink of tests.")
    assert "ada: Tabs\nbob: Spaces" in calls[0].user
    assert "[round 1]" in calls[4].user


async def test_a_moderator_may_end_a_debate_without_another_word(env: Environment) -> None:
    env.script(opens({"nextSpeakers": [], "done": True}), JUDGE)
    spec = {"moderator": True, "synthesizer": False}
    turn = await env.turn_result(await env.start_team([debate(FOR, AGAINST, **spec)], "debate"))
    assert (panel_result(turn)["rounds"], panel_result(turn)["transcript"]) == (1, [])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([opens({"nextSpeakers": ["eve"]})], "names 'eve', which is not a member; members: ada, bob"),
        ([opens({"nextSpeakers": []})], "names no next speaker and doesn't end the debate"),
        (
            [prompt_line("You judge", '{"verdict": "x", "winner": "Both", "reasoning": "y"}')],
            "is not a stance of this debate",
        ),
        ([prompt_line("You judge", "Tabs!")], "judge"),
    ],
)
async def test_a_part_that_is_not_played_fails_the_debate(env: Environment, lines: list[Any], expected: str) -> None:
    env.script(*lines, argues(FOR, "a"), argues(AGAINST, "b"))
    spec: Json = {"moderator": True} if "moderate" in lines[0].system else {}
    turn = await env.turn_result(await env.start_team([debate(FOR, AGAINST, maxRounds=1, **spec)], "debate"))
    assert turn.failure is not None
    assert expected in turn.failure.message
