"""Outages of servers: a run waits for their end, says so, and can be told to end meanwhile."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import JsonValue
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from baton.contracts.status import Status
from baton.starter.history.ark_events import ArkEvent, EventRecorder
from baton.starter.history.events import TurnEndedEvent
from baton.starter.history.follow import follow
from baton.starter.history.live_state import LiveState
from baton.starter.history.run_events import CallEnded, RunEvent
from baton.starter.history.stream import stream_events
from baton.starter.runs.listing import recent_runs
from baton.starter.runs.runs import live_status
from baton.testing import Reply, Request
from baton.worker import run_worker
from baton.workflows.calls.effects import ATTEMPTS_IN_OUTAGE, FIRST_ATTEMPTS
from baton.workflows.state.outages import (
    EVENTS_OF_A_WAIT,
    LONGEST_WAIT,
    events_left,
    seconds_after,
    seconds_apart,
    seconds_spread,
)
from tests.activities.test_inline_manifests import model
from tests.harness import frozen_models
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team, texts
from tests.harness.functions import ballot
from tests.harness.tool_server import Answer, ToolServer
from tests.replay.scenarios import query_with_child_held_back, run_scenario, without_a_worker_after_failures

DOWN = Reply(status=503, text="down", headers={"retry-after-ms": "1"})


class Outage:
    """A model that is down: ``requests`` counts those that it has refused. After so many ``refusals`` it is back.

    Its first answer then is held: until a test releases it, the run waits for the end of the outage.
    """

    def __init__(self, down: Reply = DOWN, refusals: int | None = None) -> None:
        self.requests = 0
        self._down = down
        self._refusals = refusals

    def __call__(self, _: Request) -> Reply:
        if self.requests == self._refusals:
            return Reply(text="Here.", held=True)
        self.requests += 1
        return self._down


async def waiting(env: Environment, handle: Handle) -> Status:
    """The status of a run once it waits for the end of an outage."""
    while (status := await live_status(env.client, handle)).phase != "Waiting":
        assert status.is_open
        await asyncio.sleep(0.05)
    return status


TEAMS: list[Json] = [
    agent("one"),
    team("inner", "one", strategy="sequential"),
    team("outer", "inner", strategy="sequential"),
]


@pytest.mark.full
@pytest.mark.parametrize("target", ["agent/one", "team/outer"])
async def test_a_run_waits_for_the_end_of_an_outage_and_says_so(env: Environment, target: str) -> None:
    env.answer = Outage(refusals=FIRST_ATTEMPTS)
    handle = await env.start_query(TEAMS, target)
    status = await waiting(env, handle)
    (shown,) = status.outages or ()
    assert (shown.type, shown.attempts) == ("ModelUnavailable", FIRST_ATTEMPTS)
    assert shown.error == f"gpt-4.1-mini at {env.model_host} answered HTTP 503: down"
    assert shown.call == "turn 1 · one · default"
    assert await env.find_runs("BatonPhase = 'Waiting' AND WorkflowType = 'query'", 1) == [handle.id]
    (listed,) = await recent_runs(env.client, None, 100, env.task_queue)
    assert (listed.id, listed.state) == (handle.id, "Waiting")
    state = LiveState()
    async for event in stream_events(env.client, handle, wait=False):
        state.apply(event)
    (open_call,) = state.open_calls
    assert "HTTP 503: down" in open_call.failure
    env.model.release()
    ended = await env.status(handle)
    assert (ended.phase, ended.message, ended.outages) == ("Completed", "Here.", None)
    assert ended.token_usage.model_calls == 1


@pytest.mark.slow
async def test_a_run_waits_for_a_server_that_is_overloaded_within_its_streams(env: Environment) -> None:
    overloaded = Reply(raw='data: {"error": {"code": "rate_limit_exceeded", "message": "slow down"}}\n\n')
    env.answer = Outage(overloaded, refusals=FIRST_ATTEMPTS)
    handle = await env.start_query(TEAMS, "agent/one")
    (shown,) = (await waiting(env, handle)).outages or ()
    assert (shown.type, shown.attempts) == ("ModelUnavailable", FIRST_ATTEMPTS)
    env.model.release()
    assert (await env.status(handle)).message == "Here."


async def test_a_call_that_may_wait_for_the_end_of_an_outage_has_the_time_that_its_model_is_given(
    env: Environment,
) -> None:
    gpt = model(env.model_url, "gpt")
    gpt["spec"]["timeout"] = "20m"
    handle = await env.start(
        "agent", {"agent": "one", "input": "?", "resources": [agent("one", modelRef={"name": "gpt"}), gpt]}
    )
    await env.turn_result(handle)
    events = (await handle.fetch_history()).events
    scheduled = [event.activity_task_scheduled_event_attributes for event in events]
    (call,) = [each for each in scheduled if each.activity_type.name == "ask_model"]
    assert call.start_to_close_timeout.ToTimedelta() > timedelta(minutes=20)


@pytest.mark.full
@pytest.mark.parametrize("request_", ["terminate_team", "cancel"])
async def test_a_run_that_waits_during_an_outage_ends_when_it_is_told_to(env: Environment, request_: str) -> None:
    env.answer = Outage()
    handle = await env.start_query(TEAMS, "team/outer")
    await waiting(env, handle)
    await handle.signal(request_, {"reason": "enough"})
    status = await env.status(handle)
    assert (status.stop_reason, status.note) == (
        ("terminated", "enough") if request_ == "terminate_team" else ("canceled", "enough")
    )


async def test_a_refused_request_fails_at_once(env: Environment) -> None:
    env.answer = outage = Outage(Reply(status=401, text="no"))
    status = await env.status(await env.start_query(TEAMS, "agent/one"))
    assert status.failure
    assert (status.failure.type, outage.requests) == ("KeyRefused", 1)


async def test_a_fallback_is_asked_instead_of_waiting(env: Environment) -> None:
    def answer(request: Request) -> Reply:
        return Reply(text="Here.") if request["model"] == "spare" else DOWN

    env.answer = answer
    gpt = model(env.model_url, "gpt")
    gpt["spec"]["fallback"] = {"name": "spare"}
    spare = model(env.model_url, "spare")
    spare["spec"]["model"] = "spare"
    status = await env.status(await env.start_query([agent("one", modelRef={"name": "gpt"}), gpt, spare], "agent/one"))
    assert (status.phase, status.message) == ("Completed", "Here.")


LATER = Reply(status=429, text="later", headers={"retry-after": "60"})


async def test_a_fallback_is_asked_at_once_if_the_server_wants_to_be_left_alone(env: Environment) -> None:
    asked_for: list[str] = []

    def answer(request: Request) -> Reply:
        asked_for.append(request["model"])
        return Reply(text="Here.") if request["model"] == "spare" else LATER

    env.answer = answer
    gpt = model(env.model_url, "gpt")
    gpt["spec"]["fallback"] = {"name": "spare"}
    spare = model(env.model_url, "spare")
    spare["spec"]["model"] = "spare"
    async with asyncio.timeout(50):
        given = [agent("one", modelRef={"name": "gpt"}), gpt, spare]
        status = await env.status(await env.start_query(given, "agent/one"))
    assert (status.message, asked_for) == ("Here.", ["m", "spare"])


async def test_a_run_says_at_once_that_it_waits_for_a_server_that_wants_to_be_left_alone(env: Environment) -> None:
    env.answer = outage = Outage(LATER)
    handle = await env.start_query(TEAMS, "agent/one")
    async with asyncio.timeout(50):
        (shown,) = (await waiting(env, handle)).outages or ()
    assert (shown.type, shown.attempts, outage.requests) == ("ModelUnavailable", 1, 1)
    assert (shown.until - shown.since).total_seconds() >= 59
    await handle.signal("terminate_team", {"now": True})
    assert (await env.status(handle)).stop_reason == "terminated"


def tools(server: ToolServer, on_error: str) -> list[Json]:
    look = {"type": "http", "description": "Looks.", "http": {"url": server.url}}
    spec: Json = {"tools": [{"name": "look", "onError": on_error}]}
    return [manifest("Tool", "look", look), agent("one", **spec)]


@pytest.mark.slow
async def test_a_tool_whose_failure_would_end_the_run_is_waited_for(env: Environment, tool_server: ToolServer) -> None:
    down = True
    tool_server.answer = lambda _: Answer("down", status=503) if down else Answer("It is 4.")
    env.script(line("one", call("look"), "Thanks."))
    handle = await env.start_query(tools(tool_server, "fail"), "agent/one")
    status = await waiting(env, handle)
    (shown,) = status.outages or ()
    assert shown.type == "ToolFailed"
    down = False
    ended = await env.status(handle)
    assert texts(ended.responses[0].messages)[-2:] == ["It is 4.", "Thanks."]


@pytest.mark.full
async def test_a_team_that_goes_on_without_failed_members_waits_for_none(
    env: Environment, tool_server: ToolServer
) -> None:
    tool_server.answer = lambda _: Answer("down", status=503)
    env.script(line("one", call("look"), "Thanks."), line("two", "Here."))
    both = team("both", "one", "two", strategy="parallel", onMemberError="continue")
    manifests = [*tools(tool_server, "fail"), agent("two"), both]
    status = await env.status(await env.start_query(manifests, "team/both"))
    assert (status.phase, [failure.member for failure in status.all_member_failures]) == ("Completed", ["one"])
    assert len(tool_server.seen) == 4


@pytest_asyncio.fixture(loop_scope="session")
async def impatient(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A worker that waits for four seconds."""
    async with Environment.running(client, tmp_path, variables={"BATON_MAX_OUTAGE": "4s"}) as env:
        yield env


@pytest.mark.full
async def test_a_refused_key_is_waited_for_where_the_worker_is_told_to(client: Client, tmp_path: Path) -> None:
    async with Environment.running(client, tmp_path, variables={"BATON_WAIT_FOR_KEYS": "1"}) as env:
        env.answer = Outage(Reply(status=401, text="no"), refusals=1)
        handle = await env.start_query(TEAMS, "agent/one")
        (shown,) = (await waiting(env, handle)).outages or ()
        assert (shown.type, shown.attempts) == ("KeyRefused", 1)
        env.model.release()
        assert (await env.status(handle)).message == "Here."


@pytest.mark.full
@pytest.mark.parametrize("target", ["agent/one", "team/at-once"])
async def test_an_outage_that_is_longer_than_the_limit_fails_the_run(impatient: Environment, target: str) -> None:
    """An agent of a parallel team has a run of its own."""
    at_once = team("at-once", "one", strategy="parallel")
    for _ in range(4):  # the first attempts of a busy machine may leave no time for a wait and further ones
        impatient.answer = outage = Outage()
        status = await impatient.status(await impatient.start_query([*TEAMS, at_once], target))
        if outage.requests > FIRST_ATTEMPTS:
            break
    assert status.failure
    assert (status.phase, status.failure.type, status.failure.wait) == ("Failed", "ModelUnavailable", None)
    assert outage.requests == FIRST_ATTEMPTS + ATTEMPTS_IN_OUTAGE


def with_policy(kind: Json, **policy: object) -> Json:
    """The manifest with a retry policy."""
    return {**kind, "spec": {**kind["spec"], "retryPolicy": policy}}


@pytest.mark.full
async def test_a_model_is_attempted_as_often_and_as_soon_as_its_retry_policy_says(env: Environment) -> None:
    env.answer = Outage(Reply(status=503, text="down"), refusals=2 + 3)
    first = with_policy(model(env.model_url, "first"), maximumAttempts=2, initialInterval="10ms")
    first["spec"]["fallback"] = {"name": "second"}
    second = with_policy(model(env.model_url, "second"), maximumAttempts=3, initialInterval="10ms")
    one = agent("one", modelRef={"name": "first"})
    handle = await env.start_query([one, first, second], "agent/one")
    (shown,) = (await waiting(env, handle)).outages or ()
    assert shown.attempts == 3
    env.model.release()
    assert (await env.status(handle)).message == "Here."


@pytest.mark.full
@pytest.mark.parametrize(("on_error", "attempts"), [("feed", 3), ("fail", 3)])
async def test_a_tool_is_attempted_as_often_as_its_retry_policy_says(
    env: Environment, tool_server: ToolServer, on_error: str, attempts: int
) -> None:
    is_over = on_error == "feed"
    tool_server.answer = lambda number: Answer("fine") if is_over and number > attempts else Answer("down", status=503)
    tool = manifest("Tool", "weather", {"type": "http", "http": {"url": tool_server.url, "method": "GET"}})
    env.script(line("one", call("weather"), "Done."))
    one = agent("one", tools=[{"name": "weather", "onError": on_error}])
    policy = {"maximumAttempts": attempts, "initialInterval": "10ms", "maximumInterval": "20ms"}
    handle = await env.start_query([one, with_policy(tool, **policy)], "agent/one")
    if on_error == "fail":
        (shown,) = (await waiting(env, handle)).outages or ()
        assert shown.attempts == attempts
        is_over = True
    status = await env.status(handle)
    assert status.phase == "Completed"
    assert len(tool_server.seen) == attempts if on_error == "feed" else len(tool_server.seen) > attempts


@pytest.mark.slow
@pytest.mark.parametrize("target", ["agent/one", "team/outer"])
async def test_a_call_that_no_worker_finishes_is_an_outage_that_its_run_waits_for(
    client: Client, tmp_path: Path, target: str
) -> None:
    settings = {**frozen_models.SETTINGS, "BATON_MODEL_TASK_QUEUE": uuid.uuid4().hex}
    async with Environment.running(client, tmp_path, variables=settings) as env:
        env.answer = lambda _: Reply(text="Here.")
        async with frozen_models.frozen_worker(env):
            handle = await env.start_query(frozen_models.teams(env), target)
            status = await waiting(env, handle)
        (outage,) = status.outages or ()
        assert outage.type == "CallTimeout"
        assert outage.error == "no worker finished ask_model: activity Heartbeat timeout"
        async with run_worker(client, env.catalog, {**env.worker_env, "BATON_ROLES": "models"}):
            status = await env.status(handle)
        assert (status.phase, status.message) == ("Completed", "Here.")


@pytest.mark.full
async def test_a_call_that_has_failed_before_its_worker_was_away_is_waited_for(client: Client, tmp_path: Path) -> None:
    settings = {**frozen_models.SETTINGS, "BATON_MODEL_TASK_QUEUE": uuid.uuid4().hex}
    async with Environment.running(client, tmp_path, variables=settings) as env:
        handle = await run_scenario(env, without_a_worker_after_failures)
        status = await env.status(handle)
        assert (status.phase, status.message) == ("Completed", "Here.")


@pytest.mark.slow
async def test_a_run_whose_child_cannot_be_started_waits_and_says_so(env: Environment) -> None:
    env.answer = lambda _: Reply(text="Here.")
    async with query_with_child_held_back(env, outer_query(), "outer") as outer:
        child = f"{outer.id}/target-1/outer"
        status = await waiting(env, outer)
        (shown,) = status.outages or ()
        assert (shown.type, shown.call) == ("RunStillOpen", "start outer")
        assert shown.error == f"a run with the id {child} is still open: it is canceled"
    ended = await env.status(outer)
    assert (ended.phase, ended.message, ended.outages) == ("Completed", "Here.", None)


def outer_query() -> Json:
    """The input of a query to the team ``outer``."""
    return {"spec": {"input": "Why?", "targets": [{"type": "team", "name": "outer"}]}, "resources": TEAMS}


@pytest.mark.slow
async def test_missed_heartbeats_do_not_count_as_attempts_of_a_function_that_is_a_member(
    client: Client, tmp_path: Path
) -> None:
    settings = {**frozen_models.SETTINGS_OF_FUNCTIONS, "BATON_TOOL_TASK_QUEUE": uuid.uuid4().hex}
    members = [{"name": "ballot", "type": "activity"}]
    async with Environment.running(client, tmp_path, variables=settings, functions=(ballot,)) as env:
        async with frozen_models.frozen_worker_for_functions(env):
            handle = await env.start_query([team("team", strategy="sequential", members=members)], "team/team")
            child = client.get_workflow_handle(f"{handle.id}/target-1/team")
            while await attempts_of(child) < 5:
                assert (await handle.query("status"))["phase"] == "Running"
                await asyncio.sleep(0.1)
        async with run_worker(client, env.catalog, {**env.worker_env, "BATON_ROLES": "tools"}, (ballot,)):
            status = await env.status(handle)
        assert (status.phase, status.message) == ("Completed", "{'choice': 1}")


@pytest.mark.full
async def test_the_turn_of_a_function_ends_with_its_only_call_in_a_team_that_goes_on_without_failed_members(
    client: Client, tmp_path: Path
) -> None:
    @activity.defn(name="perform")
    async def perform(_: JsonValue) -> None:
        raise ApplicationError("no worker finished perform", type="CallTimeout", non_retryable=True)

    settings = {**frozen_models.SETTINGS_OF_FUNCTIONS, "BATON_TOOL_TASK_QUEUE": uuid.uuid4().hex}
    members = [{"name": "ballot", "type": "activity"}, {"name": "one", "type": "agent"}]
    both = team("both", strategy="parallel", onMemberError="continue", members=members)
    async with Environment.running(client, tmp_path, variables=settings, functions=(ballot,)) as env:
        env.script(line("one", {"text": "Here.", "held": True}))
        async with Worker(client, task_queue=settings["BATON_TOOL_TASK_QUEUE"], activities=[perform]):
            handle = await env.start_query([agent("one"), both], "team/both")
            recorder = EventRecorder()
            ark_events: list[ArkEvent] = []

            def on_event(event: RunEvent) -> None:
                ark_events.extend(recorder.record(event))
                if isinstance(event, CallEnded) and event.failure:
                    env.model.release()

            await follow(client, handle, on_event)
        assert (await env.status(handle)).phase == "Completed"
        events = [event async for event in stream_events(client, handle, wait=False)]
    ends = [(event.speaker, event.outcome) for event in events if isinstance(event, TurnEndedEvent)]
    assert ends == [("ballot", "failed"), ("one", "completed")]
    names = [event.name for event in ark_events]
    assert names.index("TeamMemberFailed") < names.index("TeamMemberCompleted")


async def attempts_of(handle: Handle) -> int:
    """The attempts of the call that a run waits for."""
    try:
        pending = (await handle.describe()).raw_description.pending_activities
    except RPCError:  # it has not begun
        return 0
    return max((call.attempt for call in pending), default=0)


def test_a_wait_is_bounded_however_many_there_were_before() -> None:
    assert [seconds_after(waits) for waits in (0, 1, 7, 8, 5_000)] == [2, 4, 256, 300, 300]


def waits_of(calls: int, seconds: float, longest: float = LONGEST_WAIT, shortest: float = 0) -> tuple[list[float], int]:
    """How long each of so many calls waits, again and again for ``seconds``, and the events of their history then."""
    waits: list[float] = []
    events = 100
    rest = seconds
    while rest > 0:
        left = events_left(events, events * 600)
        wait = seconds_spread(len(waits), calls, max(longest, seconds_apart(calls, rest, left)), left)
        waits.append(max(shortest, wait))
        rest -= waits[-1]
        events += calls * EVENTS_OF_A_WAIT
    return waits, events


DAY = 86_400


@pytest.mark.parametrize("calls", [1, 20])
def test_the_first_waits_of_an_outage_are_short_for_a_single_call_and_for_many(calls: int) -> None:
    waits, _ = waits_of(calls, DAY)
    assert waits[:7] == [2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize(("longest", "shortest"), [(LONGEST_WAIT, 0), (0, 30)])
@pytest.mark.parametrize("days", [1, 30])
@pytest.mark.parametrize("calls", [1, 3, 49, 128, 900])
def test_however_many_calls_wait_for_an_outage_or_a_circuit_breaker_their_history_has_space_for_it(
    calls: int, days: int, longest: float, shortest: float
) -> None:
    _, events = waits_of(calls, days * DAY, longest, shortest)
    assert events < 51_200


@pytest.mark.parametrize("calls", [1, 3, 49, 100])
def test_however_many_calls_wait_for_a_month_their_history_has_space_for_it(calls: int) -> None:
    month = 31 * DAY
    events = 100
    passed = 0.0
    while passed < month:
        passed += max(900.0, seconds_apart(calls, month - passed, events_left(events, events * 600)))
        events += calls * EVENTS_OF_A_WAIT
    assert events < 51_200


def test_what_a_run_stored_once_makes_its_first_waits_no_longer() -> None:
    left = events_left(events=11, size=400_000)
    assert seconds_spread(0, 1, max(LONGEST_WAIT, seconds_apart(1, DAY, left)), left) == 2


def test_waits_are_longer_where_the_history_is_nearly_full() -> None:
    assert events_left(1_000, 30_000_000) == 11_000
    assert events_left(30_000, 600_000) == 10_000
    assert events_left(60_000, 60_000_000) == 1_000
    assert seconds_apart(10, DAY, left=1_000) == DAY * 110 / 1_000
