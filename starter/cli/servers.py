"""Commands that run a server or a worker until Ctrl-C: dev, worker and scripted-model."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...installation import require
from .exit_codes import REFUSED, CommandEndError
from .options import Recursive
from .terminal import log_messages, print_message

if TYPE_CHECKING:
    from ..server.dev import DevOptions
    from ..server.state_dir import DevServer, StateDir

app = typer.Typer()


Manifests = Annotated[
    list[Path] | None, typer.Option("-f", "--file", help="A file or folder of manifests for the worker; repeatable.")
]
Port = Annotated[int | None, typer.Option(help="The server's port; by default 7233, or another if it is taken.")]
UiPort = Annotated[int | None, typer.Option(help="The UI's port; by default 8233, or another if it is taken.")]


@app.command()
def dev(
    file: Manifests = None,
    recursive: Recursive = False,
    port: Port = None,
    ui_port: UiPort = None,
    linger: Annotated[float | None, typer.Option(hidden=True, help="Seconds to keep running while unused.")] = None,
) -> None:
    """Run a local Temporal server, its UI and a worker, until Ctrl-C."""
    import asyncio

    from ..server.connection import stop_idle
    from ..server.dev import DevOptions, importable_from_here, log_before_start, logs_json, run_dev_server
    from ..server.state_dir import StateDir
    from .targets import load_manifests

    if logs_json():
        log_before_start("json")
        log_messages()
    importable_from_here()
    state_dir = StateDir.of(os.environ)
    options = DevOptions(load_manifests(file or (), recursive=recursive), port, ui_port, linger)
    if linger is None:
        stop_idle(state_dir)  # one that a command has started is replaced
    if not asyncio.run(run_dev_server(state_dir, options, partial(_announce, options, state_dir))):
        running = state_dir.read_dev_server()
        end = ""
        if running and running.lingering:
            end = "; it stops automatically when no run is open and no command uses it"
        print_message(f"already running at {running.address}{end}" if running else "already running")
        raise CommandEndError(REFUSED)


def _announce(options: "DevOptions", state_dir: "StateDir", dev: "DevServer", taken: list[int]) -> None:
    """Prints the addresses of the server, and how other programs connect to it."""
    if taken:
        ports = " and ".join(map(str, taken))
        print_message(f"note: port {ports} is in use, perhaps by another Temporal server; using other ports.")
    print_message(f"Temporal server: {dev.address}, UI: {dev.ui}, data: {state_dir.folder}")
    print_message(f"Worker started, {options.own.catalog.summary} loaded. Press Ctrl-C to stop.")
    print_message(f"For other programs:\n  export TEMPORAL_ADDRESS={dev.address}")


@app.command()
def worker(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="[PATH]...", help="The same as -f.")] = None,
    file: Manifests = None,
    recursive: Recursive = False,
) -> None:
    """Run a worker for the configured Temporal server, or for the local one, until Ctrl-C."""
    from ..server.dev import run_worker_process

    if code := run_worker_process([*(file or ()), *(paths or ())], recursive=recursive):
        raise CommandEndError(code)


@app.command("scripted-model")
def scripted_model(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A YAML file with the replies.")],
    port: Annotated[int, typer.Option(help="The port to listen on; 0 selects a free port.")] = 8000,
) -> None:
    """Serve scripted replies over OpenAI's API, to try a team without a language model."""
    require("worker", "the scripted model")
    from ..scripted_model import Script, ScriptedModel

    with ScriptedModel(Script.read(script).answer).serve(port) as url:
        print_message(f"Serving scripted replies: OPENAI_BASE_URL={url}")
        signal.pause()
