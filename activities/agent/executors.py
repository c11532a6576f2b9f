"""The table of executors: which one executes the agents of which kind of manifest."""

import asyncio
from collections.abc import Callable

from ...resources.a2a_server import A2AServer
from ...resources.execution_engine import ExecutionEngine
from ..context.executor import Executor
from ..process.secrets import SecretStore
from .executor import AgentExecutor


def _engine(private: bool) -> AgentExecutor:
    from .engine import EngineExecutor  # noqa: PLC0415  # see EXECUTORS

    return EngineExecutor()


def _a2a(private: bool) -> AgentExecutor:
    from .a2a.executor import A2AExecutor  # noqa: PLC0415  # loads the SDK of A2A, which takes 0.3 s

    return A2AExecutor(private=private)


EXECUTORS: dict[type[Executor], Callable[[bool], AgentExecutor]] = {ExecutionEngine: _engine, A2AServer: _a2a}
"""For each kind, the function that makes its executor. Only this function imports what the executor needs."""


class Executors:
    """The executors of a worker; each is made when it is first needed."""

    def __init__(self, secrets: SecretStore) -> None:
        self._private = secrets.allows_private_hosts
        self._made: dict[type[Executor], asyncio.Task[AgentExecutor]] = {}

    async def of(self, executor: Executor) -> AgentExecutor:
        """The executor for a manifest. Its library is loaded in a thread, so that no other call waits for that."""
        kind = type(executor)
        if kind not in self._made:
            self._made[kind] = asyncio.create_task(asyncio.to_thread(EXECUTORS[kind], self._private))
        return await asyncio.shield(self._made[kind])

    async def close(self) -> None:
        """Closes the connections of all executors."""
        for made in self._made.values():
            await (await made).close()
