"""``pin``: what a run needs is resolved once, pinned in the journal, and never looked up anywhere else again."""

import asyncio

from temporalio import activity

from ..conversation.contracts.plan import Plan
from ..conversation.contracts.requests import Pinned, PinRequest, Route
from ..conversation.errors import InvalidInput, InvalidManifest, NotCarriedOut, UnknownResource
from ..conversation.messages.message import Head, Message
from ..conversation.messages.turn import Thread
from ..resources.agent import Agent
from ..resources.base import API_VERSION, JsonObject
from ..resources.catalog import Catalog
from ..resources.documents import Document
from ..resources.labels import priority_of, tenant_of
from ..resources.loader import Loaded, load_documents
from ..resources.model import Model
from ..resources.parameters import unmet
from ..resources.problems import ManifestError, dotted
from ..resources.query import Query
from ..resources.team import Team
from ..resources.tool import Tool
from ..resources.validation import not_carried_out, violations
from .context.planning import agent_plan, model_plan, query_plan, team_plan, tool_plan
from .context.value_resolver import Values
from .journal import Journal
from .process.secrets import Vault
from .runtime.heartbeat import heartbeats

Startable = Query | Team | Agent | Model | Tool
"""What a run can start with."""


class Pin:
    """The activity ``pin``. ``own`` are the manifests that the worker was started with, ``route`` leads to its like."""

    def __init__(self, journal: Journal, own: Catalog, vault: Vault, route: Route, *, searchable: bool) -> None:
        self._journal, self._own, self._vault = journal, own, vault
        self._route, self._searchable = route, searchable

    @activity.defn(name="pin")
    async def pin(self, request: PinRequest) -> Pinned:
        """Finds a run's place in a conversation and its plan."""
        async with heartbeats():
            return await (self._look_up(request, request.thread) if request.thread else self._begin(request))

    async def _look_up(self, request: PinRequest, thread: Thread) -> Pinned:
        """What a run's parent has pinned already."""
        catalog = await self._journal.catalog(thread.catalog)
        plan = await asyncio.to_thread(_plan, _named(request, catalog), catalog, request.workflow)
        return self._pinned(thread, plan, self._route)

    async def _begin(self, request: PinRequest) -> Pinned:
        """A new conversation, with the question as its first row."""
        start, catalog = await asyncio.to_thread(self._resolve, request)  # thousands of manifests take seconds
        plan = await asyncio.to_thread(_plan, start, catalog, request.workflow)
        question = Message(role="user", content=request.input or "")
        if isinstance(start, Query):
            question = (await Values.of(self._journal, catalog, self._vault)).question(start)
        run = activity.info().workflow_run_id or ""
        head = await self._journal.append(Head(), [question], f"{run}/1")  # once, in whichever task it is pinned
        sha = await self._journal.pin(catalog, run)
        thread = Thread(catalog=sha, question=head.id, head=head)
        labels = start.metadata.labels
        turn = {"priority": priority_of(labels), "tenant": tenant_of(labels)}
        return self._pinned(thread, plan, self._route.model_copy(update={k: v for k, v in turn.items() if v}))

    def _pinned(self, thread: Thread, plan: Plan, route: Route) -> Pinned:
        """The reply; what is as it always is takes no place in the history."""
        other = {"searchable": self._searchable, "route": None if route == Route() else route}
        return Pinned(thread=thread, plan=plan).model_copy(update={key: each for key, each in other.items() if each})

    def _resolve(self, request: PinRequest) -> tuple[Startable, Catalog]:
        """What the run starts with, and all that it needs of what it brings and what the worker has."""
        loaded = _brought(request)
        known = loaded.catalog.over(self._own)
        start = _named(request, known)
        catalog, unknown = known.reach(start)
        if refused := [v for manifest in catalog.manifests for v in not_carried_out(manifest)]:
            raise NotCarriedOut("; ".join(f"{manifest.id}: {dotted(path)}: {text}" for manifest, path, text in refused))
        if missing := [each for each in unknown if each.reference.kinds != ("Secret",)]:  # the Vault knows of those
            needs = "; ".join(f"{owner.id} needs {reference}" for owner, reference in missing)
            raise UnknownResource(f"known neither to the run nor to its worker: {needs}")
        if broken := [*violations(catalog), *unmet(start, catalog)]:
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


def _plan(start: Startable, catalog: Catalog, workflow: str) -> Plan:
    right = start.spec.strategy if isinstance(start, Team) else start.kind.lower()
    if right != workflow:
        raise InvalidInput(f"{start.id} is run by the workflow '{right}': start that, not '{workflow}'")
    if isinstance(start, Query):
        return query_plan(start, catalog)
    if isinstance(start, Team):
        return team_plan(start, catalog)
    if isinstance(start, Tool):
        return tool_plan(start)
    return model_plan(start, catalog) if isinstance(start, Model) else agent_plan(start, catalog)
