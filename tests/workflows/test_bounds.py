"""What bounds a run that has neither maxTurns nor a timeout."""

import pytest

from baton.resources.team import DEFAULT_MAX_TURNS
from tests.harness.environment import Environment, Json, agent, line, manifest, team
from tests.harness.manifests import Writer

TALKERS = [agent("a", "terminate"), agent("b")]
ENDLESS: dict[str, Json] = {
    "round-robin": team("team", "a", "b"),
    "sequential": team("team", "a", "b", strategy="sequential", loops=True),
    "selector": team("team", "a", "b", strategy="selector", selector={"enableTerminateTool": True}),
    "graph": team(
        "team", "a", "b", strategy="graph", graph={"edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "a"}]}
    ),
}
NOTICE = "spec.maxTurns: is missing, and nothing else reliably limits the run: it ends after 100 turns"


def query(*targets: Json, **spec: object) -> Json:
    return manifest("Query", "q", {"input": "Why?", "targets": [*targets], **spec})


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy",
    [
        "round-robin",
        pytest.param("sequential", marks=pytest.mark.full),
        pytest.param("graph", marks=pytest.mark.full),
    ],
)
async def test_a_team_that_nothing_bounds_ends_after_a_hundred_turns_with_all_that_was_said(
    env: Environment, strategy: str
) -> None:
    result = await env.turn_result(await env.start_team([*TALKERS, ENDLESS[strategy]]))
    assert (result.stop_reason, result.turns) == ("max_turns", DEFAULT_MAX_TURNS)
    assert len(env.model.requests) == DEFAULT_MAX_TURNS
    assert result.failure is not None
    assert result.failure.message == (
        f"team {strategy} MaxTurns reached team: nothing else limits the run, so it ends after 100 turns"
    )
    assert len(env.transcript(result.head.id)) == 1 + DEFAULT_MAX_TURNS


@pytest.mark.full
async def test_a_nested_team_that_nothing_bounds_ends_by_itself(env: Environment) -> None:
    outer = team("team", "inner", strategy="sequential")
    inner = ENDLESS["round-robin"] | {"metadata": {"name": "inner"}}
    status = await env.status(await env.start_query([*TALKERS, inner, outer], "team/team"))
    assert (status.phase, status.stop_reason) == ("Failed", "failed")
    assert len(env.model.requests) == DEFAULT_MAX_TURNS


@pytest.mark.full
async def test_the_timeout_of_a_query_is_its_only_bound_where_it_has_one(env: Environment) -> None:
    env.script(line("a", *["again"] * 110, {"calls": [{"name": "terminate", "arguments": {"response": "Done."}}]}))
    given = [*TALKERS, team("team", "a")]
    status = await env.status(await env.start_query(given, "team/team", timeout="10m"))
    assert (status.phase, status.message, status.stop_reason) == ("Completed", "Done.", "terminated")
    assert status.responses[0].turns == 111


def test_a_budget_of_tool_calls_alone_bounds_no_team(write: Writer) -> None:
    assert any(NOTICE in str(each) for each in write.load(*TALKERS, team("t", "a", budget={"toolCalls": 1})).notices())


@pytest.mark.parametrize("strategy", ENDLESS)
def test_validation_tells_of_a_team_that_nothing_bounds(write: Writer, strategy: str) -> None:
    assert any(NOTICE in str(each) for each in write.load(*TALKERS, ENDLESS[strategy]).notices())


@pytest.mark.parametrize(
    "bounded",
    [
        (team("team", "a", "b", maxTurns=3),),
        (team("team", "a", "b", strategy="sequential"),),
        (team("team", "a", "b"), query({"type": "team", "name": "team"}, timeout="5m")),
        (team("team", "a", "b", budget={"tokens": 9}),),
        (team("team", "a", "b"), query({"type": "team", "name": "team"}, budget={"duration": "1h"})),
        (
            team("t", "a", "b"),
            team("o", "t", strategy="sequential"),
            query({"type": "team", "name": "o"}, timeout="5m"),
        ),
    ],
)
def test_validation_says_nothing_of_what_is_bounded(write: Writer, bounded: tuple[Json, ...]) -> None:
    assert not any(NOTICE in str(each) for each in write.load(*TALKERS, *bounded).notices())
