"""Looks resources up in the catalog of a run; what is missing raises UnknownResource."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from ...contracts.errors import UnknownResource
from ...journal.manifest_store import ManifestStore
from ...resources.a2a_server import A2AServer, A2AServerSpec
from ...resources.agent import Agent
from ...resources.base import PREALPHA, Reference
from ...resources.catalog import Catalog, Resource, catalog_of
from ...resources.execution_engine import ExecutionEngine
from ...resources.manifest import Metadata
from ...resources.mcp_server import MCPServer
from ...resources.stored import Key, StoredManifest
from ...resources.team import Team
from ...resources.tool import Tool
from ...resources.values import ValueSource


def find(catalog: Catalog, reference: Reference) -> Resource:
    """The resource that a reference names."""
    if found := catalog.find(reference):
        return found
    raise UnknownResource(f"{reference} is known neither to the run nor to its worker")


def find_optional(catalog: Catalog, reference: Reference) -> Resource | None:
    """The same; None where the reference is optional and names nothing."""
    return catalog.find(reference) if reference.optional else find(catalog, reference)


def find_team(catalog: Catalog, team_id: str) -> Team:
    """The team with an id such as ``Team/default/writers``."""
    if isinstance(team := catalog.by_id(team_id), Team):
        return team
    raise UnknownResource(f"the run's catalog has no {team_id}")


def mcp_server_of(tool: Tool, catalog: Catalog) -> MCPServer | None:
    """The MCPServer of a tool of type 'mcp'."""
    reference = tool.mcp_server()
    server = find(catalog, reference) if reference else None
    return server if isinstance(server, MCPServer) else None


Executor = ExecutionEngine | A2AServer


def find_executor(agent: Agent, catalog: Catalog) -> Executor | None:
    """The manifest of what executes an agent; None if its model is asked here.

    An A2AServer that has no manifest is made from the address in the agent's annotations (ARK: agent execution, A2A).
    """
    reference = agent.executor()
    found = find_optional(catalog, reference) if reference else None
    if isinstance(found, Executor) or not agent.is_remote:
        return found if isinstance(found, Executor) else None
    if agent.a2a_address is None:
        raise UnknownResource(f"{agent.id} is executed elsewhere, and nothing says where")
    name = reference.name if reference else agent.name
    metadata = Metadata(name=name, namespace=agent.namespace)
    spec = A2AServerSpec(address=ValueSource(value=agent.a2a_address))
    return A2AServer(api_version=PREALPHA, metadata=metadata, spec=spec)


_log = logging.getLogger(__name__)


class OwnManifests:
    """``folder`` are the manifests that a worker was started with; they win over those of the ``store``.

    ``changed`` is told of both together whenever the store has changed.
    """

    def __init__(self, folder: Catalog, store: ManifestStore, changed: Callable[[Catalog], None]) -> None:
        self.folder = folder
        self._store = store
        self._changed = changed
        self._catalog = folder
        self._revision = 0
        self._stored = dict[Key, Resource]()
        self._hidden = set[str]()
        self._reading = asyncio.Lock()

    async def catalog(self) -> Catalog:
        """All of them as they are now: what was applied before this call is there.

        It costs one short statement. What has changed is read only then. Raises JournalUnavailable and JournalLost.
        """
        revision = await self._store.revision()
        if revision > self._revision:
            async with self._reading:
                if revision > self._revision:
                    await self._read()
        return self._catalog

    async def _read(self) -> None:
        found = await self._store.changed_since(self._revision)
        stored = await asyncio.to_thread(_parsed, found)  # thousands of manifests take seconds
        gone = {each.key for each in found} - stored.keys()
        known = {key: each for key, each in self._stored.items() if key not in gone} | stored
        self._catalog = await asyncio.to_thread(_together, self.folder, known.values())
        self._stored = known
        self._revision = max(each.revision for each in found)
        _log.info("the store has revision %s, with %s", self._revision, catalog_of(known.values()).summary)
        self._tell_hidden()
        self._changed(self._catalog)

    def _tell_hidden(self) -> None:
        """Says once of each manifest of the store that the folder's is used in its place."""
        both = {each.id for each in self._stored.values() if self.folder.by_id(each.id)}
        for name in sorted(both - self._hidden):
            _log.warning("%s is in the store and among the files of this worker, which uses that of its files", name)
        self._hidden |= both


def _parsed(found: Iterable[StoredManifest]) -> dict[Key, Resource]:
    """The manifests that are not deleted. One that this version of Baton can't read is left out, with a warning."""
    parsed = dict[Key, Resource]()
    for each in found:
        try:
            if resource := each.resource():
                parsed[each.key] = resource
        except ValueError as error:
            _log.warning("the stored manifest %s is left out: %s", each.place, error)
    return parsed


def _together(folder: Catalog, stored: Iterable[Resource]) -> Catalog:
    both = folder.overlaid_on(catalog_of(stored))
    both.by_id("")  # makes its index, here in a thread
    return both
