"""Measures how soon a reader that goes on from a cursor has its first event: ``python -m benchmarks.event_cursors``.

One long run of a team is read from its start and, alternately, from cursors at several places in it.
"""

import asyncio
import time
from collections.abc import Sequence
from statistics import median

from temporalio.client import Client

from baton.starter.history.events import Event
from baton.starter.history.stream import stream_events
from benchmarks.environment import Baton, BenchmarkEnvironment
from tests.chaos.report import Report, arguments

SIZE = 200
"""Characters of a reply."""

WINDOW = 20
"""Messages that a model reads."""

PLACES = (0.0, 0.5, 0.99)
"""The places of the cursors, as parts of all events; at the first one there is none: the run is read from its start."""


async def read(client: Client, run_id: str, after: str | None) -> tuple[float, float, Sequence[Event]]:
    """The seconds until the first event and until the last one, and the events."""
    began = time.perf_counter()
    first = 0.0
    events = list[Event]()
    async for event in stream_events(client, client.get_workflow_handle(run_id), after, live=False):
        first = first or time.perf_counter() - began
        events.append(event)
    return first, time.perf_counter() - began, events


async def main() -> None:
    """Measures and writes the results."""
    given = arguments(__doc__, turns=3_000, rounds=5)
    report = Report("event-cursors", given)
    async with BenchmarkEnvironment.running() as env, Baton.running(env) as baton:
        run_id = await baton.run_team(given["turns"], SIZE, WINDOW)
        _, _, whole = await read(env.client, run_id, None)
        cursors = {place: whole[int(place * len(whole)) - 1].cursor if place else None for place in PLACES}
        found: dict[float, list[tuple[float, float]]] = {place: [] for place in PLACES}
        for _ in range(given["rounds"]):
            for place, cursor in cursors.items():
                first, last, events = await read(env.client, run_id, cursor)
                assert [event.id for event in events] == [event.id for event in whole[-len(events) :]]
                found[place].append((first, last))
        for place, seconds in found.items():
            report.row(
                {
                    "turns": given["turns"],
                    "events": len(whole),
                    "after": int(place * len(whole)),
                    "cursor_bytes": len(cursors[place] or ""),
                    "first_event": round(median(first for first, _ in seconds), 3),
                    "all_events": round(median(last for _, last in seconds), 3),
                }
            )
    report.write()


if __name__ == "__main__":
    asyncio.run(main())
