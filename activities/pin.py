"""The activity ``pin``: resolves the manifests that a run needs, and pins them in the journal for the whole run."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from temporalio import activity

from ..contracts.attachment import Attachment
from ..contracts.errors import (
    BatonError,
    InvalidInput,
    InvalidManifest,
    NotCarriedOut,
    NotRedacted,
    Refusal,
    UnknownResource,
)
from ..contracts.message import Head, Message
from ..contracts.plan import AgentPlan, ConversationPlan, Plan, QueryPlan, TargetPlan, TeamPlan, ToolTarget
from ..contracts.requests import DAY, JournalName, Pinned, PinRequest, TaskQueues
from ..contracts.scope import ACCOUNT, CALLER, SCOPE, scope_of, scoped
from ..contracts.settings import REDACT, SettingsError
from ..contracts.text import truncate
from ..contracts.turn import Thread
from ..journal.journal import Conversations, Journal
from ..journal.rows import Row
from ..resources.agent import Agent
from ..resources.ark_config import ArkConfig
from ..resources.base import API_VERSION, Dialect, JsonObject, Reference, parse_duration
from ..resources.catalog import Catalog, Resource
from ..resources.documents import Document
from ..resources.labels import priority_of, tenant_of
from ..resources.loader import Loaded, load_documents
from ..resources.mcp_server import MCPServer
from ..resources.memory import Memory
from ..resources.model import Model
from ..resources.problems import ManifestError, dotted_path
from ..resources.provenance import Provenance
from ..resources.query import TARGETS, Query, named_targets
from ..resources.quota import Quota
from ..resources.rights import DEFAULT_ACCOUNT, AccountName, has_rights
from ..resources.run_catalog import RunCatalog
from ..resources.team import Team
from ..resources.tenants import DEFAULT_PRIORITY, DEFAULT_WEIGHT, Tenant
from ..resources.tool import PLURALS, Tool
from ..resources.validation import (
    queries_without_targets,
    unknown_parameters,
    unsupported_fields,
    unsupported_settings,
    violations,
)
from ..temporal.activity import own_client, root_id, workflow_id
from ..temporal.executions import memo_of
from ..temporal.search_attributes import KnownAttributes
from ..temporal.threads import COMPUTING
from .agent.executors import Discovery
from .attachments import attachments_of, check_accepted, message_of
from .context.lookup import OwnManifests, find, find_optional
from .context.value_resolver import ValueResolver, check_overrides, with_rights
from .forks import changed_manifests
from .notifications import check_webhooks
from .plan import agent_plan, model_plan, team_plan, tool_plan
from .runtime.secrets import SecretStore
from .runtime.settings import InlineManifests


def query_plan(query: Query, catalog: RunCatalog, ttl: float | None, dialect: Dialect | None = None) -> QueryPlan:
    """The plan of a query; ``ttl`` is the default in seconds. In ARK's dialect, a label selector picks one target."""
    targets = []
    has_named_targets = any(query.targets())
    for reference in catalog.targets(query)[: 1 if dialect == "ark" and not has_named_targets else None]:
        target = find(catalog, reference)
        kind = TARGETS[target.kind]
        workflow = target.spec.strategy if isinstance(target, Team) else kind
        targets.append(TargetPlan(type=kind, name=target.name, namespace=target.namespace, workflow=workflow))
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
        notify=tuple(webhook.events for webhook in query.spec.notify),
        conversation=_conversation(query, catalog) if any(target.type != "tool" for target in targets) else None,
    )


def _conversation(query: Query, catalog: Catalog) -> ConversationPlan | None:
    """The conversation of a query that names one or a Memory, or has a default Memory (ARK: queries, memory)."""
    spec = query.spec
    reference = query.memory_reference()
    memory = find_optional(catalog, reference)
    if not (memory or spec.memory or spec.conversation_id or spec.session_id):
        return None
    return ConversationPlan(
        id=spec.conversation_id or spec.session_id or workflow_id(),
        namespace=reference.namespace,
        memory=reference.name if memory or spec.memory else "",
        remote=isinstance(memory, Memory),
        on_error=memory.spec.on_error if isinstance(memory, Memory) else "fail",
    )


Startable = Query | Team | Agent | Model | Tool
"""The kinds of manifest that a run can start with."""


def build_plan(
    start: Startable,
    catalog: RunCatalog,
    workflow: str,
    query_ttl: float | None = None,
    dialect: Dialect | None = None,
) -> Plan:
    """The plan of a run of ``start``. Raises InvalidInput if ``workflow`` is not its workflow type.

    ``query_ttl`` is the default ``ttl`` of queries, in seconds.
    """
    expected = start.spec.strategy if isinstance(start, Team) else start.kind.lower()
    if expected != workflow:
        raise InvalidInput(f"{start.id} needs the workflow type '{expected}', not '{workflow}'")
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


def _with_turn(query: QueryPlan, catalog: RunCatalog) -> QueryPlan:
    """The plan of a query that runs its single target's turn itself. A team still runs in a child workflow."""
    (target,) = query.targets
    resource = catalog.get(target.type.capitalize(), target.namespace, target.name)
    if not isinstance(resource, Agent | Model | Tool):
        return query
    turn = build_plan(resource, catalog, target.workflow)
    assert isinstance(turn, AgentPlan | ToolTarget)
    return query.taking_turn(target.with_turn(turn))


def load_inline(request: PinRequest) -> Loaded:
    """The inline manifests of a request; its ``spec`` is that of a query. Raises InvalidManifest or InvalidInput."""
    documents: list[tuple[str, JsonObject]] = [
        (f"resources[{n}]", manifest) for n, manifest in enumerate(request.resources)
    ]
    if request.spec is not None:
        metadata: JsonObject = {"name": request.name or "query", "namespace": request.namespace}
        query: JsonObject = {"apiVersion": API_VERSION, "kind": "Query", "metadata": metadata, "spec": request.spec}
        documents.append(("input", query))
    try:
        loaded = load_documents(Document(file, data, {}) for file, data in documents)
    except ManifestError as error:
        raise InvalidManifest(str(error)) from None
    if loaded.secrets:
        raise InvalidInput(
            "inline manifests can't contain Secrets or keys, as they would be stored in the run's history: "
            "store them on the worker"
        )
    if quotas := [manifest.id for manifest in loaded.catalog.manifests if isinstance(manifest, Quota)]:
        raise InvalidInput(
            f"inline manifests can't contain Quotas ({', '.join(quotas)}): start the worker with these manifests, or "
            "apply them to the store"
        )
    return loaded


def ineffective_fields(start: Startable, catalog: Catalog) -> Iterator[str]:
    """Notices about fields of the query that have no effect, because the worker lacks what they name."""
    if not isinstance(start, Query):
        return
    memory = start.memory_reference()
    if start.spec.memory and not catalog.find(memory):
        yield f"{start.id}: spec.memory: there is no {memory}: the journal keeps the conversation"
    account = AccountName.of(start)
    # Nobody has to choose the default account, as a gateway does for its callers: it restricts nothing without Roles.
    if account.name != DEFAULT_ACCOUNT and not has_rights(catalog, start.namespace):
        what = f"the ServiceAccount {account} has no effect"
        why = f"there is no Role, RoleBinding or ServiceAccount for the namespace {start.namespace}"
        yield f"{start.id}: spec.serviceAccount: {what}: {why}, so the run may use everything there"


def _named_start(request: PinRequest) -> tuple[str, str]:
    """The kind and the name of the manifest that a request names."""
    return request.kind.capitalize(), request.name or "query"


def find_start(request: PinRequest, catalog: Catalog) -> Startable:
    """The manifest that a request names. Raises UnknownResource."""
    kind, name = _named_start(request)
    manifest = catalog.get(kind, request.namespace, name)
    if isinstance(manifest, Startable):
        return manifest
    known = ", ".join(manifest.name for manifest in catalog.manifests if manifest.kind == kind) or "none"
    raise UnknownResource(
        f"{kind} {request.namespace}/{name} is neither in the run's manifests nor in its worker's; known: {known}"
    )


MAX_SHOWN_QUESTION = 400
"""Bytes of the question that Temporal's UI shows. They are stored in the histories of the run and its children."""


UNREDACTED = (
    "the client that started this run does not redact personal data: the history has its input as it was sent; "
    f"set {REDACT} for it, too"
)
"""The notice of a run on a worker that redacts. The history had the input before any worker could refuse it."""


class Pin:
    """The activity ``pin``.

    ``own`` are the worker's manifests, ``identity`` is its identity in Temporal, ``name`` names the journal, ``queues``
    are the task queues of activities, ``attributes`` the search attributes of the server. ``query_ttl`` is the default
    ``ttl`` of queries in seconds, ``max_outage`` the longest wait for a failed server, ``dialect`` that of new runs.
    ``traced`` returns whether the current run reports spans; ``audited``: new runs write the audit log.
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
        max_outage: float = DAY,
        dialect: Dialect = "baton",
        traced: Callable[[], bool] = lambda: False,
        audited: bool = False,
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
        self._max_outage = max_outage
        self._dialect = None if dialect == "baton" else dialect
        self._traced = traced
        self._audited = audited

    @activity.defn(name="pin")
    async def pin(self, request: PinRequest) -> Pinned:
        """The run's thread in the journal and its plan. A child run passes the thread that its parent has pinned.

        A fork passes that of the forked run, if it changes some of the manifests.
        """
        if request.thread and (request.resources or request.changes or request.pins_anew):
            return await self._fork(request, request.thread)
        if request.thread:
            return await self._find(request, request.thread)
        try:
            return await self._begin(request)
        except BatonError as error:
            refusal = await self._refusal(request)
            raise error.with_details({"refusal": refusal}) if refusal else error from None

    async def _refusal(self, request: PinRequest) -> JsonObject:
        """The data for clients of a run that can't be pinned; targets in the run's own input are left out."""
        query: Resource | None = None
        if request.kind == "query" and not named_targets(
            request.name, request.namespace, request.spec, request.resources
        ):
            with contextlib.suppress(BatonError):
                query = (await self._own.catalog()).get("Query", request.namespace, request.name or "query")
        targets = [target for _, target in query.spec.written_targets()] if isinstance(query, Query) else []
        return Refusal(dialect=self._dialect, targets=tuple(targets)).model_dump(mode="json", exclude_defaults=True)

    async def _find(self, request: PinRequest, thread: Thread) -> Pinned:
        catalog = await self._journal.catalog(thread.catalog)
        start = find_start(request, catalog)
        plan = await COMPUTING.run(build_plan, start, catalog, request.workflow, dialect=thread.dialect)
        if isinstance(start, Team) and isinstance(plan, TeamPlan) and start.spec.strategy == "handoff":
            plan = plan.beginning_with(await self._receiver(start, thread))
        return await self._pinned(_below(start, thread), plan, self._queues)

    def _check_redaction(self, request: PinRequest) -> None:
        """Raises NotRedacted if the client redacts personal data, and this worker would store what models answer."""
        if request.redacted and not self._journal.redacts:
            raise NotRedacted(
                f"nothing was stored: the client redacts personal data, and the worker {self._identity} does not: "
                f"set {REDACT} for all workers of its task queue"
            )

    async def _fork(self, request: PinRequest, thread: Thread) -> Pinned:
        """Pins the manifests of the forked run again, with those that the fork changes; at the same place."""
        self._check_redaction(request)
        forked = None if request.pins_anew else await self._journal.catalog(thread.catalog)
        worker_catalog = await self._own.catalog()
        catalog = await COMPUTING.run(self._resolve, request, worker_catalog, forked)
        scope = thread.scope or await self._scope(catalog)
        values = await self._values(catalog, scope)
        catalog = await self._discovery.pin(values)
        start, plan = await COMPUTING.run(_plan, request, catalog, self._query_ttl, thread.dialect)
        run = activity.info().workflow_run_id or ""
        catalog = await self._journal.without_personal_data(catalog)
        await self._journal.pin(catalog, run, start.namespace)
        own = Thread(
            catalog=self._journal.catalog_name(catalog),
            question=thread.question,
            head=thread.head,
            run=thread.run,
            account=thread.account or (run if catalog.has_budgets else None),
            dialect=thread.dialect,
            tenant=thread.tenant,
            redacted=self._journal.redacts or None,
            scope=scope,
        )
        if isinstance(start, Team) and isinstance(plan, TeamPlan) and start.spec.strategy == "handoff":
            plan = plan.beginning_with(await self._receiver(start, own))
        tenant = Tenant.of(worker_catalog, AccountName.of(start)) if own.tenant else None
        return await self._pinned(_below(start, own), plan, self._order(start, catalog, tenant))

    async def _values(self, catalog: RunCatalog, scope: str | None) -> ValueResolver:
        """The values of a root run that has no thread yet. Raises UnknownResource for an unknown service."""

        def session(name: str | None) -> str:
            return scoped(scope or "", name or workflow_id())

        values = await ValueResolver.of_catalog(self._journal, catalog, self._secrets, session)
        values.check_services()
        return values

    async def _scope(self, catalog: RunCatalog) -> str | None:
        """The scope of the sessions in which the run's panels share their contributions; None if it needs none.

        It is that of the gateway's caller, or of the run's account. A run whose memo can't be read shares its
        contributions with no other: its caller is not known.
        """
        if not catalog.has_contributions:
            return None
        info = activity.info()
        handle = own_client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        description = await handle.describe()
        try:
            memo = await memo_of(description)
        except SettingsError:
            memo = {}
        if description.raw_description.workflow_execution_info.memo.fields and not memo:
            return scope_of(f"{description.id}/{description.run_id}")
        if scope := memo.get(SCOPE):
            return str(scope)
        if SCOPE not in memo and CALLER in memo:  # started over a gateway of an earlier version
            return scope_of(str(memo.get(ACCOUNT)), str(memo[CALLER]))
        return scope_of(catalog.account) if catalog.account else None

    async def _receiver(self, team: Team, thread: Thread) -> int:
        """The index of the member to which the conversation was transferred last; otherwise the first one."""

        def is_transfer(row: Row) -> bool:
            return row.message.handoff is not None and row.message.handoff.team == team.id

        rows = await self._journal.read(thread.head, is_transfer)
        names = [member.name_in_team for member in team.spec.members]
        handoff = rows[0].message.handoff if rows and is_transfer(rows[0]) else None
        return names.index(handoff.member) if handoff and handoff.member in names else 0

    async def _begin(self, request: PinRequest) -> Pinned:
        """Pins the catalog, and starts a conversation with the question as its first row."""
        self._check_redaction(request)
        try:
            worker_catalog = await self._own.catalog()
            catalog = await COMPUTING.run(self._resolve, request, worker_catalog)  # thousands of manifests take seconds
        except UnknownResource as unknown:
            raise UnknownResource(f"{unknown.message}. {self._hint}") from None
        scope = await self._scope(catalog)
        values = await self._values(catalog, scope)
        catalog = await self._discovery.pin(values)
        run = activity.info().workflow_run_id or ""
        start = find_start(request, catalog)
        tenant = Tenant.of(worker_catalog, AccountName.of(start))
        check_client_tools(catalog, start)
        earlier: list[Message] = []
        if isinstance(start, Query):
            question = replace(values, catalog=catalog).question(start)
            if start.spec.messages:
                *earlier, question = await self._messages(start, catalog, run, question)
                catalog = catalog.with_manifests(
                    manifest.without_messages if isinstance(manifest, Query) else manifest
                    for manifest in catalog.manifests
                )
        else:
            question = Message(role="user", content=request.input or "")
        start, plan = await COMPUTING.run(_plan, request, catalog, self._query_ttl, self._dialect)
        if earlier and isinstance(plan, QueryPlan) and plan.conversation and plan.conversation.remote:
            raise InvalidInput(
                f"{start.id}: spec.input: messages before the question can't be added to the conversation of a Memory "
                "with a service: name the conversation, and write only the question"
            )
        if request.after:
            plan = await self._after(request.after, plan)
        catalog = await self._journal.without_personal_data(catalog)
        begin = partial(
            self._journal.begin, catalog, run, question=question, earlier=earlier, namespace=start.namespace
        )
        conversation = plan.conversation if isinstance(plan, QueryPlan) else None
        if conversation and not conversation.remote:
            stored = Conversations(self._journal)
            rows = await stored.begin(conversation, lambda head, check: begin(head=head, then=check))
        else:
            rows = await begin(head=request.after or Head())
        row = rows[-1]
        before = rows[0].before  # of the first attempt: others may have moved the conversation meanwhile
        thread = Thread(
            catalog=self._journal.catalog_name(catalog),
            question=row.id,
            head=row.head,
            run=root_id(),
            account=run if catalog.has_budgets else None,
            dialect=self._dialect,
            tenant=str(tenant.account) if tenant else None,
            redacted=self._journal.redacts or None,
            scope=scope,
        )
        pinned = await self._pinned(_below(start, thread), plan, self._order(start, catalog, tenant))
        return pinned.of_root_run(
            question=truncate(await self._secrets.redact_long(row.message.content), MAX_SHOWN_QUESTION),
            before=before if before.id else None,
            journal=self._name,
            notices=(*catalog.notices, *([UNREDACTED] if self._journal.redacts and not request.redacted else ())),
            ineffective=tuple(ineffective_fields(start, catalog)),
            admission=tenant is not None and tenant.limits_runs,
        )

    def _order(self, start: Startable, catalog: RunCatalog, tenant: Tenant | None) -> TaskQueues:
        """The task queues with the priority and the fairness key of a run, whatever its client has started it with.

        Those are its tenant's, once there are Quotas. Otherwise labels of the worker's own manifests may set them, and
        each run is a tenant of its own. Labels that a client brings have no effect.
        """
        if tenant:
            return self._queues.ordered(tenant.priority, tenant.fairness_key, tenant.weight)
        is_stored = catalog.provenance[start.id] in (Provenance.FILES, Provenance.STORE)
        labels = start.metadata.labels if is_stored else {}
        own_key = (activity.info().workflow_run_id or "")[-8:]
        return self._queues.ordered(
            priority_of(labels) or DEFAULT_PRIORITY, tenant_of(labels) or own_key, DEFAULT_WEIGHT
        )

    async def _messages(self, query: Query, catalog: Catalog, run: str, question: Message) -> list[Message]:
        """The messages of a query's input, of which the last is its ``question``, with their images and files.

        Raises InvalidInput before any model is called if one of the query's models can't take one of these.
        """
        parts = query.spec.attached
        attachments = [Attachment.of(part, "" if part.data else None) for part in parts]
        await COMPUTING.run(check_accepted, query, catalog, attachments)
        *earlier, last = query.spec.messages
        return [
            *[await message_of(self._journal, run, message) for message in earlier],
            question.with_attachments(await attachments_of(self._journal, run, last)),
        ]

    async def _after(self, head: Head, plan: Plan) -> Plan:
        """The plan of a query whose question follows a place in another run's conversation: it uses no Memory.

        Raises InvalidInput if the journal does not have that place.
        """
        row = await self._journal.find(head.id)
        if row is None or row.head != head:
            raise InvalidInput(f"after: the journal has no row {head.id} at depth {head.depth}")
        return plan.without_conversation if isinstance(plan, QueryPlan) else plan

    @property
    def _hint(self) -> str:
        return (
            f"The worker {self._identity} has pinned the run: start all workers of its task queue with the manifests "
            "that runs name (baton worker -f PATH), or store them for all workers (baton apply -f PATH)"
        )

    async def _pinned(self, thread: Thread, plan: Plan, queues: TaskQueues) -> Pinned:
        attributes = await self._attributes.known()
        return Pinned(
            thread=thread,
            plan=plan,
            route=queues,
            traced=self._traced(),
            max_outage=self._max_outage,
            searchable=attributes["searchable"],
            shows_cost=attributes["shows_cost"],
            audited=self._audited,
        ).without_defaults

    def _resolve(self, request: PinRequest, worker_catalog: Catalog, forked: RunCatalog | None = None) -> RunCatalog:
        """A catalog of all manifests that the run needs, from the request or the worker's own manifests.

        Those of a ``forked`` run come before the worker's, which may have changed.
        """
        inline = load_inline(request).catalog
        available = inline.overlaid_on(worker_catalog)
        if request.thread:
            known = forked.overlaid_on(worker_catalog) if forked else worker_catalog
            changes = changed_manifests(forked or worker_catalog, request.changes)
            available = load_inline(request.with_resources(changes)).catalog.overlaid_on(known)
        kind, name = _named_start(request)
        if not available.get(kind, request.namespace, name):
            self._own.check_readable([Reference((), (kind,), request.namespace, name)])
        start = find_start(request, available)
        catalog, unknown = available.needed_by(start)
        references = (reference for manifest in catalog.manifests for reference in manifest.references)
        self._own.check_readable(reference for reference in references if not available.find(reference))
        if unsupported := [field for manifest in catalog.manifests for field in unsupported_fields(manifest)]:
            texts = (f"{manifest.id}: {dotted_path(path)}: {text}" for manifest, path, text in unsupported)
            raise NotCarriedOut("; ".join(texts))
        if missing := [need for need in unknown if need.reference.kinds != ("Secret",)]:  # in the SecretStore
            needs = "; ".join(f"{owner.id} needs {reference}" for owner, reference in missing)
            raise UnknownResource(f"neither in the run's manifests nor in its worker's: {needs}")
        for manifest in catalog.manifests:
            if isinstance(manifest, MCPServer) and self._has_foreign_command(manifest, catalog):
                raise InvalidInput(
                    f"{manifest.id}: spec.command: an inline manifest can't set the command of a worker: "
                    "start the worker with this MCPServer"
                )
        broken = [*violations(catalog), *queries_without_targets(catalog), *unknown_parameters(start, catalog)]
        if broken:
            raise InvalidManifest("; ".join(f"{manifest.id}: {text}" for manifest, _, text in broken))
        run = self._with_provenance(inline, catalog, worker_catalog, forked)
        for manifest in run.manifests:
            is_own = run.provenance_of(manifest).is_own
            if isinstance(manifest, Tool) and manifest.spec.application and not is_own:
                kind = manifest.spec.type
                raise InvalidInput(
                    f"{manifest.id}: spec.{kind}: an inline Tool can't call {PLURALS[kind]} of an application: "
                    "start the worker with this Tool, or store it"
                )
        check_overrides(run)
        check_webhooks(run)
        return with_client(with_rights(run, start), start).prepared()

    def _with_provenance(
        self, inline: Catalog, catalog: Catalog, worker_catalog: Catalog, forked: RunCatalog | None
    ) -> RunCatalog:
        """The run's catalog with the provenance of its manifests. Those of a local client's files are trusted.

        A manifest that a fork does not change keeps its provenance.

        Raises InvalidInput if the worker accepts no inline manifests except queries.
        """
        sha = inline.prepared().sha
        is_local = self._secrets.is_local(sha)
        inline_provenance = Provenance.TRUSTED if is_local or self._inline_manifests == "all" else Provenance.INLINE

        def provenance(manifest: Resource) -> Provenance:
            if forked and forked.by_id(manifest.id) == manifest:
                return forked.provenance[manifest.id]
            if self._own.folder.by_id(manifest.id) == manifest:
                return Provenance.FILES
            return Provenance.STORE if worker_catalog.by_id(manifest.id) == manifest else inline_provenance

        earlier = forked.registered_as if forked else ""
        run = RunCatalog.of(catalog, provenance, registered_as=sha if is_local else earlier)
        foreign = [manifest_id for manifest_id, provenance in run.provenance.items() if not provenance.is_own]
        if forked:  # what the forked run has brought was accepted then
            foreign = [manifest_id for manifest_id in foreign if forked.by_id(manifest_id) != run.by_id(manifest_id)]
        inline_ids = [manifest_id for manifest_id in foreign if not manifest_id.startswith("Query/")]
        if inline_ids and self._inline_manifests == "none":
            raise InvalidInput(
                f"this worker accepts only its own manifests (BATON_INLINE_MANIFESTS=none), but the run adds or "
                f"changes {', '.join(inline_ids)}"
            )
        return run

    def _has_foreign_command(self, server: MCPServer, catalog: Catalog) -> bool:
        """Whether a server has a command, and it or one of its values is not from the worker's files.

        Commands are only accepted from these files: neither from a run, nor from the store.
        """
        folder = self._own.folder
        needed = folder.needed_by(server)[0].manifests if server.spec.command else ()
        return any(
            folder.by_id(manifest.id) != manifest or catalog.by_id(manifest.id) != manifest for manifest in needed
        )


def with_client(catalog: RunCatalog, start: Startable) -> RunCatalog:
    """The catalog with what the client of a query has brought: its target has the client's settings.

    What the client brings is no manifest: it refers to nothing, and its texts are no templates. So it gets neither
    Secrets nor a server, and the provenance of the agent stays. Raises InvalidInput for what the target does not allow.
    """
    client = start.spec.client if isinstance(start, Query) else None
    if not isinstance(start, Query) or client is None:
        return catalog
    targets = [find(catalog, reference) for reference in catalog.targets(start)]
    target = targets[0] if len(targets) == 1 else None
    if not isinstance(target, Agent):
        raise InvalidInput(f"{start.id}: spec.client: tools and settings of a client need a single target, an Agent")
    if refusals := [f"spec.client.{dotted_path(path)}: {text}" for path, text in target.refusals(client)]:
        raise InvalidInput(f"{start.id}: {'; '.join(refusals)}")
    ignored = target.client_access.ignored(client.settings)
    settings = client.settings.without(ignored)
    changed = target.with_client_settings(settings)
    replaced: dict[str, Resource] = {
        start.id: start.with_client(client.with_settings(settings)),
        target.id: changed,
    }
    catalog = catalog.with_manifests(replaced.get(manifest.id, manifest) for manifest in catalog.manifests)
    if broken := [text for manifest, _, text in unsupported_settings(catalog) if manifest == changed]:
        raise InvalidInput(f"{start.id}: spec.client.settings: {'; '.join(broken)}")
    return catalog.with_notices(
        f"{target.id} does not let clients choose '{name}': the setting is ignored" for name in sorted(ignored)
    )


def check_client_tools(catalog: RunCatalog, start: Startable) -> None:
    """Raises InvalidInput if a client's tool has the name of a tool that its agent has, also of a generated one."""
    if not isinstance(start, Query) or not start.spec.client:
        return
    for reference in catalog.targets(start):
        if isinstance(agent := find(catalog, reference), Agent):
            for path, text in agent.colliding_tools(start.spec.client):
                raise InvalidInput(f"{start.id}: spec.client.{dotted_path(path)}: {text}")


def _below(start: Startable, thread: Thread) -> Thread:
    """The thread for calls of a manifest: under its budget, if it has one."""
    return thread.under(start.id) if start.budget and thread.account else thread


def _plan(
    request: PinRequest, catalog: RunCatalog, ttl: float | None, dialect: Dialect | None
) -> tuple[Startable, Plan]:
    start = find_start(request, catalog.prepared())
    return start, build_plan(start, catalog, request.workflow, ttl, dialect)
