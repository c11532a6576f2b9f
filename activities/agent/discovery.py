"""What servers elsewhere say of their tools and agents when a run begins, put into its catalog for the whole run."""

import asyncio
import logging
from dataclasses import replace

from ...conversation.failure import BatonError
from ...conversation.text import truncate
from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.team import Team
from ..context.executor import Executor, find_executor
from ..context.value_resolver import ValueResolver
from ..process.secrets import SecretStore
from ..tool.tools import Tools
from .executors import Executors

MAX_DESCRIPTION = 1_000
"""Characters of an agent's description that a server gives."""

_log = logging.getLogger("baton")


class Discovery:
    """Asks the servers that a run needs."""

    def __init__(self, tools: Tools, executors: Executors, secrets: SecretStore) -> None:
        self._tools, self._executors, self._secrets = tools, executors, secrets

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
        described = {each.id: _described(each, text) for (each, _), text in zip(asked, texts, strict=True) if text}
        return catalog.remade(described.get(each.id, each) for each in catalog.manifests) if described else catalog

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


def _described(agent: Agent, text: str) -> Agent:
    return agent.model_copy(update={"spec": agent.spec.model_copy(update={"description": text})})
