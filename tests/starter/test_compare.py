"""`baton compare`: one question, or cases, through several models, prompts and teams."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from pydantic_evals import Case, Dataset

import baton
from baton.evaluation import AgentJudge
from baton.starter.evaluation.comparison import ComparedVariant, Estimate
from baton.starter.evaluation.plot import plot
from baton.testing import Reply, Request
from tests.harness.environment import Environment, agent, manifest, team
from tests.harness.user_machine import UserMachine
from tests.starter.test_evaluation import SHOUTER, connection, dataset, shout

GRADES = {"small": 0.25, "large": 1.0, "You are kind.": 0.5, "one": 0.75}
"""What the judge thinks of answers, by what is in them."""


def answer(request: Request) -> Reply:
    """Answers with the model and the prompt; a judge is told both in the answer."""
    messages = request["messages"]
    if messages[0]["content"].startswith("You judge"):
        judged = messages[-1]["content"].partition("<Answer>")[2]
        score = next(grade for word, grade in GRADES.items() if word in judged)
        return Reply(text=json.dumps({"reason": "so", "passed": score > 0.3, "score": score}))
    return Reply(text=f"{request['model']} as {messages[0]['content']}")


def write_variants(folder: Path, **changes: Any) -> Path:
    variants: list[dict[str, Any]] = [
        {"name": "small", "model": "small"},
        {"name": "large", "model": "large"},
        {"name": "kind", "prompt": "You are kind."},
        {"name": "pair", "target": "team/pair", "set": {"agent/two": {"prompt": "You are one."}}},
    ]
    content = {
        "question": "Why?",
        "target": "agent/one",
        "files": ["team.yaml"],
        "judge": {"rubric": "Is it good?"},
        "times": 3,
        "variants": variants,
    }
    file = folder / "variants.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in {**content, **changes}.items() if value is not None}))
    return file


def write_team(machine: UserMachine) -> None:
    pair = team("pair", "one", "two", strategy="sequential")
    machine.write(agent("one"), agent("two"), pair)


def texts_of(drawing: str) -> set[str | None]:
    return {element.text for element in ElementTree.fromstring(drawing).iter() if element.tag.endswith("text")}


@pytest.mark.slow
def test_models_prompts_and_teams_are_compared_in_a_table_and_a_plot(machine: UserMachine) -> None:
    machine.model._answer = answer
    write_team(machine)
    file = write_variants(machine.folder)
    done = machine.run("compare", "-f", file, "--id", "first", "--plot", "plot.svg")
    assert done.returncode == 0
    header, *rows = done.stdout.splitlines()
    assert re.split(r"  +", header.strip()) == ["VARIANT", "RUNS", "QUALITY", "TOKENS", "SECONDS", "STOPPED"] or (
        header.split()[:3] == ["VARIANT", "RUNS", "QUALITY"]
    )
    assert [row.split()[:2] for row in rows] == [["small", "3"], ["large", "3"], ["kind", "3"], ["pair", "3"]]
    paid = len(machine.model.requests)
    assert paid == 3 * (2 + 2 + 2 + 3), "each run and its judge"
    again = machine.run("compare", "-f", file, "--id", "first", "-o", "json")
    assert len(machine.model.requests) == paid, "the same comparison goes on, and is paid for once"
    found = {one["name"]: one for one in json.loads(again.stdout)["variants"]}
    assert {name: round(one["evaluations"]["judge_score"]["mean"], 2) for name, one in found.items()} == {
        "small": 0.25,
        "large": 1.0,
        "kind": 0.5,
        "pair": 0.75,
    }
    assert found["small"]["evaluations"]["judge_passed"]["mean"] == 0
    assert found["large"]["stop_reasons"] == {"completed": 3}
    assert found["pair"]["tokens"]["mean"] > found["large"]["tokens"]["mean"]
    texts = texts_of((machine.folder / "plot.svg").read_text())
    assert {"small", "large", "kind", "pair", "tokens a run", "quality"} <= texts


@pytest.mark.slow
def test_a_variant_that_fails_is_shown_and_the_exit_code_is_2(machine: UserMachine) -> None:
    machine.model._answer = lambda request: Reply(status=400) if request["model"] == "small" else answer(request)
    write_team(machine)
    file = write_variants(machine.folder, times=2)
    done = machine.run("compare", "-f", file, "-o", "json", "--plot", "plot.svg")
    assert done.returncode == 2
    small, large, *_ = json.loads(done.stdout)["variants"]
    assert (small["failed"], small["stop_reasons"]) == (2, {"failed": 2})
    assert small["quality"]["mean"] == 0
    assert large["failed"] == 0
    assert {"small (no run has completed)", "large"} <= texts_of((machine.folder / "plot.svg").read_text())


def test_mistakes_in_a_file_of_variants_are_named_before_anything_is_paid_for(machine: UserMachine) -> None:
    write_team(machine)
    for changes, told in (
        ({"question": None}, "needs either a question or cases"),
        ({"files": [], "variants": [{"name": "a", "model": "x"}]}, "has a model that could be x"),
        ({"variants": [{"name": "a"}, {"name": "a"}]}, "two variants have the name 'a'"),
        ({"variants": [{"name": "a", "set": {"agent/three": {"prompt": "x"}}}]}, "the files have no agent/three"),
        ({"variants": [{"name": "a", "target": "team/pair", "prompt": "x"}]}, "a prompt is for a target agent/NAME"),
        ({"variants": [{"name": "a", "colour": "red"}]}, "variants.0.colour"),
    ):
        done = machine.run("compare", "-f", write_variants(machine.folder, **changes))
        assert done.returncode == 1
        assert told in " ".join(done.stderr.split())
    done = machine.run("compare", "-f", write_variants(machine.folder), "--plot", ".")
    assert (done.returncode, ". can't be written" in done.stderr) == (1, True)
    assert machine.model.requests == []


@pytest.mark.full
async def test_a_program_compares_definitions_and_costs_are_known_from_prices(env: Environment) -> None:
    env.answer = shout
    priced = baton.Model("priced", model="gpt-4", pricing={"input": 10, "output": 20}, base_url=env.model_url)
    dear = baton.Agent("dear", prompt="You are dear.", model=priced)
    async with connection(env) as opened:
        variants = {"cheap": SHOUTER, "dear": dear}
        found = await baton.compare(dataset("a", "b"), variants, id="programs", times=2, connection=opened)
    cheap, expensive = found.variants
    assert cheap.cost is None
    assert expensive.cost
    assert expensive.cost.mean > 0
    assert (cheap.runs, cheap.quality and cheap.quality.mean) == (4, 1.0)


CREW = [agent("clerk"), agent("writer"), team("crew", "clerk", "writer", strategy="sequential")]


def judge_of(asked: list[str]) -> Callable[[Request], Reply]:
    """Answers with the prompt; a judge of it likes kind ones, and keeps what it was ``asked``."""

    def answer_or_judge(request: Request) -> Reply:
        first, *_, last = request["messages"]
        if not first["content"].startswith("You judge"):
            return Reply(text=f"{first['content']} {last['content']}"[:60])
        asked.append(last["content"])
        score = 1.0 if "kind" in last["content"].partition("<Answer>")[2] else 0.25
        return Reply(text=json.dumps({"reason": "so", "passed": score > 0.3, "score": score}))

    return answer_or_judge


@pytest.mark.slow
async def test_forks_of_a_run_are_compared_and_what_was_before_the_turn_is_not_paid_for_again(env: Environment) -> None:
    asked: list[str] = []
    env.answer = judge_of(asked)
    first = await env.start_query(CREW, "team/crew", input="Why?")
    original = await env.status(first)
    cases = Dataset[Any, Any, Any](name="forks", cases=[Case(inputs=None)], evaluators=[AgentJudge("Is it good?")])
    kind = baton.Agent("writer", prompt="You are kind.")
    async with connection(env) as opened:
        compare = partial(baton.compare, cases, {"as it is": (), "kind": kind}, run=first.id, at="1", id="forks")
        found = await compare(times=1, connection=opened)
        plain, changed = found.variants
        assert (plain.target, plain.runs, plain.failed) == (f"{first.id} at 1", 1, 0)
        assert (plain.quality and plain.quality.mean, changed.quality and changed.quality.mean) == (0.125, 1.0)
        paid = len(env.model.requests)
        assert paid == 2 + 2 * 2, "the run, and for each fork the writer and the judge"
        assert plain.tokens
        assert plain.tokens.mean < original.token_usage.total_tokens, "tokens of the clerk are not those of the forks"
        assert all("<Question>\nWhy?\n" in text for text in asked)
        again = await compare(times=3, connection=opened)
        assert [one.runs for one in again.variants] == [3, 3]
        assert len(env.model.requests) == paid + 2 * 2 * 2, "the forks that exist are not paid for again"
        said = Dataset[Any, Any, Any](name="forks", cases=[Case(inputs="Be brief.")])
        await baton.compare(said, {"as it is": ()}, run=first.id, at="1", id="forks", connection=opened)
        assert env.model.requests[-1].body["messages"][-1]["content"] == "Be brief."


@pytest.mark.full
async def test_forks_that_are_not_possible_are_refused_before_anything_is_paid_for(env: Environment) -> None:
    env.answer = shout
    first = await env.start_query(CREW, "team/crew")
    await env.status(first)
    paid = len(env.model.requests)
    cases = Dataset[Any, Any, Any](name="forks", cases=[Case(inputs=None)])
    async with connection(env) as opened:
        compare = partial(baton.compare, cases, connection=opened)
        with pytest.raises(baton.NotForkedError, match="there is no turn '7'"):
            await compare({"as it is": ()}, run=first.id, at="7")
        with pytest.raises(baton.NotForkedError, match="has not failed: name a turn"):
            await compare({"as it is": ()}, run=first.id)
        with pytest.raises(TypeError, match="variant other: a fork keeps the targets of its run"):
            await compare({"other": "team/other"}, run=first.id, at="1")
        with pytest.raises(TypeError, match="a fork keeps the timeout of its run"):
            await compare({"as it is": ()}, run=first.id, at="1", timeout="5m")
        with pytest.raises(TypeError, match="pass the run as well"):
            await compare({"as it is": "team/crew"}, at="1")
        with pytest.raises(TypeError, match="inputs"):
            await baton.compare(
                Dataset[Any, Any, Any](name="forks", cases=[Case(inputs=5)]),
                {"as it is": ()},
                run=first.id,
                at="1",
                connection=opened,
            )
        assert len(env.model.requests) == paid
        other = baton.Team("crew", members=[baton.Agent("writer", prompt="You write.")], strategy="sequential")
        (moved,) = (await compare({"moved": other}, run=first.id, at="1")).variants
    assert moved.stop_reasons == {"failed": 1}
    assert "clerk has spoken, or is to speak, as member 1 of team crew" in moved.errors[0]
    assert len(env.model.requests) == paid


@pytest.mark.slow
def test_the_variants_of_a_file_are_forks_of_its_run(machine: UserMachine) -> None:
    asked: list[str] = []
    machine.model._answer = judge_of(asked)
    machine.write(*CREW)
    assert machine.run("run", "-f", "team.yaml", "team/crew", "Why?", "--id", "why").returncode == 0
    variants: list[dict[str, Any]] = [
        {"name": "as it is"},
        {"name": "kind", "set": {"agent/writer": {"prompt": "You are kind."}}},
    ]
    settings = {"question": None, "run": "why", "target": "team/crew", "times": 2, "variants": variants}
    file = write_variants(machine.folder, **settings)
    done = machine.run("compare", "-f", file, "--at", "1", "--id", "forks", "--plot", "plot.svg", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["variants"]}
    assert {name: (one["runs"], one["quality"]["mean"]) for name, one in found.items()} == {
        "as it is": (2, 0.125),
        "kind": (2, 1.0),
    }
    assert len(machine.model.requests) == 2 + 2 * 2 * 2
    assert (machine.folder / "plot.svg").exists()
    listed = machine.run("list", "--forks", "why")
    assert listed.stdout.count("forks-kind-fork-") == 2
    for more, arguments, told in (
        ({"run": None, "question": "Why?"}, ("--at", "1"), "at is a place in a run, and the file has no run"),
        (
            {"target": "team/pair"},
            ("--at", "1"),
            "keeps the targets of its run, team/crew: team/pair is not one of them",
        ),
        ({}, ("--at", "9"), "there is no turn '9'"),
        ({}, ("--at", "1", "--timeout", "5m"), "a fork keeps the timeout of its run"),
    ):
        refused = machine.run("compare", "-f", write_variants(machine.folder, **{**settings, **more}), *arguments)
        assert refused.returncode == 1, refused.stderr
        assert told in " ".join(refused.stderr.split())
    assert len(machine.model.requests) == 2 + 2 * 2 * 2


def test_a_plot_has_a_point_for_each_variant_with_quality_and_stays_within_its_bounds() -> None:
    def variant(name: str, quality: float | None, cost: float) -> ComparedVariant:
        estimate = Estimate(mean=cost, low=cost / 2, high=cost * 2, values=3)
        judged = None if quality is None else Estimate(mean=quality, low=quality - 0.2, high=quality + 0.2, values=3)
        return ComparedVariant(
            name=name,
            target="agent/a",
            runs=3,
            failed=0,
            quality=judged,
            cost=estimate,
            tokens=estimate,
            seconds=estimate,
            stop_reasons={},
            evaluations={},
        )

    drawing = ElementTree.fromstring(
        plot([variant("<a>", 0.9, 0.002), variant("b", 0.9, 0.002), variant("c", None, 1)])
    )
    circles = [element for element in drawing.iter() if element.tag.endswith("circle")]
    assert len(circles) == 2
    for element in drawing.iter():
        for name in ("x1", "x2", "cx"):
            assert 0 <= float(element.get(name, 0)) <= 640
        for name in ("y1", "y2", "cy"):
            assert 0 <= float(element.get(name, 0)) <= 420
    labels = [float(one.get("y", 0)) for one in drawing.iter() if one.text in ("<a>", "b")]
    assert abs(labels[0] - labels[1]) >= 14, "labels don't cover each other"
    assert plot([]).startswith("<svg")


def test_the_model_of_a_variant_is_that_of_default_members_and_selectors(machine: UserMachine) -> None:
    machine.model._answer = lambda request: Reply(text=f"one {request['model']}")
    machine.write(
        team("panel", "one", synthesizer=False, maxRounds=1, model={"name": "large"}),
        team("pair", "two", "three", strategy="selector", maxTurns=2, onMaxTurns="complete"),
        agent("two"),
        agent("three"),
    )
    for target in ("team/panel", "team/pair"):
        variants = [{"name": "other", "model": "other"}]
        file = write_variants(machine.folder, target=target, judge=None, variants=variants, times=1)
        asked = len(machine.model.requests)
        assert machine.run("compare", "-f", file).returncode == 0
        assert {request.body["model"] for request in machine.model.requests[asked:]} == {"other"}


def test_a_model_of_a_variant_that_its_target_does_not_call_is_refused(machine: UserMachine) -> None:
    people = {"strategy": "sequential", "members": [{"name": "ann", "type": "human"}]}
    machine.write(agent("judge"), manifest("Team", "crowd", people))
    for target in ("team/crowd", "team/of-workers"):
        variants = [{"name": "other", "model": "other"}]
        done = machine.run("compare", "-f", write_variants(machine.folder, target=target, variants=variants))
        assert (done.returncode, "has a model that could be other" in " ".join(done.stderr.split())) == (1, True)
    assert machine.model.requests == []


@pytest.mark.full
def test_manifests_of_a_variant_replace_common_ones(machine: UserMachine) -> None:
    machine.model._answer = answer
    write_team(machine)
    machine.write(manifest("Agent", "one", {"prompt": "You are kind."}), name="kind.yaml")
    variants = [{"name": "other", "files": ["kind.yaml"]}]
    done = machine.run("compare", "-f", write_variants(machine.folder, variants=variants, times=1), "-o", "json")
    (other,) = json.loads(done.stdout)["variants"]
    assert other["evaluations"]["judge_score"]["mean"] == 0.5
