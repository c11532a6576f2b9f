"""The executors of a worker: which one executes the agents of which kind of manifest."""

import asyncio
import logging
from dataclasses import replace

from ...contracts.errors import BatonError
from ...contracts.text import truncate
from ...resources.a2a_server import A2AServer
from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.team import Team
from ..context.lookup import Executor, find_executor
from ..context.value_resolver import ValueResolver
from ..runtime.secrets import SecretStore
from ..tool.tools import Tools
from .executor import AgentExecutor


def new_executor(kind: type[Executor], *, private: bool) -> AgentExecutor:
    """The executor for a kind of manifest. Only this function imports what the executor needs."""
    if kind is A2AServer:
        from .a2a import A2AExecutor  # noqa: PLC0415  # loads the SDK of A2A, which takes 0.3 s

        return A2AExecutor(private=private)
    from .engine import EngineExecutor  # noqa: PLC0415

    return EngineExecutor()


class Executors:
    """The executors of a worker; each is made when it is first needed."""

    def __init__(self, secrets: SecretStore) -> None:
        self._private = secrets.allows_private_hosts
        self._loading: dict[type[Executor], asyncio.Task[AgentExecutor]] = {}

    async def of(self, executor: Executor) -> AgentExecutor:
        """The executor for a manifest. Its library is loaded in a thread, so that no other call waits for that."""
        kind = type(executor)
        if kind not in self._loading:
            load = asyncio.to_thread(new_executor, kind, private=self._private)
            self._loading[kind] = asyncio.create_task(load)
        return await asyncio.shield(self._loading[kind])

    async def close(self) -> None:
        """Closes the connections of all executors."""
        for loading in self._loading.values():
            await (await loading).close()


MAX_DESCRIPTION = 1_000
"""Characters of an agent's description that a server gives."""

_log = logging.getLogger("baton")


class Discovery:
    """Asks the servers that a run needs."""

    def __init__(self, tools: Tools, executors: Executors, secrets: SecretStore) -> None:
        self._tools = tools
        self._executors = executors
        self._secrets = secrets

    async def pin(self, values: ValueResolver) -> Catalog:
        """The catalog of a run that begins: with the tools of its MCP servers, and with descriptions for selectors.

        An agent that a selector chooses among, and that has no description, gets that of its server. Where the server
        can't be asked now, it has none, as any other agent without one: the run may never need it.
        """
        catalog = await self._tools.pin(values)
        values = replace(values, catalog=catalog)
        agents = [each for each in _chosen(catalog) if not each.spec.description]
        asked = [(each, executor) for each in agents if (executor := find_executor(each, catalog))]
        texts = await asyncio.gather(*(self._description(executor, values) for _, executor in asked))
        described = {each.id: each.described(text) for (each, _), text in zip(asked, texts, strict=True) if text}
        if not described:
            return catalog
        return catalog.with_manifests(described.get(each.id, each) for each in catalog.manifests)

    async def _description(self, executor: Executor, values: ValueResolver) -> str | None:
        try:
            text = await (await self._executors.of(executor)).describe(executor, values)
        except BatonError as error:
            _log.info("%s does not say what it can do: %s", executor.id, self._secrets.redact(error.message))
            return None
        return truncate(" ".join(self._secrets.redact(text).split()), MAX_DESCRIPTION) if text else None


def _chosen(catalog: Catalog) -> list[Agent]:
    """The agents that selectors choose among."""
    teams = [each for each in catalog.manifests if isinstance(each, Team) and each.spec.strategy == "selector"]
    found = {found.id: found for team in teams for each in team.members() if (found := catalog.find(each))}
    return [each for each in found.values() if isinstance(each, Agent)]
