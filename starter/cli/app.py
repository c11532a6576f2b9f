"""The command ``baton``: registers the modules of commands, in the groups of ``baton --help``."""

from typing import Annotated, NoReturn

import typer

from . import control, inspect, maintenance, manifests, people, run, schedules, servers, sessions, store
from .exit_codes import run_and_exit

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Run teams of language-model agents as durable Temporal workflows.",
)

GROUPS = {
    "Start runs": (run,),
    "Show runs": (inspect,),
    "Control runs": (control, people),
    "Manifests": (manifests, store),
    "Schedules and conversations": (schedules, sessions),
    "Servers and maintenance": (servers, maintenance),
}
"""The modules of commands, below the headings of ``baton --help``."""

for _heading, _modules in GROUPS.items():
    for _module in _modules:
        for _command in (*_module.app.registered_commands, *_module.app.registered_groups):
            _command.rich_help_panel = _heading
        app.add_typer(_module.app)


def _print_version(requested: bool) -> None:
    if requested:
        maintenance.version()
        raise typer.Exit


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
