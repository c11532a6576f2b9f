"""The command ``fork``, which goes on from a place in a run in a new run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..account import account_name
from ..errors import UsageError
from .options import Namespace, QueryFormat, QueryOutput, Recursive, RunName, read_value
from .run import print_results
from .terminal import print_message

if TYPE_CHECKING:
    from ...resources.base import JsonObject

app = typer.Typer()


@app.command()
def fork(
    name: RunName,
    *,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TURN",
            help="The last turn to keep, as in 3, 2/1, round-2/NAME or 3/call-1; 0 keeps none. failure, the default, "
            "is the place before the call that failed.",
        ),
    ] = None,
    say: Annotated[str | None, typer.Option("--say", metavar="TEXT", help="A message to the next speakers.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME.FIELD=VALUE", help="A new value for a manifest's field; repeatable."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", help="Manifests that replace those of the run; a file or folder; repeatable."),
    ] = None,
    recursive: Recursive = False,
    times: Annotated[int, typer.Option("--times", min=1, max=100, help="The number of forks.")] = 1,
    own_id: Annotated[str | None, typer.Option("--id", help="The new run's id.")] = None,
    person: Annotated[str | None, typer.Option("--as", help="Your name; by default your account.")] = None,
    namespace: Namespace = "default",
    detach: Annotated[bool, typer.Option("--detach", help="Start the run without following it.")] = False,
    output: QueryOutput = QueryFormat.text,
) -> None:
    """Continue from a turn of a run, in a new run. The old run does not change, and no earlier call is repeated."""
    import asyncio

    from ...contracts.control_messages import SteerRequest
    from ..history.fork import ForkChanges
    from ..runs.start import to_json
    from ..server.connection import use_server
    from .client import silence_sdk
    from .execute import fork_runs
    from .targets import load_for_runs

    if own_id and times > 1:
        raise UsageError("--id is for a single run: leave out --times")
    loaded = load_for_runs(file, None, None, recursive=recursive) if file else None
    changes = ForkChanges(
        say=SteerRequest(text=say, name=person or account_name()) if say else None,
        resources=tuple(map(to_json, loaded.catalog.manifests)) if loaded else (),
        fields=_read_changes(change or ()),
    )
    silence_sdk()
    with use_server(print_message, start=True) as server:
        forks = fork_runs(server, loaded, name, namespace, at, changes, times=times, run_id=own_id, detach=detach)
        results = asyncio.run(forks)
    print_results(results, output, detach=detach)


def _read_changes(assignments: Sequence[str]) -> "JsonObject":
    """New values of fields, written as ``NAME.FIELD=VALUE``, where VALUE is JSON or a text. Raises UsageError."""
    changes: JsonObject = {}
    for assignment in assignments:
        place, equals, text = assignment.partition("=")
        if not (equals and "." in place.strip(".")):
            raise UsageError(f"'{assignment}' is not of the form NAME.FIELD=VALUE")
        changes[place] = read_value(text, assignment)
    return changes
