"""The inputs of the workflows."""

from typing import Self

from pydantic import model_validator

from ...resources.base import JsonModel, JsonObject
from ...resources.query import TargetType
from ..messages.turn import Thread
from .continuation import Continuation, StopRequest
from .control_messages import Pause


class QueryInput(JsonModel):
    """The input of the workflow ``query``: ``{"spec": {...}}`` or ``{"name": "..."}``.

    ``resources`` are manifests that come with the query, ``session`` the first values of the session. After
    continue-as-new, ``carried`` stands in place of them.
    """

    name: str | None = None
    namespace: str = "default"
    spec: JsonObject | None = None
    resources: tuple[JsonObject, ...] = ()
    session: JsonObject = {}
    carried: Continuation | None = None

    @model_validator(mode="after")
    def _something_to_ask(self) -> Self:
        if self.name is None and self.spec is None:
            raise ValueError('a query needs {"spec": {...}} or {"name": "..."}')
        return self

    def continued_with(self, carried: Continuation) -> "QueryInput":
        """The input of the next run at continue-as-new."""
        return QueryInput(name=self.name or "query", namespace=self.namespace, carried=carried)


class TurnInput(JsonModel):
    """The input of the workflows ``agent``, ``model`` and ``tool``, and of every strategy.

    A client gives ``{"team": "name", "input": "text"}`` (or ``agent``, ``model``, ``tool``), and may add ``resources``
    (manifests) and ``session`` (values). A parent workflow gives the name and the ``thread`` of the turn, and the
    beginning of the ``question``, to be shown; ``stop`` and ``pause`` where it was asked for them before. It says with
    ``fails`` that it reads the result of a turn that failed from the failure of the run. After continue-as-new,
    ``carried`` stands in place of the input.
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
    question: str | None = None
    stop: StopRequest | None = None
    pause: Pause | None = None
    fails: bool = False
    carried: Continuation | None = None

    @model_validator(mode="after")
    def _somebody_and_something(self) -> Self:
        if sum(each is not None for each in self._named().values()) != 1:
            raise ValueError('a turn needs one of {"team": "name"}, {"agent": …}, {"model": …} and {"tool": …}')
        if self.carried is None and (self.input is None) == (self.thread is None):
            raise ValueError('a turn needs {"input": "text"}')
        return self

    def continued_with(self, carried: Continuation) -> "TurnInput":
        """The input of the next run at continue-as-new."""
        named = {self.kind: self.name, "namespace": self.namespace, "thread": self.thread}
        other = {"question": self.question, "fails": self.fails} if self.fails else {}
        return TurnInput.model_validate({**named, **other, "carried": carried})

    def _named(self) -> dict[TargetType, str | None]:
        return {"team": self.team, "agent": self.agent, "model": self.model, "tool": self.tool}

    @property
    def kind(self) -> TargetType:
        """Which of the four is given."""
        return next(kind for kind, name in self._named().items() if name is not None)

    @property
    def name(self) -> str:
        """The name of the team, agent, model or tool."""
        return self._named()[self.kind] or ""
