"""Teams of each strategy whose events are read, and what holds for every stream of events."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from baton.starter.api.handle import Handle as RunHandle
from baton.starter.history.events import EVENTS, Event
from baton.starter.history.stream import stream_events
from baton.temporal.client import connect
from tests.harness.environment import Handle, Json, agent, call, line, manifest, team
from tests.harness.panels import SYNTHESIS, panelist_line, prompt_line, role_member
from tests.harness.processes import FORKS

LIVE = ("text.delta", "text.retracted", "attempt.failed")
"""The types of the events that only a reader receives that is there during a call."""

AGENTS = [agent("one", "noop"), agent("two"), agent("three"), agent("four")]

SCRIPT = [
    line("one", call("noop", message="x"), "1", "1"),
    line("two", "2"),
    line("three", "3"),
    line("four", call("transfer_to_two", message="Go on.")),
    panelist_line("writer", "w1", "w2"),
    panelist_line("editor", "e1", "e2"),
    prompt_line("You are the referee", '{"critique": "Be brief."}'),
    SYNTHESIS,
    prompt_line("You moderate a discussion", "two"),
]

_EDGES = [{"from": "one", "to": "two"}, {"from": "two", "to": "three", "when": "turn < 5"}]
_PANEL: Json = {"members": [role_member("writer"), role_member("editor")], "maxRounds": 2}
_DEBATERS = [{**role_member("writer"), "stance": "Yes."}, {**role_member("editor"), "stance": "No."}]
_BOUNDED: Json = {"maxTurns": 2, "onMaxTurns": "complete"}

TEAMS: dict[str, list[Json]] = {
    "sequential": [team("team", "one", "two", strategy="sequential")],
    "nested": [
        team("inner", "two", "one", strategy="sequential"),
        team("middle", "inner", "three", strategy="sequential"),
        team("team", "middle", "two", "inner", strategy="sequential"),
    ],
    "round-robin": [team("team", "one", "two", terminateWhen="turn > 2", **_BOUNDED)],
    "selector": [team("team", "one", "two", strategy="selector", **_BOUNDED)],
    "graph": [team("team", "one", "two", "three", strategy="graph", graph={"edges": _EDGES}, **_BOUNDED)],
    "handoff": [team("team", "four", "two", strategy="handoff")],
    "parallel": [
        team("inner", "two", "three", strategy="sequential"),
        team("wide", "one", "inner", strategy="parallel"),
        team("team", "one", "wide", "two", strategy="parallel", aggregator="three"),
    ],
    "panel": [manifest("Team", "team", {"strategy": "round-robin", **_PANEL, "referee": True})],
    "debate": [manifest("Team", "team", {"strategy": "debate", **_PANEL, "members": _DEBATERS})],
}
"""The manifests of teams named ``team``, by what is special about them."""


async def read_events(handle: Handle, client: Any, after: str | None = None, *, wait: bool = True) -> list[Event]:
    """The events of a run after a cursor; each survives JSON, and becomes a mapping without a warning of pydantic."""
    events = [event async for event in RunHandle(client, handle).events(after, wait=wait)]
    assert [EVENTS.validate_json(event.model_dump_json()) for event in events] == events
    assert [event.model_dump()["at"] for event in events] == [event.at for event in events]
    return events


def durable(events: Sequence[Event]) -> list[Event]:
    """The events that every reader receives, without their cursors, which depend on what its reader has seen before."""
    return [event.placed(event.id, "") for event in events if event.type not in LIVE]


def check_stream(delivered: Sequence[Event], expected: Sequence[Event]) -> None:
    """Checks that a reader of an open run got each event once, in an order that the histories allow.

    ``expected`` is what a reader of the ended run gets.
    """
    got, whole = durable(delivered), durable(expected)
    assert len({event.id for event in got}) == len(got), "an event twice"
    assert sorted(event.id for event in got) == sorted(event.id for event in whole)
    for run in {event.run for event in whole}:
        assert [event for event in got if event.run == run] == [event for event in whole if event.run == run]
    runs = [event.run for event in got]
    for child in {event.run for event in got if event.type == "run.started" and event.parent}:
        first, last = runs.index(child), len(runs) - 1 - runs[::-1].index(child)
        parent = next(event.parent for event in got if event.type == "run.started" and event.run == child)
        assert parent
        assert runs.index(parent) < first < last < len(runs) - 1 - runs[::-1].index(parent)
    assert got[-1].type == "run.ended"


def check_text(events: Sequence[Event]) -> None:
    """Checks that the pieces of a call's text that were not taken back add up to its answer."""
    texts: dict[tuple[str, str], str] = {}
    for event in events:
        match event.type:
            case "text.delta":
                key = event.run, event.call
                assert event.offset == len(texts.get(key, ""))
                texts[key] = texts.get(key, "") + event.text
            case "text.retracted":
                assert len(texts.pop((event.run, event.call))) == event.characters
            case "model.answered":
                assert texts.pop((event.run, event.call), event.text) == event.text
            case "model.failed":
                assert (event.run, event.call) not in texts
    assert not texts


class EventReader:
    """A process that appends the events of a run to a file, from the last one there, until it is killed."""

    def __init__(self, address: str, run_id: str, file: Path, home: Path) -> None:
        """``home`` is the folder of the worker's journal."""
        self.file = file
        file.touch()
        self._process = FORKS.Process(target=_append_events, args=[address, run_id, file, home], daemon=True)
        self._process.start()

    @property
    def is_running(self) -> bool:
        """Whether it has not reached the end of the run."""
        return self._process.is_alive()

    def kill(self) -> None:
        """Kills it as ``kill -9`` does."""
        self._process.kill()
        self._process.join()

    def line_count(self) -> int:
        """How many lines were written, by it and by the readers before."""
        return self.file.read_bytes().count(b"\n")


def _append_events(address: str, run_id: str, file: Path, home: Path) -> None:
    written = file.read_bytes()
    written = written[: written.rfind(b"\n") + 1]  # a kill may have cut the last line
    after = EVENTS.validate_json(written.splitlines()[-1]).cursor if written else None
    with file.open("r+b") as lines:
        lines.truncate(len(written))
        lines.seek(len(written))
        asyncio.run(_append(address, run_id, after, lines, home))


async def _append(address: str, run_id: str, after: str | None, lines: BinaryIO, home: Path) -> None:
    client = await connect(address)
    handle = client.get_workflow_handle(run_id)
    async for event in stream_events(client, handle, after, environment={"BATON_HOME": str(home)}):
        lines.write(event.model_dump_json().encode() + b"\n")
        lines.flush()
