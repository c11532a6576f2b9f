"""Which events does a run have, and how are they written? Those of ARK, made of what histories tell (seed 003)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from ...conversation.text import truncate
from ...resources.base import JsonObject
from .event_builder import EventBuilder
from .run_events import RunEvent, RunInfo, RunStarted

SHOWN = 160
"""Bytes of a value that a line of text shows."""


@dataclass(frozen=True)
class Event:
    """One event of a run."""

    time: datetime
    name: str
    run: str
    data: JsonObject

    @property
    def value(self) -> JsonObject:
        """The event as JSON."""
        time = self.time.isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {"time": time, "event": self.name, "run": self.run, **self.data}

    @property
    def line(self) -> str:
        """The event as a line for people, with the data that matter to them."""
        time, name, *_ = self.value.values()
        data = {key: each for key, each in self.data.items() if key not in ("call", "namespace", "tokenUsage")}
        usage = self.data.get("tokenUsage")
        if isinstance(usage, dict):
            data["tokens"] = usage["totalTokens"]
        return f"{time}  {name:<23} {'  '.join(f'{key}={_short(each)}' for key, each in data.items())}"


class EventRecorder:
    """Makes events of what happens in a run and its child runs."""

    def __init__(self) -> None:
        self._accounts: dict[str, EventBuilder] = {}

    def record(self, happening: RunEvent) -> Iterator[Event]:
        """The events that a happening stands for."""
        run, account = happening.run, self._accounts.get(happening.run.first_run_id)
        if account is None or isinstance(happening, RunStarted):
            account = self._accounts[run.first_run_id] = EventBuilder(run)
            parent = self._accounts.get(run.parent.first_run_id) if run.parent else None
            if parent and (run.turn or run.round):
                for name, data in parent.start_turn(run.name, run.turn, run.round):
                    yield self._event(happening, parent.run, name, data)
        above: RunInfo | None = run
        while above and above.first_run_id in self._accounts:
            self._accounts[above.first_run_id].add_usage(happening)
            above = above.parent
        for name, data in account.build(happening):
            yield self._event(happening, run, name, data)

    def _event(self, happening: RunEvent, run: RunInfo, name: str, data: JsonObject) -> Event:
        return Event(happening.at, name, run.id, {key: value for key, value in data.items() if value is not None})


def _short(value: JsonValue) -> str:
    if isinstance(value, list):
        return ",".join(map(_short, value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = truncate(text, SHOWN)
    return text if text and not set(text) & set(' "\n\t') else json.dumps(text, ensure_ascii=False)
