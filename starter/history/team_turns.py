"""Builds the events of a team's turns, and of the turns that its members take in them (ARK: teams, turn structure)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...conversation.contracts.plan import TeamPlan
from ...conversation.contracts.requests import AskModelRequest, Pinned, SelectRequest
from ...conversation.failure import Failure
from ...conversation.messages.message import TokenUsage
from ...resources.base import JsonObject
from ...resources.strategies import STRATEGIES
from .event_data import NamedEvent, failure_data, usage_data
from .run_events import ActivityCall, RunEnded, RunInfo

ROUND_STRATEGIES = [name for name, rules in STRATEGIES.items() if rules.turn_unit == "round"]
"""The strategies in which a turn of the team is a round of all its members; in others it is a turn of one member."""


@dataclass
class _OpenTurn:
    """A turn of the team that is not over: its members in the order in which they began, and what they have used."""

    data: JsonObject
    members: list[str] = field(default_factory=list)
    ended: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass
class TeamTurns:
    """The turns of the team that ``run`` runs. A member's turn has a number, from 1; events count turns from 0."""

    run: RunInfo
    plan: TeamPlan | None = None
    started: int = 0
    _turns: dict[int, _OpenTurn] = field(default_factory=dict)
    _members: dict[int, tuple[int, JsonObject]] = field(default_factory=dict)

    def take_plan(self, result: object) -> None:
        """Takes up what ``pin`` has returned."""
        match result:
            case Pinned(plan=TeamPlan() as plan):
                self.plan = plan

    def place_of(self, call: ActivityCall) -> JsonObject:
        """The turn of the team in which a call is made; in panels also the round, and the role if it is no member's."""
        match call.brief, call.request:
            case None, AskModelRequest(turn=number) | SelectRequest(turn=number):
                return self.place(number)
            case None, _:
                return {}
            case brief, _:
                return {**self.place(0, brief.round), **({"part": brief.part} if brief.seat is None else {})}

    def place(self, number: int, in_round: int = 0) -> JsonObject:
        """The turn of the team in which the ``number``-th turn of a member lies; a panel says in which round."""
        if in_round:
            return {"turn": in_round - 1, "round": in_round}
        return {"turn": (number - 1) // self._members_per_turn}

    def start_member(self, member: str, kind: str, number: int, in_round: int) -> Iterator[NamedEvent]:
        """A member's turn begins, and perhaps with it a turn of the team."""
        place = self.place(number, in_round)
        turn = in_round or 1 + (number - 1) // self._members_per_turn
        if turn not in self._turns:
            if self._in_rounds:
                yield from self.end_all()
            self._turns[turn] = _OpenTurn({**self._data, **place, **self._bound})
            yield "TeamTurn", {"type": "Start", **self._turns[turn].data}
        self.started = max(self.started, number)
        self._turns[turn].members.append(member)
        data: JsonObject = {**self._data, "member": member, "memberType": kind, **place}
        self._members[number] = turn, data
        yield "TeamMemberStarted", data

    def end_member(
        self, number: int, end: str, failure: Failure | None = None, usage: TokenUsage | None = None
    ) -> Iterator[NamedEvent]:
        """A member's turn is over, and perhaps with it the turn of the team. ``end`` is as in ``TeamMemberFailed``."""
        if number not in self._members:
            return
        key, data = self._members.pop(number)
        turn, usage = self._turns[key], usage or TokenUsage()
        turn.ended, turn.usage = turn.ended + 1, turn.usage + usage
        yield f"TeamMember{end}", {**data, **_error(failure), **usage_data(usage)}
        if not self._in_rounds or (end == "Completed" and turn.ended == self._members_in_round):
            yield self._end(key, end, failure)

    def end_all(self, run_ended: RunEnded | None = None) -> Iterator[NamedEvent]:
        """The turns of the team that are open are over: with the run, or because something else begins."""
        failure = run_ended.failure if run_ended and run_ended.stop_reason != "max_turns" else None
        end = "Failed" if failure else "Canceled" if run_ended and run_ended.phase == "Canceled" else "Completed"
        for number in [*self._members]:
            yield from self.end_member(number, "Failed" if failure else "Canceled", failure)
        for key in [*self._turns]:
            yield self._end(key, end, failure)

    def reach_limit(self, turns: int | None) -> NamedEvent:
        """The event that ``maxTurns`` was reached, after so many turns of members."""
        count = (self.started if turns is None else turns) // self._members_per_turn
        return "TeamTurn", {"type": "MaxTurns", **self._data, "turn": count, **self._bound}

    def _end(self, key: int, end: str, failure: Failure | None) -> NamedEvent:
        turn = self._turns.pop(key)
        spoken: JsonObject = {"members": [*turn.members]}
        return "TeamTurn", {"type": end, **turn.data, **spoken, **failure_data(failure), **usage_data(turn.usage)}

    @property
    def _data(self) -> JsonObject:
        return {"team": self.run.name, "namespace": self.run.namespace, "strategy": self.run.type}

    @property
    def _bound(self) -> JsonObject:
        if self.plan and self.plan.panel:
            return {"maxRounds": self.plan.panel.max_rounds}
        return {"maxTurns": self.plan.max_turns if self.plan else None}

    @property
    def _in_rounds(self) -> bool:
        return self.run.type in ROUND_STRATEGIES

    @property
    def _members_per_turn(self) -> int:
        return len(self.plan.members) if self.plan and self._in_rounds else 1

    @property
    def _members_in_round(self) -> int | None:
        """How many members speak in a round; None if a moderator decides."""
        panel = self.plan.panel if self.plan else None
        return None if panel and "moderator" in panel.parts else self._members_per_turn


def _error(failure: Failure | None) -> JsonObject:
    return {"error": failure.message, "errorType": failure.type} if failure else {}
