"""Checks the rights of a run: when it is pinned, and where a Secret is read."""

from collections.abc import Iterable

from ...conversation.errors import InvalidInput, RightMissing
from ...resources.catalog import Catalog
from ...resources.manifest import Manifest
from ...resources.override import ALLOW_BROUGHT
from ...resources.rights import DEFAULT_ACCOUNT, AccountName, Use, may, missing_rights, uses


def with_rights(catalog: Catalog, own: Catalog, start: Manifest) -> Catalog:
    """The catalog of a run that begins with ``start``, with its account; as it is where there are no rights.

    ``own`` are the worker's manifests. What an untrusted run brings is its own, and needs no right; but rights are the
    worker's to give. The account ``default`` is everybody's; a run may not name another one, unless it is for runs.

    Raises:
        InvalidInput: the run brings rights.
        RightMissing: the account may not use what the run needs, or the run may not name the account.
    """
    if not catalog.rights:
        return catalog
    if given := [each.id for each in catalog.rights if catalog.is_brought(each.id)]:
        raise InvalidInput(
            f"a run may not bring rights or change them ({', '.join(given)}): start the worker with these manifests"
        )
    account = AccountName.of(start)
    _check_named(start, account, catalog)
    protected = catalog.manifests
    if catalog.brought:
        protected = tuple(each for each in protected if own.by_id(each.id) == each)
    _check(catalog, account, uses(catalog.manifests, protected))
    return catalog.of_account(str(account))


def _check_named(start: Manifest, account: AccountName, catalog: Catalog) -> None:
    """Raises RightMissing if a run has brought a query that names an account which is not for such queries."""
    if account.name == DEFAULT_ACCOUNT or not catalog.is_brought(start.id):
        return
    found = catalog.get("ServiceAccount", account.namespace, account.name)
    if found is None or found.metadata.annotations.get(ALLOW_BROUGHT) != "true":
        raise RightMissing(
            f"{start.id}: spec.serviceAccount: a run has brought the query, and it may not take the ServiceAccount "
            f"{account}: start a Query of the worker, or give its ServiceAccount the annotation {ALLOW_BROUGHT}: 'true'"
        )


def _check(catalog: Catalog, account: AccountName, needed: Iterable[Use]) -> None:
    """Raises RightMissing unless the account may use all that is needed."""
    if lacking := [use for use in dict.fromkeys(needed) if not may(catalog, account, use)]:
        raise RightMissing(missing_rights(account, lacking))


def check_secret(catalog: Catalog, owner: Manifest, name: str) -> None:
    """Raises RightMissing unless the run may read a Secret in the namespace of ``owner``, which needs it."""
    if catalog.account and name != owner.own_secret:
        namespace, account = catalog.account.split("/")
        _check(catalog, AccountName(namespace, account), [Use.of_secret(owner.namespace, name)])
