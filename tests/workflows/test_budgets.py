"""Budgets of queries, teams and agents: what they bound, and what is left when they are used up."""

import asyncio
from typing import Any

import pytest

from baton.contracts.decisions import ApproveRequest, PendingDecision
from baton.contracts.message import PersonDecision
from baton.contracts.status import Status
from baton.resources.problems import ManifestError
from baton.starter.runs import decisions
from baton.starter.runs.decisions import NotDecided, pending_decisions
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team
from tests.harness.manifests import Writer

TALKERS = [agent("a", "terminate"), agent("b", "terminate")]


def priced(env: Environment, name: str = "default", **spec: Any) -> Json:
    """A Model that costs a dollar for a thousand tokens of a prompt, and two for a thousand of an answer."""
    connection = {"baseUrl": env.model_url}
    given = {"type": "openai", "model": "gpt", "config": {"openai": connection}}
    return manifest("Model", name, {**given, "pricing": {"input": 1000, "output": 2000}, **spec})


def spent(team_or_query: str, count: int, limit: str = "modelCalls") -> str:
    return f"the budget of {team_or_query} is too low for the next call: {count} of {count} {limit} are used"


async def test_a_team_stops_before_the_call_that_would_exceed_its_budget_with_all_that_was_said(
    env: Environment,
) -> None:
    handle = await env.start_team([*TALKERS, team("team", "a", "b", budget={"modelCalls": 3})])
    result = await env.turn_result(handle)
    assert (result.stop_reason, result.failure, result.note) == ("budget", None, spent("Team/default/team", 3))
    assert len(env.model.requests) == result.usage.model_calls == 3
    assert len(env.transcript(result.head.id)) == 4
    status = Status.model_validate(await handle.query("status"))
    assert status.phase == "Completed"
    assert status.budget is not None
    assert (status.budget.limits.model_calls, status.budget.left.model_calls) == (3, 0)


async def test_a_budget_can_fail_what_it_bounds(env: Environment) -> None:
    budget = {"modelCalls": 3, "onExceeded": "fail"}
    handle = await env.start_query([*TALKERS, team("team", "a", "b")], "team/team", budget=budget)
    status = await env.status(handle)
    assert (status.phase, status.stop_reason, status.error) == ("Failed", "budget", spent("Query/default/q", 3))
    assert status.failure is not None
    assert (status.failure.family, status.failure.type) == ("BudgetError", "BudgetExceeded")
    assert status.failure.budget is not None
    assert (status.failure.budget.owner, status.failure.budget.limit) == ("Query/default/q", "modelCalls")
    assert len(status.responses[0].messages) == 3


async def test_a_parallel_team_that_continues_without_failed_members_still_fails_at_its_own_budget(
    env: Environment,
) -> None:
    spec: Json = {"strategy": "parallel", "maxConcurrency": 1, "onMemberError": "continue"}
    members = team("team", "a", "b", "c", budget={"modelCalls": 1, "onExceeded": "fail"}, **spec)
    result = await env.turn_result(await env.start_team([*TALKERS, agent("c"), members]))
    assert result.failure
    assert (result.stop_reason, result.failure.type, result.failure.member) == ("budget", "BudgetExceeded", "b")
    assert (result.member_failures, len(env.model.requests), len(result.messages)) == ((), 1, 1)


@pytest.mark.full
async def test_members_that_speak_at_once_share_the_budget_of_the_query(env: Environment) -> None:
    names = [f"m{number}" for number in range(12)]
    inner = [team(f"t{n}", *names[n : n + 4], strategy="parallel") for n in (0, 4, 8)]
    outer = team("team", "t0", "t4", "t8", strategy="parallel")
    members = [*map(agent, names), *inner, outer]
    status = await env.status(await env.start_query(members, "team/team", budget={"modelCalls": 5}))
    assert (status.phase, status.stop_reason) == ("Completed", "budget")
    assert len(env.model.requests) == status.token_usage.model_calls == 5


async def test_the_tighter_budget_counts_and_ends_only_what_it_bounds(env: Environment) -> None:
    inner = team("inner", "a", "b", budget={"modelCalls": 2})
    outer = team("team", "inner", "b", strategy="sequential")
    env.script(line("a", "a"), line("b", "b"))
    status = await env.status(await env.start_query([*TALKERS, inner, outer], "team/team", budget={"modelCalls": 9}))
    assert (status.phase, status.stop_reason) == ("Completed", "completed")
    assert [each.name for each in status.responses[0].messages] == ["a", "b", "b"]
    assert status.budget is not None
    assert status.budget.left.model_calls == 6


async def test_the_budget_of_an_agent_holds_for_all_its_turns_and_for_no_other_member(env: Environment) -> None:
    one = agent("a", budget={"modelCalls": 1})
    env.script(line("a", "a"), line("b", "b"))
    result = await env.turn_result(await env.start_team([one, TALKERS[1], team("team", "a", "b", maxTurns=3)]))
    assert result.stop_reason == "max_turns"
    assert [each.name for each in result.messages] == ["a", "b", "b", "b"]


async def test_a_tool_call_beyond_the_budget_is_not_carried_out(env: Environment) -> None:
    one = agent("a", "noop", budget={"toolCalls": 2})
    env.script(line("a", *[call("noop")] * 5))
    handle = await env.start("agent", {"agent": "a", "input": "Go.", "resources": [one]})
    result = await env.turn_result(handle)
    assert (result.stop_reason, result.note) == ("budget", spent("Agent/default/a", 2, "toolCalls"))
    assert [each.role for each in result.messages] == ["assistant", "tool"] * 3
    assert result.messages[-1].content == f"Error: {result.note}"


async def test_an_agent_that_a_tool_asks_spends_the_budget_of_who_calls_the_tool(env: Environment) -> None:
    asks = manifest("Tool", "ask", {"type": "agent", "agent": {"name": "b"}, "description": "asks b"})
    one = agent("a", budget={"modelCalls": 2}, tools=[{"name": "ask"}])
    env.script(line("a", call("ask", input="?"), "never"), line("b", "b"))
    handle = await env.start("agent", {"agent": "a", "input": "Go.", "resources": [one, TALKERS[1], asks]})
    result = await env.turn_result(handle)
    assert (result.stop_reason, len(env.model.requests)) == ("budget", 2)


async def test_who_asks_an_agent_that_has_used_its_own_budget_up_goes_on(env: Environment) -> None:
    asks = manifest("Tool", "ask", {"type": "agent", "agent": {"name": "b"}, "description": "asks b"})
    asked = agent("b", "calculator", budget={"modelCalls": 1, "onExceeded": "fail"})
    one = agent("a", tools=[{"name": "ask"}])
    env.script(line("a", call("ask", input="?"), "I go on."), line("b", call("calculator", expression="1+1")))
    handle = await env.start("agent", {"agent": "a", "input": "Go.", "resources": [one, asked, asks]})
    result = await env.turn_result(handle)
    assert (result.stop_reason, result.message) == ("completed", "I go on.")
    assert "the budget of Agent/default/b is too low" in str(result.messages[1].content)


async def test_a_cost_is_counted_by_the_prices_of_the_models(env: Environment) -> None:
    env.script(line("a", "x" * 400), line("b", "x" * 400))
    given = [*TALKERS, priced(env), team("team", "a", "b", budget={"cost": 0.7})]
    handle = await env.start_team(given)
    result = await env.turn_result(handle)
    assert (result.stop_reason, result.usage.model_calls) == ("budget", 2)
    used = result.usage
    assert used.cost == round((used.prompt_tokens * 1000 + used.completion_tokens * 2000) / 1_000_000, 9)
    status = Status.model_validate(await handle.query("status"))
    assert status.budget is not None
    assert status.budget.left.cost == round(max(0, 0.7 - used.cost), 9)


async def test_tokens_are_reserved_before_a_call_as_far_as_they_are_known(env: Environment) -> None:
    members = [agent(f"m{number}") for number in range(6)]
    limited = priced(env)
    limited["spec"]["config"]["openai"]["properties"] = {"max_tokens": "100"}
    given = [
        *members,
        limited,
        team("team", *(f"m{n}" for n in range(6)), strategy="parallel"),
    ]
    env.answer = lambda _: line("", {"text": "x" * 380, "delay": 0.3}).say[0]
    status = await env.status(await env.start_query(given, "team/team", budget={"tokens": 360}))
    assert status.stop_reason == "budget"
    assert 0 < status.token_usage.total_tokens <= 360
    assert status.token_usage.model_calls in (2, 3)


async def test_no_call_begins_after_the_duration_of_a_budget(env: Environment) -> None:
    env.script(line("a", {"text": "a", "delay": 1.2}), line("b", "b"))
    handle = await env.start_team([*TALKERS, team("team", "a", "b", budget={"duration": "1s"})])
    result = await env.turn_result(handle)
    assert (result.stop_reason, len(env.model.requests)) == ("budget", 1)
    assert result.note == "the budget of Team/default/team is exhausted: its first call was more than 1 s ago"


@pytest.mark.parametrize("strategy", ["selector", "round-robin"])
async def test_a_selector_and_a_panel_end_at_their_budget(env: Environment, strategy: str) -> None:
    own = {"maxTurns": 9} if strategy == "selector" else {"referee": True, "maxRounds": 9}
    given = [*TALKERS, team("team", "a", "b", strategy=strategy, budget={"modelCalls": 4}, **own)]
    result = await env.turn_result(await env.start_team(given))
    assert (result.stop_reason, result.failure) == ("budget", None)
    assert len(env.model.requests) == 4


def test_a_cost_needs_the_prices_of_all_models_below(write: Writer) -> None:
    spec = {"type": "openai", "model": "gpt", "config": {"openai": {"baseUrl": "http://host"}}}
    cheap, dear = agent("a", modelRef={"name": "known"}), agent("b", modelRef={"name": "unknown"})
    known = manifest("Model", "known", {**spec, "pricing": {"input": 1, "output": 2}})
    given = [cheap, dear, known, manifest("Model", "unknown", spec)]
    assert write.load(*given, team("t", "a", maxTurns=1, budget={"cost": 1}))
    with pytest.raises(ManifestError, match=r"spec.budget.cost: the cost of Model/default/unknown is not known"):
        write.load(*given, team("t", "a", "b", maxTurns=1, budget={"cost": 1}))
    with pytest.raises(ManifestError, match="the cost of Model default/default is not known: give"):
        write.load(agent("a"), team("t", "a", maxTurns=1, budget={"cost": 1}))


async def waiting(env: Environment, handle: Handle, count: int = 1) -> list[PendingDecision]:
    """What a run and those below it wait for."""
    while len(found := await pending_decisions(env.client, handle.id)) < count:
        await asyncio.sleep(0.05)
    return found


async def decide(env: Environment, handle: Handle, **given: Any) -> PersonDecision:
    """Decides what waits first."""
    [first, *_] = await waiting(env, handle)
    return await decisions.decide(env.client, handle, ApproveRequest.model_validate({"call": first.id, **given}))


@pytest.mark.full
async def test_a_person_grants_the_same_amount_again_or_another_one_or_none(env: Environment) -> None:
    handle = await env.start_team([*TALKERS, team("team", "a", "b", budget={"modelCalls": 2, "onExceeded": "ask"})])
    [asked] = await waiting(env, handle)
    assert (asked.kind, asked.speaker, asked.arguments) == ("budget", "Team/default/team", '{"modelCalls":2}')
    assert asked.question == spent("Team/default/team", 2)
    status = Status.model_validate(await handle.query("status"))
    assert status.phase == "InputRequired"
    assert len(env.model.requests) == 2
    await decide(env, handle)
    await env.wait_for_calls(4)
    with pytest.raises(NotDecided, match="the granted amounts must include modelCalls"):
        await decide(env, handle, arguments={"tokens": 5})
    with pytest.raises(NotDecided, match="the granted amounts must have the form of a budget"):
        await decide(env, handle, arguments={"modelCalls": "many"})
    await decide(env, handle, arguments={"modelCalls": 1}, by="ann")
    await env.wait_for_calls(5)
    await decide(env, handle, approved=False, reason="Enough.")
    result = await env.turn_result(handle)
    assert (result.stop_reason, result.failure, len(env.model.requests)) == ("budget", None, 5)
    assert result.note == f"{spent('Team/default/team', 5)}; the budget was not raised. Enough."
    status = Status.model_validate(await handle.query("status"))
    assert status.budget is not None
    assert (status.budget.limits.model_calls, status.budget.left.model_calls) == (5, 0)


async def test_each_approval_grants_the_amount_of_the_manifest_once_more(env: Environment) -> None:
    spec: Json = {"maxTurns": 4, "onMaxTurns": "complete", "budget": {"modelCalls": 2, "onExceeded": "ask"}}
    handle = await env.start_team([*TALKERS, team("team", "a", "b", **spec)])
    for calls in (4, 6, 8):
        await decide(env, handle)
        await env.wait_for_calls(calls)
    await env.turn_result(handle)
    status = Status.model_validate(await handle.query("status"))
    assert status.budget is not None
    assert (status.budget.limits.model_calls, status.budget.left.model_calls) == (8, 0)


@pytest.mark.full
async def test_one_decision_holds_for_all_runs_that_wait_for_the_same_budget(env: Environment) -> None:
    names = [f"m{number}" for number in range(6)]
    inner = [team(f"t{n}", *names[n : n + 2], strategy="parallel") for n in (0, 2, 4)]
    members = [*map(agent, names), *inner, team("team", "t0", "t2", "t4", strategy="parallel")]
    budget = {"modelCalls": 2, "onExceeded": "ask"}
    handle = await env.start_query(members, "team/team", budget=budget)
    await waiting(env, handle, 2)
    await decide(env, handle, arguments={"modelCalls": 4})
    status = await env.status(handle)
    assert (status.phase, status.stop_reason) == ("Completed", "completed")
    assert len(env.model.requests) == status.token_usage.model_calls == 6
    assert status.budget is not None
    assert (status.budget.limits.model_calls, status.budget.left.model_calls) == (6, 0)


@pytest.mark.full
async def test_a_no_ends_all_that_waits(env: Environment) -> None:
    names = [f"m{number}" for number in range(4)]
    members = [*map(agent, names), team("team", *names, strategy="parallel")]
    budget = {"modelCalls": 1, "onExceeded": "ask"}
    refused = await env.start_query(members, "team/team", budget=budget)
    await waiting(env, refused)
    await decide(env, refused, approved=False)
    status = await env.status(refused)
    assert (status.phase, status.stop_reason, len(env.model.requests)) == ("Completed", "budget", 1)


async def test_after_a_yes_the_duration_of_a_budget_counts_anew(env: Environment) -> None:
    env.script(line("a", {"text": "a", "delay": 1.2}, "a"), line("b", "b", "b"))
    budget = {"duration": "1s", "onExceeded": "ask"}
    handle = await env.start_team([*TALKERS, team("team", "a", "b", maxTurns=1, onMaxTurns="complete", budget=budget)])
    await waiting(env, handle)
    await asyncio.sleep(0.5)
    await decide(env, handle, arguments={"duration": "1m"})
    assert (await env.turn_result(handle)).stop_reason == "max_turns"


@pytest.mark.full
async def test_a_budget_holds_when_runs_continue_as_new(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    inner = team("inner", "a", "b", maxTurns=9, onMaxTurns="complete")
    outer = team("team", "inner", "a", strategy="parallel")
    budget = {"modelCalls": 12, "onExceeded": "ask"}
    handle = await env.start_query([*TALKERS, inner, outer], "team/team", budget=budget)
    await waiting(env, handle)
    await env.wait_for_calls(12)  # of members that speak at once, the other one may be about to make its call
    assert len(env.model.requests) == 12
    await decide(env, handle, arguments={"modelCalls": 3})
    await env.wait_for_calls(15)
    await decide(env, handle, approved=False)
    status = await env.status(handle)
    assert (status.stop_reason, len(env.model.requests)) == ("budget", 15)
    assert status.token_usage.model_calls == 15
    assert status.budget is not None
    assert (status.budget.limits.model_calls, status.budget.left.model_calls) == (15, 0)
    assert await env.find_runs("ExecutionStatus = 'ContinuedAsNew'", 1)


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_budget_of_calls_buys_as_many_requests_also_of_answers_that_break_off(
    env: Environment, limit: int
) -> None:
    env.script(line("a", {"text": "x" * 400, "cut": 390}))
    handle = await env.start_team([*TALKERS, team("team", "a", "b", budget={"modelCalls": limit})])
    result = await env.turn_result(handle)
    assert (result.stop_reason, result.note) == ("budget", spent("Team/default/team", limit))
    assert len(env.model.requests) == limit
    status = Status.model_validate(await handle.query("status"))
    assert status.budget is not None


@pytest.mark.parametrize("refusal", [{"status": 503}, {"status": 429}])
async def test_a_request_that_the_server_has_refused_costs_nothing(env: Environment, refusal: Json) -> None:
    again = {**refusal, "headers": {"retry-after-ms": "20"}}
    env.script(line("a", {"text": "a", "before": [again, again]}), line("b", "b"))
    members = [*TALKERS, team("team", "a", "b", strategy="sequential", budget={"modelCalls": 2})]
    result = await env.turn_result(await env.start_team(members))
    assert (result.stop_reason, result.message, len(env.model.requests)) == ("completed", "b", 4)
