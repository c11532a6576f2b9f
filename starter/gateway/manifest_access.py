"""Who may see, use and write manifests over HTTP, and what a refusal tells a caller.

A caller sees the manifests that its account may use. It may write one if a Role gives it a verb such as ``update`` for
it, and if it may use everything to which the new manifest refers: an agent must not read what its author may not. The
callers of a gateway without keys are this machine's own user, who may write everything, as with ``baton apply``.
Secrets are neither shown nor written; rights are not written.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...resources.catalog import KINDS, Catalog, catalog_of
from ...resources.loader import Loaded
from ...resources.problems import ManifestError
from ...resources.query import Query
from ...resources.quota import Quota
from ...resources.rights import AccountName, Use, has_rights, missing_rights, uses
from ...resources.rights import may_write as has_right_to_write
from ...resources.role import RIGHTS
from ...resources.secret import Secret
from ...resources.stored import STORABLE, Key, StoredManifest
from ..operations.manifests import NeededError, StoreError, UnreadableError, WorkerFiles, needs
from .access import LOCAL, Caller
from .errors import BadRequestError, ConflictError, ForbiddenError, NotFoundError, UnavailableError
from .settings import GatewaySettings
from .targets import FRESH_SECONDS, Targets

WRITABLE = tuple(name for name, kind in STORABLE.items() if kind not in (Secret, Quota, *RIGHTS))
"""The kinds that are written over HTTP: all but those that limit what their writers may do, and Secrets."""


@dataclass(frozen=True)
class KnownManifests:
    """The manifests of the store and of the files of workers.

    ``catalog`` is what runs use, and ``storable_with`` what a new manifest is checked with, as by ``baton apply``: what
    is in the store, because not all workers need have the same files. ``files`` are those of workers that are live now,
    ``in_files`` has also what was there a moment ago. ``rights`` is the catalog whose Roles count.
    """

    stored: Mapping[Key, StoredManifest]
    files: WorkerFiles
    in_files: Catalog
    catalog: Catalog
    storable_with: Catalog
    rights: Catalog
    has_store: bool

    def newest(self, key: Key) -> int:
        """The newest version in the store; 0 if it is not there."""
        stored = self.stored.get(key)
        return stored.version if stored and not stored.is_deleted else 0


class ManifestAccess:
    """The rights of callers to manifests."""

    def __init__(self, targets: Targets, settings: GatewaySettings) -> None:
        self._targets = targets
        self._settings = settings

    @contextlib.contextmanager
    def refusals(self, caller: Caller, known: KnownManifests, loaded: Loaded | None = None) -> Iterator[None]:
        """Raises BadRequestError and ConflictError for what the store refuses.

        The whole store decides, but the errors name only what is in the request, or what the caller may see.
        """
        own = {manifest.id for manifest in loaded.manifests} if loaded else frozenset[str]()

        def may_see(id_: str) -> bool:
            if id_ in own:
                return True
            kind, _, place = id_.partition("/")
            namespace, _, name = place.partition("/")
            return self.is_shown(caller, known, (kind, namespace, name))

        try:
            yield
        except ManifestError as error:
            shown = [str(problem) for problem in error.problems if may_see(problem.resource)]
            if len(shown) < len(error.problems):
                shown.append("it breaks a rule together with manifests that you may not see")
            raise BadRequestError("\n".join(shown[:20]), param="text") from None
        except NeededError as error:
            shown = needs(one for one in error.needed if may_see(one[0].id))
            if len(shown) < len(error.needed):
                shown.append("manifests that you may not see need it")
            raise ConflictError("; ".join(shown[:20]) + "; nothing was written or deleted") from None
        except UnreadableError as error:
            text = str(error)
            if not self.is_shown(caller, known, error.key):
                text = "a stored manifest that you may not see can't be read; nothing was written or deleted"
            raise ConflictError(text) from None
        except StoreError as error:
            raise ConflictError(str(error)) from None

    def is_visible(self, caller: Caller, catalog: Catalog, manifest: Use) -> bool:
        """Whether a caller may see a manifest: it may use it, and its namespace is served or has rights."""
        if not self._targets.may_use(caller, catalog, manifest):
            return False
        is_served = not {"*", manifest.namespace}.isdisjoint(self._settings.namespaces)
        return caller.sees_all or is_served or has_rights(catalog, manifest.namespace)

    def is_shown(self, caller: Caller, known: KnownManifests, key: Key) -> bool:
        """The same of what has this key, if it is there: no Secrets, and rights only for who sees the runs of all."""
        kind = STORABLE.get(key[0])
        if kind in (None, Secret) or (kind in RIGHTS and not caller.sees_all):
            return False
        return self.is_visible(caller, known.rights, use_of(key))

    def usable(self, catalog: Catalog, caller: Caller, rights: Catalog | None = None) -> Catalog:
        """The manifests that a caller may see, by the ``rights`` in another catalog than their own.

        Rights are seen by those who see the runs of all.
        """
        return catalog_of(
            one
            for one in catalog.manifests
            if self.is_visible(caller, rights or catalog, Use.of(one))
            and (caller.sees_all or not isinstance(one, RIGHTS))
        )

    def may_create(self, caller: Caller, catalog: Catalog, kind: str) -> bool:
        """Whether a caller may write a new manifest of a kind in its own namespace."""
        return may_write(caller, catalog, (kind, caller.account.namespace, "*"))

    def check_visible(self, caller: Caller, known: KnownManifests, key: Key) -> None:
        """Raises NotFoundError, also for what the caller may not see; and UnavailableError while some are unknown."""
        exists = known.catalog.by_id("/".join(key)) or key in known.stored
        is_hidden = key[0] == Secret.__name__ or (KINDS.get(key[0]) in RIGHTS and not caller.sees_all)
        if not exists or is_hidden or not self.is_visible(caller, known.rights, use_of(key)):
            if known.has_store and not known.files.is_complete and not is_hidden:
                raise UnavailableError(
                    "not all manifests are known now: no worker is live, or those of some can't be read",
                    retry_after=FRESH_SECONDS,
                )
            raise NotFoundError(f"there is no {'/'.join(key)[:300]} here, or you may not use it")

    def check_writable(self, caller: Caller, known: KnownManifests, key: Key) -> None:
        """Raises ForbiddenError and NotFoundError."""
        if key[0] not in WRITABLE:
            raise ForbiddenError(f"a {key[0]} is not written over HTTP: use baton apply")
        if not known.has_store:
            raise NotFoundError("this gateway has no store: set BATON_JOURNAL_URL to that of the workers")
        if not may_write(caller, known.rights, key):
            raise ForbiddenError(
                f"the ServiceAccount {caller.account} may not update {use_of(key).resource} "
                f"'{key[1]}/{key[2]}': a Role has to give it the verb 'update' for them"
            )

    def check_uses(self, caller: Caller, known: KnownManifests, loaded: Loaded) -> None:
        """Raises ForbiddenError for a manifest that refers to what its writer may not use.

        Neither may a Query select that, and it runs with the rights of its writer: whoever starts it sends its
        webhooks the answer. A run checks its own rights, but a stored Query may name any account.
        """
        if caller is LOCAL:
            return
        together = loaded.catalog.overlaid_on(known.catalog)
        referred = [together.find(one) for manifest in loaded.catalog.manifests for one in manifest.references]
        needed = uses(loaded.catalog.manifests, [one for one in referred if one])
        if lacking := [use for use in dict.fromkeys(needed) if not self._targets.may_use(caller, known.rights, use)]:
            raise ForbiddenError(missing_rights(caller.account, lacking))
        for query in loaded.catalog.manifests:
            if not isinstance(query, Query):
                continue
            if (account := AccountName.of(query)) != caller.account:
                raise ForbiddenError(
                    f"{query.id}: spec.serviceAccount: its runs would have the rights of {account}: "
                    f"write your own, {caller.account}, or use baton apply"
                )
            targets = [together.find(reference) for reference in together.targets(query)]
            if not all(self._targets.may_use(caller, known.rights, Use.of(target)) for target in targets if target):
                raise ForbiddenError(
                    f"{query.id}: spec.selector: it selects what the ServiceAccount {caller.account} may not use"
                )


def use_of(key: Key) -> Use:
    """The manifest with a key, as rights name it."""
    return Use.of_kind(STORABLE[key[0]], key[1], key[2])


def may_write(caller: Caller, catalog: Catalog, key: Key) -> bool:
    """Whether a caller may write the manifest with a key, by the Roles in ``catalog``."""
    return key[0] in WRITABLE and (caller is LOCAL or has_right_to_write(catalog, caller.account, use_of(key)))
