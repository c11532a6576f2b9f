"""Tools and settings that a caller of the gateway brings: the agent uses them, and the run waits for the results."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from baton.contracts.decisions import PendingDecision
from baton.contracts.status import Status
from baton.resources.client import ClientTool
from baton.starter.gateway.access import LOCAL
from baton.starter.gateway.app import Gateway
from baton.starter.gateway.errors import BadRequestError, ConflictError
from baton.starter.gateway.question import TargetQuestion
from baton.starter.gateway.run import Run
from baton.starter.history.events import Event, WaitEndedEvent, WaitStartedEvent
from baton.starter.runs.runs import NotServedError
from tests.harness.environment import Environment, Json, agent, call, line, team

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ClientTool(name="weather", description="The weather in a city.", parameters=CITY)
MANIFESTS = [
    agent("open", clients={"tools": True, "settings": ["instructions", "temperature"]}, temperature=0.2),
    agent("closed"),
    agent("lenient", clients={"onOtherSettings": "ignore"}),
    agent("own", "noop", clients={"tools": True}),
    team("duo", "open", "closed", maxTurns=2),
]


def gateway_of(env: Environment) -> Gateway:
    return Gateway.of(env.client, {**env.worker_env, "BATON_GATEWAY_NAMESPACES": "*"})


async def ask(env: Environment, target: str, question: TargetQuestion) -> Run:
    gateway = gateway_of(env)
    served = await gateway.targets.find(LOCAL, target)
    return await gateway.runs.start(LOCAL, served, question, protocol="test")


async def waiting(run: Run, count: int = 1) -> list[PendingDecision]:
    """What the run waits for, once it waits for so much."""
    while len(pending := await run.pending()) != count:
        assert await run.is_open(), (await run.result()).error
        await asyncio.sleep(0.02)
    return pending


def told(env: Environment, status: Status) -> list[Json]:
    head = status.responses[0].head
    assert head, status.error
    return env.transcript(head.id)[1:]


async def test_a_call_of_a_callers_tool_waits_for_its_result(served_env: Environment) -> None:
    served_env.script(line("open", call("weather", city="Bern"), "It rains."))
    run = await ask(served_env, "open", TargetQuestion(input="Weather?", tools=[WEATHER]))
    [pending] = await waiting(run)
    assert (pending.kind, pending.tool, json.loads(pending.arguments or "")) == (
        "client_tool",
        "weather",
        {"city": "Bern"},
    )
    given = await run.give_result(pending.id, "rain")
    assert (given.by, given.text) == ("local", "")
    status = await run.result()
    assert status.phase == "Completed", status.error
    assert [each["content"] for each in told(served_env, status)] == ["", "rain", "It rains."]
    assert status.token_usage.tool_calls == 1
    [tool] = served_env.model.requests[0].body["tools"]
    assert tool["function"] == {"name": "weather", "description": WEATHER.description, "parameters": CITY}
    fenced = served_env.model.requests[1].body["messages"][-1]["content"]
    assert "rain" in fenced
    assert fenced != "rain"
    events = [event async for event in run.events()]
    started = next(event for event in events if isinstance(event, WaitStartedEvent))
    assert (started.kind, started.wait, started.tool) == ("client_tool", pending.id, "weather")
    assert json.loads(started.text or "") == {"city": "Bern"}
    ended = next(event for event in events if isinstance(event, WaitEndedEvent))
    assert (ended.wait, ended.outcome, ended.by, ended.text) == (pending.id, "replied", "local", None)


async def test_two_calls_of_one_message_wait_at_once_and_are_answered_in_any_order(served_env: Environment) -> None:
    both = {"calls": [*call("weather", city="Bern")["calls"], *call("weather", city="Rome")["calls"]]}
    served_env.script(line("open", both, "Done."))
    run = await ask(served_env, "open", TargetQuestion(input="Weather?", tools=[WEATHER]))
    pending = {json.loads(each.arguments or "")["city"]: each.id for each in await waiting(run, 2)}
    await run.give_result(pending["Rome"], "sun")
    await waiting(run)
    await run.give_result(pending["Bern"], "rain")
    assert [each["content"] for each in told(served_env, await run.result())] == ["", "rain", "sun", "Done."]


async def test_the_same_result_again_is_accepted_and_another_one_is_refused(served_env: Environment) -> None:
    served_env.script(line("open", call("weather", city="Bern"), call("weather", city="Rome"), "Done."))
    run = await ask(served_env, "open", TargetQuestion(input="Weather?", tools=[WEATHER]))
    [first] = await waiting(run)
    await run.give_result(first.id, "rain")
    while (second := (await waiting(run))[0]).id == first.id:
        pass
    await run.give_result(first.id, "rain")
    with pytest.raises(ConflictError, match="already"):
        await run.give_result(first.id, "snow")
    await run.give_result(second.id, "sun")
    status = await run.result()
    await run.give_result(second.id, "sun")
    with pytest.raises(ConflictError):
        await run.give_result(second.id, "snow")
    assert [each["content"] for each in told(served_env, status)] == ["", "rain", "", "sun", "Done."]


class CountedReads(Run):
    """A run that counts how often its events are read."""

    reads = 0

    def events(
        self, after: str | None = None, *, wait: bool = True, live: bool = True, depth_first: bool = False
    ) -> AsyncGenerator[Event, None]:
        self.reads += 1
        return super().events(after, wait=wait, live=live, depth_first=depth_first)


async def test_a_result_that_is_too_large_is_refused_without_a_read_of_the_run(served_env: Environment) -> None:
    served_env.script(line("open", call("weather", city="Bern"), "It rains."))
    run = await ask(served_env, "open", TargetQuestion(input="Weather?", tools=[WEATHER]))
    [pending] = await waiting(run)
    counted = CountedReads(served_env.client, run.handle, run.memo, LOCAL, served_env.worker_env)
    with pytest.raises(ConflictError, match="at most 100,000 bytes"):
        await counted.give_result(pending.id, "x" * 200_000)
    assert counted.reads == 0
    await run.give_result(pending.id, "rain")
    assert (await run.result()).phase == "Completed"


async def test_a_result_without_a_worker_is_refused_after_one_read_of_the_run(served_env: Environment) -> None:
    async with served_env.with_manifests([agent("open", clients={"tools": True})]) as own:
        own.script(line("open", call("weather", city="Bern"), "It rains."))
        run = await ask(own, "open", TargetQuestion(input="Weather?", tools=[WEATHER]))
        [pending] = await waiting(run)
    counted = CountedReads(own.client, run.handle, run.memo, LOCAL, own.worker_env)
    with pytest.raises(NotServedError):
        await counted.give_result(pending.id, "rain")
    assert counted.reads == 1
    await run.handle.terminate()


async def test_allowed_settings_change_the_agent_and_instructions_follow_its_prompt(served_env: Environment) -> None:
    served_env.script(line("open", "Yes."))
    settings: dict[str, Any] = {"instructions": "Be {{.brief}}.", "temperature": 1, "top_p": None}
    await (await ask(served_env, "open", TargetQuestion(input="Why?", settings=settings))).result()
    [request] = served_env.model.requests
    assert request.body["temperature"] == 1
    system = request.body["messages"][0]["content"]
    assert system.startswith("You are open.")
    assert system.endswith("Be {{.brief}}.")


async def test_a_setting_that_the_agent_does_not_allow_is_refused_by_its_name(served_env: Environment) -> None:
    with pytest.raises(BadRequestError, match=r"top_p: Agent/default/open .* instructions, temperature") as refused:
        await ask(served_env, "open", TargetQuestion(input="Why?", settings={"top_p": 0.5}))
    assert refused.value.param == "top_p"
    with pytest.raises(BadRequestError, match="unknown"):
        await ask(served_env, "open", TargetQuestion(input="Why?", settings={"logit_bias": {}}))
    with pytest.raises(BadRequestError, match="takes no tools"):
        await ask(served_env, "closed", TargetQuestion(input="Why?", tools=[WEATHER]))
    with pytest.raises(BadRequestError, match="is a team"):
        await ask(served_env, "duo", TargetQuestion(input="Why?", tools=[WEATHER]))
    with pytest.raises(BadRequestError, match=r"tools.0.name: 'noop'"):
        await ask(served_env, "own", TargetQuestion(input="Why?", tools=[ClientTool(name="noop")]))


@pytest.mark.parametrize(("target", "settings"), [("closed", {"temperature": 1}), ("lenient", {"temperature": 0.5})])
async def test_an_ignored_setting_is_noted_in_the_status(served_env: Environment, target: str, settings: Json) -> None:
    served_env.script(line(target, "Yes."))
    status = await (await ask(served_env, target, TargetQuestion(input="Why?", settings=settings))).result()
    assert status.phase == "Completed"
    assert "temperature" not in served_env.model.requests[0].body
    assert any("'temperature'" in notice for notice in status.notices or ())
