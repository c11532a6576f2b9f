"""The points at which processes are killed: around a model call, its write to the journal and its acknowledgement."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from temporalio.api.enums.v1 import EventType

from tests.chaos.environment import ProcessEnvironment
from tests.chaos.teams import DELAYED_CALL, MarkingModel, TeamRun

Runs = Sequence[TeamRun]


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def _before_call(env: ProcessEnvironment, _runs: Runs, chosen: TeamRun) -> None:
    await _until(lambda: bool(env.rows(chosen.run_id)))


async def _during_call(_env: ProcessEnvironment, runs: Runs, _chosen: TeamRun) -> None:
    await _until(lambda: all(run.is_delayed for run in runs))


async def _after_write(env: ProcessEnvironment, runs: Runs, chosen: TeamRun) -> None:
    """Suspends the server before the model answers, so that nothing can be acknowledged."""
    await _during_call(env, runs, chosen)
    env.server_process.suspend()
    env.model.release()
    await _until(lambda: all(run.is_written for run in runs))


async def _after_acknowledgement(_env: ProcessEnvironment, _runs: Runs, chosen: TeamRun) -> None:
    scheduled: dict[int, str] = {}
    done = 0
    async for event in chosen.handle.fetch_history_events(wait_new_event=True):
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        completed = event.activity_task_completed_event_attributes.scheduled_event_id
        done += scheduled.get(completed) in ("ask_model", "select")
        if done == DELAYED_CALL:
            return


KillPoint = Callable[[ProcessEnvironment, Runs, TeamRun], Awaitable[None]]
KILL_POINTS: dict[str, tuple[float, KillPoint]] = {
    "before the call": (0, _before_call),
    "in the call": (1.0, _during_call),
    "reply written, not acknowledged": (0, _after_write),
    "after the acknowledgement": (0, _after_acknowledgement),
}
"""For each kill point: seconds that the delayed call takes, and a function that waits for the kill point."""

HOLDING = ("reply written, not acknowledged",)
"""The kill points whose function releases the delayed calls."""

IS_HIT: dict[str, Callable[[MarkingModel, TeamRun, dict[str, int]], bool]] = {
    "before the call": lambda model, run, _: model.calls(run.label) == 0,
    "in the call": lambda model, run, written: f"<{model.delayed_call(run.label)}>" not in written,
    "reply written, not acknowledged": lambda model, run, written: (
        f"<{model.delayed_call(run.label)}>" in written and model.calls(run.label) == DELAYED_CALL
    ),
    "after the acknowledgement": lambda model, run, written: len(written) == model.calls(run.label) > 0,
}
"""Whether a run was exactly at the kill point. Some last for milliseconds, so that other runs are a step away."""
