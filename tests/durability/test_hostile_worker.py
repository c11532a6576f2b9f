"""A worker ends in time after SIGTERM, and tells how long its event loop was held, whatever runs in it."""

import asyncio
import contextlib
import logging
import signal
import time
import uuid
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from baton.activities.runtime.worker_process import AFTER_GRACE, HELD, STALLED, watch_event_loop
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, ScriptedModel
from tests.conftest import serving
from tests.harness.environment import KEY, agent, team
from tests.harness.killable import wait_until
from tests.harness.long_calls import until_started
from tests.harness.panels import panel
from tests.harness.ports import own_port
from tests.harness.processes import WorkerProcess, process_env, server_process

STUCK = """
import baton, gc, pathlib, time

@baton.function
def stay(*_):
    pathlib.Path("stuck").write_text(str(gc.get_freeze_count()))
    while True:
        time.sleep(1)
"""
GRACE = 2


@pytest.mark.slow
async def test_a_worker_ends_in_time_though_a_function_and_a_condition_never_end(
    client: Client, server: EmbeddedServer, tmp_path: Path
) -> None:
    stuck, port = tmp_path / "stuck", own_port()
    (tmp_path / "stuck_functions.py").write_text(STUCK.replace('"stuck"', f'r"{stuck}"'))
    queue, address = uuid.uuid4().hex, f"127.0.0.1:{port}"
    with ScriptedModel(lambda _: Reply(text="a" * 4_000_000)).serve() as url:
        settings = {"BATON_TASK_QUEUE": queue, "BATON_GRACEFUL_SHUTDOWN": str(GRACE), "BATON_METRICS_ADDRESS": address}
        env = process_env(
            **settings,
            TEMPORAL_ADDRESS=server.address,
            BATON_HOME=str(tmp_path),
            OPENAI_BASE_URL=url,
            OPENAI_API_KEY=KEY,
            BATON_FUNCTIONS="stuck_functions",
            PYTHONPATH=str(tmp_path),
        )
        worker = WorkerProcess(env, tmp_path / "worker.log")
        worker.start()
        condition = "+".join(["message"] * 100) + " == ''"
        slow = team("slow", "a", terminateWhen=condition, maxTurns=50)
        stays = panel({"name": "stay", "type": "activity"}, maxRounds=1, synthesizer=False)
        for name, brought in (("slow", [agent("a"), slow]), ("panel", [stays])):
            given = {"team": name, "input": "Why?", "resources": brought}
            await client.start_workflow("round-robin", given, id=f"{name}-{queue}", task_queue=queue)
        await asyncio.wait_for(wait_until(stuck.exists), 120)
        metrics = (await asyncio.to_thread(httpx.get, f"http://{address}/metrics", timeout=60)).text
        began = time.monotonic()
        code = await worker.stop()
    assert time.monotonic() - began < GRACE + 30, "five seconds, and some for a busy machine"
    assert code in (0, 1)
    assert "baton_event_loop_lag_seconds_bucket" in metrics
    assert int(stuck.read_text()) > 100_000, "what a worker has loaded is left out of garbage collection"
    for name in ("slow", "panel"):
        with contextlib.suppress(RPCError):  # it has ended
            await client.get_workflow_handle(f"{name}-{queue}").terminate()


@pytest.mark.slow
@pytest.mark.parametrize("starting", [False, True], ids=["working", "starting"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "frozen"])
async def test_a_worker_ends_in_time_though_its_server_is_gone(
    tmp_path: Path, number: signal.Signals, starting: bool
) -> None:
    (home := tmp_path / "home").mkdir()
    async with serving(tmp_path) as server:
        assert server.pid
        temporal = server_process(server.pid)
        env = process_env(
            TEMPORAL_ADDRESS=server.address,
            BATON_HOME=str(home),
            BATON_GRACEFUL_SHUTDOWN=str(GRACE),
            OPENAI_API_KEY=KEY,
        )
        worker = WorkerProcess(env, tmp_path / "worker.log")
        try:
            if starting:
                temporal.send_signal(number)
            worker.start()
            if not starting:
                async with asyncio.timeout(120):
                    await until_started([worker])
                temporal.send_signal(number)
            await asyncio.sleep(5)
            began = time.monotonic()
            await worker.stop()
            assert time.monotonic() - began < GRACE + AFTER_GRACE + 30, "and some for a busy machine"
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                temporal.kill()


async def test_an_event_loop_that_is_held_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "baton"):
        async with watch_event_loop():
            await asyncio.sleep(2 * HELD)
            hold_event_loop()
            await asyncio.sleep(2 * HELD)
    assert "the event loop was blocked for" in caplog.text
    assert "other runs waited" in caplog.text


async def test_a_longer_lag_that_is_not_told_hides_no_event_loop_that_is_held(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "baton"):
        async with watch_event_loop():
            await asyncio.sleep(2 * HELD)
            time.sleep(0.8 * STALLED)  # noqa: ASYNC251  # as a machine that is busy: it needs no processor time
            await asyncio.sleep(2 * HELD)
            hold_event_loop()
            await asyncio.sleep(2 * HELD)
    assert "the event loop was blocked for" in caplog.text


def hold_event_loop() -> None:
    """Keeps the event loop busy, for less time than a lag without processor time may take."""
    end = time.process_time() + 4 * HELD
    while time.process_time() < end:
        pass
