"""The teams and agents that the gateway serves, as the workers know them."""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from temporalio.client import Client
from temporalio.service import RPCError

from ...contracts.errors import JournalUnavailable
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.catalog import Catalog, Resource
from ...resources.loader import OfWorkers
from ...resources.rights import Use, has_rights
from ...resources.team import Team
from ...resources.values import sources
from ..operations.manifests import manifests_of_workers
from .access import Caller
from .errors import NotFoundError, UnavailableError
from .settings import GatewaySettings

SERVE_LABEL = "baton/serve"
"""The label of a Team or an Agent that is served: ``"true"``; ``"false"`` excludes it in a served namespace."""

FRESH_SECONDS = 2.0
"""Seconds for which the manifests of the workers are cached."""

LISTED_SECONDS = 60.0
"""Seconds for which the manifests in a worker's files are served after Temporal has listed it last."""

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True)
class ServedTarget:
    """A team or an agent that is served."""

    manifest: Team | Agent

    @property
    def kind(self) -> str:
        """``team`` or ``agent``."""
        return self.manifest.kind.lower()

    @property
    def name(self) -> str:
        """The name of its manifest."""
        return self.manifest.name

    @property
    def namespace(self) -> str:
        """The namespace of its manifest."""
        return self.manifest.namespace

    @property
    def id(self) -> str:
        """``team/NAME``, in another namespace than the default one ``team/NAMESPACE/NAME``."""
        if self.namespace == DEFAULT_NAMESPACE:
            return f"{self.kind}/{self.name}"
        return f"{self.kind}/{self.namespace}/{self.name}"

    @property
    def output_schema(self) -> JsonObject | None:
        """The JSON Schema of its answers, if its manifest has one."""
        return self.manifest.spec.output_schema

    def parameters(self, catalog: Catalog) -> list[str]:
        """The names of the parameters that a query has to give a value, as the manifests that it needs use them."""
        needed, _ = catalog.needed_by(self.manifest)
        places = (source.value_from for manifest in needed.manifests for _, source in sources(manifest))
        return sorted({place.query_parameter_ref.name for place in places if place and place.query_parameter_ref})

    @property
    def description(self) -> str:
        """What its manifest says about it, or its strategy."""
        if self.manifest.spec.description:
            return self.manifest.spec.description
        return f"{self.manifest.kind} {self.name}"


@dataclass(frozen=True)
class _InFiles:
    """A manifest in the files of workers, and when it was read last."""

    manifest: Resource
    seen: float


class Targets:
    """The served teams and agents. They are read from the store and the live workers, and cached for a moment.

    While no worker is live, what the last ones had is served: runs wait for the next one. The same holds for what can't
    be read for a moment, and for what was in the files of a worker that is not listed any more: it may be late with its
    heartbeat while others are listed.

    Without Roles, everything may be used. So nothing may, except where there are Roles, until it was known once that
    no worker has others.
    """

    def __init__(
        self,
        client: Client,
        settings: GatewaySettings,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._environ = environ
        self._clock = clock
        self._reading = asyncio.Lock()
        self._catalog: Catalog | None = None
        self._in_files: dict[str, _InFiles] = {}
        """What is in the files of workers, or was a moment ago, by its id."""

        self._is_complete = False
        self._knows_rights = False
        self._read_at = 0.0

    async def catalog(self) -> Catalog:
        """The manifests of the workers. Raises UnavailableError if they can't be read and none are cached."""
        async with self._reading:
            if self._catalog is None or self._clock() - self._read_at > FRESH_SECONDS:
                try:
                    found = await manifests_of_workers(self._client, self._environ)
                except (RPCError, JournalUnavailable, OSError) as error:
                    self._is_complete = False
                    if self._catalog is None:
                        raise UnavailableError(
                            "the manifests of the workers can't be read now", retry_after=FRESH_SECONDS
                        ) from error
                else:
                    self._catalog = self._merged(found)
                    self._is_complete = found.is_complete
                self._read_at = self._clock()
            assert self._catalog is not None
            return self._catalog

    def _merged(self, found: OfWorkers) -> Catalog:
        """What was found, and what was served before and may still be there."""
        now = self._clock()
        kept = {
            id_: each
            for id_, each in self._in_files.items()
            if not found.is_complete or now - each.seen < LISTED_SECONDS
        }
        here = [manifest for manifest in found.catalog.manifests if manifest.id in found.in_files]
        was_in_files = self._in_files
        self._in_files = {**kept, **{manifest.id: _InFiles(manifest, now) for manifest in here}}
        self._knows_rights = self._knows_rights or found.knows_rights
        earlier = self._catalog.manifests if self._catalog and not found.is_store_readable else ()
        stored = Catalog(manifests=tuple(manifest for manifest in earlier if manifest.id not in was_in_files))
        return self.in_files.overlaid_on(found.catalog).overlaid_on(stored)

    @property
    def in_files(self) -> Catalog:
        """What is in the files of workers, or was a moment ago, as of the last call of ``catalog``."""
        return Catalog(manifests=tuple(each.manifest for each in self._in_files.values()))

    def knows_rights(self, caller: Caller, namespaces: Collection[str]) -> bool:
        """Whether a caller can't get rights in these namespaces from what is not known: more Roles only permit more.

        Who sees the runs of all may see what nobody has restricted yet.
        """
        if self._knows_rights or caller.sees_all:
            return True
        catalog = self._catalog or Catalog()
        return all(has_rights(catalog, namespace) for namespace in namespaces)

    def may_use(self, caller: Caller, catalog: Catalog, use: Use) -> bool:
        """Whether a caller may use a resource by the rights in a catalog, as far as these are known."""
        return self.knows_rights(caller, [use.namespace]) and caller.may_use(catalog, use)

    def check_known(self) -> None:
        """Raises UnavailableError unless all that is served is known: what is missing may be what can't be read now."""
        if not self._is_complete:
            raise UnavailableError(
                "what is served, and which Roles there are, is not known completely now: no worker is live, or the "
                "manifests of some can't be read",
                retry_after=FRESH_SECONDS,
            )

    async def of(self, caller: Caller) -> list[ServedTarget]:
        """What a caller may ask, by id."""
        targets = await self.resources_of(caller, (Team, Agent))
        served = [ServedTarget(manifest) for manifest in targets if isinstance(manifest, Team | Agent)]
        return sorted(served, key=lambda target: target.id)

    async def served(self) -> list[ServedTarget]:
        """What is served, whoever may ask it, by id."""
        catalog = await self.catalog()
        served = [ServedTarget(one) for one in catalog.manifests if isinstance(one, Team | Agent)]
        return sorted((one for one in served if self._is_served(one.manifest)), key=lambda target: target.id)

    async def resources_of(self, caller: Caller, kinds: tuple[type[Resource], ...]) -> list[Resource]:
        """The served manifests of these kinds that a caller may use, by id."""
        catalog = await self.catalog()
        served = [one for one in catalog.manifests if isinstance(one, kinds) and self._is_served(one)]
        return sorted((one for one in served if self.may_use(caller, catalog, Use.of(one))), key=lambda one: one.id)

    async def find(self, caller: Caller, name: str, param: str = "model") -> ServedTarget:
        """What is named ``team/NAME``, ``team/NAMESPACE/NAME``, or by its name alone if only one fits.

        ``param`` is the field of the request that has the name.

        Raises NotFoundError, also for what is not served, or what the caller may not use; and UnavailableError.
        """
        known = await self.of(caller)
        fitting = [target for target in known if name in (target.id, f"{target.kind}/{target.namespace}/{target.name}")]
        fitting = fitting or [target for target in known if target.name == name]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            ids = " and ".join(target.id for target in fitting)
            raise NotFoundError(f"'{name[:100]}' is ambiguous: there are {ids}", param=param)
        self.check_known()
        raise NotFoundError(f"there is no '{name[:100]}' here, or you may not use it", param=param)

    def _is_served(self, manifest: Resource) -> bool:
        label = manifest.metadata.labels.get(SERVE_LABEL)
        if label in ("true", "false"):
            return label == "true"
        return not {"*", manifest.namespace}.isdisjoint(self._settings.namespaces)
