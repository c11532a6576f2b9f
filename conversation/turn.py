"""What goes into a turn, and what comes out of it?"""

from typing import Literal, Self

from pydantic import model_validator

from conversation.errors import Failure
from conversation.message import Head, Message, TokenUsage, last_word
from resources.base import JsonObject, Plain
from resources.query import TargetType

StopReason = Literal[
    "completed", "terminated", "condition", "no_progress", "max_turns", "canceled", "timeout", "failed"
]


class Thread(Plain):
    """A place in a conversation under a pinned catalog. ``question`` is the id of the question's row."""

    catalog: str
    question: str
    head: Head


class QueryInput(Plain):
    """The input of the workflow ``query``: ``{"spec": {...}}`` or ``{"name": "..."}``, and what resources it brings.

    ``session`` are the values that a session begins with.
    """

    name: str | None = None
    namespace: str = "default"
    spec: JsonObject | None = None
    resources: tuple[JsonObject, ...] = ()
    session: JsonObject = {}

    @model_validator(mode="after")
    def _something_to_ask(self) -> Self:
        if self.name is None and self.spec is None:
            raise ValueError('a query needs {"spec": {...}} or {"name": "..."}')
        return self


class TurnInput(Plain):
    """The input of the workflows ``agent``, ``model`` and ``tool``, and of every strategy.

    From outside: ``{"team": "name", "input": "text"}`` (or ``agent``, ``model``, ``tool``), and what resources it
    brings, and a ``session``'s values. From a parent: the name and the ``thread`` it is to take its turn in.
    """

    team: str | None = None
    agent: str | None = None
    model: str | None = None
    tool: str | None = None
    namespace: str = "default"
    input: str | None = None
    resources: tuple[JsonObject, ...] = ()
    thread: Thread | None = None
    session: JsonObject = {}

    @model_validator(mode="after")
    def _somebody_and_something(self) -> Self:
        if sum(each is not None for each in self._named().values()) != 1:
            raise ValueError('a turn needs one of {"team": "name"}, {"agent": …}, {"model": …} and {"tool": …}')
        if (self.input is None) == (self.thread is None):
            raise ValueError('a turn needs {"input": "text"}')
        return self

    def _named(self) -> dict[TargetType, str | None]:
        return {"team": self.team, "agent": self.agent, "model": self.model, "tool": self.tool}

    @property
    def kind(self) -> TargetType:
        """What is to take the turn."""
        return next(kind for kind, name in self._named().items() if name is not None)

    @property
    def name(self) -> str:
        """The name of the team, agent, model or tool."""
        return self._named()[self.kind] or ""


class Turn(Plain):
    """What a member, a team or an agent asked alone has said.

    ``messages`` are the latest of them, ``ended`` tells that an agent has ended its team, and ``failure`` is there
    exactly when ``stop_reason`` is ``failed``, ``timeout`` or an unwanted ``max_turns``. ``answer`` is the answer where
    it is not the last words: the final words of ``terminate``, or what a parallel team has said.
    """

    head: Head
    messages: tuple[Message, ...] = ()
    turns: int = 1
    ended: bool = False
    stop_reason: StopReason = "completed"
    note: str | None = None
    failure: Failure | None = None
    usage: TokenUsage = TokenUsage()
    answer: str | None = None

    @property
    def message(self) -> str:
        """The answer: the last words, if there is no other."""
        if self.answer is not None:
            return self.answer
        word = last_word(self.messages)
        return word.content if word else ""
