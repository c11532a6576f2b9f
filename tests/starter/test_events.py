"""The stream of a run's events: each once, in the order of the histories, from any cursor, for any reader."""

import asyncio
import contextlib
import io
import threading
from collections.abc import AsyncIterator
from typing import cast

import pytest
from rich.console import Console
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    FetchWorkflowHistoryEventsInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowFailureError,
    WorkflowHistoryEventAsyncIterator,
)

import baton
from baton.starter.api.handle import Handle as RunHandle
from baton.starter.console.watch import Watch
from baton.starter.history.events import Event
from baton.starter.history.live_state import LiveState
from baton.starter.report.html import html_of
from baton.starter.report.report import read_report
from baton.starter.runs.start import retry_run
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.converter import DATA_CONVERTER
from baton.testing import Reply, Request
from tests.harness.continued_runs import check_continued, count_replies
from tests.harness.environment import Environment, Handle, agent, call, line, manifest, team
from tests.harness.event_streams import (
    AGENTS,
    LIVE,
    SCRIPT,
    TEAMS,
    check_stream,
    check_text,
    durable,
    read_events,
)
from tests.harness.panels import panel, panelist_line, prompt_line, role_member
from tests.harness.processes import PATIENCE
from tests.harness.resets import reset, reset_points

WORDS = "These are the first words of a long answer, and here are those that come at its very end: finis"


def kinds(events: list[Event]) -> list[str]:
    """The types of the events that every reader receives."""
    return [event.type for event in durable(events)]


async def read_in_pieces(env: Environment, handle: Handle, size: int = 1) -> list[Event]:
    """The events of a run, where each reader reads a few and the next one goes on from its last cursor."""
    events: list[Event] = []
    while True:
        stream = RunHandle(env.client, handle).events(events[-1].cursor if events else None)
        async with contextlib.aclosing(stream):
            for _ in range(size):
                try:
                    events.append(await anext(stream))
                except StopAsyncIteration:
                    return events


async def test_a_query_of_a_nested_team_with_a_tool_has_its_events_in_order(env: Environment) -> None:
    env.script(
        line("one", call("calculator", expression="1/0"), "I can't."), line("boss", call("terminate", response="Done."))
    )
    teams = [team("inner", "one", strategy="sequential"), team("outer", "inner", "boss", maxTurns=2)]
    handle = await env.start_query([agent("one", "calculator"), agent("boss", "terminate"), *teams], "team/outer")
    events = await read_events(handle, env.client)
    model = ["model.called", "model.answered"]
    assert kinds(events) == [
        "run.started",
        "run.started",
        "round.started",
        "turn.started",
        "run.started",
        "turn.started",
        *model,
        "tool.called",
        "tool.failed",
        *model,
        "message",
        "turn.ended",
        "run.ended",
        "turn.ended",
        "turn.started",
        *model,
        "tool.called",
        "tool.returned",
        "turn.ended",
        "round.ended",
        "run.ended",
        "run.ended",
    ]
    assert durable(await read_events(handle, env.client, wait=False)) == durable(events)
    [message] = [event for event in events if event.type == "message"]
    assert (message.name, message.text, message.team, message.number) == ("one", "I can't.", "inner", 4)
    status = await env.status(handle)
    ended = [event for event in events if event.type == "run.ended"]
    assert ended[-1].usage == status.token_usage
    assert [event.usage.model_calls for event in ended] == [2, 3, 3]
    turns = [event for event in events if event.type == "turn.ended"]
    assert [(turn.speaker, turn.turn, turn.round, turn.usage.model_calls) for turn in turns] == [
        ("one", 1, None, 2),
        ("inner", 1, 1, 2),
        ("boss", 2, 1, 1),
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [name if name in ("nested", "panel") else pytest.param(name, marks=pytest.mark.full) for name in TEAMS]
)
async def test_any_reader_goes_on_after_any_event_with_the_same_events(env: Environment, name: str) -> None:
    env.script(*SCRIPT)
    handle = await env.start_team([*AGENTS, *TEAMS[name]])
    in_pieces = asyncio.create_task(read_in_pieces(env, handle))
    watched = await read_events(handle, env.client)
    whole = await read_events(handle, env.client, wait=False)
    check_stream(watched, whole)
    check_stream(await in_pieces, whole)
    for index, event in enumerate(whole):
        assert await read_events(handle, env.client, event.cursor, wait=False) == whole[index + 1 :]
    assert max(len(event.cursor) for event in whole) < 100
    rounds = [event.round for event in whole if event.type == "round.started"]
    assert rounds == {"round-robin": [1, 2], "panel": [1, 2], "debate": [1, 2]}.get(name, [])
    for begun, ended in (
        ("turn.started", "turn.ended"),
        ("round.started", "round.ended"),
        ("run.started", "run.ended"),
    ):
        assert kinds(whole).count(begun) == kinds(whole).count(ended) > 0 or begun == "round.started"


class SlowChildren(Interceptor, OutboundInterceptor):
    """A connection that gets the future events of child runs late."""

    def __init__(self) -> None:
        """The next interceptor is set with the client."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        OutboundInterceptor.__init__(self, next)
        return self

    def fetch_workflow_history_events(
        self,
        input: FetchWorkflowHistoryEventsInput,  # noqa: A002
    ) -> WorkflowHistoryEventAsyncIterator:
        events = super().fetch_workflow_history_events(input)
        is_late = input.wait_new_event and "/" in input.id
        return cast(WorkflowHistoryEventAsyncIterator, self._late(events)) if is_late else events

    async def _late(self, events: WorkflowHistoryEventAsyncIterator) -> AsyncIterator[HistoryEvent]:
        await asyncio.sleep(0.9)
        async for event in events:
            yield event


async def test_the_end_of_a_child_run_comes_after_all_of_its_events_even_if_they_are_read_late(
    env: Environment, server: EmbeddedServer
) -> None:
    env.script(line("one", {"text": "1", "delay": 0.4}), line("two", "2"))
    teams = [team("inner", "one", strategy="sequential"), team("team", "inner", "two", strategy="sequential")]
    handle = await env.start_team([*AGENTS, *teams])
    slow = await Client.connect(server.address, data_converter=DATA_CONVERTER, interceptors=[SlowChildren()])
    events = await read_events(handle, slow)
    check_stream(events, await read_events(handle, env.client))
    assert kinds(events) == kinds(await read_events(handle, env.client))


@pytest.mark.full
async def test_a_run_that_continued_as_new_is_one_stream(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    env.answer = count_replies
    handle = await env.start_team([agent("one"), team("team", "one", maxTurns=16, onMaxTurns="complete")])
    in_pieces = asyncio.create_task(read_in_pieces(env, handle, 7))
    watched = await read_events(handle, env.client)
    await check_continued(env, handle)
    whole = await read_events(handle, env.client)
    check_stream(watched, whole)
    check_stream(await in_pieces, whole)
    messages = [event for event in whole if event.type == "message"]
    assert [message.text for message in messages] == [str(number) for number in range(1, 17)]
    assert [message.number for message in messages] == [*range(2, 18)], "the question has number 1"
    assert [event.type for event in whole].count("run.started") == 1
    for event in whole[::9]:
        assert await read_events(handle, env.client, event.cursor) == whole[whole.index(event) + 1 :]


@pytest.mark.full
async def test_a_reset_takes_back_what_came_after_it_and_the_stream_goes_on_from_there(env: Environment) -> None:
    env.script(*SCRIPT)
    handle = await env.start_team([*AGENTS, *TEAMS["nested"]])
    before = await read_events(handle, env.client)
    points = await reset_points(handle)
    await (await reset(env, handle, points[len(points) // 2])).result()
    current = env.client.get_workflow_handle(handle.id)
    after = await read_events(current, env.client, before[-1].cursor)
    assert after[0].type == "run.reset"
    held = [event for event in durable(before) if event.at <= after[0].since]
    whole = await read_events(current, env.client)
    assert kinds([*held, *after[1:]]) == kinds(whole)
    early = await read_events(current, env.client, before[1].cursor)
    assert "run.reset" not in kinds(early), "nothing that this reader has seen is taken back"
    assert durable(early) == durable(whole[2:])
    assert await read_events(current, env.client, after[3].cursor) == after[4:]


async def test_a_wait_that_a_reset_takes_back_is_not_waited_for_until_it_begins_again(env: Environment) -> None:
    careful = {"name": "noop", "approval": {"required": True}}
    env.script(line("one", call("noop"), "done"))
    handle = await env.start_query(
        [manifest("Agent", "one", {"prompt": "You are one.", "tools": [careful]})], "agent/one"
    )
    run = RunHandle(env.client, env.client.get_workflow_handle(handle.id))
    state, phases = LiveState(), list[str]()
    async for event in run.events():
        state.apply(event)
        phases.append(state.runs[handle.id].status.phase)
        if event.type == "run.reset":
            assert phases[-2:] == ["InputRequired", "Running"]
        if event.type == "wait.started" and phases.count("InputRequired") == 1:
            await reset(env, handle, (await reset_points(handle))[-2])
        elif event.type == "wait.started":
            await run.approve(event.wait, by="dana")
    assert phases[-1] == "Completed"


async def test_a_reader_that_is_there_during_a_reset_goes_on_with_the_new_execution(env: Environment) -> None:
    env.script(line("one", "1"), line("two", {"text": "2", "hang": True}, "2"))
    handle = await env.start_team([*AGENTS, *TEAMS["sequential"]])
    events: list[Event] = []

    async def read() -> None:
        async for event in RunHandle(env.client, env.client.get_workflow_handle(handle.id)).events():
            events.append(event)

    reading = asyncio.create_task(read())
    while kinds(events).count("model.called") < 2:
        await asyncio.sleep(0.01)
    env.script(line("one", "1"), line("two", "2"))
    await reset(env, handle, (await reset_points(handle))[1])
    await reading
    assert kinds(events).count("run.reset") == 1
    assert kinds(events).count("run.ended") == 1
    assert events[-1].type == "run.ended"
    assert events[-1].phase == "Completed"


async def test_waits_requests_and_their_ends_are_events(env: Environment) -> None:
    env.script(line("one", call("noop", message="x"), {"text": "Done.", "delay": 0.3}))
    careful = manifest(
        "Agent", "one", {"prompt": "You are one.", "tools": [{"name": "noop", "approval": {"required": True}}]}
    )
    handle = await env.start_team([careful, team("team", "one", strategy="sequential")])
    run = RunHandle(env.client, handle)
    events: list[Event] = []
    async for event in run.events():
        events.append(event)
        if event.type == "wait.started" and event.kind == "approval":
            await run.steer("Go on.", "dana")
            await run.approve(event.wait, by="dana")
    expected = ["wait.started", "steered", "wait.ended"]
    assert [kind for kind in kinds(events) if kind in expected] == expected
    [ended] = [event for event in events if event.type == "wait.ended"]
    assert (ended.outcome, ended.by, ended.kind) == ("approved", "dana", "approval")
    assert "dana" in [event.name for event in events if event.type == "message"]


@pytest.mark.full
async def test_the_pieces_of_an_answer_add_up_to_it_also_for_a_second_reader(env: Environment) -> None:
    env.script(line("one", {"text": WORDS, "pause": 1.2, "held": True}))
    handle = await env.start_team([agent("one"), team("team", "one", strategy="sequential")])
    stream = RunHandle(env.client, handle).events()
    events: list[Event] = []
    while not events or events[-1].type != "text.delta":
        events.append(await anext(stream))
    await stream.aclose()
    assert not any(asked.answered for asked in env.model.requests)
    env.model.release()
    events += await read_events(handle, env.client, events[-1].cursor)
    assert [event.type for event in events].count("text.delta") > 1
    check_text(events)
    check_stream(events, await read_events(handle, env.client))
    assert not {event.type for event in await read_events(handle, env.client)} & {*LIVE}


@pytest.mark.full
async def test_what_a_failed_attempt_has_said_is_taken_back(env: Environment) -> None:
    text = "Nothing of this remains, as its connection is cut before it is over. " * 3
    failure_is_seen = threading.Event()

    def answer(_: Request) -> Reply:
        if len(env.model.requests) == 1:
            return Reply(text=text, held=True, cut=120)
        failure_is_seen.wait(PATIENCE)
        return Reply(text=WORDS, pause=0.8)

    env.answer = answer
    handle = await env.start_team([agent("one"), team("team", "one", strategy="sequential")])
    events: list[Event] = []
    async for event in RunHandle(env.client, handle).events():
        events.append(event)
        if event.type == "text.delta":
            env.model.release()
        elif event.type == "attempt.failed":
            failure_is_seen.set()
    live = [event.type for event in events if event.type in LIVE]
    assert "text.retracted" in live
    assert live.index("text.retracted") < live.index("attempt.failed")
    [answered] = [event for event in events if event.type == "model.answered"]
    assert (answered.attempts, answered.text) == (2, WORDS)
    check_text(events)


async def test_an_answer_that_the_token_limit_cuts_off_is_marked(env: Environment) -> None:
    env.script(line("one", {"text": "Beca", "stop": "length"}), line("two", "Because."))
    handle = await env.start_team([*AGENTS, team("team", "one", "two", strategy="sequential")])
    events = await read_events(handle, env.client)
    for kind in ("model.answered", "message"):
        assert [event.finish_reason for event in events if event.type == kind] == ["length", None]
    status = await env.status(handle)
    assert [message.finish_reason for message in status.messages] == ["length", None]
    assert status.finish_reason is None
    report = html_of(await read_report(env.client, handle))
    assert report.count("The answer was cut off at the model's token limit") == 1


async def test_the_answer_of_a_panel_that_the_token_limit_cuts_off_is_marked(env: Environment) -> None:
    env.script(panelist_line("a", "I agree."), prompt_line("You write what", {"text": "The deli", "stop": "length"}))
    synthesized = panel(role_member("a"), maxRounds=1)
    outer = team("outer", "panel", "one", strategy="sequential")
    status = await env.status(await env.start_query([synthesized], "team/panel"))
    assert (status.message, status.finish_reason) == ("The deli", "length")
    env.script(
        panelist_line("a", "I agree."),
        prompt_line("You write what", {"text": "The deli", "stop": "length"}),
        line("one", "Thanks."),
    )
    handle = await env.start_query([synthesized, outer, agent("one")], "team/outer")
    events = [event for event in await read_events(handle, env.client) if isinstance(event, baton.MessageEvent)]
    marked = {event.text: event.finish_reason for event in events}
    assert (marked["The deli"], marked["I agree."], marked["Thanks."]) == ("length", None, None)
    assert {event.finish_reason for event in events if event.text == "The deli"} == {"length"}


async def test_a_cursor_of_another_run_is_refused(env: Environment) -> None:
    env.script(*SCRIPT)
    handle, other = [await env.start_team([*AGENTS, *TEAMS["sequential"]]) for _ in range(2)]
    events = await read_events(other, env.client)
    await read_events(handle, env.client)
    for wrong in (events[-1].cursor, events[-1].cursor[:-3], "", "nonsense"):
        with pytest.raises(baton.CursorError):
            await read_events(handle, env.client, wrong or "?")


async def test_the_events_of_a_failed_run_have_its_error(env: Environment) -> None:
    env.script(line("one", {"status": 400, "text": "no such thing"}))
    handle = await env.start_team([agent("one"), team("team", "one", strategy="sequential")])
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    events = await read_events(handle, env.client)
    assert kinds(events)[-3:] == ["model.failed", "turn.ended", "run.ended"]
    failed = [event for event in events if event.type in ("model.failed", "turn.ended", "run.ended")]
    assert {event.error_type for event in failed} == {"ModelRejected"}


async def test_a_retry_begins_with_the_usage_of_the_calls_that_it_keeps(env: Environment) -> None:
    env.script(line("one", "1"), line("two", {"status": 400, "text": "no such thing"}, "2"))
    handle = await env.start_query(
        [agent("one"), agent("two"), team("team", "one", "two", strategy="sequential")], "team/team"
    )
    assert (await env.status(handle)).phase == "Failed"
    retry = await retry_run(env.client, handle)
    status = await env.status(retry)
    state = LiveState()
    usages = []
    kept = []
    for event in await read_events(retry, env.client):
        state.apply(event)
        usages.append(state.runs[retry.id].usage)
        if event.type == "run.retried":
            kept.append((event.run, event.usage.model_calls))
    assert kept == [(retry.id, 0), (f"{retry.id}/target-1/team", 1)]
    assert usages[0].model_calls == 0
    assert usages[-2] == usages[-1] == status.token_usage, "it is complete before the run tells it at its end"


async def test_a_hidden_call_and_its_turn_say_so_and_have_no_text(env: Environment) -> None:
    env.script(panelist_line("a", "a1"), prompt_line("You write", "The secret deliverable."))
    hidden = {"synthesizerVisibility": {"client": False}}
    handle = await env.start_team([panel(role_member("a"), maxRounds=1, **hidden)], "panel")
    await env.turn_result(handle)
    events = await read_events(handle, env.client)
    started = [event for event in events if event.type in ("turn.started", "model.called")]
    assert [(event.speaker, event.hidden) for event in started] == [
        *[("a", False)] * 2,
        *[("synthesizer", True)] * 2,
    ]
    assert "secret" not in "".join(event.model_dump_json() for event in events)


@pytest.mark.parametrize("proceeds", [True, False])
async def test_the_end_of_a_wait_by_its_timeout_says_whether_the_call_is_made(env: Environment, proceeds: bool) -> None:
    env.script(line("one", call("noop", message="x"), "Done."))
    approval = {"required": True, "timeout": "300ms", "onTimeout": "proceed" if proceeds else "reject"}
    careful = manifest("Agent", "one", {"prompt": "You are one.", "tools": [{"name": "noop", "approval": approval}]})
    handle = await env.start_team([careful, team("team", "one", strategy="sequential")])
    await env.turn_result(handle)
    [ended] = [event for event in await read_events(handle, env.client) if event.type == "wait.ended"]
    assert (ended.outcome, ended.approved, ended.remembered) == ("timeout", proceeds, False)
    printed = io.StringIO()
    await Watch(env.client, Console(file=printed, width=200)).follow(handle)
    assert f"{'✓' if proceeds else '✗'} noop {'approved' if proceeds else 'rejected'} by timeout" in printed.getvalue()
