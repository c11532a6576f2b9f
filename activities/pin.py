"""``pin``: what a run needs is resolved once, pinned in the journal, and never looked up anywhere else again."""

import asyncio

from temporalio import activity

from ..conversation.contracts.plan import Plan
from ..conversation.contracts.requests import Pinned, PinRequest, TaskQueues
from ..conversation.errors import InvalidInput, InvalidManifest, NotCarriedOut, UnknownResource
from ..conversation.messages.message import Head, Message
from ..conversation.messages.turn import Thread
from ..resources.base import API_VERSION, JsonObject
from ..resources.catalog import Catalog
from ..resources.documents import Document
from ..resources.labels import priority_of, tenant_of
from ..resources.loader import Loaded, load_documents
from ..resources.parameters import unknown_parameters
from ..resources.problems import ManifestError, dotted_path
from ..resources.query import Query
from ..resources.validation import unsupported_fields, violations
from .context.value_resolver import ValueResolver
from .journal.journal import Journal
from .plan import Startable, build_plan
from .process.secrets import SecretStore
from .runtime.heartbeat import heartbeats


class Pin:
    """The activity ``pin``. ``own`` are the manifests that the worker was started with, ``route`` leads to its like."""

    def __init__(
        self, journal: Journal, own: Catalog, secrets: SecretStore, route: TaskQueues, *, searchable: bool
    ) -> None:
        self._journal, self._own, self._secrets = journal, own, secrets
        self._route, self._searchable = route, searchable

    @activity.defn(name="pin")
    async def pin(self, request: PinRequest) -> Pinned:
        """Finds a run's place in a conversation and its plan."""
        async with heartbeats():
            return await (self._look_up(request, request.thread) if request.thread else self._begin(request))

    async def _look_up(self, request: PinRequest, thread: Thread) -> Pinned:
        """What a run's parent has pinned already."""
        catalog = await self._journal.catalog(thread.catalog)
        plan = await asyncio.to_thread(build_plan, _named(request, catalog), catalog, request.workflow)
        return self._pinned(thread, plan, self._route)

    async def _begin(self, request: PinRequest) -> Pinned:
        """A new conversation, with the question as its first row."""
        start, catalog = await asyncio.to_thread(self._resolve, request)  # thousands of manifests take seconds
        plan = await asyncio.to_thread(build_plan, start, catalog, request.workflow)
        question = Message(role="user", content=request.input or "")
        if isinstance(start, Query):
            question = (await ValueResolver.of(self._journal, catalog, self._secrets)).question(start)
        run = activity.info().workflow_run_id or ""
        head = await self._journal.append(Head(), [question], f"{run}/1")  # once, in whichever task it is pinned
        sha = await self._journal.pin(catalog, run)
        thread = Thread(catalog=sha, question=head.id, head=head)
        labels = start.metadata.labels
        turn = {"priority": priority_of(labels), "tenant": tenant_of(labels)}
        return self._pinned(thread, plan, self._route.model_copy(update={k: v for k, v in turn.items() if v}))

    def _pinned(self, thread: Thread, plan: Plan, route: TaskQueues) -> Pinned:
        """The reply; what is as it always is takes no place in the history."""
        other = {"searchable": self._searchable, "route": None if route == TaskQueues() else route}
        return Pinned(thread=thread, plan=plan).model_copy(update={key: each for key, each in other.items() if each})

    def _resolve(self, request: PinRequest) -> tuple[Startable, Catalog]:
        """What the run starts with, and all that it needs of what it brings and what the worker has."""
        loaded = _brought(request)
        known = loaded.catalog.overlaid_on(self._own)
        start = _named(request, known)
        catalog, unknown = known.needed_by(start)
        if refused := [v for manifest in catalog.manifests for v in unsupported_fields(manifest)]:
            raise NotCarriedOut(
                "; ".join(f"{manifest.id}: {dotted_path(path)}: {text}" for manifest, path, text in refused)
            )
        if missing := [
            each for each in unknown if each.reference.kinds != ("Secret",)
        ]:  # the SecretStore knows of those
            needs = "; ".join(f"{owner.id} needs {reference}" for owner, reference in missing)
            raise UnknownResource(f"known neither to the run nor to its worker: {needs}")
        if broken := [*violations(catalog), *unknown_parameters(start, catalog)]:
            raise InvalidManifest("; ".join(f"{manifest.id}: {text}" for manifest, _, text in broken))
        return start, catalog


def _brought(request: PinRequest) -> Loaded:
    """The manifests that a run brings, the query it spells out among them."""
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


def _named(request: PinRequest, catalog: Catalog) -> Startable:
    kind = request.kind.capitalize()
    name = request.name or "query"
    found = catalog.get(kind, request.namespace, name)
    if isinstance(found, Startable):
        return found
    known = ", ".join(each.name for each in catalog.manifests if each.kind == kind) or "none"
    raise UnknownResource(
        f"{kind} {request.namespace}/{name} is known neither to the run nor to its worker; known: {known}"
    )
