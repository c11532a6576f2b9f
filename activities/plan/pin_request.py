"""Reads what a request to pin a run brings: its manifests, and which of them the run starts with."""

from ...conversation.contracts.requests import PinRequest
from ...conversation.errors import InvalidInput, InvalidManifest, UnknownResource
from ...resources.base import API_VERSION, JsonObject
from ...resources.catalog import Catalog
from ...resources.documents import Document
from ...resources.loader import Loaded, load_documents
from ...resources.problems import ManifestError
from .build_plan import Startable


def load_brought(request: PinRequest) -> Loaded:
    """The manifests in the request; its ``spec`` is that of a query. Raises InvalidManifest or InvalidInput."""
    given: list[tuple[str, JsonObject]] = [(f"resources[{n}]", each) for n, each in enumerate(request.resources)]
    if request.spec is not None:
        metadata: JsonObject = {"name": request.name or "query", "namespace": request.namespace}
        query: JsonObject = {"apiVersion": API_VERSION, "kind": "Query", "metadata": metadata, "spec": request.spec}
        given.append(("input", query))
    try:
        loaded = load_documents(Document(file, data, {}) for file, data in given)
    except ManifestError as error:
        raise InvalidManifest(str(error)) from None
    if loaded.secrets:
        raise InvalidInput(
            "a run may not bring Secrets or keys, as its history would keep them: give them to the worker"
        )
    return loaded


def find_start(request: PinRequest, catalog: Catalog) -> Startable:
    """The manifest that the request names. Raises UnknownResource."""
    kind = request.kind.capitalize()
    name = request.name or "query"
    found = catalog.get(kind, request.namespace, name)
    if isinstance(found, Startable):
        return found
    known = ", ".join(each.name for each in catalog.manifests if each.kind == kind) or "none"
    raise UnknownResource(
        f"{kind} {request.namespace}/{name} is known neither to the run nor to its worker; known: {known}"
    )
