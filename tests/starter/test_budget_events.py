"""The events of budgets for which a person is asked, and the phase that they show."""

import asyncio
from typing import Any

import pytest

from baton.contracts.decisions import ApproveRequest
from baton.starter.history.ark_events import EventRecorder
from baton.starter.history.follow import follow
from baton.starter.history.live_state import LiveState
from baton.starter.history.run_events import RunEvent
from baton.starter.history.stream import stream_events
from baton.starter.runs.decisions import decide, pending_decisions
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
