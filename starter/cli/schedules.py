"""The commands ``schedules``: list, apply, pause, unpause, trigger and delete the schedules of queries."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..account import account_name
from ..errors import UsageError
from .options import Files, Output, OutputFormat, Recursive
from .terminal import print_message, print_result, print_rows

if TYPE_CHECKING:
    from temporalio.client import Client, ScheduleHandle

    from ...resources.loader import Loaded
    from ...resources.schedule import Schedule
    from ..server.connection import ServerLocation

T = TypeVar("T")

app = typer.Typer()
schedules = typer.Typer(
    no_args_is_help=True, help="Schedules, which start queries: list, apply, pause, unpause, trigger, delete."
)
app.add_typer(schedules, name="schedules")

ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="The schedule's namespace.")]
Note = Annotated[str | None, typer.Option("--note", help="Why; by default, who has done it.")]


@schedules.command("list")
def list_all(
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="List only this namespace.")] = None,
    output: Output = OutputFormat.text,
) -> None:
    """Lists the schedules: when they ran last, and when they run next."""
    from ..runs.schedules import COLUMNS, list_schedules
    from .client import with_client

    found = with_client(lambda client: list_schedules(client, namespace))
    print_rows(COLUMNS, [(each.row, each.value) for each in found], output, "there is no schedule")


@schedules.command()
def apply(
    file: Files,
    recursive: Recursive = False,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Apply only this namespace.")] = None,
) -> None:
    """Makes the schedules in FILE, or changes those that exist; with all that their queries need."""
    import asyncio

    from ...resources.schedule import Schedule
    from ...resources.stored import scheduled_query
    from ..server.connection import use_server, uses_remote_server
    from .client import silence_sdk
    from .store import look_into_store
    from .targets import load_manifests, refuse_secrets_of_stdin

    loaded = look_into_store(load_manifests(file, recursive=recursive))
    found = [each for each in loaded.catalog.manifests if isinstance(each, Schedule)]
    wanted = [each for each in found if namespace in (None, each.namespace)]
    if not wanted:
        raise UsageError("the files hold no Schedule to apply")
    remote = uses_remote_server()
    for each in wanted:
        scheduled_query(loaded, each, elsewhere=remote)
    if not remote:
        refuse_secrets_of_stdin(loaded)
    silence_sdk()
    with use_server(print_message, start=True) as server:
        asyncio.run(_apply_all(server, loaded, wanted))


async def _apply_all(server: "ServerLocation", loaded: "Loaded", wanted: "list[Schedule]") -> None:
    from ...resources.problems import ManifestError
    from ...resources.stored import scheduled_query
    from ..runs.runs import has_worker
    from ..runs.schedules import ScheduleError, apply_schedule

    client = await server.connect()
    for each in wanted:
        query, catalog = scheduled_query(loaded, each, elsewhere=server.state_dir is None)
        if server.state_dir:
            server.state_dir.write_sources(catalog.sha, [Path(name) for name in sorted(loaded.secret_files)])
        try:
            applied = await apply_schedule(client, each, query, catalog)
        except ScheduleError as error:
            raise ManifestError([loaded.problem(each, ("metadata", "name"), str(error))]) from None
        print_result(f"schedule/{each.name} {applied}")
        await _tell_next(client, each)
    if not await has_worker(client):
        print_message("note: no worker is running; start one with: baton worker")


async def _tell_next(client: "Client", schedule: "Schedule") -> None:
    """Says when it runs next; a person may have paused it."""
    from ..runs.schedules import describe_schedule

    found = await describe_schedule(client, schedule.namespace, schedule.name)
    state, due = found.schedule.state, found.info.next_action_times
    if state.paused:
        why = f" ({state.note})" if state.note else ""
        print_message(f"it is paused{why}; baton schedules unpause {schedule.name} lets it run", style="dim")
    else:
        print_message(f"next run: {due[0].isoformat() if due else 'never'}", style="dim")


@schedules.command()
def pause(name: ScheduleName, namespace: Namespace = "default", note: Note = None) -> None:
    """Lets a schedule start no more runs; those that are open go on."""
    text = note or f"paused by {account_name()}"
    _change(name, namespace, lambda handle: handle.pause(note=text), "paused")


@schedules.command()
def unpause(name: ScheduleName, namespace: Namespace = "default", note: Note = None) -> None:
    """Lets a paused schedule start runs again, from now on."""
    text = note or f"unpaused by {account_name()}"
    _change(name, namespace, lambda handle: handle.unpause(note=text), "unpaused")


@schedules.command()
def trigger(name: ScheduleName, namespace: Namespace = "default") -> None:
    """Starts a run now, also of a paused schedule, and prints its id."""
    from ..runs.schedules import trigger_schedule

    if run := _with_schedules(lambda client: trigger_schedule(client, namespace, name)):
        print_result(run)
    else:
        print_message(f"schedule/{name} has started no run yet, as an earlier one is open: see its overlapPolicy")


@schedules.command()
def delete(name: ScheduleName, namespace: Namespace = "default") -> None:
    """Deletes a schedule; its open runs go on."""
    _change(name, namespace, lambda handle: handle.delete(), "deleted")


def _change(
    name: str, namespace: str, action: "Callable[[ScheduleHandle], Coroutine[Any, Any, None]]", done: str
) -> None:
    """Does something to a schedule, and says so."""
    from ..runs.schedules import describe_schedule, schedule_handle

    async def change(client: "Client") -> None:
        await describe_schedule(client, namespace, name)
        await action(schedule_handle(client, namespace, name))

    _with_schedules(change)
    print_result(f"schedule/{name} {done}")


def _with_schedules(work: "Callable[[Client], Coroutine[Any, Any, T]]") -> T:
    """The result of work with a connected client. Raises UsageError if there is no such schedule."""
    from ..runs.schedules import ScheduleError
    from .client import with_client

    try:
        return with_client(work)
    except ScheduleError as error:
        raise UsageError(f"{error}; list them with: baton schedules list") from None
