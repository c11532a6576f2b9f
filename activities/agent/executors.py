"""The executors of a worker, by the kind of manifest."""

import asyncio
import logging
from dataclasses import replace

from ...contracts.errors import BatonError, NotCarriedOut
from ...contracts.text import truncate
from ...installation import missing_extra
from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.run_catalog import RunCatalog
from ...resources.team import Team
from ...temporal.threads import COMPUTING
from ..context.lookup import Executor, find_executor
from ..context.outside import Outside
from ..context.value_resolver import ValueResolver
from ..runtime.secrets import SecretStore
from ..tool.tools import Tools
from .executor import AgentExecutor


def new_executor(kind: str) -> AgentExecutor:
    """The executor for a kind of manifest. Only this function imports what the executor needs."""
    if kind == "A2AServer":
        from .a2a import A2AExecutor  # noqa: PLC0415  # loads the SDK of A2A, which takes 0.3 s

        return A2AExecutor()
    from .engine import EngineExecutor  # noqa: PLC0415

    return EngineExecutor()


class Executors:
    """The executors of a worker, created when they are first used."""

    def __init__(self) -> None:
        self._loading: dict[str, asyncio.Task[AgentExecutor]] = {}

    async def of(self, executor: Executor) -> AgentExecutor:
        """The executor for a manifest. Its library is loaded in a thread, so that other calls don't wait for it.

        Raises NotCarriedOut if it is not installed.
        """
        kind = executor.kind
        if missing := missing_extra("a2a", "an A2AServer") if kind == "A2AServer" else None:
            raise NotCarriedOut(f"{executor.id}: {missing}")
        if kind not in self._loading:
            self._loading[kind] = asyncio.create_task(COMPUTING.run(new_executor, kind))
        return await asyncio.shield(self._loading[kind])

    async def close(self) -> None:
        """Closes the connections of all executors."""
        for loading in self._loading.values():
            await (await loading).close()


MAX_DESCRIPTION = 1_000
"""Characters of an agent's description from its server."""

_log = logging.getLogger("baton")


class Discovery:
    """Queries the servers that a run needs, for tools and descriptions."""

    def __init__(
        self, tools: Tools, executors: Executors, secrets: SecretStore, outside: Outside | None = None
    ) -> None:
        self._tools = tools
        self._executors = executors
        self._secrets = secrets
        self._outside = outside

    async def pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog of a new run, with data from the servers that it needs, or with recorded data."""
        if self._outside is None:
            return await self._pin(values)
        return self._tools.approved(await self._outside.pin(values, lambda: self._pin(values)))

    async def _pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog of a new run, with the tools of its MCP servers, and with descriptions for selectors.

        A candidate of a selector without a description gets that of its server. If the server can't be reached, the
        agent stays without one: the run may never need it.
        """
        catalog = await self._tools.pin(values)
        values = replace(values, catalog=catalog)
        agents = [agent for agent in _candidates(catalog) if not agent.spec.description]
        remote = [(agent, executor) for agent in agents if (executor := find_executor(agent, catalog))]
        texts = await asyncio.gather(*(self._description(executor, values) for _, executor in remote))
        described = {agent.id: agent.described(text) for (agent, _), text in zip(remote, texts, strict=True) if text}
        if not described:
            return catalog
        return catalog.with_manifests(described.get(manifest.id, manifest) for manifest in catalog.manifests)

    async def _description(self, executor: Executor, values: ValueResolver) -> str | None:
        try:
            text = await (await self._executors.of(executor)).describe(executor, values)
        except BatonError as error:
            _log.info("%s returned no description: %s", executor.id, self._secrets.redact(error.message))
            return None
        return truncate(" ".join(self._secrets.redact(text).split()), MAX_DESCRIPTION) if text else None


def _candidates(catalog: Catalog) -> list[Agent]:
    """The agents that selectors may choose."""
    teams = [manifest for manifest in catalog.manifests if isinstance(manifest, Team)]
    references = [reference for team in teams if team.spec.strategy == "selector" for reference in team.members()]
    members = {member.id: member for reference in references if (member := catalog.find(reference))}
    return [member for member in members.values() if isinstance(member, Agent)]
