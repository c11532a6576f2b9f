"""The trajectory of a run for evaluators: who spoke, which tools were called with what, and the spans of all that.

It is made from the events of the run, which any client can read, also after its end: no telemetry has to be exported.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypedDict

from pydantic_evals.otel.span_tree import SpanNode, SpanTree
from temporalio.client import Client

from ...contracts.message import TokenUsage
from ..history.events import (
    Event,
    MessageEvent,
    ModelAnsweredEvent,
    ModelCalledEvent,
    ModelFailedEvent,
    RunEndedEvent,
    RunForkedEvent,
    RunStartedEvent,
    ToolCalledEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
    TurnEndedEvent,
    TurnStartedEvent,
)
from ..history.stream import stream_events
from ..runs.runs import RunHandle
from ..runs.start import attempts


class CalledToolAttribute(TypedDict):
    """A tool call in the attributes of a case; ``error`` is None if it has returned a result."""

    speaker: str
    tool: str
    arguments: str | None
    result: str | None
    error: str | None


class SpokenMessage(TypedDict):
    """A message in the attributes of a case."""

    speaker: str
    text: str


@dataclass
class Trajectory:
    """What happened in a run; in a fork, since its place. A retry goes on with what happened in the runs that failed.

    ``messages`` and ``calls`` of tools are in order. ``turns`` counts those of all teams in it. ``seconds`` is its
    duration, without the time between a failure and the retry. ``spans`` are those of its turns, model calls and tool
    calls, with OpenTelemetry's names for generative AI.
    """

    messages: list[SpokenMessage] = field(default_factory=list)
    calls: list[CalledToolAttribute] = field(default_factory=list)
    turns: int = 0
    stop_reason: str | None = None
    phase: str | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    seconds: float = 0.0
    spans: SpanTree = field(default_factory=SpanTree)

    @property
    def speakers(self) -> list[str]:
        """The authors of the messages, in order."""
        return [message["speaker"] for message in self.messages]

    @property
    def attributes(self) -> dict[str, object]:
        """The attributes of a case: plain values, as reports store them."""
        return {
            "stop_reason": self.stop_reason,
            "speakers": self.speakers,
            "messages": [dict(message) for message in self.messages],
            "tool_calls": [dict(call) for call in self.calls],
        }

    @property
    def metrics(self) -> dict[str, int | float]:
        """The metrics of a case, with the names that pydantic-evals gives to those of spans; the cost in US dollars."""
        metrics: dict[str, int | float] = {
            "requests": self.usage.model_calls,
            "input_tokens": self.usage.prompt_tokens,
            "output_tokens": self.usage.completion_tokens,
            "tool_calls": self.usage.tool_calls,
            "turns": self.turns,
        }
        if self.usage.cost is not None:
            metrics["cost"] = self.usage.cost
        return metrics


async def read_attempts(client: Client, run: str) -> list[list[Event]]:
    """The events of a run that has ended; of a retry also those of the runs that failed before, oldest first."""
    latest = (await client.get_workflow_handle(run).describe()).run_id
    handles: list[RunHandle] = [
        client.get_workflow_handle(run, run_id=attempt.run_id) for attempt in await attempts(client, run, latest)
    ]
    return [[event async for event in stream_events(client, each, wait=False, live=False)] for each in handles]


def trajectory_of(runs: Sequence[Sequence[Event]]) -> Trajectory:
    """The trajectory of a run, from all events of its attempts (``runs``), of which each retries the one before."""
    trajectory = Trajectory(turns=_count_turns(runs), spans=_spans_of(runs))
    arguments: dict[tuple[str, str], str | None] = {}
    before = TokenUsage()
    for event in itertools.chain(*runs):
        match event:
            case MessageEvent(name=name, text=text):
                trajectory.messages.append({"speaker": name, "text": text})
            case ToolCalledEvent():
                arguments[event.run, event.call] = event.arguments
            case ToolReturnedEvent() | ToolFailedEvent():
                trajectory.calls.append(
                    {
                        "speaker": event.speaker,
                        "tool": event.tool,
                        "arguments": arguments.pop((event.run, event.call), None),
                        "result": event.text if isinstance(event, ToolReturnedEvent) else None,
                        "error": None if isinstance(event, ToolReturnedEvent) else event.error or "canceled",
                    }
                )
            case RunForkedEvent():  # each run of the fork begins with what it had used at the place
                before += event.usage
            case RunEndedEvent() if event.run == runs[0][0].run:
                trajectory.usage = event.usage - before
                trajectory.phase = event.phase
                trajectory.stop_reason = event.stop_reason
    trajectory.seconds = sum((events[-1].at - events[0].at).total_seconds() for events in runs if events)
    return trajectory


def _count_turns(runs: Sequence[Sequence[Event]]) -> int:
    """The number of turns; one that a retry continued counts once."""
    count = 0
    unfinished: set[str] = set()
    for events in runs:
        begun: set[str] = set()
        for event in events:
            if isinstance(event, TurnStartedEvent):
                begun.add(_turn_key(event))
                count += _turn_key(event) not in unfinished
            elif isinstance(event, TurnEndedEvent) and not event.error:
                begun.discard(_turn_key(event))
        unfinished |= begun
    return count


def _spans_of(runs: Sequence[Sequence[Event]]) -> SpanTree:
    tree = SpanTree()
    for number, events in enumerate(runs):
        spans = _Spans(events[0].run if events else "", number)
        for event in events:
            spans.add(event)
        tree.add_spans(spans.ended)
    return tree


def _turn_key(event: TurnStartedEvent | TurnEndedEvent) -> str:
    return f"turn {event.run} {event.speaker} {event.turn} {event.round} {event.part}"


Attributes = dict[str, str | int | float | bool]


@dataclass
class _Open:
    """A span that has not ended."""

    name: str
    key: str
    parent: str | None
    start: datetime
    attributes: Attributes


class _Spans:
    """Makes spans from events: ``invoke_workflow``, ``invoke_agent``, ``chat`` and ``execute_tool``.

    All attempts of a run are one trace; the ``attempt`` tells their calls apart, which have the same numbers.
    """

    def __init__(self, root: str, attempt: int) -> None:
        self.ended: list[SpanNode] = []
        self._trace = _number(root, 16)
        self._attempt = attempt
        self._open: dict[str, _Open] = {}
        self._turns: dict[tuple[str, str], str] = {}

    def add(self, event: Event) -> None:  # noqa: C901  # one case for each event that starts or ends something
        """Starts or ends the span of an event."""
        run = event.run
        match event:
            case RunStartedEvent():
                attributes: Attributes = {"baton.kind": event.kind, "baton.name": event.name}
                if event.strategy:
                    attributes["baton.strategy"] = event.strategy
                self._start(event, f"run {run}", f"invoke_workflow {event.name}", event.parent, attributes)
            case RunEndedEvent():
                self._end(event, f"run {run}", event.error, {"baton.phase": event.phase})
            case TurnStartedEvent():
                key = _turn_key(event)
                self._turns[run, event.speaker] = key
                attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": event.speaker}
                if event.turn:
                    attributes["baton.turn"] = event.turn
                if event.round:
                    attributes["baton.round"] = event.round
                self._start(event, key, f"invoke_agent {event.speaker}", run, attributes)
            case TurnEndedEvent():
                key = _turn_key(event)
                self._turns.pop((run, event.speaker), None)
                self._end(event, key, event.error, {})
            case ModelCalledEvent():
                attributes = {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": event.model,
                    "gen_ai.agent.name": event.speaker,
                }
                self._start(event, f"{run} {event.call}", f"chat {event.model}", run, attributes, event.speaker)
            case ModelAnsweredEvent():
                used: Attributes = {
                    "gen_ai.usage.input_tokens": event.usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": event.usage.completion_tokens,
                }
                if event.usage.cost is not None:
                    used["operation.cost"] = event.usage.cost
                self._end(event, f"{run} {event.call}", event.wrong, used)
            case ModelFailedEvent():
                self._end(event, f"{run} {event.call}", event.error or "canceled", {})
            case ToolCalledEvent():
                attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": event.tool}
                attributes["gen_ai.agent.name"] = event.speaker
                if event.arguments is not None:
                    attributes["gen_ai.tool.call.arguments"] = event.arguments
                self._start(event, f"{run} {event.call}", f"execute_tool {event.tool}", run, attributes, event.speaker)
            case ToolReturnedEvent():
                result: Attributes = {} if event.text is None else {"gen_ai.tool.call.result": event.text}
                self._end(event, f"{run} {event.call}", None, result)
            case ToolFailedEvent():
                self._end(event, f"{run} {event.call}", event.error or "canceled", {})

    def _start(
        self, event: Event, key: str, name: str, parent: str | None, attributes: Attributes, speaker: str = ""
    ) -> None:
        turn = self._turns.get((event.run, speaker))
        above = turn or (f"run {parent}" if parent else None)
        self._open[key] = _Open(name, key, above, event.at, {**attributes, "baton.run": event.run})

    def _end(self, event: Event, key: str, error: str | None, attributes: Attributes) -> None:
        span = self._open.pop(key, None)
        if span is None:
            return
        if error:
            attributes = {**attributes, "error.message": error}
        self.ended.append(
            SpanNode(
                name=span.name,
                trace_id=self._trace,
                span_id=self._id(span.key),
                parent_span_id=self._id(span.parent) if span.parent else None,
                start_timestamp=span.start,
                end_timestamp=event.at,
                attributes={**span.attributes, **attributes},
                status="error" if error else "ok",
            )
        )

    def _id(self, key: str) -> int:
        return _number(f"{self._attempt} {key}", 8)


def _number(text: str, size: int) -> int:
    """A number of so many bytes that is the same for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size])
