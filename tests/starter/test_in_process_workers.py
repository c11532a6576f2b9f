"""Runs that a program executes itself: many at once cost no more than a few; each has its own functions and keys."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

import baton
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request
from tests.harness.environment import KEY, Environment, call, line
from tests.starter.test_python_interface import temporal as temporal  # the fixture

RUNS = 30


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
    assert len(await task_queues(env, handles)) == 2


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
    assert len(await task_queues(env, handles)) == 2


async def test_a_worker_ends_with_its_last_run_and_another_begins(env: Environment, temporal: baton.Connection) -> None:
    env.script(line("one", "done"))
    first = await temporal.start(asks(look_up), input="Why?")
    await first.result()
    assert temporal._in_process
    while temporal._in_process._workers:
        await asyncio.sleep(0.01)
    second = await temporal.start(asks(look_up), input="Why?")
    assert (await second.result()).message == "done"


async def test_a_worker_that_cannot_start_fails_the_start_and_the_next_one_is_tried(
    env: Environment, temporal: baton.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.script(line("one", "a"))
    monkeypatch.setenv("BATON_MAX_CONCURRENT_ACTIVITIES", "many")
    with pytest.raises(Exception, match="BATON_MAX_CONCURRENT_ACTIVITIES"):
        await temporal.start(asks(look_up), input="Why?")
    monkeypatch.delenv("BATON_MAX_CONCURRENT_ACTIVITIES")
    assert (await temporal.run(asks(look_up), input="Why?")).message == "a"


@pytest.mark.full
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
