"""Commands that run a server or a worker until Ctrl-C: dev, worker and scripted-model."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .exit_codes import REFUSED, CommandEndError
from .options import Recursive
from .terminal import print_message

if TYPE_CHECKING:
    from ..server.dev import DevOptions
    from ..server.state_dir import DevServer, StateDir

app = typer.Typer()


Manifests = Annotated[
    list[Path] | None, typer.Option("-f", "--file", help="Manifests that runs may name; may be repeated.")
]
Port = Annotated[int | None, typer.Option(help="The server's port; without it 7233, or another if that is taken.")]
UiPort = Annotated[int | None, typer.Option(help="The port of its UI; without it 8233, or another.")]


@app.command()
def dev(
    file: Manifests = None,
    recursive: Recursive = False,
    port: Port = None,
    ui_port: UiPort = None,
    linger: Annotated[float | None, typer.Option(hidden=True, help="Seconds to stay when nobody needs it.")] = None,
) -> None:
    """Runs a Temporal server with its UI and a worker on this machine, until Ctrl-C."""
    import asyncio

    from ..server.connection import stop_idle
    from ..server.dev import DevOptions, run_dev_server
    from ..server.state_dir import StateDir
    from ..server.worker_process import importable_from_here
    from .targets import load_manifests

    importable_from_here()
    state_dir = StateDir.of(os.environ)
    options = DevOptions(load_manifests(file or (), recursive=recursive), port, ui_port, linger)
    if linger is None:
        stop_idle(state_dir)  # which a command has started: this one takes its place
    if not asyncio.run(run_dev_server(state_dir, options, partial(_announce, options, state_dir))):
        running = state_dir.read_dev_server()
        end = "; it ends by itself when no run is open and no command uses it" if running and running.lingering else ""
        print_message(f"it runs already, at {running.address}{end}" if running else "it runs already")
        raise CommandEndError(REFUSED)


def _announce(options: "DevOptions", state_dir: "StateDir", dev: "DevServer", taken: list[int]) -> None:
    """Says where the server is, and what to type to use it."""
    if taken:
        ports = " and ".join(map(str, taken))
        print_message(f"note: the port {ports} is taken, perhaps by another Temporal server, so this one has others.")
    print_message(f"Temporal is at {dev.address}, its UI at {dev.ui}; everything is kept in {state_dir.folder}.")
    print_message(f"Worker started, {options.own.catalog.summary} loaded. End with Ctrl-C.")
    print_message(f"For other programs:\n  export TEMPORAL_ADDRESS={dev.address}")


@app.command()
def worker(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="[PATH]...", help="As with -f.")] = None,
    file: Manifests = None,
    recursive: Recursive = False,
) -> None:
    """Runs a worker for the Temporal of the settings, or for this machine's own, until Ctrl-C."""
    from ..server.worker_process import run_worker_process

    if code := run_worker_process([*(file or ()), *(paths or ())], recursive=recursive):
        raise CommandEndError(code)


@app.command("scripted-model")
def scripted_model(
    script: Annotated[Path, typer.Argument(help="A YAML file with the replies.")],
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8000,
) -> None:
    """Serves OpenAI's protocol with the replies of a script, to try a team without a language model."""
    from ..scripted_model import Script, ScriptedModel

    with ScriptedModel(Script.read(script).answer).serve(port) as url:
        print_message(f"scripted, no model is asked: OPENAI_BASE_URL={url}")
        signal.pause()
