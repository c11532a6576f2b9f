"""The protocol of a tool type: how its tools are discovered, described to a model, and used."""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from ...contracts.message import PersonDecision
from ...observability.metrics import InputRequired
from ...resources import tool as resources
from ...resources.agent import Agent, AgentTool
from ...resources.approval import Approval
from ...resources.base import JsonObject, Reference
from ...resources.catalog import Catalog
from ..context.value_resolver import ValueResolver


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
    or AsksPerson. ``ends``: using it ends the turn and the team. ``retries``: Temporal retries every failure, not only
    those that the tool itself calls retryable. ``untrusted``: its results are marked for a model. ``approval``: which
    calls require human approval. ``finish`` turns the tool's answer into the result that is kept.
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


class AsksPerson(InputRequired):
    """A use of a tool ends with a question to a person; it continues with the answer.

    ``text`` is what the person reads, ``reply_schema`` what the answer has to fit, and ``state`` what the tool needs to
    go on.
    """

    def __init__(self, text: str, reply_schema: JsonObject | None, state: JsonObject) -> None:
        super().__init__(text)
        self.text = text
        self.reply_schema = reply_schema
        self.state = state


BeginOnce = Callable[[], Awaitable[None]]
"""Awaited right before something that must not be done twice. Raises OutcomeUnknown if an earlier attempt began it."""


async def no_guard() -> None:
    """The ``BeginOnce`` of tools that are only shown to a model."""


@dataclass(frozen=True)
class ToolContext:
    """For whom a tool is discovered.

    ``name`` is the tool's name, ``manifest`` its Tool, which a built-in tool has not. ``agent`` uses it; None where a
    query is put to the tool itself. ``repeatable``: the agent allows to use it twice (``onError: retry``).
    ``answered``: this use continues with the answer to a question.
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


MAX_NAME = 64
"""Characters of a tool's name: models take no longer ones."""

Chosen = Callable[[Reference], Sequence[str] | None]
"""The names of the made tools that a reference stands for; None where it names a manifest of its own."""


def tool_names(prefix: str, names: Iterable[str]) -> Iterator[str]:
    """A name for each tool, as in ``prefix-read-file``; no two are the same."""
    known = set[str]()
    for name in names:
        short = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "tool"
        first = made = f"{prefix}-{short}"[:MAX_NAME].rstrip("-")
        for number in count(2):  # two names may differ in what is not kept of them
            if made not in known:
                break
            made = f"{first[: MAX_NAME - 4]}-{number}"
        known.add(made)
        yield made


def with_generated_tools(agent: Agent, chosen: Chosen) -> Agent:
    """The agent with the tools that one of its own stands for, without those that it has by name already."""
    tools = tuple(_tools(agent, chosen))
    if tools == agent.spec.tools:
        return agent
    return agent.with_tools(tools)


def _tools(agent: Agent, chosen: Chosen) -> Iterator[AgentTool]:
    own = {tool.name for tool in agent.spec.tools}
    for given, reference in agent.tools():
        names = chosen(reference) if reference else None
        for name in (given.own_name,) if names is None else names:
            if name == given.own_name:
                yield given
            elif name not in own:
                own.add(name)
                yield given.generated(name)
