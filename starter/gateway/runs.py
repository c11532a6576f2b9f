"""The runs that the gateway starts and shows: durable queries, each owned by the caller that has started it."""

import asyncio
import functools
import hashlib
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import TypeVar
from weakref import WeakValueDictionary

from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.control_messages import SteerRequest
from ...contracts.decisions import ApproveRequest, PendingDecision
from ...contracts.identity import REQUESTER, START, IdentityKeys
from ...contracts.scope import ACCOUNT, CALLER, SCOPE
from ...contracts.settings import SettingsError
from ...contracts.status import Status
from ...resources.base import JsonObject
from ...resources.query import Query
from ...temporal import search_attributes
from ...temporal.executions import memo_of
from ...temporal.search_attributes import KnownAttributes, shows_forks
from ..history.fork import ForkChanges, fork_run
from ..history.members import MemberSum
from ..runs.decisions import all_pending_decisions
from ..runs.listing import (
    FORKED_AT,
    FORKED_FROM,
    ChangePlace,
    ListedRun,
    NotFilterableError,
    RunFilter,
    RunPage,
    StartCache,
    changed_runs,
    recent_runs,
    search_runs,
)
from ..runs.runs import RunHandle
from ..runs.start import NotForkedError, QueryStart, inline_start, start_run
from .access import Caller
from .errors import BadRequestError, ConflictError, ForbiddenError, NotFoundError, as_gateway_error
from .owners import ID_BYTES, PROTOCOL, conversation_of, is_owner, named_id, scope_of_caller, signed_act
from .question import TargetQuestion
from .run import Run
from .run_caches import ProgressCache, SumsCache
from .targets import ServedTarget, Targets

REQUEST = "request"
"""The memo entry with the digest of the request, by which a repeated one is told from another with the same key."""

MAX_KEY = 255
"""Characters of an idempotency key."""


@dataclass(frozen=True)
class RunInTree:
    """A run in a tree of forks: it has gone on from the place ``at`` of the run ``source``, or has begun by itself."""

    id: str
    source: str | None
    at: str | None
    state: str
    start: datetime


MAX_FORKS = 100
"""The most runs of a tree of forks that are listed."""


async def _in_tree(run: Run) -> RunInTree:
    description = await run.describe()
    at = run.memo.get(FORKED_AT)
    source = run.memo.get(FORKED_FROM)
    return RunInTree(
        id=run.id,
        source=str(source) if source else None,
        at=str(at) if at else None,
        state=description.status.name.replace("_", " ").capitalize() if description.status else "Unknown",
        start=description.start_time,
    )


CONCURRENT_READS = 10
"""How many runs of lists are read at once; further ones wait."""

READS_OF_A_CALLER = 4
"""How many of these runs are read at once for one caller, so that its long lists don't hold up those of others."""

T = TypeVar("T")
Listed = TypeVar("Listed")


class Runs:
    """Starts and finds runs for callers."""

    def __init__(self, client: Client, targets: Targets, environ: Mapping[str, str] = os.environ) -> None:
        self._client = client
        self._targets = targets
        self._queue = environ.get("BATON_TASK_QUEUE")
        self._environ = environ
        self._starts = StartCache()
        self._progress = ProgressCache(client)
        self._sums = SumsCache()
        self._reads = asyncio.Semaphore(CONCURRENT_READS)
        self._progress_reads = asyncio.Semaphore(CONCURRENT_READS)  # they wait for workers, lists do not
        self._own_reads = WeakValueDictionary[str, asyncio.Semaphore]()
        """The part of the reads that a caller may take, by its digest."""
        self._attributes = KnownAttributes(client)

    @property
    def namespace(self) -> str:
        """The namespace in Temporal."""
        return self._client.namespace

    async def start(
        self,
        caller: Caller,
        target: ServedTarget,
        question: TargetQuestion,
        *,
        protocol: str,
        key: str | None = None,
        memo: Mapping[str, str] | None = None,
    ) -> Run:
        """Starts a run. With an idempotency ``key``, the run of an earlier request with that key is returned.

        ``memo`` are entries of the protocol in the run's memo. The run is durable before this returns. Raises
        BadRequestError, ConflictError if the key was used with another request, and RPCError.
        """
        if key is not None and not 0 < len(key) <= MAX_KEY:
            raise BadRequestError(f"an idempotency key has 1 to {MAX_KEY} characters")
        query = question.query(target, caller)
        start = inline_start(query, question.session)
        if question.after:
            start = start.after(question.after)
        digest = hashlib.sha256(f"{protocol}\n{target.id}\n{question.digest}".encode()).hexdigest()[:32]
        run_id = self.id_of(caller, target, key)
        own = {**(memo or {}), **self._owner(caller, run_id, protocol), REQUEST: digest}
        try:
            handle = await self._started(caller, start.with_memo(own), run_id)
        except WorkflowAlreadyStartedError:  # it has ended
            handle = self._client.get_workflow_handle(run_id)
        stored = own if key is None else await memo_of(await handle.describe())
        if stored.get(REQUEST) != digest:
            raise ConflictError("this idempotency key was used with another request")
        return Run(self._client, handle, stored, caller, self._environ, query.spec)

    async def fork(
        self, caller: Caller, source: Run, at: str, say: str | None, session: JsonObject, *, key: str | None = None
    ) -> Run:
        """Starts a run of the caller that goes on from a place in a run that it may see.

        With an idempotency ``key``, the run of an earlier request with that key is returned. The new run has the rights
        of the forked one, so only a caller with the same account may start it, or one that sees all runs.

        Raises BadRequestError, ForbiddenError, ConflictError if the key was used with another request, and RPCError.
        """
        if key is not None and not 0 < len(key) <= MAX_KEY:
            raise BadRequestError(f"an idempotency key has 1 to {MAX_KEY} characters")
        memo = await memo_of(await source.describe())
        if not (caller.sees_all or memo.get(ACCOUNT) == str(caller.account)):
            raise ForbiddenError(f"{source.id} has the rights of another account, which a fork of it would have, too")
        text = json.dumps(["fork", source.id, at, say, session], sort_keys=True)
        run_id = self._new_id(caller, source.id.rpartition("-")[0] or source.id, key)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        own = {**self._owner(caller, run_id, "runs"), REQUEST: digest}
        changes = ForkChanges(
            say=None if say is None else SteerRequest(text=say, name=caller.name[:64]), session=session
        )
        try:
            handle = await self.attributed(
                caller,
                lambda attributes: fork_run(
                    self._client, source.handle, at, changes, run_id, memo=own, attributes=attributes
                ),
            )
        except NotForkedError as error:
            raise BadRequestError(str(error), param="at") from None
        except WorkflowAlreadyStartedError:
            handle = self._client.get_workflow_handle(run_id)
            stored = await memo_of(await handle.describe())
            if stored.get(REQUEST) != digest:
                raise ConflictError("this idempotency key was used with another request") from None
        return Run(self._client, handle, own, caller, self._environ)

    async def create(self, caller: Caller, query: Query, *, protocol: str) -> Run:
        """Starts the run of a query that a client has named. The run is durable before this returns.

        Raises ConflictError if the caller has a query of that name in its namespace, and RPCError.
        """
        run_id = named_id(caller, query.namespace, query.name)
        start = inline_start(query).with_memo(self._owner(caller, run_id, protocol))
        try:
            handle = await self._started(caller, start, run_id, joins=False)
        except WorkflowAlreadyStartedError:
            raise ConflictError(f"query '{query.name}' already exists in namespace {query.namespace}") from None
        return Run(self._client, handle, start.memo, caller, self._environ, query.spec)

    def _owner(self, caller: Caller, run_id: str, protocol: str) -> dict[str, str]:
        """The entries of a run's memo with who has started it and how; signed, if the gateway has verified the caller.

        Raises SettingsError.
        """
        own = {
            CALLER: caller.name,
            ACCOUNT: str(caller.account),
            SCOPE: scope_of_caller(caller),
            PROTOCOL: protocol,
        }
        signed = signed_act(self._environ, caller, self._client.namespace, run_id, START)
        return {**own, REQUESTER: signed.model_dump_json()} if signed else own

    async def _started(self, caller: Caller, start: QueryStart, run_id: str, *, joins: bool = True) -> RunHandle:
        """Starts a run of a caller. Raises WorkflowAlreadyStartedError, and RPCError."""
        return await self.attributed(
            caller,
            lambda attributes: start_run(
                self._client, start, run_id, task_queue=self._queue, joins=joins, once=True, attributes=attributes
            ),
        )

    async def attributed(self, caller: Caller, start: Callable[[TypedSearchAttributes], Awaitable[T]]) -> T:
        """Starts a workflow that Temporal finds by its caller, if the server has the attribute."""
        plain = TypedSearchAttributes.empty
        if not await self.finds_callers():
            return await start(plain)
        try:
            return await start(TypedSearchAttributes([SearchAttributePair(search_attributes.CALLER, caller.digest)]))
        except RPCError as error:
            # A server that has just got the attribute may reject it for a minute.
            if error.status != RPCStatusCode.INVALID_ARGUMENT:
                raise
        return await start(plain)

    async def finds_callers(self) -> bool:
        """Whether the server has the attribute by which Temporal finds the workflows of a caller."""
        return (await self._attributes.known())["shows_callers"]

    async def _findable_by(self, caller: Caller) -> str | None:
        """The digest by which Temporal finds all runs that the caller may see; None if it may see those of others."""
        if caller.sees_all or not await self.finds_callers():
            return None
        catalog = await self._targets.catalog()
        namespaces = {manifest.namespace for manifest in catalog.manifests}
        sees_others = any(caller.may_see_all_of(catalog, namespace) for namespace in namespaces)
        return None if sees_others else caller.digest

    async def find_named(self, caller: Caller, namespace: str, name: str) -> Run:
        """The run of the query that the caller has named so. Raises NotFoundError."""
        try:
            return await self.find(caller, named_id(caller, namespace, name))
        except NotFoundError:
            text = f"query '{name[:200]}' not found in namespace {namespace[:200]}"
            raise NotFoundError(text) from None

    def id_of(self, caller: Caller, target: ServedTarget, key: str | None) -> str:
        """The id of a run: random, or derived from an idempotency key of the caller. It can't be guessed."""
        return self._new_id(caller, target.name, key)

    def _new_id(self, caller: Caller, name: str, key: str | None) -> str:
        if key is None:
            return f"{name}-{secrets.token_hex(ID_BYTES)}"
        text = f"{caller.account}\n{caller.name}\n{key}"
        return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[: 2 * ID_BYTES]}"

    async def find(self, caller: Caller, run_id: str) -> Run:
        """The root run with that id. Raises NotFoundError, also if the caller may not see it."""
        handle = self._client.get_workflow_handle(run_id)
        memo = await self._visible_memo(caller, handle)
        if memo is None:
            raise NotFoundError(f"there is no run '{run_id[:200]}', or you may not see it")
        return Run(self._client, handle, memo, caller, self._environ)

    async def may_read(self, caller: Caller, handle: RunHandle) -> bool:
        """Whether there is that run, or that execution of it, and the caller may see it."""
        return await self._visible_memo(caller, handle) is not None

    async def _visible_memo(self, caller: Caller, handle: RunHandle) -> Mapping[str, object] | None:
        """The memo of a run; None if there is no such run, or if the caller may not see it."""
        try:
            memo = await memo_of(await handle.describe())
        except SettingsError:
            return None
        except RPCError as error:
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                raise
            return None
        return memo if await self._may_see(caller, memo) else None

    def check_known(self) -> None:
        """Raises UnavailableError while a run that was not found may be one that the caller may see by a Role."""
        self._targets.check_known()

    async def conversation(self, caller: Caller, name: str) -> str:
        """The id of a caller's conversation, of which the id of the run that has begun it is a name, too."""
        try:
            return (await self.find(caller, name)).id
        except NotFoundError:
            return conversation_of(caller, name)

    async def by_change(
        self, caller: Caller, limit: int, matches: Callable[[ListedRun], bool], after: ChangePlace | None = None
    ) -> tuple[list[ListedRun], ChangePlace | None]:
        """At most ``limit`` runs that the caller may see and that match, as ``changed_runs`` lists them after a place.

        Also the place after which the others begin; None if there are none.
        """

        async def is_visible(run: ListedRun) -> bool:
            return matches(run) and await self._may_see(caller, run.memo)

        owner = await self._findable_by(caller)
        return await changed_runs(self._client, limit, self._queue, matches=is_visible, after=after, owner=owner)

    async def read_each(
        self,
        caller: Caller,
        listed: Sequence[Listed],
        read: Callable[[Run, Listed], Awaitable[T]],
        known: Callable[[Listed], T],
        id_of: Callable[[Listed], str] = attrgetter("id"),
        places: asyncio.Semaphore | None = None,
    ) -> list[T]:
        """What is read of each listed run, in their order; without those that are gone.

        ``id_of`` is the id of a listed run. Of a run that can't be read now, it is what is ``known`` from the list. Few
        are read at once, whoever asks, of all that share the ``places``. An exception that is no failure of a read is
        raised in an ExceptionGroup.
        """
        own = self._own_reads.setdefault(caller.digest, asyncio.Semaphore(READS_OF_A_CALLER))
        remaining = iter(enumerate(listed))
        found: dict[int, T] = {}

        async def read_remaining() -> None:
            for place, each in remaining:
                async with own, places or self._reads:
                    try:
                        found[place] = await read(await self.find(caller, id_of(each)), each)
                    except Exception as error:
                        failure = as_gateway_error(error)
                        if failure is None:
                            raise
                        if not isinstance(failure, NotFoundError):
                            found[place] = known(each)

        async with asyncio.TaskGroup() as group:
            for _ in range(READS_OF_A_CALLER):
                group.create_task(read_remaining())
        return [found[place] for place in sorted(found)]

    async def page(self, caller: Caller, limit: int, chosen: RunFilter) -> RunPage:
        """A page of the newest runs that the caller may see, and that are ``chosen``.

        Raises BadRequestError if the server can't filter them.
        """

        try:
            return await search_runs(
                self._client,
                limit,
                self._queue,
                visible=functools.partial(self._may_see, caller),
                chosen=chosen,
                cache=self._starts,
                owner=await self._findable_by(caller),
            )
        except NotFilterableError as error:
            raise BadRequestError(str(error)) from None

    async def progress(self, caller: Caller, ids: Sequence[str]) -> list[tuple[str, Status]]:
        """The statuses of these runs, as of a moment ago; without those that the caller may not see, or that ended."""

        async def read(run: Run, run_id: str) -> tuple[str, Status] | None:
            return run_id, await self._progress.get(run)

        places = self._progress_reads
        found = await self.read_each(caller, ids, read, known=lambda _: None, id_of=str, places=places)
        return [each for each in found if each]

    async def member_sums(self, run: Run) -> tuple[Sequence[MemberSum], bool]:
        """What each speaker of a run has used, and whether that is all: a long run is read for some seconds."""
        return await self._sums.get(run)

    async def fork_tree(self, caller: Caller, run: Run) -> tuple[list[RunInTree], bool]:
        """The runs from which a run has come, the run, and what has gone on from any of them, each after its source.

        Also whether there may be more than MAX_FORKS. Runs that the caller may not see are left out, with all beyond.
        """
        root = run
        line = {run.id: run}  # the run and those from which it has come
        for _ in range(MAX_FORKS):
            try:
                root = await self.find(caller, str(root.memo[FORKED_FROM]))
            except (KeyError, NotFoundError):
                break
            line[root.id] = root
        tree = [await _in_tree(line.pop(root.id))]
        if not await shows_forks(self._client):
            return [*tree, *([await _in_tree(run)] if root is not run else [])], False

        for source in tree:  # it grows
            left = MAX_FORKS - len(tree)
            if left <= 0:
                return tree, True
            forks = await recent_runs(
                self._client,
                None,
                left,
                self._queue,
                visible=functools.partial(self._may_see, caller),
                cache=self._starts,
                forked_from=source.id,
            )
            for fork in reversed(forks):
                at = fork.memo.get(FORKED_AT)
                state = fork.state
                tree.append(
                    RunInTree(id=fork.id, source=source.id, at=str(at) if at else None, state=state, start=fork.start)
                )
                line.pop(fork.id, None)
            for fork_id in [each.id for each in line.values() if each.memo[FORKED_FROM] == source.id]:
                try:  # Temporal lists a run a moment after its start
                    tree.append(await _in_tree(line.pop(fork_id)))
                except RPCError as error:
                    if error.status != RPCStatusCode.NOT_FOUND:
                        raise
        return tree, False

    async def named_queries(self, caller: Caller, namespace: str, protocol: str, limit: int) -> Sequence[ListedRun]:
        """The newest runs of queries in a namespace that the caller has named, by a protocol, among those searched."""

        async def is_visible(memo: Mapping[str, object]) -> bool:
            is_query = (memo.get(PROTOCOL), memo.get("namespace")) == (protocol, namespace)
            return is_query and is_owner(caller, memo)

        owner = caller.digest if await self.finds_callers() else None
        page = await search_runs(
            self._client,
            limit,
            self._queue,
            visible=is_visible,
            chosen=RunFilter(),
            cache=self._starts,
            owner=owner,
        )
        return page.runs

    async def inbox(self, caller: Caller) -> list[tuple[str, PendingDecision]]:
        """All that waits for people in runs that the caller may see, with the ids of these runs."""

        waiting = await all_pending_decisions(
            self._client, queue=self._queue, visible=functools.partial(self._may_see, caller)
        )
        return [(run, decision) for run, decision in waiting.decisions if decision.kind != "client_tool"]

    def refusal(self, caller: Caller, decision: PendingDecision) -> str | None:
        """Why a caller may not make a decision; None if it may, as far as the run's requester is not asked for."""
        is_signed = caller.is_verified and bool(IdentityKeys.of(self._environ).keys)
        request = ApproveRequest(call=decision.id, by=caller.name)
        return decision.refusal(request.signed(caller.identity) if is_signed else request)

    async def _may_see(self, caller: Caller, memo: Mapping[str, object]) -> bool:
        if caller.sees_all or is_owner(caller, memo):
            return True
        namespace = memo.get("namespace")
        return isinstance(namespace, str) and caller.may_see_all_of(await self._targets.catalog(), namespace)
