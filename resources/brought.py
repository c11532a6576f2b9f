"""Which manifests of a run are not its worker's own."""

from .catalog import Catalog
from .query import Query


def others_than(own: Catalog, catalog: Catalog) -> tuple[str, ...]:
    """The ids of the manifests of ``catalog`` that ``own`` does not have like this, and of what needs one of them."""
    users: dict[str, list[str]] = {}
    for manifest in catalog.manifests:
        selected = catalog.targets(manifest) if isinstance(manifest, Query) else ()
        for reference in (*manifest.references, *selected):
            if found := catalog.find(reference):
                users.setdefault(found.id, []).append(manifest.id)
    waiting = [each.id for each in catalog.manifests if own.by_id(each.id) != each]
    others = set[str]()
    while waiting:
        if (other := waiting.pop()) not in others:
            others.add(other)
            waiting.extend(users.get(other, ()))
    return tuple(sorted(others))
