"""What each speaker of a run has used, summed up from the events of the run and its child runs."""

from dataclasses import dataclass, field

from ...contracts.message import TokenUsage
from .events import (
    Event,
    ModelAnsweredEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
    TurnEndedEvent,
    TurnStartedEvent,
)


@dataclass
class MemberSum:
    """What a speaker has used, in all teams.

    ``turns`` counts those that it takes itself, and ``seconds`` is their time. ``usage`` is that of its own calls: what
    the members of a nested team use is theirs, not the team's.
    """

    name: str
    turns: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    seconds: float = 0.0


@dataclass
class MemberSums:
    """The sums by the name of the speaker, in the order in which the speakers have begun."""

    members: dict[str, MemberSum] = field(default_factory=dict)
    _teams: set[tuple[object, ...]] = field(default_factory=set)
    """The open turns of nested teams."""

    def apply(self, event: Event) -> None:
        """Adds what an event tells."""
        match event:
            case TurnStartedEvent(kind="team"):
                self._teams.add(_place(event))
            case TurnStartedEvent():
                self._member(event.speaker).turns += 1
            case TurnEndedEvent():
                if _place(event) in self._teams:
                    self._teams.remove(_place(event))
                else:
                    self._member(event.speaker).seconds += event.seconds
            case ModelAnsweredEvent():
                self._member(event.speaker).usage += event.usage
            case ToolReturnedEvent() | ToolFailedEvent():
                self._member(event.speaker).usage += TokenUsage(tool_calls=1)

    def _member(self, name: str) -> MemberSum:
        return self.members.setdefault(name, MemberSum(name))


def _place(event: TurnStartedEvent | TurnEndedEvent) -> tuple[object, ...]:
    return event.run, event.speaker, event.turn, event.round, event.part
