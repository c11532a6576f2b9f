"""Queries that select targets by labels: which are found, in which order, and the error when none is."""

from typing import Any

import pytest

from baton.resources.catalog import Catalog
from baton.resources.problems import ManifestError
from baton.resources.query import Query
from tests.harness.environment import Environment, Json, agent, line, manifest, team
from tests.harness.manifests import Writer, model, query

RED = {"matchLabels": {"colour": "red"}}


def labelled(given: Json, namespace: str = "default", **labels: str) -> Json:
    return {**given, "metadata": {**given["metadata"], "namespace": namespace, "labels": labels}}


def found(catalog: Catalog) -> list[str]:
    asked = catalog.get("Query", "default", "q")
    assert isinstance(asked, Query)
    return [f"{each.kinds[0]}/{each.name}" for each in catalog.targets(asked)]


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": [*values]} if values else {})}]}


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (RED, "r rb"),
        ({"matchLabels": {"colour": "red", "size": "big"}}, "rb"),
        (expression("colour", "In", "blue", "red"), "b r rb"),
        (expression("colour", "NotIn", "red"), "b none"),
        (expression("size", "Exists"), "rb"),
        (expression("size", "DoesNotExist"), "b none r"),
        ({**RED, **expression("size", "DoesNotExist")}, "r"),
    ],
)
def test_a_selector_finds_those_whose_labels_meet_all_it_asks_for(write: Writer, selector: Json, names: str) -> None:
    agents = {
        "none": agent("none"),
        "r": labelled(agent("r"), colour="red"),
        "rb": labelled(agent("rb"), colour="red", size="big"),
        "b": labelled(agent("b"), colour="blue"),
    }
    catalog = write.load(query(selector=selector), *agents.values()).catalog
    assert found(catalog) == [f"Agent/{name}" for name in names.split()]


def test_those_it_finds_come_after_those_it_names_each_once_by_kind_and_name(write: Writer) -> None:
    tool = manifest("Tool", "a", {"type": "http", "http": {"url": "http://host"}})
    brought = [
        labelled(tool, colour="red"),
        labelled(model(), colour="red"),
        labelled(team("t", "z", strategy="sequential"), colour="red"),
        labelled(agent("z"), colour="red"),
        labelled(agent("b"), colour="red"),
        labelled(agent("far"), namespace="elsewhere", colour="red"),
        labelled(manifest("Memory", "talks", {"address": "http://host"}), colour="red"),
    ]
    named = [{"type": "model", "name": "m"}, {"type": "agent", "name": "z"}]
    catalog = write.load(query(targets=named, selector=RED), *brought).catalog
    assert found(catalog) == ["Model/m", "Agent/z", "Agent/b", "Team/t", "Tool/a"]


def test_a_selector_that_finds_nobody_is_reported_and_a_run_of_it_is_refused(write: Writer) -> None:
    loaded = write.load(query(selector=RED), agent("a"))
    (problem,) = loaded.unresolved()
    assert str(problem).endswith(
        "m.yaml:7: Query/default/q: spec.selector: no targets: "
        "no agent, team, model or tool in namespace 'default' has these labels"
    )
    start = loaded.catalog.get("Query", "default", "q")
    assert start
    with pytest.raises(ManifestError, match=r"spec\.selector: no targets"):
        loaded.needed_by(start)


def test_a_run_needs_what_those_need_whom_its_selector_finds(write: Writer) -> None:
    loaded = write.load(query(selector=RED), labelled(agent("a", modelRef={"name": "m"}), colour="red"), model())
    start = loaded.catalog.get("Query", "default", "q")
    assert start
    assert [each.kind for each in loaded.needed_by(start).manifests] == ["Agent", "Model", "Query"]


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        ({}, "spec.selector: needs matchLabels or matchExpressions"),
        ({"matchLabels": {}}, "spec.selector: needs matchLabels or matchExpressions"),
        ({"matchLabels": {"a": 5}}, "spec.selector.matchLabels.a: is a number, must be text"),
        (expression("a", "Is", "b"), "spec.selector.matchExpressions[0].operator: 'Is' is unknown"),
        (expression("a", "In"), "spec.selector.matchExpressions[0].values: is missing: 'In' needs at least one"),
        (expression("a", "Exists", "b"), "spec.selector.matchExpressions[0].values: can't be used with 'Exists'"),
        (expression("", "Exists"), "spec.selector.matchExpressions[0].key: is empty"),
        (
            {"labels": {"a": "b"}},
            "spec.selector.labels: is not a field of LabelSelector; did you mean 'matchLabels'?",
        ),
    ],
)
def test_a_selector_that_can_not_be_meant_so_is_refused(write: Writer, selector: Json, says: str) -> None:
    said = write.refusal(query(selector=selector))
    assert any(says in each for each in said), said


def says_its_name(env: Environment, *names: str) -> list[Json]:
    env.script(*(line(name, f"{name} answers") for name in names))
    return [labelled(agent(name), colour="red") for name in names]


async def test_a_plain_client_asks_by_labels(env: Environment) -> None:
    brought = says_its_name(env, "b", "a", "first")
    duo = labelled(team("duo", "a", "b", strategy="sequential"))
    status = await env.status(await env.start_query([*brought, duo], "agent/first", selector=RED))
    assert status.phase == "Completed", status.error
    assert [(each.target.type, each.target.name, each.message) for each in status.responses] == [
        ("agent", "first", "first answers"),
        ("agent", "a", "a answers"),
        ("agent", "b", "b answers"),
    ]


async def test_a_selected_team_is_run_by_its_strategy(env: Environment) -> None:
    brought = [agent("a"), agent("b"), labelled(team("duo", "a", "b", strategy="sequential"), colour="red")]
    env.script(line("a", "1"), line("b", "2"))
    status = await env.status(await env.start_query(brought, selector=RED))
    assert (status.phase, status.message) == ("Completed", "2")


async def test_a_run_whose_selector_finds_nobody_fails_with_a_sentence(env: Environment) -> None:
    status = await env.status(await env.start_query([agent("a")], selector=RED))
    failure: Any = status.failure
    assert (status.phase, failure.type) == ("Failed", "InvalidManifest")
    assert "Query/default/q: no targets: no agent" in failure.message


async def test_what_is_not_carried_out_is_said_before_what_is_missing(env: Environment) -> None:
    config = manifest("ArkConfig", "default", {"defaultMemory": {"name": "m"}})
    status = await env.status(await env.start_query([config], "agent/a"))
    failure: Any = status.failure
    assert (status.phase, failure.type) == ("Failed", "NotCarriedOut")
    assert failure.message == (
        "ArkConfig/default/default: spec.defaultMemory: defaultMemory is valid but not supported yet: "
        "remove it to run this"
    )
