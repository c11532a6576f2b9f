"""Commands that show runs: list, status, watch, transcript, events, tasks, contributions."""

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import UsageError
from .exit_codes import FAILED, CommandEndError
from .options import Namespace, Output, OutputFormat, QueryFormat, QueryOutput, RunName
from .terminal import print_result, print_rows, stderr_console

if TYPE_CHECKING:
    from temporalio.client import Client

    from ..history.run_events import RunEvent
    from ..runs.runs import RunHandle

app = typer.Typer()


@app.command("list")
def list_runs(
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Only Queries of this namespace.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The number of runs.")] = 20,
    output: Output = OutputFormat.text,
) -> None:
    """Lists the newest runs."""
    from ..runs.runs import COLUMNS, recent_runs
    from .client import with_client

    found = with_client(lambda client: recent_runs(client, namespace, limit))
    print_rows(COLUMNS, [(run.row, run.value) for run in found], output, "there is no run")


@app.command()
def status(name: RunName, namespace: Namespace = "default", output: QueryOutput = QueryFormat.text) -> None:
    """Shows in a few lines how a run is, with its answer so far; with -o yaml its whole status."""
    from ..console.status import print_status
    from ..console.watch import print_open_calls
    from ..runs.runs import live_status
    from ..runs.start import run_manifest
    from .client import with_run
    from .execute import printed

    async def read(client: "Client", handle: "RunHandle") -> str:
        current = await live_status(client, handle)
        if output is QueryFormat.text:
            print_status(stderr_console(), handle.id, current)
            if current.is_open:
                await print_open_calls(client, handle, stderr_console())
            return current.message
        return printed([await run_manifest(client, handle, current)], output)

    print_result(with_run(name, namespace, read))


@app.command()
def watch(name: RunName, namespace: Namespace = "default") -> None:
    """Follows a run from its beginning to its end; also shows a run that is over. Ends as ``baton run`` does."""
    from ..console.status import print_status
    from ..console.watch import Watch
    from ..history.follow import follow
    from .client import with_run

    async def show(client: "Client", handle: "RunHandle") -> bool:
        watch = Watch(client, stderr_console())
        async with watch.live_view():
            await follow(client, handle, watch.on_event)
        status = watch.state.runs[handle.id].status
        print_status(stderr_console(), handle.id, status)
        return status.phase == "Completed"

    if not with_run(name, namespace, show):
        raise CommandEndError(FAILED)


@app.command()
def transcript(name: RunName, namespace: Namespace = "default") -> None:
    """Prints the messages of a run until now."""
    from rich.console import Console

    from ..console.status import print_status
    from ..console.watch import Watch
    from ..history.follow import follow
    from .client import with_run

    async def show(client: "Client", handle: "RunHandle") -> None:
        watch = Watch(client, Console(highlight=False))
        await follow(client, handle, watch.on_event, wait=False)
        await watch.print_unfinished()
        print_status(stderr_console(), handle.id, watch.state.runs[handle.id].status)

    with_run(name, namespace, show)


@app.command()
def events(
    name: RunName,
    namespace: Namespace = "default",
    output: Output = OutputFormat.text,
    wait: Annotated[bool, typer.Option("-F", "--follow", help="Also new events, until the run is over.")] = False,
) -> None:
    """Prints the events of a run, each with its time."""
    from ..history.events import Event, EventRecorder
    from ..history.follow import follow
    from .client import with_run
    from .formats import dump

    recorder = EventRecorder()

    def write(event: Event) -> str:
        match output:
            case OutputFormat.text:
                return event.line
            case OutputFormat.yaml:
                return f"---\n{dump(event.value, output)}"
        return json.dumps(event.value, ensure_ascii=False)

    def show(run_event: "RunEvent") -> None:
        for event in recorder.record(run_event):
            print_result(write(event))

    with_run(name, namespace, lambda client, handle: follow(client, handle, show, wait=wait))


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
    """Lists the turns of the members in a run's panels and debates, with their times and results."""
    from ..history.tasks import COLUMNS, list_tasks
    from .client import with_run

    found = [task for task in with_run(name, namespace, list_tasks) if status in (None, task.status)]
    none = "no member of a panel has taken a turn in it"
    print_rows(COLUMNS, [(task.row, task.value) for task in found], output, none)


@app.command()
def contributions(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|ID]", help="The run of the panel.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="The session, if it is not a run's own.")] = None,
    key: Annotated[str, typer.Option("--key", help="The key under which the panel shares them.")] = "contributions",
    namespace: Namespace = "default",
    output: Output = OutputFormat.text,
) -> None:
    """Prints the contributions to a panel that shares them. Reads the journal, as a worker does."""
    import asyncio

    from ...contracts.panel import format_transcript
    from ..operations.conversations import read_contributions
    from .client import with_run
    from .formats import dump

    if (name is None) == (session is None):
        raise UsageError("name a run, or a --session")

    async def run_id(_client: "Client", handle: "RunHandle") -> str:
        return handle.id

    found = asyncio.run(read_contributions(session or with_run(name or "", namespace, run_id), key))
    values = [json.loads(each.model_dump_json(exclude_none=True)) for each in found]
    print_result(format_transcript(found) if output is OutputFormat.text else dump(values, output))
