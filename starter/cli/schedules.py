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
    no_args_is_help=True, help="List, apply, pause, unpause, trigger and delete schedules of queries."
)
app.add_typer(schedules, name="schedules")

ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="The schedule's namespace.")]
Note = Annotated[str | None, typer.Option("--note", help="The reason; by default, the note names your account.")]


@schedules.command("list")
def list_all(
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="List only this namespace.")] = None,
    output: Output = OutputFormat.text,
) -> None:
    """List schedules with their last and next runs."""
    from ..runs.schedules import COLUMNS, list_schedules
    from .client import with_client

    listed = with_client(lambda client: list_schedules(client, namespace))
    print_rows(COLUMNS, [(schedule.row, schedule.value) for schedule in listed], output, "No schedules found.")


@schedules.command()
def apply(
    file: Files,
    recursive: Recursive = False,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Apply only this namespace.")] = None,
) -> None:
    """Create or update the schedules in FILE, with the manifests that their queries need."""
    import asyncio

    from ...resources.schedule import Schedule
    from ..server.connection import use_server, uses_remote_server
    from .client import silence_sdk
    from .targets import load_manifests, reject_secrets_of_streams, with_manifests_of_workers

    loaded = load_manifests(file, recursive=recursive)
    if not loaded.is_self_contained:
        loaded = with_manifests_of_workers(loaded)
    in_files = [manifest for manifest in loaded.catalog.manifests if isinstance(manifest, Schedule)]
    selected = [schedule for schedule in in_files if namespace in (None, schedule.namespace)]
    if not selected:
        raise UsageError("no Schedule found in the files")
    remote = uses_remote_server()
    for schedule in selected:
        loaded.scheduled_query(schedule, elsewhere=remote)  # reports mistakes before any schedule is changed
    if not remote:
        reject_secrets_of_streams(loaded)
    silence_sdk()
    with use_server(print_message, start=True) as server:
        asyncio.run(_apply_all(server, loaded, selected))


async def _apply_all(server: "ServerLocation", loaded: "Loaded", selected: "list[Schedule]") -> None:
    from ...resources.problems import ManifestError
    from ..runs.runs import why_not_served
    from ..runs.schedules import ScheduleError, apply_schedule

    client = await server.connect()
    for schedule in selected:
        query, catalog = loaded.scheduled_query(schedule, elsewhere=server.state_dir is None)
        if server.state_dir:
            files = [Path(name) for name in sorted(loaded.secret_files)]
            server.state_dir.write_sources(catalog.sha, files)
        try:
            applied = await apply_schedule(client, schedule, query, catalog)
        except ScheduleError as error:
            raise ManifestError([loaded.problem(schedule, ("metadata", "name"), str(error))]) from None
        print_result(f"schedule/{schedule.name} {applied}")
        await _print_next_run(client, schedule)
    if reason := await why_not_served(client):
        print_message(f"note: {reason}")


async def _print_next_run(client: "Client", schedule: "Schedule") -> None:
    """Prints when it runs next, or that it is paused, which a person may have done."""
    from ..runs.schedules import describe_schedule

    description = await describe_schedule(client, schedule.namespace, schedule.name)
    state = description.schedule.state
    if state.paused:
        note = f" ({state.note})" if state.note else ""
        print_message(f"paused{note}; resume it with: baton schedules unpause {schedule.name}", style="dim")
    else:
        times = description.info.next_action_times
        print_message(f"next run: {times[0].isoformat() if times else 'never'}", style="dim")


@schedules.command()
def pause(name: ScheduleName, namespace: Namespace = "default", note: Note = None) -> None:
    """Pause a schedule; open runs continue."""
    text = note or f"paused by {account_name()}"
    _change(name, namespace, lambda handle: handle.pause(note=text), "paused")


@schedules.command()
def unpause(name: ScheduleName, namespace: Namespace = "default", note: Note = None) -> None:
    """Unpause a schedule; missed runs are not started."""
    text = note or f"unpaused by {account_name()}"
    _change(name, namespace, lambda handle: handle.unpause(note=text), "unpaused")


@schedules.command()
def trigger(name: ScheduleName, namespace: Namespace = "default") -> None:
    """Start a run now, even if the schedule is paused, and print the run's id."""
    from ..runs.schedules import trigger_schedule

    if run := _with_schedules(lambda client: trigger_schedule(client, namespace, name)):
        print_result(run)
    else:
        print_message(f"schedule/{name} did not start a run, because an earlier one is open: see its overlapPolicy")


@schedules.command()
def delete(name: ScheduleName, namespace: Namespace = "default") -> None:
    """Delete a schedule; open runs continue."""
    _change(name, namespace, lambda handle: handle.delete(), "deleted")


def _change(
    name: str, namespace: str, action: "Callable[[ScheduleHandle], Coroutine[Any, Any, None]]", done: str
) -> None:
    """Applies an action to an existing schedule, and prints what was done."""
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
