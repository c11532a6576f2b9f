"""Looks up resources in the catalog of a run, and raises UnknownResource if one is missing."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from ...contracts.errors import InvalidManifest, JournalUnavailable, UnknownResource
from ...journal.manifest_store import ManifestStore
from ...resources.a2a_server import A2AServer, A2AServerSpec, AnnotatedA2AServer
from ...resources.agent import Agent
from ...resources.base import PREALPHA, Reference
from ...resources.catalog import Catalog, Resource, catalog_of
from ...resources.execution_engine import ExecutionEngine
from ...resources.manifest import Metadata
from ...resources.mcp_server import MCPServer
from ...resources.role import RIGHTS
from ...resources.stored import UNUSED, Key, StoredManifest
from ...resources.team import Team
from ...resources.tool import Tool
from ...resources.values import ValueSource
from ...temporal.threads import COMPUTING


def find(catalog: Catalog, reference: Reference) -> Resource:
    """The resource of a reference."""
    if resource := catalog.find(reference):
        return resource
    raise UnknownResource(f"{reference} is neither in the run's manifests nor in its worker's")


def find_optional(catalog: Catalog, reference: Reference) -> Resource | None:
    """The resource of a reference; None if the reference is optional and there is no such resource."""
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
    """The manifest of an agent's executor; None for an agent that Baton executes itself.

    An A2AServer without a manifest is created from the address in the agent's annotations (ARK: agent execution, A2A).
    """
    reference = agent.executor()
    executor = find_optional(catalog, reference) if reference else None
    if isinstance(executor, Executor) or not agent.is_remote:
        return executor if isinstance(executor, Executor) else None
    if agent.a2a_address is None:
        raise UnknownResource(f"{agent.id} is a remote agent, but has no executor and no address")
    name = reference.name if reference else agent.name
    metadata = Metadata(name=name, namespace=agent.namespace)
    spec = A2AServerSpec(address=ValueSource(value=agent.a2a_address))
    return AnnotatedA2AServer(api_version=PREALPHA, metadata=metadata, spec=spec, agent_id=agent.id)


_log = logging.getLogger(__name__)

RIGHT_KINDS = frozenset(kind.__name__ for kind in RIGHTS)


class OwnManifests:
    """A worker's manifests: those of its ``folder``, which take precedence, and those of the ``store``.

    ``changed`` is called with the merged catalog whenever the store has changed.
    """

    def __init__(self, folder: Catalog, store: ManifestStore, changed: Callable[[Catalog], None]) -> None:
        self.folder = folder
        self._store = store
        self._changed = changed
        self._catalog = folder
        self._revision = UNUSED
        self._stored = dict[Key, Resource]()
        self._unreadable = dict[Key, StoredManifest]()
        self._hidden = set[str]()
        self._reading = asyncio.Lock()

    async def catalog(self) -> Catalog:
        """The current manifests, including everything that was applied before this call.

        Costs one short SQL statement; only changes are read, or everything if the store was restored from a backup.
        Raises JournalUnavailable and JournalLost.
        """
        revision = await self._store.revision()
        if revision != self._revision:
            async with self._reading:
                if revision != self._revision:
                    await self._read()
        return self._catalog

    def check_readable(self, references: Iterable[Reference]) -> None:
        """Raises if a stored right, or the manifest of an unresolved reference, can't be read.

        A run that needs none of them is not affected. If an unreadable right were ignored, a run might be allowed more.

        Raises:
            JournalUnavailable: this worker lacks the key of the manifest; another worker may have it.
            InvalidManifest: no worker of this release can read the manifest.
        """
        referenced = {
            (kind, reference.namespace, reference.name) for reference in references for kind in reference.kinds
        }
        for key, stored in self._unreadable.items():
            if key in referenced or key[0] in RIGHT_KINDS:
                text = f"the stored manifest {stored.place} can't be read: {stored.problem}"
                raise JournalUnavailable(text) if stored.lacks_key else InvalidManifest(text)

    async def _read(self) -> None:
        changes = await self._store.changed_since(self._revision)
        stored, unreadable = await COMPUTING.run(_parsed, changes.manifests)  # thousands of manifests take seconds
        if changes.since == self._revision:
            changed = {manifest.key for manifest in changes.manifests}
            stored = {key: resource for key, resource in self._stored.items() if key not in changed} | stored
            unreadable = {key: one for key, one in self._unreadable.items() if key not in changed} | unreadable
        self._catalog = await COMPUTING.run(_merged, self.folder, stored.values())
        self._stored = stored
        self._unreadable = unreadable
        self._revision = changes.revision
        _log.info("the store has revision %s, with %s", changes.revision.number, catalog_of(stored.values()).summary)
        self._warn_of_hidden()
        self._changed(self._catalog)

    def _warn_of_hidden(self) -> None:
        """Logs once for every stored manifest that one of the folder takes precedence."""
        both = {resource.id for resource in self._stored.values() if self.folder.by_id(resource.id)}
        for name in sorted(both - self._hidden):
            _log.warning("%s is in the store and in this worker's files: the worker uses the one in its files", name)
        self._hidden |= both


def _parsed(manifests: Iterable[StoredManifest]) -> tuple[dict[Key, Resource], dict[Key, StoredManifest]]:
    """The manifests that are not deleted, and those that can't be read, which are logged with a warning."""
    parsed = dict[Key, Resource]()
    unreadable = dict[Key, StoredManifest]()
    for manifest in manifests:
        if manifest.is_secret:  # it is no part of a catalog: the SecretStore reads it
            continue
        try:
            if resource := manifest.resource():
                parsed[manifest.key] = resource
        except ValueError as error:
            _log.warning("runs that need the stored manifest %s can't start: %s", manifest.place, error)
            unreadable[manifest.key] = manifest._replace(problem=str(error))
    return parsed, unreadable


def _merged(folder: Catalog, stored: Iterable[Resource]) -> Catalog:
    catalog = folder.overlaid_on(catalog_of(stored))
    catalog.by_id("")  # builds the index while in a thread
    return catalog
