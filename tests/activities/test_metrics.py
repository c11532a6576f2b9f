"""What a worker counts: each real thing once, also where runs are replayed, under names that nobody can choose."""

import asyncio

import pytest

from baton.observability import metrics
from baton.resources.loader import Loaded
from baton.temporal.search_attributes import backlog_of, register
from baton.testing import Reply, Request, ScriptedUsage
from baton.worker import run_worker
from tests.activities.test_inline_manifests import model, working
from tests.harness.environment import KEY, Environment, Json, agent, call, line, team
from tests.harness.metrics import Recorded, watching_runs
from tests.harness.tool_server import Answer, ToolServer
from tests.workflows.test_approval import approve, pending, tool
from tests.workflows.test_circuit_breakers import Failing, asks

OTHER = metrics.OTHER


def two() -> list[Json]:
    return [agent("a", "calculator"), agent("b"), team("team", "a", "b", maxTurns=1, onMaxTurns="complete")]


async def test_calls_turns_and_runs_are_counted_once_though_every_step_is_replayed(env: Environment) -> None:
    recorded = Recorded()
    async with env.without_cache() as here:
        here.script(line("a", call("calculator", expression="1+1"), "Two."), line("b", "Yes."))
        await here.status(await here.start_query(two(), "team/team"))
    assert recorded.of(metrics.CALLS) == {("model", OTHER, "ok"): 3, ("tool", "calculator", "ok"): 1}
    assert recorded.of(metrics.CALL_DURATION) == {("model", OTHER): 3, ("tool", "calculator"): 1}
    assert recorded.of(metrics.TURNS) == {("round-robin", "agent", "completed"): 2}
    assert recorded.of(metrics.RUNS_BEGUN) == {("query",): 1, ("round-robin",): 1}
    assert recorded.of(metrics.RUNS_ENDED, phase="Completed") == {
        ("query", "max_turns"): 1,
        ("round-robin", "max_turns"): 1,
    }
    assert recorded.of(metrics.JOURNAL_DURATION, outcome="ok").keys() >= {("read",), ("write",)}


async def test_each_attempt_of_a_call_is_counted_with_its_error(env: Environment) -> None:
    recorded = Recorded()
    env.answer = Failing(2)
    await env.status(await env.start_query([agent("a")], "agent/a"))
    assert recorded.of(metrics.CALLS, kind="model", name=OTHER) == {("ModelUnavailable",): 2, ("ok",): 1}


async def test_a_run_that_brings_manifests_can_not_choose_names_in_metrics(env: Environment) -> None:
    own = (
        agent("a", modelRef={"name": "gpt"}),
        model(env.model_url, "gpt"),
        agent("b", model={"name": "of-environment"}),
    )
    recorded = Recorded()
    async with working(env, *own, BATON_ALLOW_PRIVATE_HOSTS="1") as here:
        for name in ("a", "b"):
            spec = {"input": "Why?", "target": {"type": "agent", "name": name}}
            await here.status(await here.start("query", {"spec": spec}))
        chosen = model(env.model_url, "chosen")
        brought = [agent("c", modelRef={"name": "chosen"}), chosen, agent("d", model={"name": "x"})]
        await here.status(await here.start_query(brought, "agent/c", "agent/d"))
    assert recorded.of(metrics.CALLS, kind="model", outcome="ok") == {("gpt",): 1, ("of-environment",): 1, (OTHER,): 2}


async def test_tokens_and_what_they_cost_are_counted_when_they_are_paid_for(env: Environment) -> None:
    gpt = model(env.model_url, "gpt")
    gpt["spec"]["pricing"] = {"input": 10, "output": 20}
    recorded = Recorded()
    env.script(line("a", "Because of the moon."))
    status = await env.status(await env.start_query([agent("a", modelRef={"name": "gpt"}), gpt], "agent/a"))
    used = status.token_usage
    tokens = recorded.of(metrics.TOKENS, kind="model", name=OTHER)
    assert tokens == {("prompt",): used.prompt_tokens, ("completion",): used.completion_tokens}
    assert recorded.of(metrics.COST) == {("model", OTHER): used.cost}


@pytest.mark.parametrize("fallback", [True, False])
async def test_what_a_failed_call_of_a_model_has_cost_is_counted(env: Environment, fallback: bool) -> None:
    gpt = model(env.model_url, "gpt")
    gpt["spec"] |= {"pricing": {"input": 10, "output": 20}, **({"fallback": {"name": "spare"}} if fallback else {})}
    spare = model(env.model_url, "spare")
    spare["spec"]["model"] = "spare"
    used = ScriptedUsage(prompt=100, completion=20)

    def answer(request: Request) -> Reply:
        is_spare = request["model"] == "spare"
        return Reply(text="Here.", usage=used) if is_spare else Reply(text="No", stop="content_filter", usage=used)

    env.answer = answer
    recorded = Recorded()
    status = await env.status(await env.start_query([agent("a", modelRef={"name": "gpt"}), gpt, spare], "agent/a"))
    calls = 1 + fallback
    assert status.phase == ("Completed" if fallback else "Failed")
    assert status.token_usage.total_tokens == 120 * calls
    assert status.token_usage.model_calls == calls
    assert status.token_usage.cost == 0.0014
    assert recorded.of(metrics.TOKENS, kind="model", direction="prompt") == {(OTHER,): 100 * calls}
    assert recorded.of(metrics.COST) == {("model", OTHER): status.token_usage.cost}


@pytest.mark.parametrize("fallback", [True, False])
async def test_what_a_failed_call_of_a_selector_has_cost_is_counted(env: Environment, fallback: bool) -> None:
    gpt = model(env.model_url, "gpt")
    gpt["spec"] |= {"fallback": {"name": "spare"}} if fallback else {}
    spare = model(env.model_url, "spare")
    spare["spec"]["model"] = "spare"
    used = ScriptedUsage(prompt=100, completion=20)
    selector = agent("chooser", modelRef={"name": "gpt"})

    def answer(request: Request) -> Reply:
        if request["model"] == "m":
            return Reply(text="No", stop="content_filter", usage=used)
        return Reply(text="a", usage=used)

    env.answer = answer
    both = team("both", "a", "b", strategy="selector", maxTurns=1, selector={"agent": "chooser"})
    given = [agent("a"), agent("b"), selector, gpt, spare, both]
    status = await env.status(await env.start_query(given, "team/both"))
    assert status.token_usage.total_tokens == (360 if fallback else 120)


@pytest.mark.full
async def test_what_runs_wait_for_is_counted_once_with_its_end(env: Environment, tool_server: ToolServer) -> None:
    recorded = Recorded()
    async with env.without_cache() as here:
        tool_server.answers(Answer("bought"))
        here.script(line("buyer", call("buy", item="pen"), "Done."))
        buyer, buy = agent("buyer", "buy"), tool(tool_server, {})
        run = await here.start("agent", {"agent": "buyer", "input": "Buy!", "resources": [buyer, buy]})
        (asked,) = await pending(run)
        await run.signal("pause")
        await approve(run, asked, approved=True)
        while ("agent", "pause") not in recorded.of(metrics.WAITS_BEGUN):
            await asyncio.sleep(0.02)
        await run.signal("resume")
        await here.turn_result(run)
        here.answer = Failing(1)
        await here.status(await here.start_query(asks(here, open_for="3s"), "agent/a"))
    assert recorded.of(metrics.WAITS_BEGUN) == {
        ("agent", "approval"): 1,
        ("agent", "pause"): 1,
        ("query", "circuit_breaker"): 1,
    }
    ended = {
        ("agent", "approval", "approved"): 1,
        ("agent", "pause", "resumed"): 1,
        ("query", "circuit_breaker", "over"): 1,
    }
    assert recorded.of(metrics.WAIT_DURATION) == ended


@pytest.mark.full
async def test_a_wait_is_one_though_its_run_continues_as_new_meanwhile(
    env_with_short_histories: Environment, tool_server: ToolServer
) -> None:
    env, recorded = env_with_short_histories, Recorded()
    tool_server.answers(Answer("bought"))
    env.script(line("buyer", call("buy", item="pen"), "Done."))
    given = [agent("buyer", "buy"), tool(tool_server, {})]
    run = await env.start("agent", {"agent": "buyer", "input": "Buy!", "resources": given})
    (asked,) = await pending(run)
    while (await run.describe()).run_id == run.first_execution_run_id:
        await run.signal("session", {"so": "far"})
    await approve(run, asked, approved=True)
    await env.turn_result(run)
    assert recorded.of(metrics.WAITS_BEGUN) == {("agent", "approval"): 1}
    assert recorded.of(metrics.WAIT_DURATION) == {("agent", "approval", "approved"): 1}
    assert recorded.of(metrics.RUNS_BEGUN) == {("agent",): 1}
    assert sum(recorded.of(metrics.RUNS_ENDED).values()) == 1


async def test_a_wait_whose_run_is_stopped_has_ended(env: Environment, tool_server: ToolServer) -> None:
    recorded = Recorded()
    env.script(line("buyer", call("buy", item="pen"), "Done."))
    given = [agent("buyer", "buy"), tool(tool_server, {})]
    run = await env.start("agent", {"agent": "buyer", "input": "Buy!", "resources": given})
    await pending(run)
    await run.signal("cancel")
    await env.turn_result(run)
    assert recorded.of(metrics.WAIT_DURATION) == {("agent", "approval", "stopped"): 1}


@pytest.mark.full
async def test_a_circuit_breaker_is_open_until_a_call_succeeds(env: Environment) -> None:
    recorded = Recorded()
    env.answer = Failing(1)
    run = await env.start_query(asks(env, open_for="3s"), "agent/a")
    await env.wait_for_calls(1)
    while not recorded.of(metrics.CIRCUITS_OPEN):
        await asyncio.sleep(0.01)
    assert recorded.of(metrics.CIRCUITS_OPEN) == {("Model", OTHER): 1}
    await env.status(run)
    assert recorded.of(metrics.CIRCUITS_OPEN) == {}
    assert recorded.of(metrics.CIRCUITS_OPENED) == {("Model", OTHER): 1}


async def test_secrets_that_are_replaced_are_counted(env: Environment) -> None:
    recorded = Recorded()
    env.script(line("a", f"The key is {KEY}, again {KEY}."))
    await env.status(await env.start_query([agent("a")], "agent/a"))
    assert recorded.of(metrics.REDACTIONS) == {(): 2}


async def test_runs_that_wait_for_a_person_are_told_without_those_around_them(
    env: Environment, tool_server: ToolServer
) -> None:
    await register(env.client)
    env.script(line("buyer", call("buy", item="pen"), "Done."))
    given = [agent("buyer", "buy"), tool(tool_server, {}), team("team", "buyer", maxTurns=1)]
    async with working(env) as here:
        here.answer = env.answer
        run = await here.start_query(given, "team/team")
        await here.find_runs("BatonPhase = 'InputRequired'", 2)
        recorded = Recorded()
        async with watching_runs(here.client, here.task_queue):
            while not (found := recorded.of(metrics.RUNS_WAITING)):
                await asyncio.sleep(0.02)
        await run.signal("cancel")
        await here.status(run)
    assert found == {("InputRequired",): 1}


async def test_a_worker_with_the_role_workflows_reports_the_backlog_of_models_when_no_worker_has_that_role(
    env: Environment,
) -> None:
    models, tools = f"models-{env.task_queue}", f"tools-{env.task_queue}"
    roles = {"BATON_ROLES": "workflows", "BATON_MODEL_TASK_QUEUE": models, "BATON_TOOL_TASK_QUEUE": tools}

    async def text(accept: str) -> tuple[bytes, str]:
        return b"", accept

    async with working(env, **roles) as here:
        run = await here.start_query([agent("a")], "agent/a")
        while not (await backlog_of(env.client, models, "activity")).count:
            await asyncio.sleep(0.05)
    recorded = Recorded()  # the next worker counts at its start: the task is there by then
    async with run_worker(env.client, Loaded(), {**here.worker_env, **roles}, metrics=text):
        while not (found := recorded.of(metrics.BACKLOG, task_queue=models)):
            await asyncio.sleep(0.05)
        await run.terminate()
    assert found == {("activity",): 1}


def test_no_metric_has_a_label_for_what_has_no_end() -> None:
    allowed = {"workflow_type", "phase", "reason", "kind", "outcome", "name", "direction", "operation"}
    allowed |= {"check", "error", "task_queue"}
    assert {label for each in metrics.ALL for label in each.labels} <= allowed
    assert len({each.name for each in metrics.ALL}) == len(metrics.ALL) > 10
