"""The commands of the store of manifests: apply, diff, get, history, quotas, delete."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..errors import UsageError
from . import completion
from .evaluation import show_difference
from .exit_codes import REFUSED, CommandEndError
from .formats import TABLES, ListOutput, parse_selector
from .options import Files, Gateway, Output, OutputFormat, Recursive
from .terminal import print_line, print_message, print_result

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from pydantic import JsonValue
    from temporalio.client import Client

    from ...resources.stored import Key, StoredManifest
    from ..operations.manifests import Store

T = TypeVar("T")

app = typer.Typer()


Kind = Annotated[
    str,
    typer.Argument(
        metavar="KIND", help="A kind, such as team or agents, or all.", autocompletion=completion.complete_kinds
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="The resources' names.", autocompletion=completion.complete_names),
]
Namespace = Annotated[str | None, typer.Option("-n", "--namespace", help="Only this namespace.")]
DefaultNamespace = Annotated[
    str | None, typer.Option("-n", "--namespace", help="The namespace of manifests that name none.")
]


@app.command()
def apply(
    file: Files,
    recursive: Recursive = False,
    namespace: DefaultNamespace = None,
    force: Annotated[
        bool, typer.Option("--force", help="Apply even if the store lacks manifests that they need.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the manifests and print what would be done, without doing it.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Delete what is not in the files but has the labels of -l or is in the namespace of -n."
        ),
    ] = False,
    labels: Annotated[
        str | None, typer.Option("-l", "--selector", help="With --prune: only these labels: KEY=VALUE,KEY.")
    ] = None,
    gateway: Gateway = None,
) -> None:
    """Create or update manifests in the store that all workers share: all of FILE, or none."""
    from ..operations.remote import RemoteGateway
    from .targets import load_manifests_of

    if prune and not (labels or namespace):
        raise UsageError("--prune needs -l or -n: it deletes only what has these labels or is in that namespace")
    if labels and not prune:
        raise UsageError("-l is for --prune")
    required = parse_selector(labels) if labels else {}
    loaded = load_manifests_of(file, namespace, recursive=recursive)

    def is_pruned(stored: "StoredManifest") -> bool:
        return prune and namespace in (None, stored.namespace) and stored.has_labels(required)

    done: Sequence[tuple[Key, str]]
    if remote := RemoteGateway.of(gateway):
        if force:
            raise UsageError("--force is not possible over a gateway")
        done = remote.apply(loaded, dry=dry_run, prunes=prune, namespace=namespace, labels=required)
    else:
        done = _with_store(lambda store: store.apply(loaded, force=force, dry=dry_run, prune=is_pruned))
    for (kind, of_namespace, name), applied in done:
        print_result(f"{kind.lower()}/{name} {applied}{' (dry run)' if dry_run else ''}")
        if kind == "Query" and not dry_run and applied not in ("unchanged", "pruned"):
            elsewhere = f" -n {of_namespace}" if of_namespace != "default" else ""
            how = f"baton run query/{name}{elsewhere}"
            print_message(f"query/{name} is stored, not run: run it with '{how}'", style="dim")


@app.command()
def diff(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[A B]", help="Two runs, by their ids or Queries.", autocompletion=completion.complete_runs
        ),
    ] = None,
    *,
    file: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", help="Instead of runs, a file or folder of manifests; repeatable."),
    ] = None,
    recursive: Recursive = False,
    namespace: DefaultNamespace = None,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="text|json|yaml|html|FILE.html", help="The output format, or a file for HTML."
        ),
    ] = "text",
    gateway: Gateway = None,
) -> None:
    """Show where two runs diverge, or with -f what 'baton apply' would change in the store.

    Two runs are shown side by side from there on: speakers, words, calls with arguments, tokens, cost and time. With -f
    the exit code is 1 if there are differences, as with kubectl diff.
    """
    from ..operations.remote import RemoteGateway
    from .stored_rows import differences, remote_differences
    from .targets import load_manifests_of

    if bool(runs) == bool(file):
        raise UsageError("pass either two runs, or -f FILE")
    if runs:
        if gateway:
            raise UsageError("--gateway is for -f: runs are compared by their histories in Temporal")
        if len(runs) != 2:
            raise UsageError(f"two runs are compared, not {len(runs)}")
        show_difference(runs[0], runs[1], namespace or "default", output)
        return
    if output != OutputFormat.text:
        raise UsageError(f"-f can't be combined with -o {output}")
    loaded = load_manifests_of(file or (), namespace, recursive=recursive)
    if remote := RemoteGateway.of(gateway):
        changes = remote_differences(remote, loaded)
    else:
        changes = _with_store(lambda store: differences(store, loaded))
    for change in changes:
        print_result(change)
    if changes:
        raise CommandEndError(REFUSED)


@app.command()
def get(
    kind: Kind,
    name: Names = None,
    *,
    namespace: Namespace = None,
    all_namespaces: Annotated[
        bool, typer.Option("-A", "--all-namespaces", help="All namespaces (the default without a name).")
    ] = False,
    labels: Annotated[
        str | None, typer.Option("-l", "--selector", help="Only manifests with these labels: KEY=VALUE,KEY.")
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Show this version instead of the newest.")
    ] = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Print changes until Ctrl-C.")] = False,
    output: ListOutput = "text",
    gateway: Gateway = None,
) -> None:
    """Show the manifests in the store and in the files of workers.

    Needs the workers' BATON_JOURNAL_URL, or a gateway.
    """
    from ..operations.remote import RemoteGateway
    from .stored_rows import Selection, print_manifests, print_remote, watch_manifests

    if all_namespaces and namespace:
        raise UsageError("-A can't be combined with -n")
    required = parse_selector(labels) if labels else {}
    selections = [
        Selection.of(kind, one, namespace, version, required, all_namespaces=all_namespaces) for one in name or (None,)
    ]
    if version and not (len(selections) == 1 and selections[0].is_single):
        raise UsageError("--version needs one name, without -A and -l, as in: baton get team NAME --version 1")
    if remote := RemoteGateway.of(gateway):
        if watch:
            raise UsageError("--watch is not possible over a gateway")
        print_remote(remote, selections, output)
    elif not watch:
        with_store_and_workers(lambda store, client: print_manifests(store, client, selections, output))
    elif output not in TABLES or version:
        raise UsageError("--watch can't be combined with --version, or with another output than text or wide")
    else:
        _with_store(lambda store: watch_manifests(store, selections, output))


@app.command()
def history(
    kind: Annotated[str, typer.Argument(metavar="KIND/NAME", autocompletion=completion.complete_kinds)],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", autocompletion=completion.complete_names)] = None,
    *,
    namespace: Namespace = None,
    shows_difference: Annotated[
        bool, typer.Option("--diff", help="Show what each version changed, as a diff of YAML.")
    ] = False,
    output: Output = OutputFormat.text,
    gateway: Gateway = None,
) -> None:
    """Show who changed a manifest in the store and when; with --diff, also what they changed."""
    from ..operations.remote import RemoteGateway
    from .stored_rows import Selection, print_versions, version_differences

    selection = Selection.of(kind, name, namespace)
    if not selection.is_single or not selection.kind:
        raise UsageError("one manifest has a history: baton history KIND/NAME")
    key = selection.key
    if remote := RemoteGateway.of(gateway):
        versions = remote.versions(key)
        if shows_difference:
            versions = [
                version
                if version.is_deleted or version.problem
                else remote.manifest(key, version.version)._replace(
                    version=version.version, changed=version.changed, author=version.author
                )
                for version in versions
            ]
    else:
        versions = _with_store(lambda store: store.versions(key))
    if not versions:
        raise UsageError(f"the store has never had {'/'.join(key)}")
    if shows_difference:
        for text in version_differences(versions):
            print_result(text)
    else:
        print_versions(versions, output)


@app.command()
def quotas(output: Output = OutputFormat.text, gateway: Gateway = None) -> None:
    """Show what tenants have used of their Quotas, and what is left.

    Needs the workers' BATON_JOURNAL_URL, or a gateway, which shows your own tenant.
    """
    from datetime import UTC, datetime

    from ..operations.quotas import quota_usage
    from ..operations.remote import RemoteGateway
    from .terminal import print_rows

    if remote := RemoteGateway.of(gateway):
        reports = remote.quotas()
    else:
        reports = [usage.report for usage in with_store_and_workers(quota_usage)]
    rows: list[tuple[Sequence[str], JsonValue]] = []
    for report in reports:
        used, most, left = (f"{amount:.12g}" for amount in (report.used, report.most, report.left))
        begins = report.begins_anew
        anew = f"{datetime.fromtimestamp(begins, UTC):%Y-%m-%d %H:%M} UTC" if begins else ""
        after = f"{report.waiting_runs} runs wait" if report.waiting_runs else anew
        cells = report.quota, report.tenant, report.limit, used, most, left, after
        value: JsonValue = {**report.model_dump(mode="json", by_alias=True), "beginsAnew": anew or None}
        rows.append((cells, value))
    columns = ("QUOTA", "TENANT", "LIMIT", "USED", "OF", "LEFT", "BEGINS ANEW")
    print_rows(columns, rows, output, "no Quotas: workers limit no tenant")


@app.command()
def delete(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND|RUN]", help="A kind, such as team; or a run.", autocompletion=completion.complete_kinds
        ),
    ] = None,
    name: Names = None,
    *,
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="Delete the resources in these manifests; repeatable.")
    ] = None,
    recursive: Recursive = False,
    namespace: Namespace = None,
    force: Annotated[bool, typer.Option("--force", help="Delete even if other manifests need it.")] = False,
    conversation: Annotated[
        str | None, typer.Option("--conversation", help="Erase a conversation, with all of its runs.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            help="Erase all runs that this caller of the gateway started: NAME, or NAMESPACE/ACCOUNT/NAME.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted or erased, without doing it.")
    ] = False,
    gateway: Gateway = None,
) -> None:
    """Delete manifests from the store, or erase ended runs with all of their data.

    Open runs are not affected when manifests are deleted.
    """
    from ..operations.remote import RemoteGateway
    from .stored_rows import Selection, is_kind

    runs = [kind, *(name or ())] if kind and not is_kind(kind) else []
    if len([each for each in (runs or kind, file, conversation, user) if each]) > 1:
        raise UsageError("delete one of these at a time: manifests, runs, a conversation, or the runs of a user")
    if runs or conversation or user:
        if namespace and not conversation:
            raise UsageError("-n is for manifests and --conversation")
        _erase(runs, conversation, user, namespace, dry=dry_run)
        return
    selections = [Selection.of(kind, resource, namespace) for resource in name or (None,)] if kind else []
    if bool(file) == bool(selections) or not all(selection.kind and selection.name for selection in selections):
        raise UsageError("nothing to delete: pass KIND NAME, as in: baton delete team NAME; RUN; or -f FILE")
    keys = _keys_in(file, namespace, recursive=recursive) if file else [selection.key for selection in selections]
    if remote := RemoteGateway.of(gateway):
        if force:
            raise UsageError("--force is not possible over a gateway")
        remote.delete(keys, dry=dry_run)
    else:
        _with_store(lambda store: store.delete(keys, force=force, dry=dry_run))
    for key in keys:
        print_result(f"{key[0].lower()}/{key[2]} deleted{' (dry run)' if dry_run else ''}")


def _erase(
    runs: "Sequence[str]", conversation: str | None, user: str | None, namespace: str | None, *, dry: bool
) -> None:
    """Erases runs, a conversation of a namespace, or the runs of a user, and prints what was erased."""
    from ..operations.erase import Erased, erase_conversation, erase_runs, erase_user
    from .client import with_client

    async def erase(client: "Client") -> Erased:
        if conversation:
            return await erase_conversation(client, conversation, dry=dry, namespace=namespace)
        if user:
            return await erase_user(client, user, dry=dry)
        return await erase_runs(client, runs, dry=dry)

    erased = with_client(erase)
    for run in erased.runs:
        print_line(f"{run} {'would be erased' if dry else 'erased'}")
    counts = f"{erased.messages:,} messages in the journal and {erased.executions:,} executions in Temporal"
    print_message(f"{'Would erase' if dry else 'Erased'} {counts}.")
    if erased.without_values:
        print_message(
            f"Temporal has forgotten {erased.without_values:,} of the runs, or an interrupted erasure has erased them "
            "there: long values that they have stored may remain until baton prune deletes them from the journal, and "
            "a lifecycle rule from the bucket."
        )


def _keys_in(files: "Sequence[Path]", namespace: str | None, *, recursive: bool) -> "list[Key]":
    """The keys of the storable manifests in files."""
    from ...resources.stored import STORABLE, key_of
    from .targets import load_manifests_of

    loaded = load_manifests_of(files, namespace, recursive=recursive)
    return [key_of(manifest) for manifest in loaded.manifests if manifest.kind in STORABLE]


def _with_store(work: "Callable[[Store], Coroutine[Any, Any, T]]") -> T:
    """The result of work with the store. Raises UsageError for errors of the store."""
    import asyncio

    return asyncio.run(_in_store(lambda store, _: work(store), None))


def with_store_and_workers(work: "Callable[[Store, Client | None], Coroutine[Any, Any, T]]") -> T:
    """The same, with a client; without one, and with a note, if the configured Temporal server can't be reached."""
    import asyncio

    from ...temporal.client import ConnectionFailed
    from .client import with_running_server

    try:
        return with_running_server(lambda client: _in_store(work, client))
    except ConnectionFailed as error:
        print_message(f"note: the files of workers are not shown: {error}")
        return asyncio.run(_in_store(work, None))


async def _in_store(work: "Callable[[Store, Client | None], Coroutine[Any, Any, T]]", client: "Client | None") -> T:
    from ..operations.manifests import StoreError, open_store

    try:
        async with open_store() as store:
            return await work(store, client)
    except StoreError as error:
        raise UsageError(str(error)) from None
