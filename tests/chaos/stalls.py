"""Lets a worker stand still again and again while its runs are asked and steered: ``python -m tests.chaos.stalls``.

``--runs 12`` teams get queries and messages from several clients, and the worker's process is stopped and continued,
each for up to 1.5 s, for 40 s; then all is quiet, and the runs end. Counts the histories that could not be replayed:
such a run would stand still for ever once its worker forgets it.
"""

import asyncio
import contextlib
import os
import random
import signal
import tempfile
from pathlib import Path

from temporalio.service import RPCError
from temporalio.worker import Replayer

from baton.contracts.settings import TASK_QUEUE
from baton.temporal.converter import DATA_CONVERTER
from baton.workflows.registry import WORKFLOWS
from tests.chaos.report import Report, arguments
from tests.harness.environment import Handle, Json, agent, team
from tests.harness.killable import KillableEnvironment

ALL = [*map(agent, "abc"), team("team", "a", "b", "c", maxTurns=3, onMaxTurns="complete")]


SECONDS, PATIENCE = 40, 120
"""How long a storm lasts, and how long after it a run may continue before it counts as stuck."""


async def ask(run: Handle) -> None:
    """Asks a run for its status, again and again."""
    while True:
        with contextlib.suppress(RPCError):
            await run.query("status")
        await asyncio.sleep(0.1)


async def steer(run: Handle, chance: random.Random) -> None:
    """Sends a run a message now and then."""
    while True:
        await asyncio.sleep(chance.uniform(0.1, 1.5))
        with contextlib.suppress(RPCError):
            await run.signal("steer", {"text": "Be brief."})


async def stall(pid: int, chance: random.Random) -> None:
    """Lets a process work for a while, and then stand still."""
    await asyncio.sleep(chance.uniform(0.1, 1))
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(chance.uniform(0.5, 1.5))
    finally:
        os.kill(pid, signal.SIGCONT)


async def replays(run: Handle) -> Json:
    """What a run's history tells: workflow tasks that timed out, and whether it can be replayed."""
    history = await run.fetch_history()
    replayer = Replayer(
        workflows=WORKFLOWS,
        data_converter=DATA_CONVERTER,
    )
    failure = (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
    timed_out = sum(each.HasField("workflow_task_timed_out_event_attributes") for each in history.events)
    return {"tasks_timed_out": timed_out, "replays": failure is None}


async def start(env: KillableEnvironment, number: int) -> Handle:
    """Starts a team."""
    given = {"team": "team", "input": "Why?", "resources": ALL}
    return await env.client.start_workflow("round-robin", given, id=f"run-{number}", task_queue=TASK_QUEUE)


async def storm_of(number: int, runs: int) -> Json:
    """One worker with its runs, from their start to their end; the figures of it."""
    chance = random.Random(number)
    with tempfile.TemporaryDirectory() as folder:
        async with KillableEnvironment.running(Path(folder)) as env:
            env.slow = 0.02
            started = [await start(env, each) for each in range(runs)]
            storm = [asyncio.create_task(each) for run in started for each in (ask(run), steer(run, chance))]
            until = asyncio.get_running_loop().time() + SECONDS
            while asyncio.get_running_loop().time() < until:
                await stall(env.worker.pid, chance)
            for each in storm:
                each.cancel()
            waiting = (asyncio.wait_for(run.result(), PATIENCE) for run in started)
            stuck = sum(
                isinstance(each, TimeoutError) for each in await asyncio.gather(*waiting, return_exceptions=True)
            )
            told = [await replays(run) for run in started]
    timed_out, bad = sum(each["tasks_timed_out"] for each in told), sum(not each["replays"] for each in told)
    return {"seed": number, "runs": runs, "tasks_timed_out": timed_out, "stuck": stuck, "bad": bad}


async def main() -> None:
    """Runs all storms and writes the table."""
    given = arguments(__doc__, storms=5, runs=12, seed=2026)
    report = Report("stalls", given)
    for number in range(given["storms"]):
        report.row(row := await storm_of(given["seed"] + number, given["runs"]))
        print(row, flush=True)
    report.write()


if __name__ == "__main__":
    asyncio.run(main())
