"""Python functions in teams of every strategy: as members, conditions and selectors, with arguments of their types."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

import baton
from tests.harness.environment import Environment, call, line
from tests.harness.manifests import Writer
from tests.starter.test_python_interface import temporal as temporal  # the fixture


class Review(BaseModel):
    """A structured answer."""

    approved: bool
    notes: list[str] = []


@baton.function
def shout(message: str) -> str:
    """Repeats the last message."""
    return message.upper()


@baton.function
async def count(briefing: baton.Briefing) -> str:
    """Counts what was said so far."""
    return f"{len(briefing.transcript)} before {briefing.agent_name}, about {briefing.goal}"


ONE = baton.Agent("one", prompt="You are one.")

VERDICT = '{"verdict": "a wins", "winner": "a", "reasoning": "It is one."}'
JUDGE = baton.Agent("judge", prompt="You are judge.")

STRATEGIES: dict[str, dict[str, Any]] = {
    "sequential": {},
    "round-robin": {"max_rounds": 1, "synthesizer": False},
    "selector": {"selector": lambda briefing: ["one", "count", "shout", None][len(briefing.transcript)]},
    "graph": {"graph": {"edges": [{"from": "one", "to": "count"}, {"from": "count", "to": "shout"}]}, "max_turns": 3},
    "parallel": {},
    "debate": {"synthesizer": False, "max_rounds": 1},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_functions_are_members_in_every_strategy(
    env: Environment, temporal: baton.Connection, strategy: Any
) -> None:
    env.script(line("one", "It is one."), line("judge", VERDICT))
    options = dict(STRATEGIES[strategy])
    if callable(options.get("selector")):
        options["selector"] = baton.function("pick")(options["selector"])
    members: list[Any] = [ONE, count, shout]
    if strategy == "debate":
        members = [{"name": name, "stance": name, "speaker": each} for name, each in zip("abc", members, strict=True)]
        options["judge"] = JUDGE
    team = baton.Team("team", strategy=strategy, members=members, **options)
    handle = await temporal.start(team, "Why?")
    said = [(message.name, message.text) async for message in handle]
    assert (await handle.result()).status.phase == "Completed"
    texts = [text for _, text in said]
    if strategy == "parallel":
        assert sorted(texts) == ["0 before count, about Why?", "It is one.", "WHY?"]
    elif strategy == "debate":
        assert texts[:2] == ["It is one.", "1 before b, about Why?"]
    elif strategy == "round-robin":  # a panel, whose synthesizer speaks at the end
        assert texts[:2] == ["It is one.", "1 before count, about Why?"]
    else:
        assert texts == ["It is one.", "1 before count, about Why?", "1 BEFORE COUNT, ABOUT WHY?"]


async def test_a_selector_that_is_a_function_is_shown_in_the_events(
    env: Environment, temporal: baton.Connection
) -> None:
    @baton.function("pick")
    async def pick(briefing: baton.Briefing) -> str | None:
        return None if briefing.transcript else "one"

    env.script(line("one", "It is one."))
    team = baton.Team("team", strategy="selector", members=[ONE, count], selector=pick)
    handle = await temporal.start(team, "Why?")
    selected = [event async for event in handle.events() if isinstance(event, baton.SpeakerSelectedEvent)]
    assert [(event.speaker, event.how) for event in selected] == [("one", "chosen"), (None, "terminated")]


async def test_a_selector_function_that_names_nobody_fails_the_run_with_the_candidates(
    env: Environment, temporal: baton.Connection
) -> None:
    @baton.function("pick")
    def pick(briefing: baton.Briefing) -> str:
        return "nobody"

    team = baton.Team("team", strategy="selector", members=[ONE, count], selector=pick)
    with pytest.raises(baton.RunFailed, match="'pick' returned 'nobody', not one of one, count or None"):
        await temporal.run(team, "Why?")


@pytest.mark.parametrize("kind", ["model", "text", "facts", "async"])
async def test_an_edge_is_chosen_by_a_function_with_a_typed_argument(
    env: Environment, temporal: baton.Connection, kind: str
) -> None:
    def by_model(review: Review) -> bool:
        return review.approved

    def by_text(message: str) -> bool:
        return "true" in message

    def by_facts(facts: dict[str, Any]) -> bool:
        return bool(facts["value"]["approved"]) and facts["speaker"] == "one"

    async def by_async(review: Review) -> bool:
        return review.approved

    condition = {"model": by_model, "text": by_text, "facts": by_facts, "async": by_async}[kind]
    edges = [{"from": "one", "to": "good", "when": condition}, {"from": "one", "to": "bad"}]
    members = [ONE, baton.Agent("good", prompt="You are good."), baton.Agent("bad", prompt="You are bad.")]
    team = baton.Team("team", strategy="graph", members=members, graph={"edges": edges}, max_turns=5)
    for approved, end in ((True, "good"), (False, "bad")):
        env.script(line("one", json.dumps({"approved": approved})), line("good", "good"), line("bad", "bad"))
        assert (await temporal.run(team, "Why?")).message == end


@pytest.mark.full
@pytest.mark.parametrize("answer", ['{"approved":true,"notes":["a"]}', '{"approved": true, "notes": ["a"]}'])
async def test_a_condition_in_cel_reads_the_structured_value_of_an_answer(
    env: Environment, temporal: baton.Connection, answer: str
) -> None:
    when = 'value.approved && value.notes.exists(note, note == "a")'
    edges = [{"from": "one", "to": "good", "when": when}, {"from": "one", "to": "bad"}]
    members = [ONE, baton.Agent("good", prompt="You are good."), baton.Agent("bad", prompt="You are bad.")]
    team = baton.Team("team", strategy="graph", members=members, graph={"edges": edges}, max_turns=5)
    env.script(line("one", answer), line("good", "good"), line("bad", "bad"))
    assert (await temporal.run(team, "Why?")).message == "good"


async def test_a_text_that_is_no_json_has_an_empty_value(env: Environment, temporal: baton.Connection) -> None:
    edges = [{"from": "one", "to": "good", "when": "has(value.approved)"}, {"from": "one", "to": "bad"}]
    members = [ONE, baton.Agent("good", prompt="You are good."), baton.Agent("bad", prompt="You are bad.")]
    team = baton.Team("team", strategy="graph", members=members, graph={"edges": edges}, max_turns=5)
    env.script(line("one", "yes"), line("good", "good"), line("bad", "bad"))
    assert (await temporal.run(team, "Why?")).message == "bad"


async def test_functions_that_decide_read_nothing_after_a_member_that_said_nothing(
    env: Environment, temporal: baton.Connection
) -> None:
    read: dict[str, list[str]] = {"pick": [], "enough": []}

    def pick(message: str) -> str | None:
        read["pick"].append(message)
        return ("one", "mute", "inner", None)[len(read["pick"]) - 1]

    def enough(message: str) -> bool:
        read["enough"].append(message)
        return False

    @baton.function
    def mute(message: str) -> str:
        return ""

    inner = baton.Team(
        "inner", strategy="sequential", members=[baton.Agent("ends", prompt="You are ends.", tools=["terminate"])]
    )
    env.script(line("one", "one"), line("ends", call("terminate", text="Well.", response="All is said.")))
    members: list[Any] = [ONE, mute, inner]
    team = baton.Team(
        "team", strategy="selector", members=members, selector={"function": pick}, terminate_when=enough, max_turns=9
    )
    await temporal.run(team, "Why?")
    assert read == {"pick": ["", "one", "", "All is said."], "enough": ["one", "", "All is said."]}


@pytest.mark.parametrize("strategy", ["sequential", "selector", "graph", "debate", "round-robin"])
async def test_a_function_ends_a_team_of_every_strategy_that_has_a_condition(
    env: Environment, temporal: baton.Connection, strategy: Any
) -> None:
    read: list[object] = []

    @baton.function("enough")
    async def enough(review: Review) -> bool:
        read.append(review)
        return review.approved

    env.script(line("one", '{"approved": true}'), line("judge", VERDICT))
    options: dict[str, Any] = {"max_turns": 5, "on_max_turns": "complete"}
    members: list[Any] = [ONE, baton.Agent("two", prompt="You are two.")]
    if strategy == "sequential":
        options |= {"loops": True}
    if strategy == "selector":
        options |= {"selector": baton.function("pick")(lambda briefing: "one")}
    if strategy == "graph":
        options |= {"graph": {"edges": [{"from": "one", "to": "two"}]}}
    if strategy == "debate":
        options = {"max_rounds": 2, "judge": JUDGE, "synthesizer": False}
        members = [{"name": name, "stance": name, "speaker": ONE} for name in "ab"]
    if strategy == "round-robin":
        members = [ONE]
    team = baton.Team("team", strategy=strategy, members=members, terminate_when=enough, **options)
    result = await temporal.run(team, "Why?")
    assert result.status.phase == "Completed"
    assert read == [Review(approved=True)]


def test_a_selector_has_a_function_or_a_model(write: Writer) -> None:
    with pytest.raises(baton.ManifestError, match="can't be combined with function"):
        baton.Team("t", strategy="selector", members=[ONE], selector={"function": shout, "model": "gpt-4o"})
