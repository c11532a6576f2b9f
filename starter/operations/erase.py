"""Erases runs: their rows in the journal, their long values, and their executions in Temporal."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Literal

from sqlalchemy import Connection
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from ...activities.runs import delete_long_values
from ...activities.runtime.settings import Settings
from ...contracts.identity import Actor
from ...contracts.scope import ACCOUNT, CALLER
from ...journal.audit import AuditEntry, append
from ...journal.engine import LONG_STATEMENT, Engine, connect
from ...journal.erasures import Named, forget_erasure, note_erasure, unfinished_erasures
from ...journal.external_storage import delete_from_bucket
from ...journal.migrate import migrate
from ...journal.prune import (
    connected_runs,
    count_messages,
    database_now,
    delete_runs,
    forget,
    has_values,
    namespaces_of_runs,
    remove_traces,
    runs_of_conversation,
)
from ...resources.strategies import OWN_WORKFLOWS
from ...temporal.client import EXTERNAL_STORAGE_URL
from ...temporal.executions import RunExecution, delete_execution, delete_pushes, memo_of, run_tree
from ...temporal.search_attributes import describe_namespace, quoted, root_runs
from ..account import client_identity
from ..errors import UsageError
from .prune import Ages, check_server, start_time

INTERNAL = frozenset({"expire", "notify"})
"""Types of workflows that may still be open when their run has ended. They end with it."""

DEFAULT_NAMESPACE = "default"
"""The namespace of the manifests of a run that has no rows, if its memo names none."""

DELETION_SECONDS = 30.0
POLL_SECONDS = 0.1
"""Temporal carries a deletion out a moment after it has accepted it."""

LISTED_WITHIN = timedelta(minutes=1)
"""The time after its start in which Temporal may not list a run yet: its visibility is eventually consistent."""

MAX_NAMED = 5
"""Runs that an error names."""


@dataclass(frozen=True)
class Erased:
    """What was or would be erased: the ids of the runs, and the numbers of their executions and messages.

    ``without_values`` is the number of runs whose long values may remain: only Temporal knows the workflow ids under
    which they were stored, and has forgotten these runs.
    """

    runs: Sequence[str]
    executions: int
    messages: int
    without_values: int = 0

    def with_more(self, more: "Erased") -> "Erased":
        """Both together."""
        return Erased(
            [*self.runs, *more.runs],
            self.executions + more.executions,
            self.messages + more.messages,
            self.without_values + more.without_values,
        )


async def erase_runs(
    client: Client, ids: Iterable[str], *, dry: bool, environ: Mapping[str, str] = os.environ
) -> Erased:
    """Erases the runs with these ids. Raises UsageError if one is unknown or open, or if another continues it."""
    named = [Named("run", "", run_id) for run_id in dict.fromkeys(ids)]
    async with _connected(environ) as engine:
        unfinished = await _unfinished(client, engine, "run")
        roots = {run_id: await _executions_of(client, run_id) for _, _, run_id in named}
        if unknown := [each.name for each in named if not roots[each.name] and each not in unfinished]:
            raise UsageError(f"there is no run and no kind '{unknown[0]}': list the runs with baton list")
        more = {run for each in named for run in unfinished.get(each, ())}
        await _add_runs(client, roots, more)
        return await _erase(client, engine, roots, environ, dry=dry, named=named, more=more)


async def erase_conversation(
    client: Client,
    conversation: str,
    *,
    dry: bool,
    namespace: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Erased:
    """Erases a conversation, with all runs that have taken part in it. Raises UsageError if there is none.

    ``namespace`` is that of its manifests; it may be None unless several namespaces have a conversation with that id.

    Earlier attempts of such a run that wrote no message are erased with it; runs of another conversation that have the
    same workflow id are not.
    """
    async with _connected(environ) as engine:
        last = await engine.run(partial(runs_of_conversation, namespace=client.namespace, conversation=conversation))
        unfinished = {
            each.namespace: runs
            for each, runs in (await _unfinished(client, engine, "conversation")).items()
            if each.name == conversation
        }
        namespaces = last.keys() | unfinished.keys()
        if namespace is None and len(namespaces) > 1:
            names = ", ".join(sorted(namespaces))
            raise UsageError(
                f"several namespaces have a conversation '{conversation}': name one of them with -n: {names}"
            )
        chosen = [name for name in namespaces if namespace in (None, name)]
        if not chosen:
            place = "journal" if namespace is None else f"namespace {namespace}"
            raise UsageError(
                f"there is no conversation '{conversation}' in the {place}: list them with baton sessions list"
            )
        last_runs = last.get(chosen[0], set())
        runs = await engine.run(partial(connected_runs, namespace=client.namespace, runs=last_runs))
        roots: dict[str, list[WorkflowExecution]] = {}
        for run_id in await _roots_of(client, runs):
            for execution in await _executions_of(client, run_id):
                own = {each.run_id for each in await _tree_of(client, {run_id: [execution]})}
                if own & runs or not await engine.run(partial(count_messages, runs=own)):
                    roots.setdefault(run_id, []).append(execution)
        begun = unfinished.get(chosen[0], set())
        await _add_runs(client, roots, begun)
        named = [Named("conversation", chosen[0], conversation)]
        return await _erase(client, engine, roots, environ, dry=dry, named=named, more=runs | begun)


async def erase_user(client: Client, user: str, *, dry: bool, environ: Mapping[str, str] = os.environ) -> Erased:
    """Erases all runs that a caller of the gateway has started. Raises UsageError if there is none.

    ``user`` is NAMESPACE/ACCOUNT/NAME; or its name alone, unless callers with several accounts have that name.

    Raises SettingsError if a memo can't be read without a missing key: then it can't be known who has started a run.
    """
    async with _connected(environ) as engine:
        found: dict[str, dict[str, list[WorkflowExecution]]] = {}
        unfinished = await _unfinished(client, engine, "user")
        for each in unfinished:
            if user in (each.name, each.name.split("/", 2)[-1]):
                found[each.name] = {}
        async for run in client.list_workflows(await root_runs(client)):
            memo = await memo_of(run)
            name = memo.get(CALLER)
            caller = f"{memo.get(ACCOUNT)}/{name}"
            if user in (name, caller):
                found.setdefault(caller, {}).setdefault(run.id, []).append(run)
        named = Named("user", "", _caller_meant(user, found))
        roots = found[named.name]
        more = unfinished.get(named, set())
        await _add_runs(client, roots, more)
        return await _erase(client, engine, roots, environ, dry=dry, named=[named], more=more)


def _caller_meant(user: str, found: Collection[str]) -> str:
    """The caller that a name means among those that have it. Raises UsageError if there is none, or several."""
    if not found:
        raise UsageError(f"Temporal has no run that '{user}' has started through the gateway")
    # A name may have slashes: one that looks like another caller with its account is not enough to erase its runs.
    is_clear = len(found) == 1 and user.count("/") < 2
    chosen = [*found] if is_clear else [caller for caller in found if caller == user]
    if not chosen:
        choices = " or ".join(sorted(found))
        raise UsageError(f"the name '{user}' does not tell whose runs to erase: name the account as well, as {choices}")
    return chosen[0]


async def erase_expired(
    client: Client,
    ages: Ages,
    *,
    dry: bool,
    environ: Mapping[str, str] = os.environ,
) -> Erased:
    """Erases the runs in Temporal that ended longer ago than the age of their namespace of manifests.

    A run stays as long as one of its conversation does: one that continues it, or a fork of it. It also stays as long
    as a run with its workflow id is open, which may be about to retry it.
    """
    async with _connected(environ) as engine:
        now = await engine.run(database_now)
        namespaces = await engine.run(namespaces_of_runs)
        ended: dict[str, list[WorkflowExecution]] = {}
        closed = "ExecutionStatus != 'Running' AND ExecutionStatus != 'ContinuedAsNew'"
        async for run in client.list_workflows(f"{await root_runs(client)} AND {closed}"):
            namespace = namespaces.get(run.run_id) or str((await memo_of(run)).get("namespace") or DEFAULT_NAMESPACE)
            if run.close_time and run.close_time < now - ages.kept([namespace]):
                ended.setdefault(run.id, []).append(run)
        erased = Erased(runs=[], executions=0, messages=0)
        while ended:
            run_id, executions = next(iter(ended.items()))
            tree = await _tree_of(client, {run_id: executions})
            own = {execution.run_id for execution in tree}
            rows = await engine.run(partial(connected_runs, namespace=client.namespace, runs=own))
            others = await _roots_of(client, rows - own)
            together = {each: ended.pop(each) for each in {run_id, *others} if each in ended}
            if together.keys() >= {run_id, *others}:
                with contextlib.suppress(UsageError):  # a younger run needs it, perhaps one with the same workflow id
                    erased = erased.with_more(await _erase(client, engine, together, environ, dry=dry))
        return erased


@contextlib.asynccontextmanager
async def _connected(environ: Mapping[str, str]) -> AsyncIterator[Engine]:
    """The journal's engine. Raises JournalUnavailable if there is no journal."""
    engine = connect(Settings.of(environ).journal, longest=LONG_STATEMENT)
    try:
        await migrate(engine, upgrade=False, create=False)
        yield engine
    finally:
        await engine.dispose()


async def _unfinished(client: Client, engine: Engine, kind: str) -> dict[Named, set[str]]:
    return await engine.run(partial(unfinished_erasures, namespace=client.namespace, kinds=[kind]))


async def _add_runs(client: Client, roots: dict[str, list[WorkflowExecution]], runs: Collection[str]) -> None:
    """Adds to ``roots`` what an interrupted erasure has left in Temporal of its ``runs``."""
    for root in await _roots_of(client, runs):
        known = {execution.run_id for execution in roots.get(root, ())}
        for execution in await _executions_of(client, root):
            own = {each.run_id for each in await _tree_of(client, {root: [execution]})}
            if execution.run_id not in known and not own.isdisjoint(runs):
                roots.setdefault(root, []).append(execution)


async def _erase(
    client: Client,
    engine: Engine,
    roots: Mapping[str, Sequence[WorkflowExecution]],
    environ: Mapping[str, str],
    *,
    dry: bool,
    named: Sequence[Named] = (),
    more: Collection[str] = (),
) -> Erased:
    """Erases executions, and the rows of the runs ``more`` that Temporal has deleted.

    Others may have the same workflow ids: what the journal or the bucket has of both by that id stays.

    Before anything is deleted, the journal notes under what was ``named`` which runs are erased, and forgets it at the
    end: so the same command finishes an erasure that was interrupted. Without a name, the executions find the rest:
    they are deleted last.
    """
    tree = await _closed_tree(client, roots)
    runs = {execution.run_id for execution in tree}
    shared = await _shared_ids(client, roots, tree)
    space = await describe_namespace(client)
    await check_server(engine, space.namespace_info)
    connected = await engine.run(partial(connected_runs, namespace=client.namespace, runs={*more, *runs}))
    await _check_others(client, connected - runs)
    unlisted = connected - runs
    for kind in {each.kind for each in named}:  # what an interrupted erasure has noted is about to be deleted
        unlisted = unlisted.difference(*(await _unfinished(client, engine, kind)).values())
    await _check_unlisted(client, engine, unlisted)
    messages = await engine.run(partial(count_messages, runs=connected))
    if not dry:
        acts = _Acts(client.namespace, named, {root: [each.run_id for each in roots[root]] for root in roots})
        begin = partial(_begin, acts=acts, runs=connected)
        end = partial(forget_erasure, namespace=client.namespace, named=named)
        if not await forget(engine, client.namespace, connected, first=begin):
            await engine.run_in_transaction(lambda connection: append(connection, acts.entries(connected, "failure")))
            if not more:  # else an earlier erasure has noted them, too
                await engine.run_in_transaction(end)
            raise UsageError("a query has continued the conversation meanwhile: nothing was erased")
        await delete_runs(engine, connected)
        alone = [root for root in roots if root not in shared]
        if left := await delete_long_values(engine, client, alone, runs):
            raise UsageError(
                f"the rows were erased, but not all long values: some of {_listed(left)} were stored meanwhile, or by "
                "an older release with a clock that is ahead: erase again"
            )
        prefixes = tuple(f"{root}/" for root in alone)
        objects = [(each.type, each.workflow_id) for each in tree if f"{each.workflow_id}/".startswith(prefixes)]
        await delete_from_bucket(environ, client.namespace, objects)
        await engine.run(partial(remove_traces, dialect=engine.dialect))
        for root in alone:
            await delete_pushes(client, root)
        await _delete_executions(client, tree)
        await engine.run_in_transaction(end)
        await engine.run(partial(remove_traces, dialect=engine.dialect))
    has_bucket = bool(environ.get(EXTERNAL_STORAGE_URL))
    may_remain = has_bucket or await engine.run(partial(has_values, namespace=client.namespace))
    return Erased(
        runs=[*roots],
        executions=len(tree),
        messages=messages,
        without_values=len(connected - runs) if may_remain else 0,
    )


async def _closed_tree(client: Client, roots: Mapping[str, Sequence[WorkflowExecution]]) -> list[RunExecution]:
    """All executions of runs and of their descendants, each before its descendants. Raises UsageError for open ones."""
    tree = await _tree_of(client, roots)
    if open_runs := [each for each in tree if each.is_open and each.type not in INTERNAL]:
        first = open_runs[0].workflow_id
        run_id = next((root for root in roots if f"{first}/".startswith(f"{root}/")), first)
        raise UsageError(f"the run {run_id} has not ended: end it first, with baton cancel {run_id}")
    return tree


async def _tree_of(client: Client, roots: Mapping[str, Sequence[WorkflowExecution]]) -> list[RunExecution]:
    """All executions of runs and of their descendants, each before its descendants."""
    tree: dict[tuple[str, str], RunExecution] = {}
    for run_id, executions in roots.items():
        for execution in executions:
            if (run_id, execution.run_id) not in tree:
                for each in await run_tree(client, run_id, execution.run_id):
                    tree[each.workflow_id, each.run_id] = each
    return [*tree.values()]


async def _shared_ids(
    client: Client, roots: Mapping[str, Sequence[WorkflowExecution]], tree: Sequence[RunExecution]
) -> set[str]:
    """The ids of ``roots`` that other executions have than those of a ``tree``.

    Raises UsageError if one of those is open, as it may be about to retry a run, or is a reset run: it reads the rows
    of the one before, even if it has none of its own.
    """
    runs = {execution.run_id for execution in tree}
    first_runs = {execution.first_run_id for execution in tree}
    shared = set[str]()
    for root in roots:
        for other in await _with_id(client, root):
            if other.run_id in runs:
                continue
            shared.add(root)
            is_open = other.status is WorkflowExecutionStatus.RUNNING and other.workflow_type in OWN_WORKFLOWS
            is_reset = isinstance(other, WorkflowExecutionDescription) and other.raw_info.first_run_id in first_runs
            if is_open or is_reset:
                raise UsageError(
                    f"nothing was erased: a later run with the id {root} may need it: erase both, with "
                    f"baton delete {root}"
                )
    return shared


async def _check_others(client: Client, others: Collection[str]) -> None:
    """Raises UsageError if Temporal has other runs of the conversations: those would miss what they continue."""
    if ids := await _roots_of(client, others):
        raise UsageError(
            f"nothing was erased: other runs share a conversation with what you named: {_listed(ids)}. Name these, "
            "too, or erase the whole conversation with --conversation"
        )


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MAX_NAMED} others" if len(ids) > MAX_NAMED else ""
    return ", ".join(ids[:MAX_NAMED]) + more


async def _check_unlisted(client: Client, engine: Engine, others: Collection[str]) -> None:
    """Raises UsageError for a run that Temporal does not list, but may soon: it could be open."""
    since = await engine.run(database_now) - LISTED_WITHIN
    for run in sorted(others):
        begun = start_time(run)
        if begun and begun >= since and await _execution(client, run) is None:
            raise UsageError(
                f"nothing was erased: the run {run} of the same conversation began less than a minute ago, and "
                "Temporal may not list it yet: try again in a minute"
            )


@dataclass(frozen=True)
class _Acts:
    """What the audit log has of an erasure in a Temporal ``namespace``: what was ``named``, and the runs.

    ``executions``: the run ids of the executions that Temporal has, by the ids of the runs. A named run is one of them.
    """

    namespace: str
    named: Sequence[Named]
    executions: Mapping[str, Sequence[str]]

    def entries(self, runs: set[str], outcome: Literal["success", "failure"] = "success") -> Iterator[AuditEntry]:
        """The entries of an erasure of ``runs``, of which Temporal may have forgotten some, or all."""
        actor = Actor(client_identity(), "journal")
        failed = [outcome] if outcome == "failure" else []
        for each in self.named:
            if each.kind != "run":
                yield AuditEntry.by(actor, [*sorted(runs), *failed], "delete", each, outcome=outcome)
        for run, executions in self.executions.items():
            if not runs.isdisjoint(executions):
                key = ("run", self.namespace, run)
                yield AuditEntry.by(actor, [*executions, *failed], "delete", key, outcome=outcome)


def _begin(connection: Connection, acts: _Acts, runs: set[str]) -> None:
    """Notes the erasure, in the audit log as well: one that is interrupted, and finished by nobody, has deleted
    something. One that goes on is in the log already."""
    noted = note_erasure(connection, acts.namespace, acts.named, runs)
    new = set[str]().union(*noted.values()) if acts.named else {*runs}
    if new:
        append(connection, acts.entries(new))


async def _delete_executions(client: Client, tree: Sequence[RunExecution]) -> None:
    """Deletes executions, and waits until Temporal has carried it out. Raises UsageError if it takes too long."""
    for execution in reversed(tree):
        await delete_execution(client, execution.workflow_id, execution.run_id)
    try:
        async with asyncio.timeout(DELETION_SECONDS):
            for execution in tree:
                while await _exists(client, execution):
                    await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise UsageError("Temporal has accepted the deletion, but not carried it out yet: erase again later") from None


async def _executions_of(client: Client, workflow_id: str) -> list[WorkflowExecution]:
    """All executions of a run: the latest one, and earlier ones such as those that were retried."""
    executions = await _with_id(client, workflow_id)
    if executions and executions[0].workflow_type not in OWN_WORKFLOWS:
        raise UsageError(f"{workflow_id} is a workflow of another application: erase the runs that it has started")
    return [execution for execution in executions if execution.workflow_type in OWN_WORKFLOWS]


async def _with_id(client: Client, workflow_id: str) -> list[WorkflowExecution]:
    """All executions with a workflow id, the latest one first: the server's list may lack it for a moment."""
    try:
        latest = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise
        return []
    listed = [execution async for execution in client.list_workflows(f"WorkflowId = {quoted(workflow_id)}")]
    return [latest, *(execution for execution in listed if execution.run_id != latest.run_id)]


async def _execution(client: Client, run_id: str) -> WorkflowExecution | None:
    """The execution with a run id; None if Temporal has none."""
    async for execution in client.list_workflows(f"RunId = '{run_id}'", limit=1):
        return execution
    return None


async def _roots_of(client: Client, runs: Iterable[str]) -> Sequence[str]:
    """The ids of the root runs to which executions belong, by run ids, as far as Temporal has them."""
    roots: dict[str, None] = {}
    for run in sorted(runs):
        if execution := await _execution(client, run):
            roots[await _root_of(client, execution)] = None
    return [*roots]


async def _root_of(client: Client, execution: WorkflowExecution) -> str:
    """The id of the root run of Baton to which an execution belongs."""
    while execution.parent_id and execution.parent_run_id:
        parent = await _execution(client, execution.parent_run_id)
        if parent is None or parent.workflow_type not in OWN_WORKFLOWS:
            break
        execution = parent
    return execution.id


async def _exists(client: Client, execution: RunExecution) -> bool:
    try:
        await client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True
