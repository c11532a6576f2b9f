"""The protocol of a tool type: how its tools are discovered, described to a model, and used."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from ...conversation.messages.person_decision import PersonDecision
from ...resources import tool as resources
from ...resources.agent import Agent
from ...resources.approval import Approval
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ..context.value_resolver import ValueResolver
from ..runtime.counted import GoesOnLater


@dataclass(frozen=True)
class ToolDefinition:
    """What a model reads about a tool; ``parameters`` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject


async def unchanged(answer: str) -> str:
    """The answer itself."""
    return answer


@dataclass(frozen=True)
class CallableTool:
    """A tool that can be used.

    ``use`` takes arguments that fit the definition's parameters and returns the result as text, or raises ToolFailed,
    or AsksPerson.
    ``ends``: using it ends the turn and the team. ``retries``: Temporal retries every failure, not only those that the
    tool itself calls retryable. ``untrusted``: its results are marked for a model. ``approval``: which
    calls need a person's yes. ``finish`` turns the tool's answer
    into the result that is kept.
    """

    definition: ToolDefinition
    use: Callable[[JsonObject], Awaitable[str]]
    ends: bool = False
    retries: bool = False
    untrusted: bool = False
    approval: Approval | None = None
    finish: Callable[[str], Awaitable[str]] = unchanged


@dataclass(frozen=True)
class Answered:
    """What a person has decided about the question that a use of the tool has ended with, and the tool's own notes."""

    state: JsonObject
    decision: PersonDecision


class AsksPerson(GoesOnLater):
    """A use of a tool ends with a question to a person; it goes on with the answer.

    ``text`` is what the person reads, ``reply_schema`` what the answer has to fit, and ``state`` what the tool needs to
    go on.
    """

    def __init__(self, text: str, reply_schema: JsonObject | None, state: JsonObject) -> None:
        super().__init__(text)
        self.text, self.reply_schema, self.state = text, reply_schema, state


BeginOnce = Callable[[], Awaitable[None]]
"""Awaited right before something that must not be done twice. Raises OutcomeUnknown if an earlier attempt began it."""


async def no_guard() -> None:
    """The ``BeginOnce`` of tools that are only shown to a model."""


@dataclass(frozen=True)
class ToolContext:
    """For whom a tool is discovered.

    ``name`` is the tool's name, ``manifest`` its Tool, which a built-in tool has not. ``agent`` uses it; None where a
    query is put to the tool itself. ``repeatable``: the agent allows to use it twice (``onError: retry``).
    ``answered``: this use goes on with the answer to a question.
    """

    name: str
    manifest: resources.Tool | None
    values: ValueResolver
    agent: Agent | None = None
    repeatable: bool = False
    begin_once: BeginOnce = no_guard
    answered: Answered | None = None


class ToolSource(Protocol):
    """The tools of one type (``spec.type`` of a Tool). One instance serves all tools of that type in a worker."""

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The tools behind a name: one, or for a source such as a server that lists its tools, several."""
        ...

    async def pin(self, values: ValueResolver) -> Catalog:
        """The catalog of a run that begins, with what these tools need of their servers, so that it stays the same."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...
