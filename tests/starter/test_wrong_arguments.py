"""Wrong arguments in the Python interface: each is refused with a sentence that names it and what it must be."""

import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

import baton
from baton.starter.api.client import query_for
from baton.starter.api.content import input_fields


class Other:
    """Something that is no part of any manifest."""


async def coroutine() -> None:
    """Is never awaited."""


WRONG: dict[str, Callable[[], object]] = {
    "a number": lambda: 5,
    "a mapping": lambda: {"name": Other()},
    "a list": lambda: [1],
    "a class": lambda: Other,
    "an object": Other,
    "a coroutine": coroutine,
}
AGENT = baton.Agent("a", prompt="p")
CALLS: dict[str, Callable[[Any], object]] = {
    "Agent name": lambda v: baton.Agent(v, prompt="p"),
    "Agent prompt": lambda v: baton.Agent("a", prompt=v),
    "Agent tools": lambda v: baton.Agent("a", prompt="p", tools=v),
    "Agent tool": lambda v: baton.Agent("a", prompt="p", tools=[v]),
    "Agent parameter": lambda v: baton.Agent("a", prompt="p", parameters={"k": v}),
    "Team strategy": lambda v: baton.Team("t", strategy=v, members=[AGENT]),
    "Team members": lambda v: baton.Team("t", strategy="sequential", members=v),
    "Team member": lambda v: baton.Team("t", strategy="sequential", members=[v]),
    "Model provider": lambda v: baton.Model("m", model="x", provider=v),
    "Query targets": lambda v: baton.Query("q", "x", targets=v),
    "Query target": lambda v: baton.Query("q", "x", targets=[v]),
    "Query timeout": lambda v: baton.Query("q", "x", targets=[AGENT], timeout=v),
    "Manifest kind": lambda v: baton.Manifest(v, "n", {}),
    "round_robin roster": lambda v: baton.round_robin("p", v),
    "round_robin speaker": lambda v: baton.round_robin("p", [baton.Member("x", speaker=v)]),
    "debate debaters": lambda v: baton.debate("d", v),
    "referee team": lambda v: baton.referee(team=v),
    "connect address": lambda v: baton.connect(v),
}
RUNS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "run target": lambda v: baton.run(v, "x"),
    "run input": lambda v: baton.run(AGENT, v),
    "run id": lambda v: baton.run(AGENT, "x", id=v),
    "run parameters": lambda v: baton.run(AGENT, "x", parameters={"k": v}),
    "run resources": lambda v: baton.run(AGENT, "x", resources=[v]),
    "run functions": lambda v: baton.run(AGENT, "x", functions=v),
    "start target": lambda v: baton.start(v, "x"),
    "attach name": lambda v: baton.attach(v),
    "contributions session": lambda v: baton.contributions(v),
}
OF_PYTHON = "object is not", "has no attribute", "serialize", "unhashable", "expected str", "AssertionError"


@pytest.fixture(params=WRONG)
def given(request: pytest.FixtureRequest) -> Iterator[object]:
    """A value that is wrong everywhere."""
    value = WRONG[request.param]()
    yield value
    if isinstance(value, Coroutine):
        value.close()


def check_sentence(error: BaseException) -> None:
    assert not any(each in str(error) for each in OF_PYTHON), error
    assert any(each in str(error) for each in (" is ", " are ", "must ")), error


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_is_refused_with_a_sentence(call: str, given: object) -> None:
    with pytest.raises((TypeError, baton.ManifestError)) as caught:
        CALLS[call](given)
    check_sentence(caught.value)


@pytest.mark.parametrize("call", RUNS)
async def test_a_wrong_argument_of_a_run_is_refused_before_anything_is_started(call: str, given: object) -> None:
    with pytest.raises((TypeError, baton.ManifestError)) as caught:
        await RUNS[call](given)
    check_sentence(caught.value)


def test_a_sentence_names_the_argument_or_the_field_of_the_manifest() -> None:
    with pytest.raises(TypeError, match=r"targets\[0\] is a number, must be one of agents, teams, models, Manifests"):
        baton.Query("q", "x", targets=[7])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"spec.session.now is of the type Other, which a manifest can't contain"):
        baton.round_robin("p", ["a"], session={"now": Other()})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"context takes a text or values, no function; .* instructions="):
        baton.round_robin("p", ["a"], context=lambda: "now")  # type: ignore[call-overload]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_refused(number: float) -> None:
    with pytest.raises(TypeError, match=rf"session.rates\[1\] is {number}, which a manifest can't contain"):
        query_for(AGENT, "Why?", {"session": {"rates": [1.5, number]}})
    with pytest.raises(TypeError, match=rf"spec.session.rate is {number}, which"):
        baton.round_robin("p", ["a"], session={"rate": number})
    with pytest.raises(TypeError, match="input can't be written as JSON"):
        query_for(AGENT, {"rate": number}, {})


def test_the_names_of_the_round_robin_pattern_are_pointed_to_ours() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'collection_id'; write audit"):
        baton.round_robin("p", ["a"], collection_id="x")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="block is called speaker here"):
        baton.round_robin("p", [{"name": "a", "block": AGENT}])


def test_an_input_is_a_text_or_a_mapping() -> None:
    """The field ``goal`` alone is the text itself; other mappings are JSON."""
    assert input_fields("Why?") == {"input": "Why?"}
    assert input_fields({"goal": "Review it"}) == {"input": "Review it"}
    assert input_fields({"goal": "x", "n": 1}) == {"input": '{"goal": "x", "n": 1}'}
    asked = query_for(baton.Agent("poet", prompt="You write."), {"goal": "Review it"}, {})
    assert '"input": "Review it"' in json.dumps(asked.manifest)
