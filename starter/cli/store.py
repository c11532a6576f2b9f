"""The commands of the store of manifests: apply, diff, get, delete."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..errors import UsageError
from . import completion
from .exit_codes import REFUSED, CommandEndError
from .formats import TABLES, ListOutput, parse_selector
from .options import Files, Recursive
from .terminal import print_message, print_result

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from temporalio.client import Client

    from ...resources.stored import Key
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
) -> None:
    """Create or update manifests in the store that all workers share: all of FILE, or none."""
    from .targets import load_manifests_of

    loaded = load_manifests_of(file, namespace, recursive=recursive)
    for manifest, applied in _with_store(lambda store: store.apply(loaded, force=force, dry=dry_run)):
        print_result(f"{manifest.kind.lower()}/{manifest.name} {applied}{' (dry run)' if dry_run else ''}")
        if manifest.kind == "Query" and not dry_run and applied != "unchanged":
            elsewhere = f" -n {manifest.namespace}" if manifest.namespace != "default" else ""
            how = f"baton run query/{manifest.name}{elsewhere}"
            print_message(f"query/{manifest.name} is stored, not run: run it with '{how}'", style="dim")


@app.command()
def diff(
    file: Files,
    recursive: Recursive = False,
    namespace: DefaultNamespace = None,
) -> None:
    """Show what 'baton apply' would change in the store; exits with 1 if there are differences, as kubectl does."""
    from .stored_rows import differences
    from .targets import load_manifests_of

    loaded = load_manifests_of(file, namespace, recursive=recursive)
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
        bool, typer.Option("-A", "--all-namespaces", help="All namespaces, as by default without a name.")
    ] = False,
    labels: Annotated[
        str | None, typer.Option("-l", "--selector", help="Only manifests with these labels: KEY=VALUE,KEY.")
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Show this version instead of the newest.")
    ] = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Print changes until Ctrl-C.")] = False,
    output: ListOutput = "text",
) -> None:
    """Show the manifests in the store and in the files of workers. Needs the workers' BATON_JOURNAL_URL."""
    from .stored_rows import Selection, print_manifests, watch_manifests

    if all_namespaces and namespace:
        raise UsageError("-A can't be combined with -n")
    required = parse_selector(labels) if labels else {}
    selections = [
        Selection.of(kind, one, namespace, version, required, all_namespaces=all_namespaces) for one in name or (None,)
    ]
    if version and not (len(selections) == 1 and selections[0].is_single):
        raise UsageError("--version needs one name, without -A and -l, as in: baton get team NAME --version 1")
    if not watch:
        with_store_and_workers(lambda store, client: print_manifests(store, client, selections, output))
    elif output not in TABLES or version:
        raise UsageError("--watch can't be combined with --version, or with another output than text or wide")
    else:
        _with_store(lambda store: watch_manifests(store, selections, output))


@app.command()
def delete(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[KIND]", help="A kind, such as team.", autocompletion=completion.complete_kinds),
    ] = None,
    name: Names = None,
    *,
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="Delete the resources in these manifests; repeatable.")
    ] = None,
    recursive: Recursive = False,
    namespace: Namespace = None,
    force: Annotated[bool, typer.Option("--force", help="Delete even if other manifests need it.")] = False,
) -> None:
    """Delete manifests from the store; open runs are not affected."""
    from .stored_rows import Selection

    selections = [Selection.of(kind, resource, namespace) for resource in name or (None,)] if kind else []
    if bool(file) == bool(selections) or not all(selection.kind and selection.name for selection in selections):
        raise UsageError("nothing to delete: pass KIND NAME, as in: baton delete team NAME, or -f FILE")
    keys = _keys_in(file, namespace, recursive=recursive) if file else [selection.key for selection in selections]
    _with_store(lambda store: store.delete(keys, force=force))
    for key in keys:
        print_result(f"{key[0].lower()}/{key[2]} deleted")


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
