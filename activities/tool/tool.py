"""The protocol of a tool type: how its tools are discovered, described to a model, and called."""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from ...contracts.message import Handoff, PersonDecision
from ...contracts.text import truncate
from ...journal.leases import Lease
from ...observability.metrics import InputRequired
from ...resources import tool as resources
from ...resources.agent import Agent, AgentTool
from ...resources.approval import Approval
from ...resources.base import JsonObject, Reference
from ...resources.content import ContentPart
from ...resources.provenance import Provenance
from ...resources.run_catalog import RunCatalog
from ..context.value_resolver import ValueResolver


@dataclass(frozen=True)
class ToolDefinition:
    """The definition of a tool for a model; ``parameters`` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject


async def unchanged(answer: str) -> str:
    """Returns the answer."""
    return answer


@dataclass(frozen=True)
class ResultWithFiles:
    """A tool's result with images and files, of which ``text`` has the stand-ins."""

    text: str
    files: tuple[ContentPart, ...]


Use = Callable[[JsonObject, Lease], Awaitable[str | ResultWithFiles]]
"""Calls a tool with arguments that are valid for its parameters, and returns the result: a text, perhaps with files.

The caller holds the lease of the call; ``Lease.send_once`` is awaited right before what must not be done twice. Raises
ToolFailed or AsksPerson.
"""


def without_effects(result: Callable[[JsonObject], Awaitable[str]]) -> Use:
    """The use of a tool without a request to any server, which may be called any number of times."""

    async def use(arguments: JsonObject, _lease: Lease) -> str:
        return await result(arguments)

    return use


@dataclass(frozen=True)
class CallableTool:
    """A tool that can be called. ``server`` is the provenance of the server that gets its arguments.

    ``ends``: a call ends the turn and the team. ``retries``: Temporal retries every failure, even if the tool reports
    it as non-retryable. ``untrusted``: results are fenced for a model. ``approval``: which calls require human
    approval. ``handoff``: a call transfers the conversation. ``by_client``: the client executes the calls.
    ``application`` is the type of an application's activity or workflow that the run calls: ``use`` only returns the
    arguments for it. ``inside``: a call depends on nothing but its arguments and the run's manifests, so recordings
    have no answers for it. ``finish`` converts the tool's answer into the stored result.
    """

    definition: ToolDefinition
    use: Use
    server: Provenance
    ends: bool = False
    retries: bool = False
    untrusted: bool = False
    approval: Approval | None = None
    handoff: Handoff | None = None
    by_client: bool = False
    application: str | None = None
    inside: bool = False
    finish: Callable[[str], Awaitable[str]] = unchanged


@dataclass(frozen=True)
class Answered:
    """A person's decision about the question of an earlier call, and the state that the tool needs to continue."""

    state: JsonObject
    decision: PersonDecision


class AsksPerson(InputRequired):
    """A tool call ends with a question to a person, and continues with the answer.

    ``text`` is the question, ``reply_schema`` the JSON Schema of the answer, ``state`` what the tool needs to continue.
    ``authorizes`` is that of a PendingDecision.
    """

    def __init__(
        self, text: str, reply_schema: JsonObject | None, state: JsonObject, *, authorizes: bool = False
    ) -> None:
        super().__init__(text)
        self.authorizes = authorizes
        self.text = text
        self.reply_schema = reply_schema
        self.state = state


BeginOnce = Callable[[], Awaitable[None]]
"""Awaited right before a request that must not be sent twice. Raises OutcomeUnknown if it may have been sent."""


async def no_guard() -> None:
    """The ``BeginOnce`` of idempotent calls."""


@dataclass(frozen=True)
class ToolContext:
    """The use of a tool.

    ``name`` is the tool's name, ``manifest`` its Tool; None for a built-in tool. ``agent`` is the caller; None if the
    tool is the target of a query. ``repeatable``: the agent allows repeated calls (``onError: retry``). ``answered``:
    this call continues with the answer to a question.
    """

    name: str
    manifest: resources.Tool | None
    values: ValueResolver
    agent: Agent | None = None
    repeatable: bool = False
    answered: Answered | None = None

    @property
    def provenance(self) -> Provenance:
        """The provenance of its manifest; a tool without one is built in."""
        return self.values.catalog.provenance_of(self.manifest) if self.manifest else Provenance.FILES


class ToolSource(Protocol):
    """The tools of one type (``spec.type`` of a Tool). One instance serves all tools of that type in a worker."""

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The tools of a name: one, or several for a source such as a server that lists its tools."""
        ...

    async def pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog of a new run, with data from the servers of these tools, which is fixed for the whole run."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...


MAX_REASON = 200
"""Bytes that are shown of the reason why a tool can't be used."""

MAX_NAME = 64
"""Characters of a tool's name, the limit of most model APIs."""

GeneratedNames = Callable[[Reference], Sequence[str] | None]
"""From a reference to the names of its generated tools; None if it refers to a manifest that generates none."""


def tool_names(prefix: str, names: Iterable[str]) -> Iterator[str]:
    """Unique names of tools, such as ``prefix-read-file``."""
    used = set[str]()
    for name in names:
        short = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "tool"
        first = f"{prefix}-{short}"[:MAX_NAME].rstrip("-")
        unique = first
        for number in count(2):  # different names may become equal by the normalization
            if unique not in used:
                break
            unique = f"{first[: MAX_NAME - 4]}-{number}"
        used.add(unique)
        yield unique


MAX_SHOWN_SKIPPED = 3
"""Tools that a notice names with their reasons; it counts the others."""


def skipped_notice(id_: str, skipped: Mapping[str, str]) -> str:
    """The notice that tools of a server or of a document can't be used; ``skipped`` has the reasons by their names."""
    shown = [
        f"{truncate(name, MAX_NAME)} ({truncate(reason, MAX_REASON)})"
        for name, reason in [*skipped.items()][:MAX_SHOWN_SKIPPED]
    ]
    more = f", and {len(skipped) - len(shown)} more" if len(skipped) > len(shown) else ""
    return f"{id_}: left out what can't be used as a tool: {', '.join(shown)}{more}"


def with_generated_tools(agent: Agent, generated_names: GeneratedNames) -> Agent:
    """The agent with generated tools in place of the tools that generate them, without duplicate names."""
    tools = tuple(_tools(agent, generated_names))
    if tools == agent.spec.tools:
        return agent
    return agent.with_tools(tools)


def _tools(agent: Agent, generated_names: GeneratedNames) -> Iterator[AgentTool]:
    used_names = {tool.name for tool in agent.spec.tools}
    for own_tool, reference in agent.tools():
        names = generated_names(reference) if reference else None
        for name in (own_tool.own_name,) if names is None else names:
            if name == own_tool.own_name:
                yield own_tool
            elif name not in used_names:
                used_names.add(name)
                yield own_tool.generated(name)
