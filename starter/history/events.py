"""Which events does a run have, and how are they written? Those of ARK, made of what histories tell (seed 003)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from ...conversation.text import truncate
from ...resources.base import JsonObject
from .event_builder import Account
from .run_events import Happening, Run, RunBegan

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


class Recorder:
    """Makes events of what happens in a run and its child runs."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}

    def record(self, happening: Happening) -> Iterator[Event]:
        """The events that a happening stands for."""
        run, account = happening.run, self._accounts.get(happening.run.chain)
        if account is None or isinstance(happening, RunBegan):
            account = self._accounts[run.chain] = Account(run)
            parent = self._accounts.get(run.parent.chain) if run.parent else None
            if parent and (run.turn or run.round):
                for name, data in parent.turn_begins(run.name, run.turn, run.round):
                    yield self._event(happening, parent.run, name, data)
        above: Run | None = run
        while above and above.chain in self._accounts:
            self._accounts[above.chain].spend(happening)
            above = above.parent
        for name, data in account.events(happening):
            yield self._event(happening, run, name, data)

    def _event(self, happening: Happening, run: Run, name: str, data: JsonObject) -> Event:
        return Event(happening.at, name, run.id, {key: value for key, value in data.items() if value is not None})


def _short(value: JsonValue) -> str:
    if isinstance(value, list):
        return ",".join(map(_short, value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = truncate(text, SHOWN)
    return text if text and not set(text) & set(' "\n\t') else json.dumps(text, ensure_ascii=False)
