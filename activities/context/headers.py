"""The headers of requests: those of a manifest, then those that an agent and its query put in their place."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from ...conversation.errors import InvalidInput
from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.manifest import Manifest
from ...resources.override import ALLOW_BROUGHT, Override
from ...resources.query import Query
from ...resources.values import Headers
from .value_resolver import ValueResolver

Pairs = tuple[tuple[str, str], ...]


def headers_of(manifest: Manifest, given: Headers, values: ValueResolver) -> Pairs:
    """The headers of requests to what a manifest describes, whose own are ``given``; each name once, whatever its case.

    Those of the agent that uses it (``values.agent``) come before its own, and those of the query before both (ARK:
    queries, overrides). One whose optional key is missing is left out. Raises what ``ValueResolver.resolve`` raises.
    """
    found = {each.name.lower(): (each.name, values.resolve(each.value, manifest)) for each in given}
    for owner, override in _overrides(values, manifest):
        if override.is_for(manifest):
            for each in override.headers:
                found[each.name.lower()] = each.name, values.resolve(each.value, owner)
    return tuple((name, value.strip()) for name, value in found.values() if value is not None)


def _overrides(values: ValueResolver, manifest: Manifest) -> Iterator[tuple[Agent | Query, Override]]:
    """The overrides that count, the strongest last: those of the worker's own are not for what a run has brought."""
    brought = values.catalog.is_brought
    for owner in (values.agent, values.query()):
        if owner and (brought(owner.id) or not brought(manifest.id)):
            yield from ((owner, each) for each in owner.spec.overrides)


def check_overrides(catalog: Catalog) -> None:
    """Raises InvalidInput if a run brings headers for a manifest of the worker which does not allow them."""
    for owner in catalog.manifests:
        overrides = owner.spec.overrides if isinstance(owner, Query | Agent) and catalog.is_brought(owner.id) else ()
        for each in overrides:
            for target in catalog.manifests:
                if each.is_for(target) and not catalog.is_brought(target.id):
                    _check(owner, each, target)


def _check(owner: Manifest, override: Override, target: Manifest) -> None:
    given = target.metadata.annotations.get(ALLOW_BROUGHT, "")
    allowed = [name.strip().lower() for name in given.split(",")]
    refused = [h.name for h in override.headers if not any(fnmatchcase(h.name.lower(), each) for each in allowed)]
    if refused:
        raise InvalidInput(
            f"{owner.id}: spec.overrides: a run has brought it, and it may not send {', '.join(refused)} to "
            f"{target.id} of the worker, whose annotation {ALLOW_BROUGHT} would have to name these headers"
        )
