"""Python functions as tools of agents: their schema, their results, and what a model reads of their errors."""

import json
import re
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from temporalio.client import Client

import baton
from tests.harness.environment import Environment, agent, call, line, manifest


class Stay(BaseModel):
    nights: int
    since: date


def book(city: str, stay: Stay, name: str = "Ada", rooms: Annotated[int, Field(ge=1)] = 1) -> dict[str, Any]:
    """Books a hotel.

    Args:
        city: Where to
            stay.
        name (str): For whom.

    Returns:
        The booking.
    """
    assert isinstance(stay, Stay)
    return {"city": city, "until": stay.since.replace(day=stay.since.day + stay.nights), "for": name, "rooms": rooms}


async def fail_late(thing: str) -> str:
    raise LookupError(f"no {thing}")


@baton.tool("say-hello")
def hello() -> str:
    return "Hello."


STAY = {"nights": 2, "since": "2026-11-20"}


async def messages(
    client: Client, tmp: Any, functions: list[Any], tools: list[Any], *says: Any
) -> tuple[Environment, list[str]]:
    """What is said by an agent with tools that are functions."""
    one = baton.Agent("one", prompt="You are one.", tools=tools)
    async with Environment.running(client, tmp, functions=functions or one.functions()) as env:
        env.script(line("one", *says, "Done."))
        brought = [each.manifest for each in one.with_dependencies()]
        turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "?", "resources": brought}))
        return env, [each.content for each in turn.messages]


@pytest.mark.full
async def test_a_function_is_a_tool_with_the_schema_of_its_signature_and_docstring(
    client: Client, tmp_path: Any
) -> None:
    env, said = await messages(client, tmp_path, [], [book], call("book", city="Rome", stay=STAY))
    assert json.loads(said[1]) == {"city": "Rome", "until": "2026-11-22", "for": "Ada", "rooms": 1}
    (sent,) = env.model.requests[0].body["tools"]
    assert sent["function"]["description"] == "Books a hotel."
    schema = sent["function"]["parameters"]
    assert schema["required"] == ["city", "stay"]
    assert schema["properties"]["city"] == {"type": "string", "title": "City", "description": "Where to stay."}
    assert schema["properties"]["name"]["description"] == "For whom."
    assert schema["properties"]["rooms"]["minimum"] == 1


@pytest.mark.full
async def test_arguments_that_do_not_fit_are_told_and_the_function_is_not_called(client: Client, tmp_path: Any) -> None:
    wrong = call("book", city="Rome", stay={"nights": 2, "since": "yesterday"})
    _, said = await messages(client, tmp_path, [], [book], call("book", stay=STAY), wrong)
    assert said[1].startswith("Error: the arguments of book don't match its schema: $: 'city' is a required property")
    assert said[3].startswith("Error: the arguments of book don't match the function: stay.since: ")


async def test_an_exception_of_a_function_is_told_to_the_model_with_its_place(client: Client, tmp_path: Any) -> None:
    _, said = await messages(client, tmp_path, [], [fail_late], call("fail-late", thing="such thing"))
    place = r" \(test_function_tools.py:\d+, in fail_late\)"
    assert re.fullmatch(f"Error: the function 'fail-late' failed: LookupError: no such thing{place}", said[1])


async def test_a_marked_function_can_be_named_in_a_manifest_that_says_no_more(client: Client, tmp_path: Any) -> None:
    async with Environment.running(client, tmp_path, functions=[hello]) as env:
        env.script(line("one", call("greet"), "Done."))
        greet = manifest("Tool", "greet", {"type": "function", "function": {"name": "say-hello"}})
        one = agent("one", tools=[{"name": "greet", "type": "function"}])
        turn = await env.turn_result(
            await env.start("agent", {"agent": "one", "input": "?", "resources": [one, greet]})
        )
    assert [each.content for each in turn.messages] == ["", "Hello.", "Done."]


def test_a_function_whose_arguments_have_no_names_is_refused() -> None:
    def many(*words: str) -> str:
        return ""

    with pytest.raises(TypeError, match=r"the argument \*words.* can't be passed by name"):
        baton.Agent("one", prompt="You are one.", tools=[many])
