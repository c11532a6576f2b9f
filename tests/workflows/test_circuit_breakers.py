"""Circuit breakers: a server that keeps failing is left alone, and calls wait for it without using up attempts."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.activities.context import calls
from baton.activities.context.calls import Circuit
from baton.contracts.errors import BadArguments, ModelUnavailable, ToolFailed
from baton.contracts.status import Status
from baton.observability.metrics import CIRCUITS_OPEN
from baton.resources.manifest import CircuitBreaker
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request
from tests.activities.test_inline_manifests import loaded, model, working
from tests.harness.agent_server import AgentServer
from tests.harness.environment import Environment, Json, agent, call, line, manifest
from tests.harness.mcp_process import McpServerProcess
from tests.harness.metrics import Recorded
from tests.harness.ports import own_port
from tests.harness.processes import doctor
from tests.harness.remote_agents import a2a_agent, a2a_server, engine, engine_agent, said
from tests.harness.tool_server import Answer, ToolServer
from tests.starter.test_ark_events import events
from tests.workflows.test_quotas import store_of

SOON = {"retry-after-ms": "1"}


def breaker(failures: int = 1, open_for: str = "600ms", on_open: str = "wait", window: str = "1m") -> Json:
    return {"circuitBreaker": {"failures": failures, "openFor": open_for, "onOpen": on_open, "window": window}}


def asks(env: Environment, name: str = "gpt", /, **spec: Any) -> list[Json]:
    """An agent, and its Model on the scripted server with a circuit breaker."""
    gpt = model(env.model_url, name)
    gpt["spec"] |= breaker(**spec)
    return [agent("a", modelRef={"name": name}), gpt]


class Failing:
    """A model that fails so many times, and then answers; notes when it was asked."""

    def __init__(self, times: int, status: int = 503) -> None:
        self.times, self.status, self.at = times, status, list[float]()

    def __call__(self, _: Request) -> Reply:
        self.at.append(time.monotonic())
        return Reply(status=self.status, headers=SOON) if len(self.at) <= self.times else Reply(text="Here.")


async def asked(env: Environment, manifests: list[Json], target: str = "agent/a") -> Status:
    return await env.status(await env.start_query(manifests, target))


async def test_after_so_many_failures_a_call_waits_and_then_goes_on(env: Environment) -> None:
    env.answer = answer = Failing(2)
    status = await asked(env, asks(env, failures=2))
    assert status.message == "Here."
    _, second, third = answer.at
    assert third - second >= 0.6
    histories = [await run.fetch_history() async for run in env.closed_runs()]
    waits = [event for each in histories for event in each.events if event.HasField("timer_started_event_attributes")]
    # The third attempt of a busy machine may come when the circuit breaker is already half open.
    assert len(waits) <= 1, "only the second failure opens it"


@pytest.mark.full
async def test_waiting_costs_no_attempt_and_the_attempts_before_it_count(env: Environment) -> None:
    failing = Failing(1_000)
    env.answer = lambda request: Reply(text="Here.") if request["model"] == "spare" else failing(request)
    first, gpt = asks(env, open_for="20ms")
    gpt["spec"]["fallback"] = {"name": "spare"}
    spare = model(env.model_url, "spare")
    spare["spec"]["model"] = "spare"
    status = await asked(env, [first, gpt, spare])
    assert (status.message, len(failing.at)) == ("Here.", 6)


@pytest.mark.full
async def test_runs_of_a_worker_share_a_breaker_and_one_call_tries(env: Environment) -> None:
    env.answer = answer = Failing(2)
    runs = [await env.start_query(asks(env, failures=2), "agent/a")]
    await env.wait_for_calls(2)
    runs += [await env.start_query(asks(env, failures=2), "agent/a") for _ in range(4)]
    assert {(await env.status(run)).message for run in runs} == {"Here."}
    assert min(answer.at[2:]) - answer.at[1] >= 0.6
    assert len(answer.at) == 2 + 5


async def test_with_fail_the_fallback_is_asked_at_once(env: Environment) -> None:
    first, gpt = asks(env, on_open="fail", open_for="1h")
    gpt["spec"]["fallback"] = {"name": "spare"}
    spare = model(env.model_url, "spare")
    spare["spec"]["model"] = "spare"
    asked_for: list[str] = []

    def answer(request: Request) -> Reply:
        asked_for.append(request["model"])
        return Reply(text="Here.") if request["model"] == "spare" else Reply(status=503, headers=SOON)

    env.answer = answer
    for _ in range(2):
        assert (await asked(env, [first, gpt, spare])).message == "Here."
    assert asked_for == ["m", "spare", "spare"]


async def test_with_fail_and_without_a_fallback_the_run_fails_and_says_why(env: Environment) -> None:
    env.answer = Failing(1_000)
    status = await asked(env, asks(env, on_open="fail", open_for="1h"))
    assert status.failure
    assert (status.failure.family, status.failure.type) == ("ModelError", "CircuitOpen")
    assert (
        f"the circuit breaker of Model/default/gpt is open: m at {env.model_host} answered HTTP 503"
        in status.failure.message
    )


async def test_what_the_server_reports_within_a_stream_counts_as_that_with_its_http_status(env: Environment) -> None:
    reported = Reply(raw='data: {"error": {"code": 503, "message": "overloaded"}}\n\n')
    env.answer = lambda _: reported
    status = await asked(env, asks(env, on_open="fail", open_for="1h"))
    assert status.failure
    assert "the circuit breaker of Model/default/gpt is open" in status.failure.message
    assert f"m at {env.model_host} answered HTTP 503: overloaded" in status.failure.message


@pytest.mark.parametrize("status", [400, 401, 404, 429])
async def test_what_the_server_refuses_does_not_count(env: Environment, status: int) -> None:
    env.answer = answer = Failing(2, status)
    manifests = asks(env, on_open="fail", open_for="1h")
    await asked(env, manifests)
    while len(answer.at) <= 2:
        await asked(env, manifests)
    assert (await asked(env, manifests)).message == "Here."


async def test_failures_that_are_further_apart_than_the_window_do_not_open_it(env: Environment) -> None:
    env.answer = Failing(2)
    status = await asked(env, asks(env, failures=2, window="1ms", open_for="1h", on_open="fail"))
    assert status.message == "Here."


async def test_a_failing_model_that_a_run_brings_does_not_close_the_way_to_the_workers_own(env: Environment) -> None:
    one, gpt = asks(env, on_open="fail", open_for="1h")
    env.answer = Failing(1)
    async with working(env, one, gpt, BATON_ALLOW_PRIVATE_HOSTS="1") as here:
        here.answer = Failing(1)
        brought = {**gpt, "spec": {**gpt["spec"], "model": "other"}}
        failed = await here.status(await here.start("query", {"spec": _spec(), "resources": [brought]}))
        assert failed.failure
        assert failed.failure.type == "CircuitOpen"
        assert (await here.status(await here.start("query", {"spec": _spec()}))).message == "Here."


def _spec() -> Json:
    return {"input": "Why?", "target": {"type": "agent", "name": "a"}}


async def test_a_run_that_waits_can_be_stopped(env: Environment) -> None:
    env.answer = Failing(1_000)
    handle = await env.start_query(asks(env, open_for="5m"), "agent/a")
    await env.wait_for_calls(1)
    await env.wait_until_idle(handle)
    await handle.signal("terminate_team", {"now": True, "reason": "enough"})
    assert (await env.status(handle)).stop_reason == "terminated"


def tool(server: ToolServer, method: str = "GET", **spec: Any) -> list[Json]:
    http = {"url": server.url, "method": method}
    return [agent("a", "look"), manifest("Tool", "look", {"type": "http", "http": http, **breaker(**spec)})]


async def test_a_tool_call_waits_and_is_the_same_call_for_its_server(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(status=500), Answer("sunny"))
    env.script(line("a", call("look"), "Here."))
    status = await asked(env, tool(tool_server))
    assert [each.content for each in status.responses[0].messages] == ["", "sunny", "Here."]
    first, second = tool_server.seen
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert second.at - first.at >= 0.6


async def test_a_model_is_told_that_the_breaker_of_its_tool_is_open(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(status=500))
    env.script(line("a", call("look"), call("look"), "Here."))
    status = await asked(env, tool(tool_server, "POST", on_open="fail", open_for="1h"))
    first, second = (each.content for each in status.responses[0].messages if each.role == "tool")
    assert "answered HTTP 500" in first
    assert "the circuit breaker of Tool/default/look is open" in second
    assert len(tool_server.seen) == 1


@pytest.mark.slow
async def test_the_tools_of_an_mcp_server_share_its_breaker(env: Environment, tmp_path: Path) -> None:
    with McpServerProcess("2025", tmp_path).running() as mcp:
        one = agent("a", tools=[{"name": "test", "type": "mcp"}])
        env.script(line("a", call("test-echo", message="x"), call("test-add-up", a=1, b=2), "Here."))
        given = [one, mcp.manifest(**breaker(on_open="fail", open_for="1h"))]
        answer = env.answer

        def kill_first(request: Request) -> Reply:
            mcp.kill()
            return answer(request)

        env.answer = kill_first
        status = await asked(env, given)
    results = [each.content for each in status.responses[0].messages if each.role == "tool"]
    assert "the circuit breaker of MCPServer/default/test is open" in results[1], results


async def test_an_engine_is_left_alone_and_asked_again(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(status=503, headers=SOON), said("Yes."))
    status = await asked(env, [engine_agent("o"), engine(tool_server, **breaker())], "agent/o")
    assert status.message == "Yes."
    first, second = tool_server.seen
    assert second.at - first.at >= 0.6
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


async def test_an_a2a_server_that_can_not_be_reached_is_left_alone(env: Environment) -> None:
    server = AgentServer()
    with server.serving():
        gone = a2a_server(server, **breaker(on_open="fail", open_for="1h"))
    status = await asked(env, [a2a_agent("o"), gone], "agent/o")
    assert status.failure
    assert status.failure.type == "CircuitOpen"


@pytest.mark.slow
async def test_events_tell_that_a_call_was_deferred_and_begun_again(env: Environment, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(status=500), Answer("sunny"))
    env.script(line("a", call("look"), "Here."))
    # The next attempt, half a second later, has to find it open, also on a busy machine.
    handle = await env.start_query(tool(tool_server, open_for="8s"), "agent/a")
    assert (await env.status(handle)).token_usage.tool_calls == 1
    found = [each for each in await events(env.client, handle) if each.name.startswith("ToolCall")]
    assert [each.name for each in found] == [
        *("ToolCallStarted", "ToolCallDeferred", "ToolCallStarted", "ToolCallCompleted"),
    ]
    assert found[1].data["errorType"] == "CircuitOpen"
    assert float(str(found[1].data["wait"])) > 0


@pytest.mark.slow
async def test_the_health_check_and_doctor_tell_which_are_open(env: Environment, server: EmbeddedServer) -> None:
    port = own_port()
    env.answer = Failing(1_000)
    one, gpt = asks(env, open_for="5m")
    health = {"BATON_HEALTH_PORT": str(port)}
    async with working(env, one, gpt, **health) as here:
        here.answer = Failing(1_000)
        handle = await here.start("query", {"spec": _spec()})
        await env.wait_for_calls(1)
        while not (found := await _get(port)):
            pass
        assert found["Model/default/gpt"].startswith("open for another ")
        settings = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": here.task_queue, **health}
        done = await doctor(**settings)
        assert "WRONG  circuits    the circuit breaker of Model/default/gpt is open for" in done.stdout
        await handle.signal("terminate_team", {"now": True})
        assert (await here.status(handle)).stop_reason == "terminated"


async def _get(port: int) -> dict[str, str]:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        answer: dict[str, str] = (await http.get(f"http://127.0.0.1:{port}/circuits")).json()
    return answer


async def test_a_call_that_was_not_sent_does_not_close_a_circuit_breaker() -> None:
    rule = CircuitBreaker(failures=1, window="1m", open_for="1ms", on_open="fail")
    circuit = Circuit("Tool/default/book", rule, {"kind": "tool", "name": "default/book"})
    with pytest.raises(ToolFailed):
        async with circuit.call():
            raise ToolFailed("no connection", outage=True)
    await asyncio.sleep(0.01)
    with pytest.raises(BadArguments):
        async with circuit.call():
            raise BadArguments("'city' is a required property")
    assert circuit.state == "half open"
    async with circuit.call():
        pass
    assert circuit.state == "closed"


def failing_rule(open_for: str) -> CircuitBreaker:
    return CircuitBreaker(failures=1, window="1m", open_for=open_for, on_open="fail")


async def opened(circuit: Circuit) -> None:
    with pytest.raises(ModelUnavailable):
        async with circuit.call():
            raise ModelUnavailable("down")


async def test_a_circuit_breaker_whose_server_nothing_calls_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "UNUSED_SECONDS", 0.2)
    recorded = Recorded()
    circuit = Circuit("Model/default/gpt", failing_rule("1ms"), {"kind": "Model", "name": "gone"})
    await opened(circuit)
    while circuit.state != "half open":
        await asyncio.sleep(0.01)
    async with circuit.call():
        await asyncio.sleep(0.5)
        assert circuit.state == "half open", "a probe may take longer"
    await opened(circuit)
    assert recorded.of(CIRCUITS_OPEN, kind="Model", name="gone") == {(): 1}
    while not circuit.is_closed:
        await asyncio.sleep(0.01)
    assert recorded.of(CIRCUITS_OPEN, kind="Model", name="gone") == {}


async def test_a_model_that_was_corrected_has_no_open_circuit_breaker(env: Environment) -> None:
    port = own_port()
    one, gpt = asks(env, on_open="fail", open_for="1h")
    corrected = {**gpt, "spec": {**gpt["spec"], "model": "other"}}
    async with working(env, one, BATON_HEALTH_PORT=str(port)) as here, store_of(here) as store:
        here.answer = Failing(1)
        await store.apply(loaded(gpt))
        await here.status(await here.start("query", {"spec": _spec()}))
        assert [*await _get(port)] == ["Model/default/gpt"]
        await store.apply(loaded(corrected))
        assert (await here.status(await here.start("query", {"spec": _spec()}))).message == "Here."
        assert await _get(port) == {}
