"""The command ``baton``: registers the groups of commands, one module each."""

from typing import NoReturn

import typer

from . import control, encryption, inspect, maintenance, manifests, run, servers
from .exit_codes import run_and_exit

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Runs teams of language-model agents as durable Temporal workflows.",
)
for _group in (run, manifests, inspect, control, servers, encryption, maintenance):
    app.add_typer(_group.app)


def main() -> NoReturn:
    """Runs the command line and exits with the code of its result."""
    run_and_exit(app)
