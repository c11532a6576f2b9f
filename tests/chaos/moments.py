"""When is the moment to kill? Before a call, in it, when its answer is kept but nobody was told, and after that."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from temporalio.api.enums.v1 import EventType

from tests.chaos.ground import Ground
from tests.chaos.teams import HELD_CALL, Cast, Played

Runs = Sequence[Played]


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def _before(ground: Ground, _runs: Runs, chosen: Played) -> None:
    await _until(lambda: bool(ground.rows(chosen.run_id)))


async def _in(_ground: Ground, runs: Runs, _chosen: Played) -> None:
    await _until(lambda: all(run.is_held for run in runs))


async def _kept(ground: Ground, runs: Runs, chosen: Played) -> None:
    """Stops the server while the model answers, so that nothing can be acknowledged."""
    await _in(ground, runs, chosen)
    ground.server_process.suspend()
    await _until(lambda: all(run.is_kept for run in runs))


async def _after(_ground: Ground, _runs: Runs, chosen: Played) -> None:
    scheduled: dict[int, str] = {}
    done = 0
    async for event in chosen.handle.fetch_history_events(wait_new_event=True):
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        completed = event.activity_task_completed_event_attributes.scheduled_event_id
        done += scheduled.get(completed) in ("ask_model", "select")
        if done == HELD_CALL:
            return


Moment = Callable[[Ground, Runs, Played], Awaitable[None]]
MOMENTS: dict[str, tuple[float, Moment]] = {
    "before the call": (0, _before),
    "in the call": (1.0, _in),
    "answer kept, not acknowledged": (1.0, _kept),
    "after the acknowledgement": (0, _after),
}
"""How long the third answer takes, and how the moment is waited for."""

HITS: dict[str, Callable[[Cast, Played, dict[str, int]], bool]] = {
    "before the call": lambda cast, run, _: cast.calls(run.label) == 0,
    "in the call": lambda cast, run, kept: f"<{cast.held(run.label)}>" not in kept,
    "answer kept, not acknowledged": lambda cast, run, kept: (
        f"<{cast.held(run.label)}>" in kept and cast.calls(run.label) == HELD_CALL
    ),
    "after the acknowledgement": lambda cast, run, kept: len(kept) == cast.calls(run.label) > 0,
}
"""Whether a run was in that very moment: where it lasts for milliseconds, others are a step before or behind."""
