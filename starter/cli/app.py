"""The command ``baton``: registers the modules of commands, in the groups of ``baton --help``."""

from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from . import (
    audit,
    control,
    describe,
    evaluation,
    fork,
    inspect,
    maintenance,
    manifests,
    people,
    recordings,
    run,
    schedules,
    servers,
    sessions,
    store,
)
from .exit_codes import run_and_exit


class Commands(TyperGroup):
    """The commands. Errors in arguments are printed without pydantic's prefix."""

    def invoke(self, ctx: Any) -> Any:  # its type is private in typer
        """Runs the command of the command line; raises typer's errors."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Run teams of language-model agents as durable Temporal workflows.",
)

GROUPS = {
    "Start runs": (run, fork),
    "Show runs": (inspect, describe),
    "Control runs": (control, people),
    "Test and compare": (recordings, evaluation),
    "Manifests": (manifests, store),
    "Schedules and conversations": (schedules, sessions),
    "Servers and maintenance": (servers, maintenance, audit),
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
