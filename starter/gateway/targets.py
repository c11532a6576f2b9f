"""The teams and agents that the gateway serves, as the workers know them."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from temporalio.client import Client
from temporalio.service import RPCError

from ...contracts.errors import JournalUnavailable
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.catalog import Catalog, Resource
from ...resources.rights import Use
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


class Targets:
    """The served teams and agents. They are read from the store and the live workers, and cached for a moment."""

    def __init__(self, client: Client, settings: GatewaySettings, environ: Mapping[str, str] = os.environ) -> None:
        self._client = client
        self._settings = settings
        self._environ = environ
        self._reading = asyncio.Lock()
        self._catalog: Catalog | None = None
        self._read_at = 0.0

    async def catalog(self) -> Catalog:
        """The manifests of the workers. Raises UnavailableError if they can't be read and none are cached."""
        async with self._reading:
            if self._catalog is None or time.monotonic() - self._read_at > FRESH_SECONDS:
                try:
                    self._catalog = (await manifests_of_workers(self._client, self._environ)).catalog
                except (RPCError, JournalUnavailable, OSError) as error:
                    if self._catalog is None:
                        raise UnavailableError("the manifests of the workers can't be read now") from error
                self._read_at = time.monotonic()
            return self._catalog

    async def of(self, caller: Caller) -> list[ServedTarget]:
        """What a caller may ask, by id."""
        targets = await self.resources_of(caller, (Team, Agent))
        served = [ServedTarget(manifest) for manifest in targets if isinstance(manifest, Team | Agent)]
        return sorted(served, key=lambda target: target.id)

    async def resources_of(self, caller: Caller, kinds: tuple[type[Resource], ...]) -> list[Resource]:
        """The served manifests of these kinds that a caller may use, by id."""
        catalog = await self.catalog()
        served = [one for one in catalog.manifests if isinstance(one, kinds) and self._is_served(one)]
        return sorted((one for one in served if caller.may_use(catalog, Use.of(one))), key=lambda one: one.id)

    async def find(self, caller: Caller, name: str) -> ServedTarget:
        """What is named ``team/NAME``, ``team/NAMESPACE/NAME``, or by its name alone if only one fits.

        Raises NotFoundError, also for what is not served, or what the caller may not use.
        """
        known = await self.of(caller)
        fitting = [target for target in known if name in (target.id, f"{target.kind}/{target.namespace}/{target.name}")]
        fitting = fitting or [target for target in known if target.name == name]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            ids = " and ".join(target.id for target in fitting)
            raise NotFoundError(f"'{name[:100]}' is ambiguous: there are {ids}", param="model")
        raise NotFoundError(f"there is no '{name[:100]}' here, or you may not use it", param="model")

    def _is_served(self, manifest: Resource) -> bool:
        label = manifest.metadata.labels.get(SERVE_LABEL)
        if label in ("true", "false"):
            return label == "true"
        return not {"*", manifest.namespace}.isdisjoint(self._settings.namespaces)
