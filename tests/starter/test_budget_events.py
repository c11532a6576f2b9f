"""The events of budgets for which a person is asked, and the phase that they show."""

import asyncio
from typing import Any

import pytest

from baton.contracts.decisions import ApproveRequest
from baton.starter.history.ark_events import EventRecorder
from baton.starter.history.events import WaitEndedEvent, WaitStartedEvent
from baton.starter.history.follow import follow
from baton.starter.history.live_state import LiveState
from baton.starter.history.run_events import RunEvent
from baton.starter.history.stream import stream_events
from baton.starter.runs.decisions import decide, pending_decisions
from baton.testing import Reply
from tests.harness.environment import Environment, Handle, Json, agent, line, team

OWNER = "Agent/default/a"
SPENT = f"the budget of {OWNER} is too low for the next call: 1 of 1 modelCalls are used"


async def answer(env: Environment, handle: Handle, **given: Any) -> None:
    """Decides about the budget that waits."""
    while not (found := await pending_decisions(env.client, handle.id)):
        await asyncio.sleep(0.02)
    await decide(env.client, handle, ApproveRequest.model_validate({"call": found[0].id, **given}))


async def read(env: Environment, handle: Handle, *, wait: bool) -> tuple[list[Json], LiveState]:
    """The events of a run until now, or until its end, and its state after them."""
    recorder, state, found = EventRecorder(), LiveState(), list[Json]()

    def take(event: RunEvent) -> None:
        found.extend(each.value for each in recorder.record(event))

    await follow(env.client, handle, take, wait=wait)
    async for typed in stream_events(env.client, handle, wait=wait):
        state.apply(typed)
    return found, state


@pytest.mark.full
@pytest.mark.parametrize("nested", [False, True])
async def test_the_events_tell_that_a_budget_waits_and_who_has_granted_more_or_refused_it(
    env: Environment, nested: bool
) -> None:
    one = agent("a", budget={"modelCalls": 1, "onExceeded": "ask"})
    env.script(line("a", "a", "a", "a"), line("b", "b", {"text": "b", "delay": 1}, "b"))
    members = [one, agent("b"), team("team", "a", "b", maxTurns=6, onMaxTurns="complete")]
    above = [team("above", "team", strategy="sequential")] if nested else []
    handle = await env.start_query([*members, *above], f"team/{'above' if nested else 'team'}")
    await answer(env, handle, by="ann")
    await env.wait_for_calls(4)
    await answer(env, handle, approved=False, reason="Enough.", by="bob")
    await env.wait_for_calls(5)
    _, state = await read(env, handle, wait=False)
    assert state.runs[handle.id].waits == {}
    found, _ = await read(env, handle, wait=True)
    about = [each for each in found if str(each["event"]).startswith("Grant")]
    assert [each["event"] for each in about[:4]] == [
        "GrantRequested",
        "GrantApproved",
        "GrantRequested",
        "GrantRejected",
    ]
    assert all(each["budget"] == OWNER for each in about)
    assert about[0]["text"] == SPENT
    assert (about[1]["by"], about[1]["more"]) == ("ann", '{"modelCalls":1}')
    assert (about[3]["by"], about[3]["reason"]) == ("bob", "Enough.")
    deferred = [each for each in found if each["event"] == "LLMCallDeferred"]
    assert {each["error"] for each in deferred} >= {SPENT}


async def test_a_run_whose_budget_waits_is_shown_as_waiting_for_a_person(env: Environment) -> None:
    one = agent("a", budget={"modelCalls": 1, "onExceeded": "ask"})
    env.script(line("a", "a"))
    handle = await env.start_query([one, team("team", "a", maxTurns=2)], "team/team")
    while not await pending_decisions(env.client, handle.id):
        await asyncio.sleep(0.02)
    _, state = await read(env, handle, wait=False)
    assert state.runs[handle.id].status.phase == "InputRequired"
    await answer(env, handle, approved=False)


async def waits_of(env: Environment, handle: Handle) -> list[str]:
    """The ids of the open waits for a budget, as the events of a run and its child runs tell them."""
    open_waits = dict[str, None]()
    async for event in stream_events(env.client, handle, wait=False):
        if isinstance(event, WaitStartedEvent) and event.kind == "budget":
            open_waits[event.wait] = None
        elif isinstance(event, WaitEndedEvent):
            open_waits.pop(event.wait, None)
    return sorted(open_waits)


async def pending_of(env: Environment, handle: Handle, count: int) -> list[str]:
    """The ids of so many pending decisions."""
    while len(found := await pending_decisions(env.client, handle.id)) < count:
        await asyncio.sleep(0.02)
    return sorted(decision.id for decision in found)


async def test_the_wait_of_a_budget_has_the_id_by_which_it_is_approved(env: Environment) -> None:
    """Two members of a team wait for the same grant, and again for the next one."""
    members = [agent("a"), agent("b"), agent("c")]
    budget = {"modelCalls": 1, "onExceeded": "ask"}
    both = team("both", "a", "b", "c", strategy="parallel", budget=budget)
    env.answer = lambda _: Reply(text="Yes.")
    handle = await env.start_query([*members, both], "team/both")
    first = await pending_of(env, handle, 2)
    assert await waits_of(env, handle) == first
    await answer(env, handle, arguments={"modelCalls": 1})
    while not await waits_of(env, handle) or {*first} & {*await waits_of(env, handle)}:
        await asyncio.sleep(0.02)
    assert await waits_of(env, handle) == await pending_of(env, handle, 1)
    await answer(env, handle, approved=False)
    await env.status(handle)
    assert await waits_of(env, handle) == []


@pytest.mark.slow
async def test_the_wait_of_a_budget_keeps_its_id_when_the_run_continues_as_new(
    env_with_short_histories: Environment,
) -> None:
    env = env_with_short_histories
    env.answer = lambda _: Reply(text="Yes.")
    budget = {"modelCalls": 12, "onExceeded": "ask"}
    one = team("team", "a", "b", maxTurns=20, onMaxTurns="complete", budget=budget)
    handle = await env.start_query([agent("a"), agent("b"), one], "team/team")
    for _ in range(3):
        pending = await pending_of(env, handle, 1)
        assert await waits_of(env, handle) == pending
        for number in range(30):  # signals fill the history of the run that waits, so it continues as new
            await env.client.get_workflow_handle(f"{handle.id}/target-1/team").signal("session", {"number": number})
        await env.find_runs("ExecutionStatus = 'ContinuedAsNew'", 1)
        while await waits_of(env, handle) != pending:
            await asyncio.sleep(0.02)
        assert await pending_of(env, handle, 1) == pending
        await answer(env, handle, arguments={"modelCalls": 3})
        while pending == await pending_of(env, handle, 1):
            await asyncio.sleep(0.02)
    await answer(env, handle, approved=False)
    await env.status(handle)
    assert await waits_of(env, handle) == []
