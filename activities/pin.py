"""The activity ``pin``: resolves the manifests that a run needs, and pins them in the journal for the whole run."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from temporalio import activity

from ..contracts.errors import BatonError, InvalidInput, InvalidManifest, NotCarriedOut, UnknownResource
from ..contracts.message import Head, Message
from ..contracts.plan import AgentPlan, ConversationPlan, Plan, QueryPlan, TargetPlan, ToolTarget
from ..contracts.requests import JournalName, Pinned, PinRequest, TaskQueues
from ..contracts.text import truncate
from ..contracts.turn import Thread
from ..journal.journal import Conversations, Journal
from ..journal.rows import catalog_id
from ..resources.agent import Agent
from ..resources.ark_config import ArkConfig
from ..resources.base import API_VERSION, Dialect, JsonObject, parse_duration
from ..resources.catalog import Catalog
from ..resources.documents import Document
from ..resources.labels import priority_of, tenant_of
from ..resources.loader import Loaded, load_documents
from ..resources.mcp_server import MCPServer
from ..resources.memory import Memory
from ..resources.model import Model
from ..resources.problems import ManifestError, dotted_path
from ..resources.query import TARGETS, Query
from ..resources.team import Team
from ..resources.tool import Tool
from ..resources.validation import unknown_parameters, unsupported_fields, violations
from ..temporal.activity import root_id, workflow_id
from ..temporal.search_attributes import KnownAttributes
from .agent.executors import Discovery
from .context.lookup import OwnManifests, find, find_optional
from .context.value_resolver import ValueResolver, check_overrides, with_rights
from .plan import agent_plan, model_plan, team_plan, tool_plan
from .runtime.secrets import SecretStore
from .runtime.settings import InlineManifests


def query_plan(query: Query, catalog: Catalog, ttl: float | None, dialect: Dialect | None = None) -> QueryPlan:
    """The plan of a query; ``ttl`` in seconds is for one without. In ARK's dialect, a selector finds one target."""
    targets = []
    named = any(query.targets())
    for reference in catalog.targets(query)[: 1 if dialect == "ark" and not named else None]:
        found = find(catalog, reference)
        kind = TARGETS[found.kind]
        workflow = found.spec.strategy if isinstance(found, Team) else kind
        targets.append(TargetPlan(type=kind, name=found.name, namespace=found.namespace, workflow=workflow))
    config = find_optional(catalog, query.config_reference)
    lifetime = query.spec.ttl or (config.spec.query_ttl if isinstance(config, ArkConfig) else None)
    return QueryPlan(
        kind="query",
        name=query.name,
        namespace=query.namespace,
        targets=tuple(targets),
        timeout=parse_duration(query.spec.timeout).total_seconds() if query.spec.timeout else None,
        fail_fast=query.spec.fail_fast,
        budget=query.budget,
        ttl=parse_duration(lifetime).total_seconds() if lifetime else ttl,
        cancel=query.spec.cancel,
        conversation=_conversation(query, catalog) if any(each.type != "tool" for each in targets) else None,
    )


def _conversation(query: Query, catalog: Catalog) -> ConversationPlan | None:
    """The conversation of a query that names one or a Memory, or for which there is a Memory (ARK: queries, memory)."""
    spec = query.spec
    reference = query.memory_reference()
    found = find_optional(catalog, reference)
    if not (found or spec.memory or spec.conversation_id or spec.session_id):
        return None
    return ConversationPlan(
        id=spec.conversation_id or spec.session_id or workflow_id(),
        namespace=reference.namespace,
        memory=reference.name if found or spec.memory else "",
        remote=isinstance(found, Memory),
        on_error=found.spec.on_error if isinstance(found, Memory) else "fail",
    )


Startable = Query | Team | Agent | Model | Tool
"""The kinds of manifest that a run can start with."""


def build_plan(
    start: Startable,
    catalog: Catalog,
    workflow: str,
    query_ttl: float | None = None,
    dialect: Dialect | None = None,
) -> Plan:
    """The plan of a run of ``start``. Raises InvalidInput if another workflow type than ``workflow`` runs it.

    ``query_ttl`` are the seconds after which a query that has no ``ttl`` is deleted.
    """
    right = start.spec.strategy if isinstance(start, Team) else start.kind.lower()
    if right != workflow:
        raise InvalidInput(f"{start.id} is run by the workflow '{right}': start that, not '{workflow}'")
    match start:
        case Query():
            plan = query_plan(start, catalog, query_ttl, dialect)
            return _with_turn(plan, catalog) if len(plan.targets) == 1 else plan
        case Team():
            return team_plan(start, catalog, dialect)
        case Agent():
            return agent_plan(start, catalog)
        case Model():
            return model_plan(start, catalog)
        case Tool():
            return tool_plan(start, catalog)


def _with_turn(query: QueryPlan, catalog: Catalog) -> QueryPlan:
    """The plan of a query with a single target, and how it takes that target's turn itself; a team runs by itself."""
    (target,) = query.targets
    found = catalog.get(target.type.capitalize(), target.namespace, target.name)
    if not isinstance(found, Agent | Model | Tool):
        return query
    turn = build_plan(found, catalog, target.workflow)
    assert isinstance(turn, AgentPlan | ToolTarget)
    return query.taking_turn(target.with_turn(turn))


def load_inline(request: PinRequest) -> Loaded:
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
            "inline manifests can't contain Secrets or keys, because the run's history would keep them: "
            "store them on the worker"
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


MAX_SHOWN_QUESTION = 400
"""Bytes of the question that Temporal's UI shows: they stand in the histories of the run and its children."""


class Pin:
    """The activity ``pin``.

    ``own`` are the worker's manifests, ``identity`` is its name in Temporal, ``name`` the journal's, ``queues`` are for
    a run's activities. ``attributes`` are the search attributes that the server has.
    ``query_ttl`` are the seconds after which a query without ``ttl`` is deleted. ``dialect``: of runs that begin.
    ``traced`` says of the run that is being pinned whether it reports its spans.
    """

    def __init__(
        self,
        journal: Journal,
        own: OwnManifests,
        secrets: SecretStore,
        discovery: Discovery,
        queues: TaskQueues,
        *,
        inline_manifests: InlineManifests,
        identity: str,
        name: JournalName,
        attributes: KnownAttributes,
        query_ttl: float | None = None,
        dialect: Dialect = "baton",
        traced: Callable[[], bool] = lambda: False,
    ) -> None:
        self._journal = journal
        self._own = own
        self._secrets = secrets
        self._discovery = discovery
        self._queues = queues
        self._inline_manifests = inline_manifests
        self._identity = identity
        self._name = name
        self._attributes = attributes
        self._query_ttl = query_ttl
        self._dialect = None if dialect == "baton" else dialect
        self._traced = traced

    @activity.defn(name="pin")
    async def pin(self, request: PinRequest) -> Pinned:
        """The run's thread in the journal and its plan. A child run brings the thread that its parent has pinned."""
        if request.thread:
            return await self._find(request, request.thread)
        try:
            return await self._begin(request)
        except BatonError as error:
            raise error.with_details({"dialect": self._dialect}) if self._dialect else error from None

    async def _find(self, request: PinRequest, thread: Thread) -> Pinned:
        catalog = await self._journal.catalog(thread.catalog)
        start = find_start(request, catalog)
        plan = await asyncio.to_thread(build_plan, start, catalog, request.workflow, dialect=thread.dialect)
        return await self._pinned(_below(start, thread), plan, self._queues)

    async def _begin(self, request: PinRequest) -> Pinned:
        """Pins the catalog, and begins a conversation with the question as its first row."""
        try:
            own = await self._own.catalog()
            catalog = await asyncio.to_thread(self._resolve, request, own)  # thousands of manifests take seconds
        except UnknownResource as unknown:
            raise UnknownResource(f"{unknown.message}. {self._hint}") from None
        values = await ValueResolver.of_catalog(self._journal, catalog, self._secrets, workflow_id())
        catalog = await self._discovery.pin(values)
        start, plan = await asyncio.to_thread(_plan, request, catalog, self._query_ttl, self._dialect)
        if isinstance(start, Query):
            question = replace(values, catalog=catalog).question(start)
        else:
            question = Message(role="user", content=request.input or "")
        run = activity.info().workflow_run_id or ""
        before = await self._place(plan)
        row = await self._journal.begin(catalog, run, before, question)
        thread = Thread(
            catalog=catalog_id(catalog),
            question=row.id,
            head=row.head,
            run=root_id(),
            account=run if catalog.has_budgets else None,
            dialect=self._dialect,
        )
        labels = start.metadata.labels
        pinned = await self._pinned(
            _below(start, thread), plan, self._queues.ordered(priority_of(labels), tenant_of(labels))
        )
        return pinned.of_root_run(
            question=truncate(await self._secrets.redact_long(question.content), MAX_SHOWN_QUESTION),
            before=row.before if row.before.id else None,
            journal=self._name,
            notices=catalog.notices,
        )

    async def _place(self, plan: Plan) -> Head:
        """Where the question stands: after what was said in a query's conversation, if the journal keeps that."""
        if isinstance(plan, QueryPlan) and plan.conversation and not plan.conversation.remote:
            return await Conversations(self._journal).head(plan.conversation)
        return Head()

    @property
    def _hint(self) -> str:
        return (
            f"The run came to the worker {self._identity}: start every worker of its task queue with the manifests "
            "that runs name, as in: baton worker -f PATH, or store them for all: baton apply -f PATH"
        )

    async def _pinned(self, thread: Thread, plan: Plan, queues: TaskQueues) -> Pinned:
        attributes = await self._attributes.known()
        return Pinned(
            thread=thread,
            plan=plan,
            route=queues,
            traced=self._traced(),
            searchable=attributes["searchable"],
            shows_cost=attributes["shows_cost"],
        ).without_defaults

    def _resolve(self, request: PinRequest, own: Catalog) -> Catalog:
        """A catalog of all that the run needs, of the request or of the worker's ``own``."""
        loaded = load_inline(request)
        known = loaded.catalog.overlaid_on(own)
        start = find_start(request, known)
        catalog, unknown = known.needed_by(start)
        if unsupported := [each for manifest in catalog.manifests for each in unsupported_fields(manifest)]:
            texts = (f"{manifest.id}: {dotted_path(path)}: {text}" for manifest, path, text in unsupported)
            raise NotCarriedOut("; ".join(texts))
        if missing := [each for each in unknown if each.reference.kinds != ("Secret",)]:  # the SecretStore has those
            needs = "; ".join(f"{owner.id} needs {reference}" for owner, reference in missing)
            raise UnknownResource(f"known neither to the run nor to its worker: {needs}")
        for each in catalog.manifests:
            if isinstance(each, MCPServer) and self._brings(each, catalog):
                raise InvalidInput(
                    f"{each.id}: spec.command: an inline manifest can't set the command of a worker: "
                    "start the worker with this MCPServer"
                )
        if broken := [*violations(catalog), *unknown_parameters(start, catalog)]:
            raise InvalidManifest("; ".join(f"{manifest.id}: {text}" for manifest, _, text in broken))
        catalog = self._marked(loaded.catalog, catalog, own)
        check_overrides(catalog)
        return with_rights(catalog, own, start).prepared()

    def _marked(self, inline: Catalog, catalog: Catalog, own: Catalog) -> Catalog:
        """The run's catalog with the ids of its inline manifests. One that this process has noted counts as its own.

        Raises InvalidInput if the worker accepts no inline manifests but queries.
        """
        if self._secrets.is_noted(inline.prepared().sha):
            if catalog.sha == inline.sha:
                return catalog
            return catalog.with_manifests(catalog.manifests, made_from=inline.sha)
        others = catalog.non_worker_manifest_ids(own) if self._inline_manifests != "all" else ()
        refused = [each for each in others if inline.by_id(each) and not each.startswith("Query/")]
        if refused and self._inline_manifests == "none":
            raise InvalidInput(
                f"this worker accepts only its own manifests (BATON_INLINE_MANIFESTS=none), but the run adds or "
                f"changes {', '.join(refused)}"
            )
        return catalog.with_manifests(catalog.manifests, inline=others) if others else catalog

    def _brings(self, server: MCPServer, catalog: Catalog) -> bool:
        """Whether a run brings a server with a command, or a value of it, that are not of the worker's folder.

        A command is taken from there alone: neither from a run, nor from the store.
        """
        folder = self._own.folder
        own = folder.needed_by(server)[0].manifests if server.spec.command else ()
        return any(folder.by_id(each.id) != each or catalog.by_id(each.id) != each for each in own)


def _below(start: Startable, thread: Thread) -> Thread:
    """The thread of what is done below a manifest: under its budget, if it has one."""
    return thread.under(start.id) if start.budget and thread.account else thread


def _plan(request: PinRequest, catalog: Catalog, ttl: float | None, dialect: Dialect | None) -> tuple[Startable, Plan]:
    start = find_start(request, catalog.prepared())
    return start, build_plan(start, catalog, request.workflow, ttl, dialect)
