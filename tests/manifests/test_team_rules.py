"""Rules of teams: edges, names of members, fields of each strategy, and teams without an end."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.environment import Json, agent, team
from tests.harness.manifests import Writer

AB = [agent("a"), agent("b"), agent("ender", "terminate")]


def edges(*pairs: str, **more: Any) -> Json:
    """A graph with edges such as ``a-b``."""
    return {"edges": [{**dict(zip(("from", "to"), pair.split("-"), strict=True)), **more} for pair in pairs]}


# ruff: noqa: E501
WRONG: list[tuple[Json, str]] = [
    (
        team("t", "a", "b", strategy="graph", graph=edges("a-b", "a-a"), maxTurns=3),
        "spec.graph.edges[1]: member 'a' has more than one outgoing edge",
    ),
    (
        team(
            "t",
            "a",
            "b",
            strategy="graph",
            graph={"edges": [*edges("a-b")["edges"], *edges("a-a", when="turn > 1")["edges"]]},
        ),
        "spec.graph.edges[1]: member 'a' has more than one outgoing edge, and an earlier edge has no 'when'",
    ),
    (team("t", "a", "b", strategy="graph", graph=edges("a-c")), "spec.graph.edges[0].to: 'c' is not a member"),
    (
        team("t", "a", "b", strategy="graph", graph=edges("a-b", "b-a")),
        "spec.maxTurns: is missing, and no member agent can terminate: the team would never end; set maxTurns (1 or more turns)",
    ),
    (team("t", "a", strategy="graph", graph=edges("a-a", when="turn < 3")), "spec.maxTurns: is missing"),
    (team("t", "a", "b", strategy="selector"), "spec.maxTurns: is missing"),
    (team("t", "a", "b", strategy="sequential", loops=True), "spec.maxTurns: is missing"),
    (
        team("t", "a", "a", strategy="selector", maxTurns=2),
        "spec.members[1]: 'a' appears twice: give one of them another name, as: NAME",
    ),
    (
        team("t", "a", "b", strategy="selector", maxTurns=2, graph=edges("a-b", when="turn > 1")),
        "spec.graph.edges[0].when: can't be used with a selector",
    ),
    (
        team("t", "a", "b", maxTurns=2, loops=True),
        "spec.loops: can't be used with the strategy 'round-robin', only with sequential",
    ),
    (
        team("t", "a", "b", maxTurns=2, aggregator="a"),
        "spec.aggregator: can't be used with the strategy 'round-robin', only with parallel",
    ),
    (
        team("t", "a", strategy="selector", selector={"model": "x", "agent": "y"}),
        "spec.selector.agent: can't be combined with model: keep one of them",
    ),
    (
        team("t", "a", strategy="selector", selector={"selectorPrompt": "{{.Members}}"}),
        "spec.selector.selectorPrompt: unknown name 'Members'; known: History, Participants, Roles",
    ),
    (team("t", "a", maxTurns=2, contextWindow={}), "spec.contextWindow: needs either maxMessages or maxTokens"),
    (team("t", "a", maxTurns=2, terminateWhen="turn >"), "spec.terminateWhen: is not a condition: Failed to parse"),
    (
        team("t", "a", maxTurns=2, terminateWhen="turns > 3"),
        "spec.terminateWhen: is not a condition: 'turns' is not known in a condition; known: contributions, critiques, elapsed, goal, message, round, session, speaker, tokens, turn",
    ),
    (
        team("t", "a", maxTurns=2, terminateWhen="turn + 1"),
        "spec.terminateWhen: is not a condition: returns int, not true or false",
    ),
    (
        team("t", "a", maxTurns=2, terminateWhen="[1, 2].all(x, x > 0)"),
        "spec.terminateWhen: is not a condition: it loops over a list",
    ),
    (team("t", "a", maxTurns=2, terminateWhen="[1][5] == 1"), "spec.terminateWhen: is not a condition: "),
    (team("t", "a", maxTurns=2, terminateWhen="message > 3"), "spec.terminateWhen: is not a condition: "),
]


@pytest.mark.parametrize(("given", "wrong"), WRONG, ids=[wrong[:60] for _, wrong in WRONG])
def test_a_team_that_violates_a_rule_is_refused(tmp_path: Path, given: Json, wrong: str) -> None:
    said = Writer(tmp_path).refusal(*AB, given)
    assert any(wrong in each for each in said), said


@pytest.mark.parametrize(
    "given",
    [
        team("t", "a", "b", strategy="graph", graph=edges("a-b")),
        team("t", "a", "ender", strategy="graph", graph=edges("a-ender", "ender-a")),
        team("t", "a", "b", strategy="graph", graph=edges("b-b")),
        team(
            "t",
            "a",
            "b",
            strategy="graph",
            graph={"edges": [*edges("a-a", when="turn < 3")["edges"], *edges("a-b")["edges"]]},
            maxTurns=9,
        ),
        team("t", "a", "ender", strategy="selector"),
        team("t", "a", "b", strategy="selector", selector={"enableTerminateTool": True}),
        team("t", "a", "a", "ender", strategy="sequential", loops=True),
        team("t", "a", "a", strategy="sequential"),
        team("t", "a", strategy="parallel", aggregator="b", maxConcurrency=1, onMemberError="continue"),
    ],
)
def test_a_team_that_ends_by_itself_needs_no_limit(tmp_path: Path, given: Json) -> None:
    Writer(tmp_path).load(*AB, given)


def test_teams_nested_so_deep_that_temporal_would_refuse_their_ids_are_refused_once(tmp_path: Path) -> None:
    names = [f"{number}-" + "x" * 240 for number in range(5)]
    teams = [team(name, below, strategy="sequential") for name, below in zip(names, [*names[1:], "a"], strict=True)]
    problem = "the innermost team would have a workflow id of 1,047 bytes, and Temporal accepts 1,000"
    (said,) = Writer(tmp_path).refusal(*AB, *teams)
    assert f"Team/default/{names[1]}" in said, "the innermost of the teams that are too long"
    assert "spec.members[0]" in said
    assert problem in said
    Writer(tmp_path).load(*AB, *teams[2:])
