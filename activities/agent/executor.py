"""The protocol of what executes agents elsewhere: what the activity ``execute_agent`` needs of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...conversation.messages.message import Message, RemoteTask
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ..context.call_record import CallRecord
from ..context.executor import Executor
from ..context.value_resolver import ValueResolver
from ..tool.tool import ToolDefinition


@dataclass(frozen=True)
class Execution:
    """One execution of an agent.

    ``messages`` are the conversation and, at last, what the agent is asked; ``previous`` is the place of the agent's
    last message in this conversation, and ``since`` the messages after it. ``record`` keeps notes for a next attempt.
    """

    agent: Agent
    executor: Executor
    values: ValueResolver
    record: CallRecord
    messages: Sequence[Message]
    seconds: float
    tools: Sequence[ToolDefinition] = ()
    schema: JsonObject | None = None
    previous: RemoteTask | None = None
    since: Sequence[Message] = ()


class AgentExecutor(Protocol):
    """Executes agents by one kind of manifest. One instance serves all agents of a worker.

    It resolves addresses and keys at the time of use, and translates every failure into an error of
    ``conversation.errors``: which one decides whether Temporal tries again.
    """

    async def execute(self, execution: Execution, on_text: Callable[[str], None]) -> list[Message]:
        """The agent's messages, of which the last is its answer; ``on_text`` gets its text as it is written."""
        ...

    async def cancel(self, execution: Execution) -> bool:
        """Cancels what an execution that is given up has left open, if that can be done; whether the server was asked.

        ``execution`` has no messages.
        """
        ...

    async def describe(self, executor: Executor, values: ValueResolver) -> str | None:
        """What the server says that its agent can do; None if it does not say that."""
        ...

    async def check(self, executor: Executor, values: ValueResolver) -> str:
        """Checks without an execution that the server answers, and returns what it says of itself."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...
