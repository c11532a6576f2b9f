"""The command ``baton``: registers the groups of commands, one module each."""

from typing import Annotated, NoReturn

import typer

from . import control, conversations, inspect, maintenance, manifests, people, run, schedules, servers, store
from .exit_codes import run_and_exit


def _print_version(wanted: bool) -> None:
    if wanted:
        maintenance.version()
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Runs teams of language-model agents as durable Temporal workflows.",
)
for _group in (
    run,
    conversations,
    conversations,
    schedules,
    store,
    manifests,
    inspect,
    control,
    people,
    people,
    servers,
    maintenance,
    maintenance,
):
    app.add_typer(_group.app)


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options of the program itself."""


def main() -> NoReturn:
    """Runs the command line and exits with the code of its result."""
    run_and_exit(app)
