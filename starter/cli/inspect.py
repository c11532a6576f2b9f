"""How are runs looked at? The commands that list them, and tell how one stands and what is said in it."""

import asyncio
import json
from typing import Annotated

import typer
from rich.console import Console
from temporalio.client import Client

from ...conversation.messages.panel import as_lines
from ..console.printer import tell_end
from ..console.table import tell_table
from ..console.watch import Watch
from ..history import turn_tasks
from ..history.events import Event, Recorder
from ..history.follow import follow
from ..history.run_events import Happening
from ..journal.contributions import shared
from ..runs import runs
from ..runs.list_runs import COLUMNS, listed
from ..server.connection import Place
from .run import dumped
from .targets import UsageError
from .terminal import Form, Output, at_temporal, err, show

app = typer.Typer()

Namespace = Annotated[str, typer.Option("-n", "--namespace", help="The namespace of what is named.")]
RunName = Annotated[str, typer.Argument(metavar="NAME|ID", help="The id of a run, or a Query's name: its newest run.")]


@app.command("list")
def list_runs(
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Only of Queries in it.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many.")] = 20,
    output: Output = Form.text,
) -> None:
    """Lists the newest runs."""
    found = at_temporal(lambda client, _place: listed(client, namespace, limit))
    if output is Form.text:
        tell_table(Console(highlight=False), COLUMNS, [run.row for run in found], "there is no run")
    else:
        show(dumped([run.value for run in found], output))


@app.command()
def status(name: RunName, namespace: Namespace = "default", output: Output = Form.yaml) -> None:
    """Shows how a run stands, or how it has ended."""

    async def stand(client: Client, _place: Place) -> str:
        handle = await runs.find_run(client, name, namespace)
        current = await runs.status_of(handle)
        if output is Form.text:
            tell_end(err, handle.id, current)
            return current.message
        return dumped(await runs.described(client, handle, current), output)

    show(at_temporal(stand))


@app.command()
def watch(name: RunName, namespace: Namespace = "default") -> None:
    """Follows a run from its beginning, also one that is over."""

    async def look(client: Client, _place: Place) -> None:
        handle = await runs.find_run(client, name, namespace)
        watch = Watch(client, err)
        async with watch.shown():
            await follow(client, handle, watch.tell)
        tell_end(err, handle.id, watch.board.tallies[handle.id].status)

    at_temporal(look)


@app.command()
def transcript(name: RunName, namespace: Namespace = "default") -> None:
    """Shows what has been said in a run until now."""

    async def look(client: Client, _place: Place) -> None:
        handle = await runs.find_run(client, name, namespace)
        watch = Watch(client, Console(highlight=False))
        await follow(client, handle, watch.tell, wait=False)
        await watch.tell_unfinished()
        tell_end(err, handle.id, watch.board.tallies[handle.id].status)

    at_temporal(look)


@app.command()
def events(
    name: RunName,
    namespace: Namespace = "default",
    output: Output = Form.text,
    wait: Annotated[bool, typer.Option("-F", "--follow", help="Also those to come, until the run is over.")] = False,
) -> None:
    """Shows the events of a run, each with its time."""
    recorder = Recorder()

    def tell(happening: Happening) -> None:
        for event in recorder.record(happening):
            show(_written(event, output))

    async def look(client: Client, _place: Place) -> None:
        await follow(client, await runs.find_run(client, name, namespace), tell, wait=wait)

    at_temporal(look)


def _written(event: Event, form: Form) -> str:
    if form is Form.text:
        return event.line
    return f"---\n{dumped(event.value, form)}" if form is Form.yaml else json.dumps(event.value, ensure_ascii=False)


@app.command()
def tasks(
    name: RunName,
    namespace: Namespace = "default",
    status: Annotated[turn_tasks.State | None, typer.Option("--status", help="Only those of this status.")] = None,
    output: Output = Form.text,
) -> None:
    """Lists who has taken a turn in the panels and debates of a run, when, and what came of it."""

    async def look(client: Client, _place: Place) -> list[turn_tasks.Task]:
        return await turn_tasks.audited(client, await runs.find_run(client, name, namespace))

    found = [task for task in at_temporal(look) if status in (None, task.status)]
    if output is Form.text:
        none = "no member of a panel has taken a turn in it"
        tell_table(Console(highlight=False), turn_tasks.COLUMNS, [task.row for task in found], none)
    else:
        show(dumped([task.value for task in found], output))


@app.command()
def contributions(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|ID]", help="The run in which it was said.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="The session, if it is no run's own.")] = None,
    key: Annotated[str, typer.Option("--key", help="The key under which the panel shares them.")] = "contributions",
    namespace: Namespace = "default",
    output: Output = Form.text,
) -> None:
    """Shows what was said in a panel that shares its contributions. It reads the journal, as a worker does."""
    if (name is None) == (session is None):
        raise UsageError("name a run, or a --session")

    async def run_id(client: Client, _place: Place) -> str:
        return (await runs.find_run(client, name or "", namespace)).id

    found = asyncio.run(shared(session or at_temporal(run_id), key))
    values = [json.loads(each.model_dump_json(exclude_none=True)) for each in found]
    show(as_lines(found) if output is Form.text else dumped(values, output))
