"""Rules of panels and debates: each violation is refused with its field."""

import pytest

from tests.harness.environment import Json, agent, manifest, team
from tests.harness.manifests import Writer
from tests.harness.panels import debate, panel, role_member

FOR = {"name": "ada", "stance": "Tabs"}
AGAINST = {"name": "bob", "stance": "Spaces"}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (panel(maxRounds=1), "spec.members: is empty; it must be a roster of at least 1 entry {name, type}"),
        (panel(role_member("a"), role_member("a")), "spec.members[1]: duplicate roster name 'a'"),
        (panel({"name": " ", "role": "r"}), "spec.members[0].name: is not a name"),
        (panel({"role": "r"}), "spec.members[0].name: is missing"),
        (panel({"name": "a", "role": ""}), "spec.members[0].role: is empty"),
        (panel(role_member("a"), maxRounds=0), "spec.maxRounds: is 0, must be 1 or more"),
        (panel(role_member("a"), maxRounds=2.5), "spec.maxRounds: is a number, must be a whole number"),
        (panel(role_member("a"), maxRounds=True), "spec.maxRounds: is true or false, must be a whole number"),
        (panel(role_member("a"), maxRounds="3"), "spec.maxRounds: is text, must be a whole number"),
        (
            panel(role_member("a"), maxRounds=2, maxTurns=2),
            "spec.maxTurns: can't be combined with the fields of a panel",
        ),
        (
            panel(role_member("a"), synthesizer=False, outputSchema={"type": "object"}),
            "spec.outputSchema: cannot be set when synthesizer: false",
        ),
        (panel(role_member("a"), outputSchema={"type": "thing"}), "spec.outputSchema: is not a JSON Schema"),
        (panel(role_member("a"), roster=[]), "spec.roster: is not a field of Team; write members"),
        (
            panel({"name": "a", "block": "b"}),
            "spec.members[0].block: is not a field of Member; write type and name: an",
        ),
        (
            panel(role_member("a"), accessorKey="b"),
            "spec.accessorKey: is not a field of Team; write contributions: {key",
        ),
        (panel(role_member("a"), collectionId="b"), "spec.collectionId: is not a field of Team; write audit"),
        (panel(role_member("a"), maxRonds=2), "spec.maxRonds: is not a field of Team; did you mean 'maxRounds'?"),
        (
            panel(role_member("a"), terminateWhen="rounds > 2"),
            "spec.terminateWhen: is not a condition: 'rounds' is not known",
        ),
        (
            panel(role_member("a"), terminateWhen={"functon": "x"}),
            "spec.terminateWhen.functon: is not a field of FunctionRef",
        ),
        (panel(role_member("a"), terminateWhen=3), "spec.terminateWhen: is a number, must be text"),
        (
            panel(role_member("a"), terminateWhen="critiques.all(a, critiques.all(b, critiques.all(c, true)))"),
            "spec.terminateWhen: loops over lists more than 2 times",
        ),
        (
            panel(role_member("a"), referee={"nam": "x"}),
            "spec.referee.nam: is not a field of Speaker; did you mean 'name'?",
        ),
        (
            panel(role_member("a"), moderator=True),
            "spec.moderator: can't be used with the strategy 'round-robin', only with debate",
        ),
        (panel({"name": "a", "stance": "s"}, maxRounds=1), "spec.members[0].stance: can't be used in a panel"),
        (
            panel(role_member("a"), prompts={"member": "{{.Nme}}"}),
            "spec.prompts.member: unknown name 'Nme'",
        ),
        (panel(role_member("a"), context=[{"name": "x"}]), "spec.context[0]: needs either value or valueFrom"),
        (debate(FOR), "spec.members: must contain at least 2 entries"),
        (debate(FOR, {"name": "bob"}), "spec.members[1].stance: is missing: debater 'bob' needs a non-empty stance"),
        (debate(FOR, {"name": "bob", "stance": "  "}), "debater 'bob' needs a non-empty stance"),
        (debate(FOR, FOR), "duplicate roster name 'ada'"),
        (debate(FOR, AGAINST, moderator=False), "spec.moderator: can't be false"),
        (debate(FOR, AGAINST, judge=False), "spec.judge: can't be false"),
        (
            debate(FOR, AGAINST, referee=True),
            "spec.referee: can't be used with the strategy 'debate', only with round-robin",
        ),
        (debate(FOR, AGAINST, maxTurns=3), "spec.maxTurns"),
        (
            team("panel", "x", strategy="sequential", maxRounds=2),
            "spec.maxRounds: can't be used with the strategy 'sequential'",
        ),
    ],
)
def test_a_violation_of_a_rule_is_refused(write: Writer, wrong: Json, problem: str) -> None:
    problems = write.refusal(wrong)
    assert any(problem in each for each in problems), problems


def test_members_of_other_strategies_have_no_roles(write: Writer) -> None:
    wrong = manifest("Team", "t", {"strategy": "sequential", "members": [{"name": "a", "role": "r"}]})
    assert (
        "spec.members[0].role: can't be used with the strategy 'sequential', only in a panel"
        in write.refusal(wrong, agent("a"))[0]
    )


@pytest.mark.parametrize(
    ("start", "missing"),
    [
        (panel("a", maxRounds=1), []),
        (panel({"name": "a", "type": "agent"}, maxRounds=1), ["Agent default/a"]),
        (panel(role_member("a"), referee="strict"), ["Agent or Team default/strict"]),
        (panel(role_member("a"), uses=["maths"]), ["Capability default/maths"]),
        (panel(role_member("a"), tools=[{"name": "weather"}]), ["Tool default/weather"]),
        (team("panel", "a", maxTurns=1), ["Agent or Team default/a"]),
    ],
)
def test_only_members_of_a_panel_can_have_no_manifest(write: Writer, start: Json, missing: list[str]) -> None:
    catalog = write.load(start).catalog
    assert [str(each.reference) for each in catalog.needed_by(catalog.manifests[0])[1]] == missing


@pytest.mark.parametrize("condition", ["contributions[3].text == 'done'", "critiques[size(critiques) - 1].round == 2"])
def test_a_condition_can_use_lists_that_are_still_empty(write: Writer, condition: str) -> None:
    assert write.load(panel(role_member("a"), terminateWhen=condition)).catalog.manifests
