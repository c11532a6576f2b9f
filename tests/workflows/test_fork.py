"""A run is forked: a new run goes on from a place in it, and no call before that place is made again."""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from baton.activities.runtime.replay import Replays
from baton.contracts.control_messages import SteerRequest
from baton.contracts.decisions import ApproveRequest
from baton.contracts.status import Status
from baton.starter.history.events import (
    Event,
    ModelAnsweredEvent,
    ModelCalledEvent,
    RunForkedEvent,
    RunStartedEvent,
    ToolReturnedEvent,
    TurnEndedEvent,
)
from baton.starter.history.fork import ForkChanges, find_point, fork_run
from baton.starter.history.pages import turn_events
from baton.starter.history.stream import stream_events
from baton.starter.operations.prune import prune_journal
from baton.starter.runs import decisions
from baton.starter.runs.decisions import NotDecided, pending_decisions
from baton.starter.runs.listing import recent_runs
from baton.starter.runs.start import NotForkedError, retry_run
from baton.temporal import search_attributes
from baton.temporal.histories import workflow_tasks
from baton.testing import Reply, Request, ScriptedToolCall
from baton.workflows.registry import WORKFLOWS
from tests.durability.test_random_teams import RunUntilComplete, run_until_complete
from tests.harness.continued_runs import continued_runs
from tests.harness.environment import Environment, Handle, Json, agent, line, manifest, team
from tests.harness.panels import debate
from tests.harness.random_teams import ALL_STRATEGIES, NO_BUDGET, Node, is_choice, teams
from tests.harness.resets import reset, reset_points
from tests.harness.tool_server import ToolServer
from tests.workflows.test_approval import BUY, approve, pending, tool
from tests.workflows.test_budgets import decide, waiting
from tests.workflows.test_retry import TEAMS, RefusingModel, messages
from tests.workflows.test_ttl import expired

__all__ = ["run_until_complete"]  # a fixture

ABC = [agent("a"), agent("b"), agent("c")]

UNCHANGED = ForkChanges()


async def fork(env: Environment, handle: Handle, at: str, changes: ForkChanges = UNCHANGED) -> Handle:
    """A fork of a run."""
    return await fork_run(env.client, handle, at, changes)


def said(status: Status) -> list[tuple[str, str]]:
    """Who has said what in a run with one target."""
    (response,) = status.responses
    return [(message.name or "", message.content) for message in response.messages]


def rows(env: Environment, status: Status) -> list[str]:
    """The ids of the rows of a run's conversation."""
    head = status.responses[0].head
    assert head
    return [row["id"] for row in env.transcript(head.id)]


async def events_of(env: Environment, handle: Handle) -> list[Event]:
    """The events of a run and its child runs, in order."""
    async with aclosing(stream_events(env.client, handle, wait=False, live=False)) as stream:
        return [event async for event in stream]


def places(events: Sequence[Event]) -> list[tuple[str, int]]:
    """The names of all places after turns and model calls, with the index of the event after which they are."""
    root = events[0].run
    target = next((event.run for event in events if event.run.startswith(f"{root}/target-1/")), root)
    found: list[tuple[str, int]] = []
    calls = Counter[tuple[str, str]]()
    turn_of: dict[tuple[str, str], str] = {}
    agents = {event.run for event in events if isinstance(event, RunStartedEvent) and event.kind == "agent"}
    for index, event in enumerate(events):
        path = event.run[len(target) + 1 :]
        prefix = f"{path}/" if path else ""
        if isinstance(event, TurnEndedEvent):
            step = f"round-{event.round}/{event.speaker}" if event.round and not event.turn else f"{event.turn}"
            found.append((f"{prefix}{step}", index))
        elif isinstance(event, ModelCalledEvent) and event.speaker != "selector":
            step = f"round-{event.round}/{event.speaker}/" if event.round else f"{event.turn}/"
            turn_of[event.run, event.call] = "" if event.run in agents else step
        elif isinstance(event, ModelAnsweredEvent) and (event.run, event.call) in turn_of:
            step = turn_of[event.run, event.call]
            calls[event.run, step] += 1
            found.append((f"{prefix}{step}call-{calls[event.run, step]}", index))
    return found


def calls_in(events: Sequence[Event]) -> int:
    return sum(isinstance(event, ModelCalledEvent) for event in events)


async def test_a_fork_goes_on_after_a_turn_and_shares_what_was_said_before(env: Environment) -> None:
    model = RefusingModel()
    env.answer = model.answer
    first = await env.start_query([*ABC, team("team", "a", "b", "c", strategy="sequential")], "team/team")
    original = await env.status(first)
    asked = len(model.asked)
    status = await env.status(await fork(env, first, "2"))
    assert (status.phase, said(status)) == ("Completed", said(original))
    assert len(model.asked) == asked + 1
    assert status.token_usage == original.token_usage
    assert rows(env, status)[:3] == rows(env, original)[:3]
    assert rows(env, status)[3] != rows(env, original)[3]
    assert (await env.status(first)).responses == original.responses


@pytest.mark.full
async def test_a_team_that_is_called_upon_twice_in_a_round_is_asked_again_after_its_first_turn(
    env: Environment,
) -> None:
    opening = {"nextSpeakers": ["inner", "con", "inner"], "done": True}
    model = RefusingModel()
    env.answer = lambda request: (
        Reply(text=json.dumps(opening))
        if "You moderate" in str(request["messages"][0]["content"])
        else model.answer(request)
    )
    speakers: list[Json] = [{"name": "inner", "stance": "for"}, {"name": "con", "stance": "against"}]
    held = debate(*speakers, moderator=True, synthesizer=False, maxRounds=1, shuffleForJudge=False)
    first = await env.start_query([*ABC, team("inner", "b", "c", strategy="sequential"), held], "team/debate")
    original = await env.status(first)
    assert [name for name, _ in said(original)] == ["moderator", "inner", "con", "inner", "judge", "debate"]
    model.asked.clear()
    status = await env.status(await fork(env, first, "round-1/con"))
    assert (status.phase, said(status), len(model.asked)) == ("Completed", said(original), 3)
    for at in ("round-1/inner/1", "round-1/1/inner/1"):
        model.asked.clear()
        status = await env.status(await fork(env, first, at))
        assert (status.phase, said(status), len(model.asked)) == ("Completed", said(original), 2), at


CONCURRENT = "parallel", "nested in parallel"


@pytest.mark.slow
@pytest.mark.parametrize("shape", TEAMS)
async def test_a_fork_from_any_place_of_any_team_ends_like_the_run_and_makes_only_the_calls_after_it(
    env: Environment, shape: str
) -> None:
    manifests = TEAMS[shape]
    model = RefusingModel()
    env.answer = model.answer
    first = await env.start_query(manifests, f"team/{manifests[-1]['metadata']['name']}")
    original = await env.status(first)
    assert original.phase == "Completed", original.error
    asked = Counter(model.asked)
    events = await events_of(env, first)
    named = places(events)
    assert len(named) > 1
    for at, index in named:
        model.asked.clear()
        status = await env.status(await fork(env, first, at))
        assert (status.phase, messages(status)) == ("Completed", messages(original)), (at, status.error)
        again = Counter(model.asked)
        assert again <= asked, f"other calls after {at}"
        assert status.token_usage == original.token_usage, at
        if shape not in CONCURRENT:
            assert again.total() == calls_in(events[index + 1 :]), f"calls after {at}"
            shared = [row for row in rows(env, status) if row in rows(env, original)]
            assert rows(env, original)[: len(shared)] == shared, at


async def team_of(env: Environment, handle: Handle) -> Handle:
    """The run of a query's team, as soon as it answers: a child run exists a moment before its first workflow task."""
    child = env.client.get_workflow_handle(f"{handle.id}/target-1/team")
    while True:
        try:
            await child.query("status")
        except RPCError:
            await asyncio.sleep(0.02)
        else:
            return child


SEQUENCE = [*ABC, team("team", "a", "b", "c", strategy="sequential")]


@pytest.mark.full
async def test_a_message_at_the_place_is_read_by_the_next_speaker_alone(env: Environment) -> None:
    model = RefusingModel()
    env.answer = model.answer
    first = await env.start_query(SEQUENCE, "team/team")
    await env.status(first)
    model.asked.clear()
    message = ForkChanges(say=SteerRequest(text="Be brief.", name="Ann"))
    status = await env.status(await fork(env, first, "1", message))
    head = status.responses[0].head
    assert head
    texts = [row["content"] for row in env.transcript(head.id)]
    assert texts == ["Why?", "You are a. 1", "Be brief.", "You are b. 2", "You are c. 3"]
    assert ["Be brief." in asked for asked in model.asked] == [True, True]


@pytest.mark.full
async def test_a_field_of_a_member_is_changed_for_the_turns_after_the_place(env: Environment) -> None:
    model = RefusingModel()
    env.answer = model.answer
    first = await env.start_query(SEQUENCE, "team/team")
    await env.status(first)
    status = await env.status(await fork(env, first, "1", ForkChanges(fields={"b.prompt": "You are quick."})))
    assert said(status) == [("a", "You are a. 1"), ("b", "You are quic 2"), ("c", "You are c. 3")]
    again = await env.status(await fork(env, first, "2"))
    assert said(again)[1] == ("b", "You are b. 2"), "the run itself is not changed"


@pytest.mark.full
async def test_a_member_is_replaced_by_a_manifest(env: Environment) -> None:
    model = RefusingModel()
    env.answer = model.answer
    first = await env.start_query(TEAMS["nested teams"], "team/team")
    await env.status(first)
    changes = ForkChanges(resources=[manifest("Agent", "c", {"prompt": "You are late."})])
    status = await env.status(await fork(env, first, "2/1", changes))
    assert [text for _, text in said(status)] == ["You are a. 1", "You are b. 2", "You are late 3"]


REFUSED = {
    "an unknown turn": ("9", "there is no turn '9': .* has the turns 1, 2, 3"),
    "a word": ("later", "'later' is not a turn"),
    "a run that has not failed": ("failure", "has not failed: name a turn"),
    "an unknown call": ("1/call-7", "there is no 'call-7': the model gave 1 answer there"),
    "a turn below an agent": ("1/2", "a is not a team, so its turn has only calls"),
}


async def test_a_place_that_is_not_in_the_run_is_refused_in_a_sentence(env: Environment) -> None:
    env.answer = RefusingModel().answer
    first = await env.start_query(SEQUENCE, "team/team")
    await env.status(first)
    for at, reason in REFUSED.values():
        with pytest.raises(NotForkedError, match=reason):
            await fork(env, first, at)
    child = env.client.get_workflow_handle(f"{first.id}/target-1/team")
    with pytest.raises(NotForkedError, match="is a child of"):
        await fork(env, child, "1")


UNFIT: dict[str, tuple[Json, str]] = {
    "another member in the place of one that has spoken": (
        {"team.members": [{"name": "c"}, {"name": "b"}]},
        "a has spoken, or is to speak, as member 1 of team team, which is now c",
    ),
    "another strategy": (
        {"team.strategy": "round-robin", "team.maxTurns": 2},
        "team team was sequential and is now round-robin|can't be forked here",
    ),
    "an unknown manifest": ({"nobody.prompt": "x"}, "'nobody.prompt' is not a field of a manifest of the forked run"),
    "an invalid value": ({"a.maxIterations": "many"}, "maxIterations"),
}


@pytest.mark.parametrize("case", UNFIT)
async def test_changes_that_do_not_fit_what_was_decided_fail_the_fork_with_a_sentence(
    env: Environment, case: str
) -> None:
    changes, reason = UNFIT[case]
    model = RefusingModel()
    env.answer = model.answer
    first = await env.start_query(SEQUENCE, "team/team")
    await env.status(first)
    model.asked.clear()
    status = await env.status(await fork(env, first, "1", ForkChanges(fields=changes)))
    assert status.phase == "Failed"
    assert re.search(reason, status.error or ""), status.error
    assert model.asked == []


@pytest.mark.full
async def test_a_failed_run_goes_on_with_a_mended_manifest_before_the_call_that_has_failed(env: Environment) -> None:
    model = RefusingModel(refused=3)
    env.answer = model.answer
    first = await env.start_query(SEQUENCE, "team/team")
    assert (await env.status(first)).phase == "Failed"
    mended = ForkChanges(fields={"c.prompt": "You are mended."})
    status = await env.status(await fork(env, first, "failure", mended))
    assert said(status) == [("a", "You are a. 1"), ("b", "You are b. 2"), ("c", "You are mend 3")]
    assert len(model.asked) == 3


@pytest.mark.full
async def test_a_fork_is_forked_and_retried(env: Environment) -> None:
    model = RefusingModel(refused=5)
    env.answer = model.answer
    first = await env.start_query(SEQUENCE, "team/team")
    original = await env.status(first)
    failed = await fork(env, first, "1")
    assert (await env.status(failed)).phase == "Failed"
    status = await env.status(await retry_run(env.client, failed))
    assert said(status) == said(original)
    again = await env.status(await fork(env, failed, "2"))
    assert said(again) == said(original)
    assert rows(env, again)[:3] == rows(env, status)[:3]


@pytest.mark.full
async def test_a_person_decides_again_what_was_decided_after_the_place(
    env: Environment, tool_server: ToolServer
) -> None:
    env.script(line("a", "Well."), line("buyer", BUY, "Bought.", "Not bought."), line("c", "Good."))
    buying = [ABC[0], agent("buyer", "buy"), ABC[2], tool(tool_server, {"required": True})]
    first = await env.start_query([*buying, team("team", "a", "buyer", "c", strategy="sequential")], "team/team")
    child = await team_of(env, first)
    (asked,) = await pending(child)
    open_fork = await fork(env, first, "1")
    waiting = await team_of(env, open_fork)
    (again,) = await pending(waiting)
    assert again.id != asked.id, "the model was asked again"
    await approve(child, asked, remember=True)
    assert (await env.status(first)).phase == "Completed"
    assert len(tool_server.seen) == 1
    later = await fork(env, first, "2/call-1")
    waiting_later = await team_of(env, later)
    (asked_again,) = await pending(waiting_later)
    assert asked_again.id == asked.id, "the answer of the model is the same row"
    await approve(waiting_later, asked_again, approved=False)
    status = await env.status(later)
    assert (status.phase, len(tool_server.seen)) == ("Completed", 1)
    assert "a person rejected this call" in said(status)[2][1]
    await approve(waiting, again, approved=False)
    assert (await env.status(open_fork)).phase == "Completed"


@pytest.mark.full
async def test_what_was_spent_before_the_place_counts_in_the_budgets_of_the_fork(env: Environment) -> None:
    talkers = [agent("a"), agent("b")]
    manifests = [*talkers, team("team", "a", "b", maxTurns=5, budget={"modelCalls": 4})]
    first = await env.start_query(manifests, "team/team")
    assert (await env.status(first)).stop_reason == "budget"
    assert len(env.model.requests) == 4
    status = await env.status(await fork(env, first, "3"))
    assert (status.stop_reason, len(env.model.requests)) == ("budget", 5)
    raised = await env.status(await fork(env, first, "3", ForkChanges(fields={"team.budget.modelCalls": 6})))
    assert (raised.stop_reason, len(env.model.requests)) == ("budget", 8)


@pytest.mark.parametrize("at", ["failure", "2"])
async def test_a_run_that_has_failed_at_its_turn_limit_goes_on_in_a_fork_with_a_higher_one(
    env: Environment, at: str
) -> None:
    first = await env.start_query([agent("a"), agent("b"), team("team", "a", "b", maxTurns=1)], "team/team")
    ended = await env.status(first)
    assert ended.failure
    assert (ended.failure.type, len(env.model.requests)) == ("MaxTurnsReached", 2)
    more = ForkChanges(fields={"team.maxTurns": 2, "team.onMaxTurns": "complete"})
    status = await env.status(await fork(env, first, at, more))
    assert (status.phase, status.responses[0].turns, len(env.model.requests)) == ("Completed", 4, 4)
    again = await env.status(await fork(env, first, at))
    assert again.failure
    assert (again.failure.type, len(env.model.requests)) == ("MaxTurnsReached", 4)


@pytest.mark.full
async def test_what_a_run_has_spent_before_and_after_its_reset_counts_in_the_budgets_of_the_fork(
    env: Environment,
) -> None:
    env.answer = lambda _: Reply(text="Yes.") if len(env.model.requests) != 3 else Reply(status=401, text="no")
    budget = {"modelCalls": 10}
    manifests = [agent("a"), agent("b"), team("team", "a", "b", maxTurns=6, budget=budget)]
    run_input = {"team": "team", "input": "Why?", "resources": manifests}
    first = await env.start("round-robin", run_input)
    with pytest.raises(WorkflowFailureError):
        await first.result()
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in (await first.fetch_history()).events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    refused = [each for each in scheduled if each.activity_type.name == "ask_model"][2]
    again = await reset(env, first, refused.workflow_task_completed_event_id)
    await again.result()
    made = len(env.model.requests)
    less = ForkChanges(fields={"team.budget.modelCalls": 4})
    forked = await env.turn_result(await fork(env, env.client.get_workflow_handle(first.id), "3", less))
    assert (forked.stop_reason, len(env.model.requests) - made) == ("budget", 1)


@pytest.mark.full
async def test_what_a_failed_member_team_has_spent_counts_once_in_the_fork_that_goes_on_in_it(env: Environment) -> None:
    budget = {"modelCalls": 2, "onExceeded": "fail"}
    manifests = [agent("a"), agent("b"), team("inner", "a", "b", maxTurns=3), team("team", "inner", budget=budget)]
    first = await env.start_query(manifests, "team/team")
    assert "2 of 2 modelCalls are used" in (await env.status(first)).message
    more = ForkChanges(fields={"team.budget.modelCalls": 3})
    status = await env.status(await fork(env, first, "failure", more))
    assert "3 of 3 modelCalls are used" in status.message
    assert len(env.model.requests) == 3


@pytest.mark.full
@pytest.mark.parametrize(("at", "left"), [("1", 1), ("2", 0), ("3", 1), ("4", 0)])
async def test_a_budget_that_people_have_raised_before_the_place_is_raised_in_the_fork_and_later_raises_are_not(
    env: Environment, at: str, left: int
) -> None:
    budget = {"modelCalls": 2, "onExceeded": "ask"}
    pair = team("team", "a", "b", maxTurns=3, onMaxTurns="complete", budget=budget)
    first = await env.start_query([agent("a"), agent("b"), pair], "team/team")
    for calls in (4, 6):
        await decide(env, first, approved=True)
        await env.wait_for_calls(calls)
    await env.status(first)
    forked = await fork(env, first, at)
    (asked,) = await waiting(env, forked)
    assert asked.arguments == '{"modelCalls":2}'
    assert len(env.model.requests) == 6 + left, "what was raised before the place, and no more"
    await decide(env, forked, approved=False)
    status = await env.status(forked)
    assert (status.stop_reason, len(env.model.requests)) == ("budget", 6 + left)


@pytest.mark.full
async def test_a_run_that_has_continued_as_new_is_forked_in_any_of_its_executions(
    env_with_short_histories: Environment,
) -> None:
    env = env_with_short_histories
    model = RefusingModel()
    env.answer = model.answer
    pair = team("team", "a", "b", maxTurns=15, onMaxTurns="complete")
    first = await env.start_query([*ABC, pair], "team/team")
    original = await env.status(first)
    assert len(await continued_runs(env, await team_of(env, first))) > 2
    for turn in (1, 14, 29):
        model.asked.clear()
        status = await env.status(await fork(env, first, f"{turn}"))
        assert (status.phase, status.token_usage) == ("Completed", original.token_usage)
        assert len(model.asked) == 30 - turn
        assert rows(env, status)[: turn + 1] == rows(env, original)[: turn + 1]


@pytest.mark.slow
async def test_a_turn_is_found_in_its_execution_alone_at_the_same_place_as_in_the_whole_run(
    env_with_short_histories: Environment,
) -> None:
    env = env_with_short_histories
    env.answer = RefusingModel().answer
    pair = team("team", "a", "b", maxTurns=8, onMaxTurns="complete")
    first = await env.start_query([*ABC, pair], "team/team")
    await env.status(first)
    assert len(await continued_runs(env, await team_of(env, first))) > 1
    alone = 0
    for turn in range(1, 17):
        alone += await turn_events(env.client, first, turn) is not None
        for at in (f"{turn}", f"{turn}/call-1", f"{turn}/call-1/tools"):
            found = await find_point(env.client, first, at)
            assert found == await find_point(env.client, first, f"target-1/{at}"), at
    assert alone == 16
    assert await turn_events(env.client, first, 17) is None


async def test_a_place_that_nobody_can_mean_is_refused_at_once(env: Environment) -> None:
    env.answer = RefusingModel().answer
    first = await env.start_query([*ABC, team("team", "a", "b", "c", strategy="sequential")], "team/team")
    await env.status(first)
    for long in ("1/" * 20_000, "1" * 5_000, "turn-" + "1" * 5_000, "round-" + "1" * 5_000, "1/call-" + "1" * 5_000):
        with pytest.raises(NotForkedError, match="at most 1,000 characters"):
            await find_point(env.client, first, long)
    for number in ("1" * 900, "turn-" + "1" * 900, "1/call-" + "1" * 900):
        with pytest.raises(NotForkedError):
            await find_point(env.client, first, number)


async def test_a_history_is_replayed_once_for_all_forks_from_a_place(env: Environment) -> None:
    env.answer = lambda _: Reply(text="This.")
    pair = team("team", "a", "b", "c", strategy="sequential")
    first = await env.start("sequential", {"team": "team", "input": "Why?", "resources": [*ABC, pair]})
    await first.result()
    first = env.client.get_workflow_handle(first.id, run_id=(await first.describe()).run_id)
    env.answer = lambda _: Reply(text="That.")
    again = await reset(env, first, (await reset_points(first))[0])
    await again.result()
    replays = Replays(WORKFLOWS, env.client.data_converter)

    async def last_state(run: Handle) -> JsonValue:
        events = (await run.fetch_history()).events
        *_, task = (task for task in workflow_tasks(events) if task.rests and task.end < len(events))
        return await replays.query(run.id, events[: task.end], "retry_input")

    states = [await last_state(run) for run in (first, again)]
    assert states[0] != states[1]
    assert await last_state(first) is states[0]
    assert await last_state(again) is states[1]


async def test_a_run_that_was_reset_is_forked(env: Environment) -> None:
    model = RefusingModel()
    env.answer = model.answer
    pair = team("team", "a", "b", "c", strategy="sequential")
    first = await env.start("sequential", {"team": "team", "input": "Why?", "resources": [*ABC, pair]})
    await first.result()
    again = await reset(env, first, (await reset_points(first))[2])
    result = await env.turn_result(again)
    model.asked.clear()
    forked = await env.turn_result(await fork(env, env.client.get_workflow_handle(first.id), "2"))
    assert [message.content for message in forked.messages] == [message.content for message in result.messages]
    assert len(model.asked) == 1


@pytest.mark.full
async def test_a_fork_adds_its_messages_to_the_conversation_of_its_query(env: Environment) -> None:
    model = RefusingModel()
    env.answer = model.answer
    first = await env.start_query(SEQUENCE, "team/team", conversationId="c")
    await env.status(first)
    forked = await fork(env, first, "1", ForkChanges(fields={"c.prompt": "You are other."}))
    assert (await env.status(forked)).phase == "Completed"
    model.asked.clear()
    await env.status(await env.start_query(SEQUENCE, "team/team", conversationId="c"))
    assert "You are c. 3" in model.asked[0]
    assert "You are othe 3" in model.asked[0]


@pytest.mark.full
async def test_the_rows_of_a_run_are_kept_after_its_ttl_while_a_fork_rests_on_them(env: Environment) -> None:
    model = RefusingModel()
    env.answer = model.answer
    first = await env.start_query(SEQUENCE, "team/team", ttl="5s")  # the fork has to begin within that
    original = await env.status(first)
    forked = await fork(env, first, "1", ForkChanges(fields={"query/q.ttl": None}))
    status = await env.status(forked)
    assert said(status) == said(original)
    expiry = await expired(env, first)
    assert expiry["journalKept"] is True
    assert len(rows(env, status)) == 4


@pytest.mark.parametrize("point", [{"event": 2}, {"runId": "none"}])
async def test_a_fork_at_a_place_that_no_client_of_baton_names_fails_at_once(env: Environment, point: Json) -> None:
    env.answer = RefusingModel().answer
    first = await env.start_query(SEQUENCE, "team/team")
    await env.status(first)
    execution = (await first.describe()).run_id
    place = {"run": first.id, "runId": execution, "event": 4, "at": "2026-01-01T00:00:00Z", **point}
    forks = {"fork": {"run": first.id, "runId": execution, "point": place}, "at": "1"}
    forked = await env.start("query", {"name": "q", "forks": forks})
    status = await env.status(forked)
    assert status.phase == "Failed"
    assert "can't be forked" in (status.error or "")


async def test_a_fork_tells_from_where_it_has_gone_on(env: Environment) -> None:
    env.answer = RefusingModel().answer
    first = await env.start_query(SEQUENCE, "team/team")
    await env.status(first)
    forked = await fork(env, first, "2")
    status = await env.status(forked)
    assert (status.forked_from, status.forked_at) == (first.id, "2")
    begun = [event for event in await events_of(env, forked) if isinstance(event, RunForkedEvent)]
    assert [(event.forked_from, event.place) for event in begun] == [(first.id, "2"), (None, None)]
    assert begun[1].usage.model_calls == 2
    await env.find_runs(f"{search_attributes.FORKED_FROM.name} = '{first.id}'", 1)
    listed = await recent_runs(env.client, None, 10, env.task_queue, forked_from=first.id)
    assert [run.id for run in listed] == [forked.id]
    described = await forked.describe()
    assert described.typed_search_attributes.get(search_attributes.FORKED_FROM) == first.id


@pytest.mark.full
async def test_a_call_that_had_ended_beside_the_place_is_not_made_again(
    env: Environment, tool_server: ToolServer
) -> None:
    model = RefusingModel()
    env.answer = model.answer
    pay = manifest("Tool", "pay", {"type": "http", "http": {"url": f"{tool_server.url}/pay", "method": "POST"}})
    desk = manifest("Tool", "desk", {"type": "team", "team": {"name": "inner"}})
    boss = agent("boss", "pay", "desk", parallelToolCalls=True)
    inner = team("inner", "b", "c", strategy="sequential")
    first = await env.start_query([*ABC, inner, desk, pay, boss], "agent/boss")
    original = await env.status(first)
    (below,) = {event.run for event in await events_of(env, first) if event.run.endswith("/inner")}
    place = below.removeprefix(f"{first.id}/")
    model.asked.clear()
    status = await env.status(await fork(env, first, f"{place}/1"))
    assert (status.phase, status.message, status.token_usage) == ("Completed", original.message, original.token_usage)
    assert (len(model.asked), len(tool_server.seen)) == (2, 1)


def task_completed(event_id: int) -> HistoryEvent:
    """The end of a workflow task, to which the commands that follow belong."""
    event = HistoryEvent(event_id=event_id, event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
    event.workflow_task_completed_event_attributes.SetInParent()
    return event


def child_signaled(event_id: int, task: int) -> HistoryEvent:
    """The command of a workflow task that sends a signal to a child."""
    event = HistoryEvent(
        event_id=event_id, event_type=EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED
    )
    command = event.signal_external_workflow_execution_initiated_event_attributes
    command.workflow_task_completed_event_id = task
    command.child_workflow_only = True
    return event


@pytest.mark.parametrize("is_delivered", [True, False])
def test_no_fork_begins_while_a_run_forwards_a_message_to_a_child(is_delivered: bool) -> None:
    """The result of a child that has ended meanwhile is not part of the state of the run before."""
    answered = HistoryEvent(event_id=3)
    if is_delivered:
        answered.external_workflow_execution_signaled_event_attributes.initiated_event_id = 2
    else:
        answered.signal_external_workflow_execution_failed_event_attributes.initiated_event_id = 2
    history = [task_completed(1), child_signaled(2, 1), answered, task_completed(4)]
    assert [(task.event, task.rests) for task in workflow_tasks(history)] == [(1, False), (4, True)]


def told(request: Request) -> Reply:
    """An answer, or a tool call, that depends on nothing but what was said so far."""
    first, *_, last = request["messages"]
    number = number_of([(message["role"], message.get("content")) for message in request["messages"]])
    word = f"said {number:06}"
    prompt = str(first["content"])
    if is_choice(request):
        names = re.findall(r"which of them \((.*?)\)", prompt)[0].split(", ")
        return Reply(text=names[number % len(names)])
    if prompt.startswith("You moderate a debate"):
        debaters = re.findall(r"^(team-[-\d]*): ", str(last["content"]), re.MULTILINE)
        chosen = [name for index, name in enumerate(debaters) if number >> index & 1] or debaters[:1]
        return Reply(text=json.dumps({"nextSpeakers": chosen, "briefing": word, "done": number % 5 == 0}))
    if prompt.startswith("You are the referee"):
        return Reply(text=json.dumps({"critique": word}))
    if prompt.startswith("You judge a debate"):
        return Reply(text=json.dumps({"verdict": word, "reasoning": "So it is."}))
    if last["role"] == "tool":
        return Reply(text=word)
    arguments: dict[str, Json] = {"calculator": {"expression": "1 + 1"}, "buy": {"item": word}}
    tools = sorted(tool["function"]["name"] for tool in request.get("tools", []))
    called = [name for index, name in enumerate(tools) if number >> index & 3 == 3 and name in PREFERRED]
    handed = [name for name in tools if name.startswith("transfer_to_")]
    called += [handed[number % len(handed)]] if handed and number % 3 else []
    return Reply(text=word, calls=[ScriptedToolCall(name=name, arguments=arguments.get(name, {})) for name in called])


def told_one_by_one(request: Request) -> Reply:
    """As ``told``, with at most one tool call: of several, it is chance which one takes the rest of a budget."""
    reply = told(request)
    return reply.model_copy(update={"calls": reply.calls[:1]})


PREFERRED = ("buy", "calculator", "noop", "terminate")
"""The tools that ``told`` calls now and then."""


def number_of(value: object) -> int:
    """A number that follows from a value, from 0 to 999,999."""
    return int(hashlib.sha256(unmarked(value).encode()).hexdigest(), 16) % 1_000_000


def unmarked(value: object) -> str:
    """The JSON of a value, without the marks around what tools have said: every call has others."""
    return re.sub(r"untrusted-content-[0-9a-f]+", "mark", json.dumps(value))


@dataclass
class Person:
    """Decides all that runs wait for, by nothing but what is asked. ``decided`` has what was asked for."""

    env: Environment
    decided: list[str] = field(default_factory=list)

    async def decide(self, run: Handle, ending: "asyncio.Task[Status]") -> None:
        """Decides whatever a run and those below it wait for, until the run has ended."""
        while not ending.done():
            for asked in await pending_decisions(self.env.client, run.id):
                number = number_of([asked.kind, asked.speaker, asked.arguments])
                answer = ApproveRequest(call=asked.id, approved=number % 3 > 0)
                with suppress(NotDecided):
                    await decisions.decide(self.env.client, run, answer)
                    self.decided.append(f"{asked.kind} {asked.speaker} {asked.arguments}")
            await asyncio.sleep(0.05)


@dataclass
class Observed:
    """What a run has come to, and what it has called for that."""

    run: Handle
    status: Status
    asked: list[str]
    bought: list[str]
    decided: list[str]

    @property
    def end(self) -> object:
        """What does not depend on who has made the calls."""
        said = [[(each.name, each.content) for each in response.messages] for response in self.status.responses]
        return self.status.phase, self.status.stop_reason, self.status.message, said, self.status.token_usage


async def observe(env: Environment, shop: ToolServer, started: Awaitable[Handle]) -> Observed:
    """A run, to its end; a person decides what it waits for."""
    env.model.requests.clear()
    shop.seen.clear()
    run = await started
    person = Person(env)
    ending = asyncio.create_task(env.status(run))
    await person.decide(run, ending)
    asked = [unmarked(request.body["messages"]) for request in env.model.requests]
    return Observed(run, await ending, asked, [seen.path for seen in shop.seen], person.decided)


def shopping(budgets: st.SearchStrategy[Json]) -> st.SearchStrategy[Node]:
    """Agents with tools, one of which waits for approval, and with one of these budgets."""
    specs = budgets.map(lambda budget: {"budget": budget} if budget else {})
    tools = st.sampled_from((("calculator", "noop"), ("buy",), ("buy", "calculator", "terminate")))
    return st.builds(Node, st.just(("answers",)), st.just(()), specs, tools)


BUDGETS = st.one_of(
    NO_BUDGET,
    st.fixed_dictionaries(
        {"onExceeded": st.sampled_from(("stop", "fail", "ask"))},
        optional={"modelCalls": st.integers(1, 6), "toolCalls": st.integers(1, 2)},
    ).filter(lambda budget: len(budget) > 1),
)
IN_TURNS = tuple(strategy for strategy in ALL_STRATEGIES if strategy != "parallel")
CONCURRENT_TEAMS = st.integers(1, 3).flatmap(lambda depth: teams(depth, ALL_STRATEGIES, shopping(NO_BUDGET)))
TEAMS_IN_TURNS = st.integers(1, 3).flatmap(lambda depth: teams(depth, IN_TURNS, shopping(BUDGETS), BUDGETS))
"""Of parallel members, it is chance which of them takes the rest of a budget."""

OF_FORKS = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a counterexample takes a while to be made small
@OF_FORKS
@given(node=CONCURRENT_TEAMS, place=st.integers(0, 50), prunes=st.booleans())
def test_a_fork_of_a_random_nested_team_ends_like_the_run(
    env: Environment,
    tool_server: ToolServer,
    run_until_complete: RunUntilComplete,
    node: Node,
    place: int,
    prunes: bool,
) -> None:
    async def check() -> None:
        env.answer = told
        manifests = [*node.manifests(), tool(tool_server, {"required": True})]
        original = await observe(env, tool_server, env.start_query(manifests, "team/team"))
        named = places(await events_of(env, original.run))
        if not named:
            return
        at, _ = named[place % len(named)]
        if prunes:
            await prune_journal(env.client, env.journal_address, None, dry=False)
        forked = await observe(env, tool_server, fork(env, original.run, at))
        if original.status.phase == "Failed":  # it is chance how far the others of parallel members have come
            assert forked.status.phase == "Failed", at
            return
        assert forked.end == original.end, at
        for calls, all_calls in (
            (forked.asked, original.asked),
            (forked.bought, original.bought),
            (forked.decided, original.decided),
        ):
            assert Counter(calls) <= Counter(all_calls), at

    run_until_complete(check())


def reprompted(manifests: Sequence[Json], name: str) -> list[Json]:
    """The manifests with another prompt of an agent."""
    other = {"prompt": f"You are {name}, and quick."}
    return [
        {**each, "spec": {**each["spec"], **other}} if each["metadata"]["name"] == name else each for each in manifests
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a counterexample takes a while to be made small
@OF_FORKS
@given(node=TEAMS_IN_TURNS, place=st.integers(0, 50), agent=st.integers(0, 9))
def test_a_fork_of_a_random_nested_team_ends_like_a_run_that_was_told_so_from_the_start(
    env: Environment, tool_server: ToolServer, run_until_complete: RunUntilComplete, node: Node, place: int, agent: int
) -> None:
    """An agent that has not spoken before the place has another prompt."""

    async def check() -> None:
        env.answer = told_one_by_one
        manifests = [*node.manifests(), tool(tool_server, {"required": True})]
        original = await observe(env, tool_server, env.start_query(manifests, "team/team"))
        events = await events_of(env, original.run)
        named = places(events)
        if not named:
            return
        at, index = named[place % len(named)]
        before = events[: index + 1]
        spoken = {event.speaker for event in before if isinstance(event, ModelCalledEvent)}
        silent = [name for name, each in node.named() if not each.members and name not in spoken]
        changes: dict[str, JsonValue] = {}
        if silent:
            changed = silent[agent % len(silent)]
            manifests = reprompted(manifests, changed)
            changes[f"{changed}.prompt"] = f"You are {changed}, and quick."
        told_so = await observe(env, tool_server, env.start_query(manifests, "team/team"))
        forked = await observe(env, tool_server, fork(env, original.run, at, ForkChanges(fields=changes)))
        assert forked.end == told_so.end, at
        answered = sum(isinstance(event, ModelAnsweredEvent) for event in before)  # budgets refuse other calls
        assert forked.asked == told_so.asked[answered:], f"calls after {at}"
        bought = sum(isinstance(event, ToolReturnedEvent) and event.tool == "buy" for event in before)
        assert forked.bought == told_so.bought[bought:], f"tool calls after {at}"
        head, first_head = forked.status.responses[0].head, original.status.responses[0].head
        if head and first_head:
            kept = {row["id"] for row in env.transcript(first_head.id)}
            shared = [row["id"] in kept for row in env.transcript(head.id)]
            assert shared == sorted(shared, reverse=True), f"rows before {at}"

    run_until_complete(check())
