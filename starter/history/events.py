"""The events of a run and its child runs, with the names that ARK gives them (ARK: queries)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from ...conversation.messages.message import TokenUsage
from ...conversation.text import truncate
from ...resources.base import JsonObject
from .event_builder import EventBuilder
from .event_data import NamedEvent, decision_event, request_event
from .run_events import DecisionAsked, DecisionMade, RequestReceived, RunEnded, RunEvent, RunInfo, RunStarted

MAX_VALUE_BYTES = 160
"""The length at which a value is cut in a line of text."""

HIDDEN_IN_LINES = ("call", "namespace", "tokenUsage")
"""Data that are in an event's JSON only."""


@dataclass(frozen=True)
class Event:
    """One event: its time, its name, the id of its run, and its data, which depend on the name."""

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
        """The event as a line of text."""
        time, name, *_ = self.value.values()
        data = {key: each for key, each in self.data.items() if key not in HIDDEN_IN_LINES}
        usage = self.data.get("tokenUsage")
        if isinstance(usage, dict):
            data["tokens"] = usage["totalTokens"]
        return f"{time}  {name:<23} {'  '.join(f'{key}={_text(each)}' for key, each in data.items())}"


class EventRecorder:
    """Makes the events of a run and its child runs from their run events, which it takes in their order."""

    def __init__(self) -> None:
        self._builders: dict[str, EventBuilder] = {}

    def record(self, event: RunEvent) -> Iterator[Event]:
        """The events that a run event stands for."""
        run, builder = event.run, self._builders.get(event.run.first_run_id)
        if isinstance(event, RequestReceived | DecisionAsked | DecisionMade):
            named = request_event(event) if isinstance(event, RequestReceived) else decision_event(event)
            yield from _events(event, run, iter([named]))
            return
        if builder is None or isinstance(event, RunStarted):
            builder = self._builders[run.first_run_id] = EventBuilder(run)
            yield from self._child_started(run, event)
        above: RunInfo | None = run
        while above and above.first_run_id in self._builders:
            self._builders[above.first_run_id].add_usage(event)
            above = above.parent
        yield from _events(event, run, builder.build(event))
        if isinstance(event, RunEnded):
            yield from self._child_ended(run, event, builder.usage)

    def _child_started(self, run: RunInfo, event: RunEvent) -> Iterator[Event]:
        """A child run that takes a turn of its team starts that turn."""
        team = self._team_above(run)
        if team and (run.turn or run.round):
            yield from _events(event, team.run, team.start_turn(run.name, run.kind, run.turn, run.round))

    def _child_ended(self, run: RunInfo, event: RunEnded, usage: TokenUsage) -> Iterator[Event]:
        """A child run that has taken a turn of its team ends that turn."""
        team = self._team_above(run)
        if team and (run.turn or run.round):
            yield from _events(event, team.run, team.end_child_turn(event, run.turn, usage))

    def _team_above(self, run: RunInfo) -> EventBuilder | None:
        return self._builders.get(run.parent.first_run_id) if run.parent else None


def _events(event: RunEvent, run: RunInfo, named: Iterator[NamedEvent]) -> Iterator[Event]:
    """The events of a run, at the time of a run event, without empty data."""
    for name, data in named:
        yield Event(event.at, name, run.id, {key: value for key, value in data.items() if value is not None})


def _text(value: JsonValue) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = truncate(text, MAX_VALUE_BYTES)
    return text if text and not set(text) & set(' "\n\t') else json.dumps(text, ensure_ascii=False)
