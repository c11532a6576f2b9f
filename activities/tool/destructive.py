"""Lets tools that say they destroy something need a person's yes, where a run begins on a worker that wants it so."""

from ...resources.approval import Approval
from ...resources.catalog import Catalog, Resource, catalog_of
from ...resources.tool import Tool


def with_approvals(catalog: Catalog) -> Catalog:
    """The catalog, in which each Tool with ``destructiveHint`` needs a yes, unless its own ``approval`` says otherwise.

    It is pinned so: the runs below ask as well, whatever their workers' settings are.
    """
    asked = [_asked(each) for each in catalog.manifests]
    if asked == [*catalog.manifests]:
        return catalog
    return catalog_of(asked).model_copy(update={"made_from": catalog.made_from or catalog.sha})


def _asked(manifest: Resource) -> Resource:
    if not (isinstance(manifest, Tool) and manifest.spec.approval is None):
        return manifest
    hints = manifest.spec.annotations
    if not (hints and hints.destructive_hint):
        return manifest
    spec = manifest.spec.model_copy(update={"approval": Approval(required=True)})
    return manifest.model_copy(update={"spec": spec})
