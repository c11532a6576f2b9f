"""The values of panels and debates: inputs, transcript entries, decisions, results (round-robin pattern)."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from ..resources.base import JsonModel, JsonObject
from .message import Head, Message
from .text import truncate
from .turn import Thread


class PanelInput(JsonModel):
    """A panel's input."""

    goal: str


class Contribution(JsonModel):
    """An entry of a panel's transcript (round-robin pattern: transcript); ``round`` counts from 1."""

    round: int = Field(ge=1)
    agent_name: str
    text: str
    stance: str | None = None

    def truncated(self, limit: int) -> "Contribution":
        """The entry with at most ``limit`` bytes of text."""
        return self.model_copy(update={"text": truncate(self.text, limit)})


def contributions_in(
    messages: Iterable[Message], stances: Mapping[str, str | None] = MappingProxyType({})
) -> tuple[Contribution, ...]:
    """The contributions among the messages, with the ``stances`` of their speakers, by name."""
    return tuple(
        Contribution(
            round=message.round or 1,
            agent_name=message.name or "",
            text=message.content,
            stance=stances.get(message.name or ""),
        )
        for message in messages
        if message.part == "contribution"
    )


def format_transcript(entries: Iterable[Contribution]) -> str:
    """Contributions as text, one line ``[round N] name: text`` each."""
    return "\n".join(f"[round {entry.round}] {entry.agent_name}: {entry.text}" for entry in entries)


class RefereeOutput(JsonModel):
    """The output of a referee."""

    critique: str


class Critique(JsonModel):
    """A referee's critique of a round."""

    round: int = Field(ge=1)
    critique: str


class Decision(JsonModel):
    """A moderator's decision at the start of a round: the speakers, the topic, and whether the debate ends after it."""

    next_speakers: tuple[str, ...]
    briefing: str | None = None
    new_angle: str | None = None
    done: bool = False


class Verdict(JsonModel):
    """A judge's verdict; ``winner`` is a stance, or None for a draw."""

    verdict: str
    winner: str | None = None
    reasoning: str


class PanelState(JsonModel):
    """The state of a panel between two rounds; ``round`` counts the rounds that have begun."""

    goal: str
    round: int = 0
    referee_critiques: tuple[Critique, ...] = ()


class PanelShape(JsonModel):
    """The result of a panel without a synthesizer (round-robin pattern: output)."""

    rounds: int
    contributions: tuple[Contribution, ...] = ()
    referee_critiques: tuple[Critique, ...] = ()

    def truncated(self, limit: int) -> "PanelShape":
        """The result with at most ``limit`` bytes of each text."""
        return PanelShape(
            rounds=self.rounds,
            contributions=tuple(entry.truncated(limit) for entry in self.contributions),
            referee_critiques=tuple(
                Critique(round=entry.round, critique=truncate(entry.critique, limit))
                for entry in self.referee_critiques
            ),
        )


class DebateShape(JsonModel):
    """The result of a debate without a synthesizer."""

    rounds: int
    question: str
    transcript: tuple[Contribution, ...] = ()
    verdict: Verdict | None = None
    moderator_decisions: tuple[Decision, ...] = ()

    def truncated(self, limit: int) -> "DebateShape":
        """The result with at most ``limit`` bytes of text in each entry of the transcript."""
        return self.model_copy(update={"transcript": tuple(entry.truncated(limit) for entry in self.transcript)})


class Briefing(JsonModel):
    """The argument of a registered function: a member, a condition, a selector, or a function for instructions.

    ``round`` is the current round, of at most ``max_rounds``; ``agent_name`` is whose turn it is. ``remarks`` are
    messages from people to the panel, and ``decision`` is the moderator's decision for this round.
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


SpeakerRole = Literal["member", "referee", "moderator", "judge", "synthesizer"]


class SpeakerBrief(JsonModel):
    """A speaker's place in a panel.

    From it the worker composes the prompt that the speaker reads instead of the conversation. ``team`` is the id of the
    panel's manifest, ``part`` the role of the speaker, ``member_index`` the index of a member. The panel's own messages
    begin after depth ``begun``. ``hidden`` hides the speaker's live text from clients that watch the run.
    """

    team: str
    part: SpeakerRole = "member"
    member_index: int | None = None
    round: int
    begun: int
    session: JsonObject = {}
    hidden: bool = False


class BriefRequest(JsonModel):
    """``brief``: compose the prompt of a team that is a member of a panel, as the question of a new conversation."""

    thread: Thread
    brief: SpeakerBrief


class PerformRequest(JsonModel):
    """``perform``: call a registered function as a member, or in another role of a panel.

    Outside of a panel it has the number of the ``turn``, and of the brief only the team and the session count.
    """

    thread: Thread
    brief: SpeakerBrief
    function: str
    name: str
    turn: int | None = None


class PerformResult(JsonModel):
    """The result of ``perform``: the message, the head after it, and whether the value was converted to text."""

    message: Message
    head: Head
    coerced: bool = False


class ConcludeRequest(JsonModel):
    """``conclude``: write the result of a panel without a synthesizer, as JSON."""

    thread: Thread
    brief: SpeakerBrief
