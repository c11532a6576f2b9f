"""Runs that a program executes itself: many at once cost no more than a few; each has its own functions and keys."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

import baton
from baton.starter.history.status import current_status
from baton.starter.operations.record import record_run
from baton.starter.runs.decisions import pending_decisions
from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.in_process_worker import AFTER_GRACE, CANCEL_TIMEOUT
from baton.temporal.search_attributes import live_workers
from baton.testing import Reply, Request
from tests.harness.environment import KEY, Environment, call, line
from tests.starter.test_python_interface import temporal as temporal  # the fixture

RUNS = 12

BUSY_MACHINE = 60
"""Seconds that a busy machine may need besides."""


@baton.function
def look_up(word: str) -> str:
    """Looks a word up."""
    return f"the meaning of {word}"


def asks(tool: Callable[..., Any]) -> baton.Agent:
    """An agent with a function as its tool."""
    return baton.Agent("one", prompt="You are one.", tools=[tool])


async def task_queues(env: Environment, handles: Sequence[baton.Handle]) -> set[str]:
    """The task queues of runs."""
    described = [await env.client.get_workflow_handle(handle.id).describe() for handle in handles]
    return {each.task_queue for each in described}


def size() -> tuple[int, int]:
    """The threads and the file descriptors of this process."""
    process = psutil.Process()
    return process.num_threads(), process.num_fds()


@pytest.mark.full
async def test_runs_with_the_same_functions_share_a_worker(env: Environment, temporal: baton.Connection) -> None:
    released = threading.Event()
    waiting: list[str] = []

    @baton.function
    async def wait_for_all(word: str) -> str:
        """Looks a word up."""
        waiting.append(word)
        while not released.is_set():
            await asyncio.sleep(0.02)
        return "the meaning"

    def answer(request: Request) -> Reply:
        is_answered = request["messages"][-1]["role"] == "tool"
        return Reply(text="done") if is_answered else Reply.model_validate(call("wait-for-all", word="why"))

    async def until_waiting(count: int) -> tuple[int, int]:
        while len(waiting) < count:
            await asyncio.sleep(0.02)
        return size()

    env.answer = answer
    handles = [await temporal.start(asks(wait_for_all), input="Why?") for _ in range(5)]
    threads, descriptors = await until_waiting(5)
    handles += [await temporal.start(asks(wait_for_all), input="Why?") for _ in range(RUNS - 5)]
    more_threads, more_descriptors = await until_waiting(RUNS)
    released.set()
    assert [(await handle.result()).message for handle in handles] == ["done"] * RUNS
    assert len(await task_queues(env, handles)) == 1
    assert more_threads - threads < RUNS
    assert more_descriptors - descriptors < 3 * RUNS, "both ends of a connection to the model's server are here"


async def test_runs_with_other_functions_by_the_same_name_use_their_own(
    env: Environment, temporal: baton.Connection
) -> None:
    def tool_of(number: int) -> Callable[..., Any]:
        @baton.function("look-up")
        def of_run(word: str) -> str:
            """Looks a word up."""
            return f"{word} {number}"

        return of_run

    env.script(line("one", call("look-up", word="why"), "done"))
    handles = [await temporal.start(asks(tool_of(number)), input="Why?") for number in range(2)]
    for handle in handles:
        await handle.result()
    results = [row["content"] for row in env.rows() if row["role"] == "tool" and row["id"].endswith("/reply")]
    assert sorted(results) == ["why 0", "why 1"]
    assert len(await task_queues(env, handles)) == 1


@pytest.mark.full
async def test_runs_with_literal_keys_of_their_own_use_them(env: Environment, temporal: baton.Connection) -> None:
    def agent(number: int) -> baton.Agent:
        model = baton.Model("mine", model="gpt-4o", base_url=env.model_url, api_key=f"{KEY}-{number}")
        return baton.Agent("one", prompt="You are one.", model=model)

    env.script(line("one", "done"))
    keys: list[str] = []
    env.model.on_headers = lambda headers: keys.append(headers["authorization"])
    handles = [await temporal.start(agent(number), input="Why?") for number in (1, 2, 1, 2)]
    for handle in handles:
        await handle.result()
    assert sorted(keys) == [f"Bearer {KEY}-{number}" for number in (1, 1, 2, 2)]
    assert len(await task_queues(env, handles)) == 1


async def test_consecutive_runs_are_executed_by_one_worker(env: Environment, temporal: baton.Connection) -> None:
    env.script(line("one", "done"))
    first = await temporal.start(asks(look_up), input="Why?")
    await first.result()
    second = await temporal.start(asks(look_up), input="Why?")
    assert (await second.result()).message == "done"
    assert len(await task_queues(env, [first, second])) == 1


async def test_an_async_function_runs_in_the_event_loop_of_the_program_and_any_other_in_a_thread(
    env: Environment, temporal: baton.Connection
) -> None:
    places: list[object] = []

    @baton.function("in-loop")
    async def in_loop(briefing: baton.Briefing) -> str:
        places.append(asyncio.get_running_loop())
        return "a"

    @baton.function("in-thread")
    def in_thread(briefing: baton.Briefing) -> str:
        places.append(threading.current_thread())
        return "b"

    panel = baton.round_robin("panel", [in_loop, in_thread], max_rounds=1, synthesizer=False)
    await temporal.run(panel, input="Why?")
    loop, thread = places
    assert loop is asyncio.get_running_loop()
    assert thread is not threading.main_thread()


async def test_a_connection_ends_though_a_function_ignores_its_cancellation(
    env: Environment, temporal: baton.Connection, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_GRACEFUL_SHUTDOWN", "0.2")
    begun = asyncio.Event()
    ended = asyncio.Event()

    @baton.function("stubborn")
    async def stubborn(briefing: baton.Briefing) -> str:
        begun.set()
        while not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ended.wait()
        return "never"

    async with baton.connect(server.address, task_queue=env.task_queue) as connection:
        panel = baton.round_robin("panel", [stubborn], max_rounds=1, synthesizer=False)
        handle = await connection.start(panel, input="Why?")
        await begun.wait()
        worker = connection._in_process
        assert worker
        closing = time.monotonic()
    assert time.monotonic() - closing < 0.2 + AFTER_GRACE + CANCEL_TIMEOUT + BUSY_MACHINE
    assert not worker._thread.is_alive()
    ended.set()
    await (await temporal.attach(handle.id)).cancel()


@pytest.mark.slow
async def test_who_awaits_a_run_whose_program_has_ended_it_reads_in_the_log_what_to_do(
    env: Environment, temporal: baton.Connection, server: EmbeddedServer
) -> None:
    logged = asyncio.Event()
    texts: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())
            if "can't answer" in texts[-1]:
                logged.set()

    env.script(line("one", {"text": "late", "delay": 30}))
    async with baton.connect(server.address, task_queue=env.task_queue) as first:
        handle = await first.start(asks(look_up), "Why?")
        await env.wait_for_calls(1)
    listener = Listener()
    logging.getLogger("baton").addHandler(listener)
    waiting = asyncio.create_task(handle.result())
    try:
        async with asyncio.timeout(120):  # it looks again after a minute if Temporal has not noticed the end before
            await logged.wait()
    finally:
        waiting.cancel()
        logging.getLogger("baton").removeHandler(listener)
    (text,) = [text for text in texts if "can't answer" in text]
    assert f"{handle.id} can't answer: the program that executes it is not running, or the event loop" in text
    assert "continue it with baton.attach(ID, functions=[…])" in text
    await (await temporal.attach(handle.id)).cancel()


@pytest.mark.full
async def test_a_run_that_has_ended_is_as_it_has_ended_also_once_its_program_has(
    env: Environment,
    temporal: baton.Connection,
    server: EmbeddedServer,
) -> None:
    env.script(line("one", "Because."))
    async with baton.connect(server.address, task_queue=env.task_queue) as first:
        ran = await first.start(asks(look_up), "Why?")
        await ran.result()
    while await live_workers(env.client, (await task_queues(env, [ran])).pop()):
        await asyncio.sleep(0.05)
    handle = env.client.get_workflow_handle(ran.id)
    status = await current_status(env.client, handle)
    assert (status.phase, status.message, status.note) == ("Completed", "Because.", None)
    assert await pending_decisions(env.client, ran.id) == []
    with pytest.raises(baton.Refused, match="has ended"):
        await ran.steer("And why is that?")
    recording = await record_run(env.client, handle, env.worker_env)
    assert recording.phase == "Completed"


@pytest.mark.slow
async def test_a_process_that_attaches_to_one_run_of_a_program_declines_the_others_until_it_attaches_to_them(
    env: Environment, temporal: baton.Connection, server: EmbeddedServer
) -> None:
    begun: list[str] = []

    def panel(name: str, text: str | None) -> tuple[baton.Team, Callable[..., Any]]:
        """A panel with a function that returns the text, or never returns."""

        @baton.function("checker")
        async def check(briefing: baton.Briefing) -> str:
            begun.append(name)
            if text is None:
                await asyncio.sleep(600)
            return f"{name} {text}"

        return baton.round_robin(name, [check], max_rounds=1, synthesizer=False), check

    async with baton.connect(server.address, task_queue=env.task_queue) as first:
        handles = [await first.start(panel(name, None)[0], input="Why?") for name in ("one", "two")]
        while len(begun) < 2:
            await asyncio.sleep(0.02)
    one = await temporal.attach(handles[0].id, functions=[panel("one", "checked")[1]])
    value = (await one.result()).value
    assert isinstance(value, baton.PanelShape)
    assert [each.text for each in value.contributions] == ["one checked"]
    (queue,) = await task_queues(env, handles)
    while await live_workers(env.client, queue):  # the worker for the first run ends after it
        await asyncio.sleep(0.05)
    waiting = await handles[1].status()
    assert waiting.phase == "Waiting"
    assert "baton.attach" in (waiting.note or "")
    with pytest.raises(baton.Refused, match="the program that executes it is not running"):
        await handles[1].steer("Go on.")
    with pytest.raises(ValueError, match="needs the function 'checker' as well"):
        await temporal.attach(handles[1].id, functions=[look_up])
    two = await temporal.attach(handles[1].id, functions=[panel("two", "checked")[1]])
    value = (await two.result()).value
    assert isinstance(value, baton.PanelShape)
    assert [each.text for each in value.contributions] == ["two checked"]


@pytest.mark.slow
async def test_the_status_without_the_program_counts_the_calls_of_functions(
    env: Environment, server: EmbeddedServer
) -> None:
    begun = threading.Event()

    def say(briefing: baton.Briefing) -> str:
        return "said"

    async def hang(briefing: baton.Briefing) -> str:
        begun.set()
        await asyncio.sleep(600)
        return "never"

    async with baton.connect(server.address, task_queue=env.task_queue) as first:
        handle = await first.start(baton.Team("t", strategy="sequential", members=[say, hang]), input="Why?")
        while not begun.is_set():
            await asyncio.sleep(0.02)
    status = await handle.status()
    assert (status.phase, status.message, status.token_usage.tool_calls) == ("Waiting", "said", 1)


async def test_a_worker_that_cannot_start_fails_the_start_and_the_next_one_is_tried(
    env: Environment, temporal: baton.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.script(line("one", "a"))
    monkeypatch.setenv("BATON_MAX_CONCURRENT_ACTIVITIES", "many")
    with pytest.raises(Exception, match="BATON_MAX_CONCURRENT_ACTIVITIES"):
        await temporal.start(asks(look_up), input="Why?")
    monkeypatch.delenv("BATON_MAX_CONCURRENT_ACTIVITIES")
    assert (await temporal.run(asks(look_up), input="Why?")).message == "a"


@pytest.mark.slow
async def test_a_run_whose_program_has_ended_goes_on_when_it_is_started_again_with_its_id(
    env: Environment, temporal: baton.Connection, server: EmbeddedServer
) -> None:
    begun = threading.Event()

    @baton.function("checker")
    async def hang(briefing: baton.Briefing) -> str:
        begun.set()
        await asyncio.sleep(60)
        return "never"

    @baton.function("checker")
    def check(briefing: baton.Briefing) -> str:
        return "checked"

    run_id = f"again-{env.task_queue}"
    async with baton.connect(server.address, task_queue=env.task_queue) as first:
        await first.start(baton.round_robin("panel", [hang], max_rounds=1, synthesizer=False), input="Why?", id=run_id)
        while not begun.is_set():
            await asyncio.sleep(0.02)
    panel = baton.round_robin("panel", [check], max_rounds=1, synthesizer=False)
    result = (await temporal.run(panel, input="Why?", id=run_id)).value
    assert isinstance(result, baton.PanelShape)
    assert [contribution.text for contribution in result.contributions] == ["checked"]


@pytest.mark.full
@pytest.mark.parametrize("is_open", [True, False], ids=["the same program", "another program"])
async def test_a_fork_of_a_run_with_functions_goes_on_in_a_program_that_attaches_to_it_with_them(
    env: Environment,
    temporal: baton.Connection,
    server: EmbeddedServer,
    caplog: pytest.LogCaptureFixture,
    is_open: bool,
) -> None:
    used: list[str] = []

    @baton.function
    def consult(word: str) -> str:
        """Looks a word up."""
        used.append(word)
        return f"the meaning of {word}"

    env.script(line("one", call("consult", word="why"), "Because."))
    async with baton.connect(server.address, task_queue=env.task_queue) as first:
        handle = await first.start(asks(consult), input="Why?")
        assert (await handle.result()).message == "Because."
        if is_open:
            forked: baton.Handle[Any] = await handle.fork("call-1")
    if not is_open:
        forked = await (await temporal.attach(handle.id, output_type=str)).fork("call-1")
    assert f"{forked.id} waits" in caplog.text
    assert "functions" in caplog.text
    with pytest.raises(ValueError, match=f"{forked.id} needs the function 'consult' as well: pass it in functions"):
        await temporal.attach(forked.id, functions=[look_up])
    attached = await temporal.attach(forked.id, functions=[consult])
    assert (await attached.result()).message == "Because."
    assert (used, len(env.model.requests)) == (["why", "why"], 3)
