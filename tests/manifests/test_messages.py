"""The sentences about mistakes in manifests: each mistake once, in plain words, with a hint."""

import pytest

from tests.harness.environment import Json, agent, manifest, team
from tests.harness.manifests import Writer, model, query

HTTP = {"type": "http", "http": {"url": "http://host", "method": "get"}}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (team("t", maxTurns=1, members=["one"]), "spec.members[0]: is text, must be a mapping"),
        (agent("a", tools=[{"name": "termnate", "type": "built-in"}]), "did you mean 'terminate'?"),
        (manifest("Tool", "t", HTTP), "spec.http.method: 'get' is unknown; did you mean 'GET'?"),
        (
            model() | {"spec": {"type": "opnai", "model": {"value": "x"}}},
            "spec.type: 'opnai' is unknown; did",
        ),
        (team("t", "a", maxTurns=-3), "spec.maxTurns: is -3, must be 1 or more"),
        (team("t", "a", maxTurns=1, context={"a": "b"}), "spec.context: is a mapping, must be text or a list"),
        (query(targets=[{"type": ["agent"], "name": "a"}]), "is a list, must be agent or team or model or tool"),
    ],
    ids=["one-entry", "built-in", "method", "type", "limit", "shape", "word"],
)
def test_a_mistake_is_one_sentence_in_plain_words(write: Writer, given: Json, sentence: str) -> None:
    [problem] = write.refusal(given)
    assert sentence in problem


def test_a_tool_that_is_not_in_the_files_has_a_near_match_among_the_built_in_ones(write: Writer) -> None:
    [problem] = write.load(agent("a", "calculater")).unresolved()
    assert str(problem).endswith("Tool default/calculater is not in the files; did you mean 'calculator'?")


def test_a_reference_of_the_wrong_kind_says_what_there_is(write: Writer) -> None:
    (problem,) = write.load(agent("a"), query(targets=[{"type": "team", "name": "a"}])).unresolved()
    assert str(problem).endswith("spec.targets[0].name: Team default/a is not in the files; there is Agent default/a")
