"""Teams and queries with more members and targets than run at once: all run once, and are listed in their order."""

from baton.starter.scripted_model import Reply, Request
from tests.harness.environment import Environment, agent, team

NAMES = [f"a{number}" for number in range(105)]
"""More than the 100 that run at once."""


def own_name(request: Request) -> Reply:
    """Each says its name."""
    return Reply(text=request["messages"][0]["content"].removeprefix("You are ").removesuffix("."))


async def test_all_members_of_a_wide_parallel_team_speak_once(env: Environment) -> None:
    env.answer = own_name
    wide = [*map(agent, NAMES), team("team", *NAMES, strategy="parallel")]
    turn = await env.turn_result(await env.start_team(wide))
    assert (turn.stop_reason, turn.turns) == ("completed", len(NAMES))
    assert [row["content"] for row in env.transcript(turn.head.id)[1:]] == NAMES
    assert turn.usage.model_calls == len(env.model.requests) == len(NAMES)


async def test_all_targets_of_a_wide_query_answer_once(env: Environment) -> None:
    env.answer = own_name
    status = await env.status(await env.start_query([*map(agent, NAMES)], *(f"agent/{name}" for name in NAMES)))
    assert [(each.target.name, each.message, each.stop_reason) for each in status.responses] == [
        (name, name, "completed") for name in NAMES
    ]
    assert len(env.model.requests) == len(NAMES)
