"""Builds the events of a query's only target where the query takes its turn itself: like those of a run."""

from collections.abc import Iterator
from dataclasses import dataclass

from ...conversation.contracts.plan import QueryPlan, TargetPlan
from ...conversation.contracts.requests import Pinned
from ...conversation.messages.message import TokenUsage
from ...resources.base import JsonObject
from .event_data import RUN_EVENTS, NamedEvent, failure_data, usage_data
from .run_events import RunEnded


@dataclass
class TargetTurn:
    """The turn of a query's only target; ``target`` is None as long as there is no such turn."""

    target: TargetPlan | None = None

    def take_plan(self, result: object) -> None:
        """Takes up what ``pin`` has returned."""
        match result:
            case Pinned(plan=QueryPlan(targets=(TargetPlan() as target,))) if target.turn:
                self.target = target

    def start(self) -> Iterator[NamedEvent]:
        """The turn begins when the query is pinned."""
        if self.target:
            yield f"{RUN_EVENTS[self.target.type]}Started", self._data(self.target)

    def end(self, ended: RunEnded, usage: TokenUsage) -> Iterator[NamedEvent]:
        """It ends with the query."""
        if self.target:
            end = {"stopReason": ended.stop_reason, "note": ended.note, **failure_data(ended.failure)}
            yield (
                f"{RUN_EVENTS[self.target.type]}{ended.phase}",
                {**self._data(self.target), **end, **usage_data(usage)},
            )

    @staticmethod
    def _data(target: TargetPlan) -> JsonObject:
        return {target.type: target.name, "namespace": target.namespace}
