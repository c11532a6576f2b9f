"""Watching a run: any number of clients see partial answers while they are written, without effect on the run."""

import asyncio
import io
import re
from collections.abc import AsyncIterator, Callable

import pytest
from rich.console import Console
from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    SignalWorkflowInput,
    WorkflowExecutionDescription,
)

from baton.contracts.requests import LiveText
from baton.starter.console.watch import Watch
from baton.starter.server.embedded import EmbeddedServer
from baton.starter.text import escape_control_characters
from baton.temporal.converter import DATA_CONVERTER
from baton.temporal.histories import decode_payload
from baton.testing import Reply, Request
from tests.harness.environment import Environment, Handle, agent, call, line, team
from tests.harness.remote_agents import engine, engine_agent, said
from tests.harness.tool_server import ToolServer

WORDS = "These are the first words of a long answer, and here are those that come at its very end: finis"
ERASED = "\x1b[1A\x1b[2K"  # how one more line of the live view is erased
SLOW = {"text": WORDS, "pause": 1.2, "held": True}

LONG = {"text": "".join(f"line {n} {'and on ' * 8}\n" for n in range(99)), "pause": 0.01, "held": True}


class RequestCounter(Interceptor, OutboundInterceptor):
    """Counts the requests of a client about runs."""

    def __init__(self) -> None:
        self.described = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        OutboundInterceptor.__init__(self, next)
        return self

    async def describe_workflow(self, input: DescribeWorkflowInput) -> WorkflowExecutionDescription:  # noqa: A002
        self.described += 1
        return await super().describe_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> object:  # noqa: A002
        raise AssertionError("a client that watches a run queries it")

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:  # noqa: A002
        raise AssertionError("a client that watches a run signals it")


class Watcher:
    """A client that watches runs, with or without a terminal, over its own connection."""

    def __init__(self, *, terminal: bool = True, width: int = 80) -> None:
        self.seen = io.StringIO()
        self.console = Console(
            file=self.seen, force_terminal=terminal, force_interactive=terminal, width=width, height=24, highlight=False
        )
        self.requests = RequestCounter()

    @property
    def text(self) -> str:
        """The whole output until now."""
        return self.seen.getvalue()

    @property
    def height(self) -> int:
        """The largest number of lines of the live view."""
        return 1 + max(len(each) // len(ERASED) for each in re.findall(f"(?:{re.escape(ERASED)})*", self.text))

    async def watch(self, server: EmbeddedServer, *handles: Handle) -> Watch:
        """Watches runs to their end."""
        client = await Client.connect(server.address, data_converter=DATA_CONVERTER, interceptors=[self.requests])
        watch = Watch(client, self.console, len(handles))
        runs = [client.get_workflow_handle(handle.id) for handle in handles]
        async with watch.live_view():
            await asyncio.gather(*map(watch.follow, runs))
        return watch

    async def sees(self, text: str) -> None:
        """Waits until the output contains a text."""
        await _until(lambda: text in self.text)


async def heartbeats(client: Client, handle: Handle) -> AsyncIterator[LiveText]:
    """The last heartbeats of the open calls of a run."""
    for activity in (await handle.describe()).raw_description.pending_activities:
        if activity.heartbeat_details.payloads:
            yield await decode_payload(client.data_converter, activity.heartbeat_details, LiveText)


async def _until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.02)


@pytest.mark.full
async def test_two_watchers_see_a_nested_teams_answer_before_it_is_complete(
    env: Environment, server: EmbeddedServer
) -> None:
    env.script(line("one", SLOW), line("two", "Agreed."))
    teams = [team("inner", "one", strategy="sequential"), team("outer", "inner", "two", strategy="sequential")]
    handle = await env.start_query([agent("one"), agent("two"), *teams], "team/outer")
    watchers = Watcher(), Watcher()
    watching = [asyncio.create_task(watcher.watch(server, handle)) for watcher in watchers]
    for watcher in watchers:
        await watcher.sees("These are the first words")
    assert not any(asked.answered for asked in env.model.requests)
    for watcher in watchers:
        assert "finis" not in watcher.text
        assert "inner · turn 1 of 1 · default · " in watcher.text
    env.model.release()
    for watch in await asyncio.gather(*watching):
        assert watch.state.runs[handle.id].status.phase == "Completed"
        assert not watch.state.open_calls
    status = await env.status(handle)
    for watcher in watchers:
        final = watcher.text[watcher.text.rindex("outer/turn-1/inner (sequential)") :]
        assert final.index("finis") < final.index("Agreed.")
        assert f"{handle.id} · 1 model call, 0 tool calls" in watcher.text
    assert watch.state.runs[handle.id].usage == status.token_usage


@pytest.mark.full
async def test_watching_adds_nothing_to_a_history(env: Environment, server: EmbeddedServer) -> None:
    env.script(line("one", {"text": WORDS, "pause": 0.5}, call("noop", message="x"), "End."))
    manifests = [agent("one", "noop"), team("team", "one", maxTurns=2, onMaxTurns="complete")]
    kinds = []
    for count in (0, 3):
        env.model.requests.clear()
        handle = await env.start_team(manifests)
        await asyncio.gather(env.turn_result(handle), *(Watcher().watch(server, handle) for _ in range(count)))
        kinds.append([event.event_type for event in (await handle.fetch_history()).events])
    assert kinds[0] == kinds[1]


@pytest.mark.full
async def test_heartbeats_are_read_only_while_a_call_is_open(env: Environment, server: EmbeddedServer) -> None:
    env.script(line("one", {"text": WORDS, "held": True}))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    plain, live = Watcher(terminal=False), Watcher()
    watching = asyncio.gather(plain.watch(server, handle), live.watch(server, handle))
    await _until(lambda: min(plain.requests.described, live.requests.described) > 2)
    env.model.release()
    await watching
    assert "\x1b" not in plain.text
    assert plain.text.count("These are") == 1
    afterwards = Watcher()
    await afterwards.watch(server, handle)
    assert afterwards.requests.described == 1, "a run that is over has nothing open"


async def test_a_closed_run_is_printed_from_its_start_in_the_order_of_time(
    env: Environment, server: EmbeddedServer
) -> None:
    env.script(line("one", "1", "2"), line("two", "a", "b"), line("last", "x", "y"))
    teams = [team("inner", "one", "two", strategy="sequential"), team("outer", "inner", "last", maxTurns=2)]
    agents = [agent("one"), agent("two"), agent("last")]
    handle = await env.start_team([*agents, *teams], name="outer")
    watcher, later = Watcher(terminal=False), Watcher(terminal=False)
    await watcher.watch(server, handle)
    watch = await later.watch(server, handle)
    said = [each.strip() for each in later.text.splitlines() if len(each) == 3]
    assert said == ["1", "a", "x", "2", "b", "y"]
    assert later.text == watcher.text
    assert re.findall("last  (.*) · scripted", later.text) == ["outer · turn 2 of 4", "outer · turn 4 of 4"]
    assert watch.state.runs[handle.id].status.stop_reason == "max_turns"


async def test_an_answer_that_the_token_limit_cuts_off_is_printed_as_such(
    env: Environment, server: EmbeddedServer
) -> None:
    env.script(line("one", {"text": "Beca", "stop": "length"}))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    watcher = Watcher(terminal=False)
    await watcher.watch(server, handle)
    assert "Beca\n  ✗ the answer was cut off at the model's token limit\n" in watcher.text


async def test_all_messages_of_an_engine_are_printed_in_their_order(
    env: Environment, server: EmbeddedServer, tool_server: ToolServer
) -> None:
    tool_server.answers(said("First, look.", "Then, see.", "So it is."))
    resources = [engine_agent("oracle"), engine(tool_server)]
    handle = await env.start("agent", {"agent": "oracle", "input": "Why?", "resources": resources})
    watcher = Watcher(terminal=False)
    await watcher.watch(server, handle)
    said_lines = [line for line in watcher.text.splitlines() if line.startswith("  ")]
    assert said_lines == ["  First, look.", "  Then, see.", "  So it is."]


@pytest.mark.full
async def test_a_late_watcher_sees_every_message_once(env: Environment, server: EmbeddedServer) -> None:
    env.script(line("one", "Well, well.", SLOW))
    handle = await env.start_team([agent("one"), team("team", "one", "one", strategy="sequential")])
    await env.wait_for_calls(2)
    watcher, plain = Watcher(), Watcher(terminal=False)
    watching = asyncio.gather(watcher.watch(server, handle), plain.watch(server, handle))
    await watcher.sees("turn 2 of 2 · default")
    env.model.release()
    await watching
    assert plain.text.count("Well, well.") == 1
    assert plain.text.count("finis") == 1
    assert re.search(r"turn 1 of 2 .* tokens · \d+ s\n", plain.text)
    took = re.search(r"turn 2 of 2 .* tokens · (\d+) s\n", plain.text)
    assert took
    assert int(took[1]) >= 3, "the three pauses of the answer"
    after = watcher.text[watcher.text.index("Well, well.") :]
    assert "turn 2 of 2 · default" in after
    assert "turn 1 of 2" not in after, "a complete answer is no longer in the live view"


@pytest.mark.full
async def test_a_late_watcher_sees_the_end_of_a_text_of_which_heartbeats_have_only_that(
    env: Environment, server: EmbeddedServer
) -> None:
    env.script(line("one", LONG))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    while not any([text.offset async for text in heartbeats(env.client, handle)]):
        await asyncio.sleep(0.1)
    watcher = Watcher()
    watching = asyncio.create_task(watcher.watch(server, handle))
    await watcher.sees("and on and on")
    assert "scripted:" not in watcher.text, "the answer is not there yet"
    env.model.release()
    await watching
    assert watcher.text.count("line 98 ") >= 1


@pytest.mark.full
async def test_control_characters_and_markup_in_an_answer_are_shown_and_have_no_effect(
    env: Environment, server: EmbeddedServer
) -> None:
    evil = "Hear \x1b[2J\x1b]0;owned\x07 the [red]truth[/red] \x9b31m and \u202enothing else than that, my friend"
    calls = call("\x1b[31mtool", text=evil, x="\x1b[2J")
    env.script(line("one", {**calls, "pause": 1}, "End."))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    live, plain = Watcher(width=200), Watcher(terminal=False, width=200)
    await asyncio.gather(live.watch(server, handle), plain.watch(server, handle))
    for text in (live.text, plain.text):
        assert "\x1b[2J" not in text
        assert "\x1b]0" not in text
        assert "\x9b" not in text
        assert "\u202e" not in text
        assert "Hear ␛[2J␛]0;owned" in text
        assert "the [red]truth[/red]" in text
    assert "\x1b" not in plain.text
    assert "→ ␛[31mtool" in plain.text


async def test_a_retried_call_is_shown_with_its_attempt_and_the_error(env: Environment, server: EmbeddedServer) -> None:
    watcher = Watcher(width=200)
    shown = "waiting for attempt"
    env.answer = lambda _: Reply(text="At last.") if shown in watcher.text else Reply(status=503, text="too busy")
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    await watcher.watch(server, handle)
    assert re.search(f"{shown} [2-9]", watcher.text)
    assert "answered HTTP 503: too busy" in watcher.text


@pytest.mark.full
async def test_without_a_terminal_each_failed_attempt_is_a_line_with_its_reason_and_the_next_time(
    env: Environment, server: EmbeddedServer
) -> None:
    watcher = Watcher(terminal=False)

    def answer(_: Request) -> Reply:
        is_told = watcher.text.count("too busy") >= 2
        return Reply(text="At last.") if is_told else Reply(status=503, text="too busy")

    env.answer = answer
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    await watcher.watch(server, handle)
    told = [each for each in watcher.text.splitlines() if "failed" in each]
    assert re.fullmatch(
        r"  ✗ one: attempt (\d) failed: .* answered HTTP 503: too busy; "
        r"attempt \d (starts at \d\d:\d\d:\d\d|has started)",
        told[-1],
    )
    assert len(told) == len({*told}) >= 2
    assert watcher.text.index(told[-1]) < watcher.text.index("At last.")


@pytest.mark.full
async def test_the_last_lines_of_a_long_text_are_shown_and_fit_the_terminal(
    env: Environment, server: EmbeddedServer
) -> None:
    env.script(line("one", LONG))
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    watcher = Watcher()
    watching = asyncio.create_task(watcher.watch(server, handle))
    await watcher.sees("line 97 ")
    assert "scripted:" not in watcher.text, "the answer is not there yet"
    env.model.release()
    await watching
    assert 6 < watcher.height <= 12


@pytest.mark.full
async def test_many_runs_share_a_live_view_that_fits_the_terminal(env: Environment, server: EmbeddedServer) -> None:
    env.script(line("one", {"text": WORDS, "pause": 0.1, "held": True}))
    given = {"agent": "one", "input": "Why?", "resources": [agent("one")]}
    handles = [await env.start("agent", given) for _ in range(15)]
    watcher = Watcher()
    watching = asyncio.create_task(watcher.watch(server, *handles))
    await watcher.sees("15 of 15 runs are running · 0 model calls")
    await watcher.sees("and 5 more")
    assert len([each for each in handles if f" · {each.id}\x1b" in watcher.text]) >= 10
    env.model.release()
    watch = await watching
    assert len(watch.state.runs) == 15
    assert watcher.height == 12


@pytest.mark.parametrize("text", ["plain", "a\tb\nc", "日本語 – “quoted” 👍"])
def test_a_text_without_control_characters_is_unchanged(text: str) -> None:
    assert escape_control_characters(text) == text
