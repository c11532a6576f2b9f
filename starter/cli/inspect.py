"""Commands that show runs: list, status, watch, transcript, events, tasks, contributions."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import UsageError
from .exit_codes import FAILED, CommandEndError
from .formats import TABLES, ListedItem, ListOutput, print_items
from .options import Namespace, Output, OutputFormat, QueryFormat, QueryOutput, RunName
from .terminal import dump, print_line, print_result, print_rows, stderr_console, write_file

if TYPE_CHECKING:
    from temporalio.client import Client

    from ...resources.catalog import Catalog
    from ..history.run_events import RunEvent
    from ..runs.runs import RunHandle

app = typer.Typer()


@app.command("list")
def list_runs(
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="Only runs of Queries in this namespace.")
    ] = None,
    *,
    all_namespaces: Annotated[
        bool, typer.Option("-A", "--all-namespaces", help="Runs of all namespaces (the default).")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The maximum number of runs.")] = 20,
    forks: Annotated[
        str | None, typer.Option("--forks", metavar="ID", help="Only forks of the run with this id.")
    ] = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Print changes until Ctrl-C.")] = False,
    output: ListOutput = "text",
) -> None:
    """List the newest runs; -o wide adds their Queries and namespaces."""
    import asyncio

    from ..runs.listing import COLUMNS, WIDE_COLUMNS, ListedRun, recent_runs
    from .client import with_client

    if all_namespaces and namespace:
        raise UsageError("-A can't be combined with -n")
    if watch and output not in TABLES:
        raise UsageError(f"--watch can't be combined with -o {output}")
    columns = WIDE_COLUMNS if output == "wide" else COLUMNS

    def listed(run: ListedRun) -> ListedItem:
        cells = run.wide_row if output == "wide" else run.row
        return ListedItem(cells, None if output in TABLES else run.value, run.id)

    async def show(client: "Client") -> None:
        items = [listed(run) for run in await recent_runs(client, namespace, limit, forked_from=forks)]
        print_items(columns, items, output, "No runs found.", [item.value for item in items])
        widths = [max(map(len, column)) for column in zip(columns, *(item.cells for item in items), strict=True)]
        states = {item.name: item.cells[STATE] for item in items}
        while watch:
            await asyncio.sleep(WATCH_INTERVAL)
            for run in reversed(await recent_runs(client, namespace, limit, forked_from=forks)):
                item = listed(run)
                if states.get(item.name) != item.cells[STATE]:
                    states[item.name] = item.cells[STATE]
                    cells = zip(item.cells, widths, strict=True)
                    print_line("  ".join(cell.ljust(width) for cell, width in cells).rstrip())

    with_client(show, typed=False)


STATE = 2
"""The index of a run's state in its row."""

WATCH_INTERVAL = 1.0
"""Seconds between two requests for the newest runs."""


@app.command()
def status(name: RunName, namespace: Namespace = "default", output: QueryOutput = QueryFormat.text) -> None:
    """Show a run's status and latest answer; -o yaml shows the complete status."""
    from ..console.status import print_decisions, print_status
    from ..console.watch import print_open_calls
    from ..history.status import current_status
    from ..runs.decisions import pending_decisions
    from ..runs.listing import reset_time
    from ..runs.start import run_manifest
    from .client import with_run
    from .execute import printed

    async def read(client: "Client", handle: "RunHandle") -> str:
        current = await current_status(client, handle)
        if output is QueryFormat.text:
            print_status(stderr_console(), handle.id, current, await reset_time(client, handle))
            if current.phase == "InputRequired":
                pending = await pending_decisions(client, handle.id, handle.run_id)
                print_decisions(stderr_console(), [(handle.id, decision) for decision in pending])
            if current.is_open:
                await print_open_calls(client, handle, stderr_console())
            return current.said
        return printed([await run_manifest(client, handle, current)], output)

    print_result(with_run(name, namespace, read))


@app.command()
def watch(name: RunName, namespace: Namespace = "default") -> None:
    """Follow a run from its start to its end, or replay one that has ended.

    Exits with 0 if it completed, with 2 if it failed or was canceled, and with 3 if Temporal can't be reached.
    """
    from ..console.status import print_status
    from ..console.watch import Watch
    from ..runs.listing import reset_time
    from .client import with_run

    async def show(client: "Client", handle: "RunHandle") -> bool:
        watch = Watch(client, stderr_console())
        async with watch.live_view():
            await watch.follow(handle)
        status = watch.state.runs[handle.id].status
        print_status(stderr_console(), handle.id, status, await reset_time(client, handle))
        return status.phase == "Completed"

    if not with_run(name, namespace, show):
        raise CommandEndError(FAILED)


@app.command()
def transcript(name: RunName, namespace: Namespace = "default") -> None:
    """Print the messages of a run so far."""
    from rich.console import Console

    from ..console.status import print_status
    from ..console.watch import Watch
    from ..runs.listing import reset_time
    from .client import with_run

    async def show(client: "Client", handle: "RunHandle") -> None:
        watch = Watch(client, Console(highlight=False))
        await watch.follow(handle, wait=False)
        watch.print_unfinished()
        status = watch.state.runs[handle.id].status
        print_status(stderr_console(), handle.id, status, await reset_time(client, handle))

    with_run(name, namespace, show)


@app.command()
def report(
    name: RunName,
    namespace: Namespace = "default",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file, or - for stdout. Default: ID.html in this folder.")
    ] = None,
) -> None:
    """Write what a run has done so far to one HTML file, to send to somebody; it can be read offline."""
    from ..report.html import html_of
    from ..report.report import read_report
    from .client import with_run

    async def write(client: "Client", handle: "RunHandle") -> tuple[str, str]:
        return handle.id, html_of(await read_report(client, handle, await _manifests_of_workers(client)))

    run_id, text = with_run(name, namespace, write)
    if output == Path("-"):
        print_result(text.rstrip("\n"))
        return
    write_file(output or Path(f"{run_id.replace('/', '-')}.html"), text)


async def _manifests_of_workers(client: "Client") -> "Catalog | None":
    """The manifests of workers, if this process can read their journal."""
    from ...contracts.errors import JournalUnavailable

    try:
        from ..operations.manifests import manifests_of_workers

        return (await manifests_of_workers(client)).catalog
    except (JournalUnavailable, ImportError):  # without the extra `worker` there is no journal
        return None


class EventFormat(StrEnum):
    """The output formats of events."""

    text = "text"
    json = "json"
    yaml = "yaml"
    ark = "ark"
    ark_json = "ark-json"


@app.command()
@app.command("logs", help="The same as 'baton events'.")
def events(
    name: RunName,
    namespace: Namespace = "default",
    output: Annotated[
        EventFormat, typer.Option("-o", "--output", help="The output format; ark uses the names of ARK's events.")
    ] = EventFormat.text,
    wait: Annotated[bool, typer.Option("-f", "-F", "--follow", help="Print new events until the run ends.")] = False,
    after: Annotated[str | None, typer.Option("--after", help="Only events after the one with this cursor.")] = None,
) -> None:
    """Print the events of a run with their times."""
    from .client import with_run

    if output in (EventFormat.ark, EventFormat.ark_json):
        if after:
            raise UsageError(f"--after can't be combined with -o {output}")
        with_run(name, namespace, lambda client, handle: _print_ark_events(client, handle, output, wait=wait))
    else:
        with_run(name, namespace, lambda client, handle: _print_events(client, handle, output, after, wait=wait))


async def _print_events(
    client: "Client", handle: "RunHandle", output: EventFormat, after: str | None, *, wait: bool
) -> None:
    from ..history.follow import CursorError
    from ..history.stream import stream_events

    try:
        async for event in stream_events(client, handle, after, wait=wait, live=wait):
            value = event.model_dump(mode="json")
            match output:
                case EventFormat.text:
                    print_line(event.line)
                case EventFormat.yaml:
                    print_result(f"---\n{dump(value, output)}")
                case _:
                    print_result(json.dumps(value, ensure_ascii=False))
    except CursorError as error:
        raise UsageError(str(error)) from None


async def _print_ark_events(client: "Client", handle: "RunHandle", output: EventFormat, *, wait: bool) -> None:
    from ..history.ark_events import EventRecorder
    from ..history.follow import follow

    recorder = EventRecorder()

    def show(run_event: "RunEvent") -> None:
        for event in recorder.record(run_event):
            if output is EventFormat.ark:
                print_line(event.line)
            else:
                print_result(json.dumps(event.value, ensure_ascii=False))

    await follow(client, handle, show, wait=wait)


@app.command()
def tasks(
    name: RunName,
    namespace: Namespace = "default",
    status: Annotated[
        Literal["in_progress", "completed", "errored", "cancelled"] | None,
        typer.Option("--status", help="Only tasks with this status."),
    ] = None,
    output: Output = OutputFormat.text,
) -> None:
    """List the members' turns in a run's panels and debates, with times and results."""
    from ..history.tasks import COLUMNS, list_tasks
    from .client import with_run

    selected = [task for task in with_run(name, namespace, list_tasks) if status in (None, task.status)]
    print_rows(COLUMNS, [(task.row, task.value) for task in selected], output, "No tasks found.")


@app.command()
def contributions(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|ID]", help="The run of the panel.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="The session, instead of a run.")] = None,
    key: Annotated[str, typer.Option("--key", help="The key of the contributions in the session.")] = "contributions",
    namespace: Namespace = "default",
    output: Output = OutputFormat.text,
) -> None:
    """Print the contributions that a panel shares. Needs the workers' BATON_JOURNAL_URL."""
    import asyncio

    from ...contracts.panel import format_transcript
    from ..operations.conversations import read_contributions
    from ..server.connection import temporal_namespace
    from .client import with_run

    if (name is None) == (session is None):
        raise UsageError("pass either a run or --session")

    async def run_id(_client: "Client", handle: "RunHandle") -> str:
        return handle.id

    of_session = session or with_run(name or "", namespace, run_id)
    shared = asyncio.run(read_contributions(temporal_namespace(), of_session, key))
    if output is OutputFormat.text:
        print_result(format_transcript(shared))
    else:
        print_result(dump([json.loads(item.model_dump_json(exclude_none=True)) for item in shared], output))
