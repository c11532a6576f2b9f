"""The command ``describe``, which shows a manifest or a run in readable text, as kubectl does."""

from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..text import field_lines
from . import completion
from .options import Gateway

if TYPE_CHECKING:
    from temporalio.client import Client

    from ..history.events import Event
    from ..runs.runs import RunHandle

app = typer.Typer()

RUN_WORDS = ("run", "runs")

RECENT_EVENTS = 10
"""The number of a run's newest events that are shown."""


@app.command()
def describe(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND/NAME|RUN",
            help="A manifest, such as team/NAME, or a run: its id, or run/NAME.",
            autocompletion=completion.complete_described,
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="The names, after a KIND.", autocompletion=completion.complete_names),
    ] = None,
    *,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="The namespace of the manifest, or of the run's Query.")
    ] = "default",
    gateway: Gateway = None,
) -> None:
    """Show a manifest with what refers to it and its versions, or a run with what it waits for and its events."""
    from ..operations.remote import RemoteGateway
    from .stored_rows import Selection, describe_manifests, describe_remote

    word, _, name = kind.partition("/")
    if word.lower() in RUN_WORDS and (name or names):
        _describe_runs(names or [name], namespace)
        return
    if not (name or names):
        _describe_runs([kind], namespace)
        return
    from .store import with_store_and_workers

    selections = [Selection.of(kind, one, namespace) for one in names or (None,)]
    if any(selection.kind is None for selection in selections):
        raise UsageError("'all' can't be described: name a kind, as in: baton describe team NAME")
    if remote := RemoteGateway.of(gateway):
        describe_remote(remote, selections)
        return
    with_store_and_workers(lambda store, client: describe_manifests(store, client, selections))


def _describe_runs(names: list[str], namespace: str) -> None:
    from ..runs.runs import find_run
    from .client import with_client

    async def show(client: "Client") -> None:
        for name in names:
            await _describe_run(client, await find_run(client, name, namespace))

    with_client(show)


async def _describe_run(client: "Client", handle: "RunHandle") -> None:
    from rich.console import Console

    from ...temporal.executions import memo_of
    from ..console.status import print_decisions, print_status
    from ..console.watch import print_open_calls
    from ..history.status import current_status
    from ..history.stream import stream_events
    from ..runs.decisions import pending_decisions
    from ..runs.listing import reset_time
    from .terminal import print_result

    status = await current_status(client, handle)
    description = await handle.describe()
    memo = await memo_of(description)
    fields = {
        "Run": handle.id,
        "Query": memo.get("query"),
        "Namespace": memo.get("namespace"),
        "Type": description.workflow_type,
        "Task queue": description.task_queue,
        "Parent": description.parent_id,
        "Conversation": status.conversation_id,
        "Started": status.start_time,
        "Ended": status.completion_time,
        "Targets": ", ".join(f"{one.target.type}/{one.target.name} {one.status}" for one in status.responses),
        "Runs below": ", ".join(status.runs or ()),
    }
    print_result("\n".join(field_lines({name: str(value) for name, value in fields.items() if value})))
    console = Console(highlight=False)
    print_status(console, handle.id, status, await reset_time(client, handle))
    if status.phase == "InputRequired":
        pending = await pending_decisions(client, handle.id, handle.run_id)
        print_decisions(console, [(handle.id, decision) for decision in pending])
    if status.is_open:
        await print_open_calls(client, handle, console)
    recent: deque[Event] = deque(maxlen=RECENT_EVENTS)
    async for event in stream_events(client, handle, wait=False, live=False):
        recent.append(event)
    print_result("\n".join(("Events:", *(f"  {event.line}" for event in recent))))
