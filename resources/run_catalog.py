"""The catalog of one run, as the journal stores it: manifests with their provenance, the account and the notices."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Self

from pydantic import model_validator

from .agent import Agent
from .catalog import Catalog, Resource
from .client import ClientRequest
from .manifest import Manifest
from .provenance import Provenance
from .query import Query
from .tool import Tool
from .values import ValueSource


class RunCatalog(Catalog):
    """The manifests of a run. No field has a default: a catalog without the provenance of a manifest cannot be created.

    A run's catalog is made once, by ``of``. From then on it is only derived, by the methods ``with_…``, which keep what
    they don't change.
    """

    provenance: dict[str, Provenance]
    """The provenance of each manifest itself, by its id."""
    registered_as: str
    """The SHA-256 under which a client on the worker's machine registered the run's files; empty if there is none."""
    account: str
    """The ServiceAccount whose rights the run has, as NAMESPACE/NAME; empty if there are no rights."""
    notices: tuple[str, ...]
    """Warnings about what the run continues without, as sentences."""

    @model_validator(mode="after")
    def _has_each_provenance(self) -> Self:
        ids = {manifest.id for manifest in self.manifests}
        if unknown := ids ^ self.provenance.keys():
            raise ValueError(
                f"manifests without a provenance, or a provenance without a manifest: {', '.join(sorted(unknown))}"
            )
        return self

    @classmethod
    def of(
        cls, catalog: Catalog, provenance: Callable[[Resource], Provenance], *, registered_as: str = ""
    ) -> "RunCatalog":
        """The catalog of a new run, whose account is not known yet."""
        return cls(
            manifests=catalog.manifests,
            provenance={manifest.id: provenance(manifest) for manifest in catalog.manifests},
            registered_as=registered_as,
            account="",
            notices=(),
        )

    @classmethod
    def of_files(cls, catalog: Catalog) -> "RunCatalog":
        """The same for a command, which calls the servers in the files of its user."""
        return cls.of(catalog, lambda _: Provenance.FILES)

    def with_manifests(
        self, manifests: Iterable[Resource], *, generated_from: Mapping[str, str] | None = None
    ) -> "RunCatalog":
        """The catalog with other manifests.

        ``generated_from`` has, by the id of each new manifest, the id of the manifest from which it is derived: it is
        as trusted as that one. Raises ValueError for any other new manifest.
        """
        makers = generated_from or {}
        changed = tuple(sorted(manifests, key=lambda manifest: manifest.id))
        provenance = {}
        for manifest in changed:
            if manifest.id in self.provenance:
                provenance[manifest.id] = self.provenance[manifest.id]
            elif manifest.id in makers:
                provenance[manifest.id] = self._provenance_of_id(makers[manifest.id])
            else:
                raise ValueError(f"{manifest.id} is new, and not derived from a manifest of the run")
        return self._derived(manifests=changed, provenance=provenance)

    def with_notices(self, notices: Iterable[str]) -> "RunCatalog":
        """The catalog with more notices."""
        return self._derived(notices=(*self.notices, *notices))

    def with_account(self, account: str) -> "RunCatalog":
        """The catalog with the rights of a ServiceAccount, written as NAMESPACE/NAME."""
        return self._derived(account=account)

    def _derived(
        self,
        *,
        manifests: tuple[Resource, ...] | None = None,
        provenance: dict[str, Provenance] | None = None,
        account: str | None = None,
        notices: tuple[str, ...] | None = None,
    ) -> "RunCatalog":
        return RunCatalog(
            manifests=self.manifests if manifests is None else manifests,
            provenance=self.provenance if provenance is None else provenance,
            registered_as=self.registered_as,
            account=self.account if account is None else account,
            notices=self.notices if notices is None else notices,
        )

    def provenance_of(self, manifest: Manifest) -> Provenance:
        """The provenance of a manifest, or of the least trusted that it needs, or that chooses its server's address.

        INLINE for a manifest that is not in the catalog.
        """
        return self._provenance_of_id(manifest.declared_in)

    def chooser_of(self, source: ValueSource, owner: Manifest) -> Provenance:
        """The provenance of a value in the manifest ``owner``."""
        origin = source.value_from
        if origin and origin.contributions_ref:
            return Provenance.RUN
        if isinstance(owner, Query) or (origin and origin.query_parameter_ref):
            return self._provenance_of_parameters
        return self.provenance.get(owner.declared_in, Provenance.INLINE)

    @cached_property
    def query(self) -> Query | None:
        """The query of the run; None if a team or an agent was started directly."""
        return next((manifest for manifest in self.manifests if isinstance(manifest, Query)), None)

    def client_of(self, agent: Agent) -> ClientRequest | None:
        """What the client brings for an agent, which is the only target of the run's query."""
        if self.query is None or self.query.spec.client is None:
            return None
        targets = [self.find(reference) for reference in self.targets(self.query)]
        return self.query.spec.client if targets == [agent] else None

    @property
    def _provenance_of_parameters(self) -> Provenance:
        """Those of a query of the worker are part of its manifest. Those of any other query are the run's, however
        trusted its manifests are: programs fill them in with what their own users write.
        """
        provenance = self.provenance[self.query.id] if self.query else Provenance.RUN
        return provenance if provenance in (Provenance.FILES, Provenance.STORE) else Provenance.RUN

    def _provenance_of_id(self, manifest_id: str) -> Provenance:
        return self._with_needs.get(manifest_id, Provenance.INLINE)

    @cached_property
    def _with_needs(self) -> dict[str, Provenance]:
        """The provenance of each manifest with that of all it needs, by its id."""
        users = defaultdict[str, list[str]](list)
        alone: dict[str, Provenance] = {}
        for manifest in self.manifests:
            selected = self.targets(manifest) if isinstance(manifest, Query) else ()
            for reference in (*manifest.references, *selected):
                if needed := self.find(reference):
                    users[needed.id].append(manifest.id)
            choosers = (self.chooser_of(source, manifest) for source in _choosing_server(manifest))
            alone[manifest.id] = self.provenance[manifest.id].or_less_trusted(*choosers)
        together: dict[str, Provenance] = {}
        for provenance in reversed(Provenance):
            waiting = [manifest_id for manifest_id, least in alone.items() if least is provenance]
            while waiting:
                manifest_id = waiting.pop()
                if manifest_id not in together:
                    together[manifest_id] = provenance
                    waiting.extend(users[manifest_id])
        return together

    def prepared(self) -> Self:
        """The same catalog with its cached properties computed; may take seconds, so call it in a thread."""
        _ = self._with_needs
        return super().prepared()


def _choosing_server(manifest: Resource) -> Iterable[ValueSource]:
    """The values of a manifest that choose the address of its server."""
    openapi = manifest.spec.openapi if isinstance(manifest, Tool) else None
    if openapi and openapi.document and not openapi.base_url:
        yield openapi.document  # its operations are served by the server that it names
    if manifest.address:
        yield manifest.address
