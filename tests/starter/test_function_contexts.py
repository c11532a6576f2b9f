"""What functions of a program get besides their arguments, which callables may be functions, and what is logged."""

import asyncio
import functools
import logging
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import workflow

import baton
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import KEY, Environment, call, line
from tests.starter.test_python_interface import temporal as temporal  # the fixture


def asks(*tools: Any, **options: Any) -> baton.Agent:
    """An agent with functions as its tools."""
    return baton.Agent("one", prompt="You are one.", tools=tools, **options)


def results(env: Environment) -> list[str]:
    """The results of tools that the model has read last."""
    messages = env.model.requests[-1].body["messages"]
    return [message["content"] for message in messages if message["role"] == "tool"]


async def test_a_tool_gets_its_context_and_the_model_does_not_see_it(
    env: Environment, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.worker_env.items():
        monkeypatch.setenv(name, value)
    contexts: list[baton.Context] = []

    @baton.tool
    async def look_up(context: baton.Context, word: str) -> str:
        """Looks a word up."""
        contexts.append(context)
        return word

    pool = object()
    env.script(line("one", call("look-up", word="why"), call("look-up", word="how"), "done"))
    async with baton.connect(server.address, task_queue=env.task_queue, dependencies=pool) as connection:
        handle = await connection.start(asks(look_up), "Why?", session={"user": "Ada"})
        assert (await handle.result()).message == "done"
    first, second = contexts
    assert (first.run, first.speaker, first.turn) == (handle.id, "one", 1)
    assert first.session == {"user": "Ada"}
    assert first.dependencies is pool
    assert first.idempotency_key != second.idempotency_key
    (tool,) = env.model.requests[0].body["tools"]
    assert [*tool["function"]["parameters"]["properties"]] == ["word"]


async def test_every_attempt_of_a_call_has_the_same_idempotency_key(
    env: Environment, temporal: baton.Connection
) -> None:
    keys: list[str] = []

    @baton.tool(on_error="retry")
    def look_up(context: baton.Context) -> str:
        """Looks it up."""
        keys.append(context.idempotency_key)
        if len(keys) == 1:
            raise OSError("try again")
        return "found"

    env.script(line("one", call("look-up"), "done"))
    assert (await temporal.run(asks(look_up), "Why?")).message == "done"
    assert len(keys) == 2
    assert len({*keys}) == 1


async def test_a_member_and_a_condition_get_their_context(env: Environment, temporal: baton.Connection) -> None:
    seen: list[tuple[str, int | None, Any]] = []

    @baton.function
    def writer(briefing: baton.Briefing, context: baton.Context) -> str:
        seen.append((context.speaker, context.turn, context.session["user"]))
        return briefing.goal

    @baton.function
    def only(context: baton.Context) -> str:
        seen.append((context.speaker, context.turn, context.session["user"]))
        return "only"

    @baton.function
    def enough(message: str, context: baton.Context) -> bool:
        seen.append((context.speaker, context.turn, context.session["user"]))
        return False

    team = baton.Team("team", strategy="sequential", members=[writer, only], terminate_when=enough)
    await temporal.run(team, "Why?", session={"user": "Ada"})
    assert seen == [("writer", 1, "Ada"), ("team", 1, "Ada"), ("only", 2, "Ada"), ("team", 2, "Ada")]


async def test_a_decorated_tool_says_what_a_manifest_can_say(env: Environment, temporal: baton.Connection) -> None:
    @baton.tool(
        name="pay-out",
        description="Pays.",
        approval={"timeout": "1h", "argument_matches": [{"argument": "amount", "pattern": "^[0-9]{4,}$"}]},
        on_error="fail",
        timeout="30s",
    )
    def pay(amount: int) -> str:
        return f"paid {amount}"

    agent = asks(pay)
    (tool,) = [each.manifest for each in agent.with_dependencies() if each.kind == "Tool"]
    assert tool["spec"] == {
        "type": "function",
        "function": {"name": "pay-out"},
        "description": "Pays.",
        "approval": {"timeout": "1h", "argumentMatches": [{"argument": "amount", "pattern": "^[0-9]{4,}$"}]},
        "timeout": "30s",
        "inputSchema": {
            "type": "object",
            "properties": {"amount": {"title": "Amount", "type": "integer"}},
            "required": ["amount"],
        },
    }
    env.script(line("one", call("pay-out", amount=20), call("pay-out", amount=2000), "done"))
    handle = await temporal.start(agent, "Pay.")
    async for event in handle.events():
        if isinstance(event, baton.WaitStartedEvent):
            await handle.approve(event.wait)
    assert (await handle.result()).message == "done"
    assert [text for text in results(env) if "paid 2000" in text]


async def test_a_tool_that_takes_longer_than_its_timeout_fails(env: Environment, temporal: baton.Connection) -> None:
    @baton.tool(timeout="1s")
    async def slow() -> str:
        """Takes long."""
        await asyncio.sleep(60)
        return "late"

    env.script(line("one", call("slow"), "done"))
    await temporal.run(asks(slow), "Why?")
    (result,) = results(env)
    assert "the function 'slow' has not returned within 1s" in result


class LookUp:
    """Looks things up."""

    def __init__(self, found: str) -> None:
        self.found = found

    async def __call__(self, word: str) -> str:
        """Looks a word up."""
        return f"{self.found} {word}"

    def in_book(self, word: str, page: int = 1) -> str:
        """Looks a word up on a page."""
        return f"{self.found} {word} on {page}"


def multiply(number: int, factor: int) -> int:
    """Multiplies."""
    return number * factor


@pytest.mark.full
async def test_partials_bound_methods_and_callable_objects_are_tools(
    env: Environment, temporal: baton.Connection
) -> None:
    class Place(BaseModel):
        city: str

    def visit(place: Place) -> str:
        """Visits a place."""
        return place.city

    look_up = LookUp("found")
    tools = [functools.partial(multiply, factor=3), look_up, look_up.in_book, visit]
    calls = [
        call("multiply", number=2),
        call("look-up", word="a"),
        call("in-book", word="b", page=2),
        call("visit", place={"city": "Ulm"}),
    ]
    env.script(line("one", *calls, "done"))
    await temporal.run(asks(*tools), "Why?")
    texts = zip(results(env), ("6", "found a", "found b on 2", "Ulm"), strict=True)
    assert all(expected in text for text, expected in texts)
    shown = {tool["function"]["name"]: tool["function"] for tool in env.model.requests[0].body["tools"]}
    assert [*shown["multiply"]["parameters"]["properties"]] == ["number"]
    assert shown["look-up"]["description"] == "Looks a word up."


def test_a_callable_that_cannot_be_a_tool_is_refused_by_name() -> None:
    class Opaque:
        pass

    def many(*words: str) -> str:
        return ""

    def opaque(value: Opaque) -> str:
        return ""

    def unknown(value: "NoSuchType") -> str:  # type: ignore[name-defined]  # noqa: F821
        return ""

    with pytest.raises(TypeError, match=r"\*words: str of the function .*many can't be passed by name"):
        asks(many)
    with pytest.raises(TypeError, match=r"the arguments of the function .*opaque have no JSON Schema"):
        asks(opaque)
    with pytest.raises(TypeError, match=r"an annotation of the function .*unknown can't be read: .*NoSuchType"):
        asks(unknown)
    with pytest.raises(TypeError, match=r"bound method LookUp.in_book can't be decorated"):
        baton.tool("book")(LookUp("").in_book)
    with pytest.raises(TypeError, match="the class LookUp is not a tool"):
        asks(LookUp)


def test_a_callable_that_a_run_cannot_call_is_refused_before_the_run() -> None:
    def edge(condition: Any) -> baton.Team:
        edges = [{"from": "one", "to": "one", "when": condition}]
        return baton.Team("team", strategy="graph", members=[asks()], graph={"edges": edges}, max_turns=2)

    def said(text: str) -> str:
        return text

    with pytest.raises(TypeError, match=r"LookUp.in_book is a method without its object"):
        asks(LookUp.in_book)
    with pytest.raises(TypeError, match=r"the function .*<lambda> must have a parameter, for what was said"):
        edge(lambda: True)
    with pytest.raises(TypeError, match=r"<lambda> is not a name: .* baton.function\('name'\)"):
        asks(lambda word: word)
    with pytest.raises(TypeError, match=r"<lambda> is not a name"):
        baton.Team("team", strategy="sequential", members=[lambda text: text])
    with pytest.raises(TypeError, match=r"output_schema is of the type Answer, must be a pydantic model"):
        asks(output_schema=Answer(text="x"))
    edge(lambda value: True)
    baton.Team("team", strategy="sequential", members=[baton.function("echo")(lambda text: text), str.upper, said])


def test_two_functions_of_one_name_are_refused_with_what_to_do() -> None:
    def tool(number: int) -> Any:
        @baton.tool("look-up")
        def look_up() -> int:
            return number

        @baton.tool("look-up")
        def of_word(word: str) -> int:
            return number

        return look_up if number == 1 else of_word

    members = [baton.Agent(f"clerk-{number}", prompt="You look it up.", tools=[tool(number)]) for number in (1, 2)]
    with pytest.raises(baton.ManifestError, match=r"look-up: .* is defined twice: differently; rename one"):
        baton.Team("team", strategy="sequential", members=members)


class Answer(BaseModel):
    text: str


@pytest.mark.full
async def test_an_agent_and_a_team_are_tools(env: Environment, temporal: baton.Connection) -> None:
    expert = baton.Agent("expert", prompt="You are expert.", description="Knows it.")
    crew = baton.Team("crew", strategy="sequential", members=[baton.Agent("two", prompt="You are two.")])
    env.script(
        line("one", call("expert", input="Why?"), call("crew", input="How?"), "done"),
        line("expert", "because"),
        line("two", "so"),
    )
    assert (await temporal.run(asks(expert, crew), "Why?")).message == "done"
    assert results(env) == ["because", "so"]
    tools = {tool["function"]["name"]: tool["function"] for tool in env.model.requests[0].body["tools"]}
    assert tools["expert"]["description"] == "Knows it."


@workflow.defn(name="ShipOrder")
class ShipOrder:
    """Ships an order."""

    @workflow.run
    async def run(self, order: str, express: bool = False) -> str:
        return order


def test_a_workflow_class_is_a_tool() -> None:
    tools: list[Any] = [each.manifest for each in asks(ShipOrder).with_dependencies() if each.kind == "Tool"]
    assert [tool["metadata"]["name"] for tool in tools] == ["ship-order"]
    assert tools[0]["spec"]["workflow"] == {"type": "ShipOrder", "arguments": ["order", "express"]}
    assert tools[0]["spec"]["description"] == "Ships an order."


async def test_a_failed_function_logs_its_traceback_without_secrets_and_the_model_reads_the_error(
    env: Environment, temporal: baton.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    def open_drawer(key: str) -> None:
        raise LookupError(f"no drawer for {key}")

    @baton.tool
    def look_up() -> str:
        """Looks it up."""
        open_drawer(KEY)
        return ""

    env.script(line("one", call("look-up"), "done"))
    with caplog.at_level(logging.ERROR, "baton"):
        await temporal.run(asks(look_up), "Why?")
    (record,) = [record for record in caplog.records if "the function 'look-up' failed" in record.getMessage()]
    text = record.getMessage()
    assert "Traceback (most recent call last)" in text
    assert "in open_drawer" in text
    assert KEY not in text
    (result,) = results(env)
    assert "LookupError" in result
    assert "Traceback" not in result


class _Unprintable:
    def __str__(self) -> str:
        raise LookupError("no name")


def _cycle() -> list[object]:
    cycle: list[object] = []
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize("returned", [b"\xff\x00", _cycle(), _Unprintable(), [1, "\ud800"]], ids=type)
async def test_a_result_that_no_text_can_hold_fails_the_call_with_the_reason(
    env: Environment, temporal: baton.Connection, returned: object
) -> None:
    @baton.tool
    def look_up() -> Any:
        """Looks it up."""
        return returned

    def member(text: str) -> Any:
        return returned

    env.script(line("one", call("look-up"), "done"))
    await temporal.run(asks(look_up), "Why?", timeout="2m")
    (result,) = results(env)
    assert f"the result of the function 'look-up', of the type {type(returned).__name__}, can't be a text" in result
