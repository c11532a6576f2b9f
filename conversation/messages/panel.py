"""What is said in a panel or a debate, and what does it come to? The shapes of seed 002, under Python names."""

from collections.abc import Iterable

from pydantic import Field

from ...resources.base import JsonModel, JsonObject
from .message import Message


class PanelInput(JsonModel):
    """A panel's input."""

    goal: str


class Contribution(JsonModel):
    """An entry of a panel's transcript (seed 002, The contributions transcript); ``round`` counts from 1."""

    round: int = Field(ge=1)
    agent_name: str
    text: str
    stance: str | None = None


def contributions_in(messages: Iterable[Message]) -> tuple[Contribution, ...]:
    """What of it are contributions, without the stances behind them."""
    return tuple(
        Contribution(round=each.round or 1, agent_name=each.name or "", text=each.content)
        for each in messages
        if each.part == "contribution"
    )


def format_transcript(entries: Iterable[Contribution]) -> str:
    """Contributions as a text, ``[round N] name: text``."""
    return "\n".join(f"[round {each.round}] {each.agent_name}: {each.text}" for each in entries)


class RefereeOutput(JsonModel):
    """What a referee gives."""

    critique: str


class Critique(JsonModel):
    """A referee's critique of a round."""

    round: int = Field(ge=1)
    critique: str


class Decision(JsonModel):
    """How a moderator opens a round of a debate: who speaks, on what, and whether the debate ends after it."""

    next_speakers: tuple[str, ...]
    briefing: str | None = None
    new_angle: str | None = None
    done: bool = False


class Verdict(JsonModel):
    """A judge's verdict; without a ``winner``, which is a stance, it lies between several."""

    verdict: str
    winner: str | None = None
    reasoning: str


class PanelState(JsonModel):
    """How a panel stands between two rounds; ``round`` counts those that were opened."""

    goal: str
    round: int = 0
    referee_critiques: tuple[Critique, ...] = ()


class PanelShape(JsonModel):
    """What a panel has come to (seed 002, RoundRobinFinalShape)."""

    rounds: int
    contributions: tuple[Contribution, ...] = ()
    referee_critiques: tuple[Critique, ...] = ()


class DebateShape(JsonModel):
    """What a debate has come to."""

    rounds: int
    question: str
    transcript: tuple[Contribution, ...] = ()
    verdict: Verdict | None = None
    moderator_decisions: tuple[Decision, ...] = ()


class Briefing(JsonModel):
    """What an override, a condition or a function for instructions is handed: all there is to know, and nothing else.

    ``round`` is the present one, of at most ``max_rounds``; ``agent_name`` is whose turn it is. ``remarks`` are
    what people have said to the panel, and ``decision`` is how a moderator has opened the round.
    """

    goal: str
    round: int
    max_rounds: int
    agent_name: str
    transcript: tuple[Contribution, ...] = ()
    referee_critiques: tuple[Critique, ...] = ()
    session: JsonObject = {}
    remarks: tuple[str, ...] | None = None
    stance: str | None = None
    decision: Decision | None = None
