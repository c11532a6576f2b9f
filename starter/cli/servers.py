"""Commands that run a server until Ctrl-C: dev and scripted-model."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .exit_codes import REFUSED, CommandEndError
from .terminal import print_message

if TYPE_CHECKING:
    from ..server.state_dir import DevServer

app = typer.Typer()


@app.command()
def dev(
    linger: Annotated[float | None, typer.Option(hidden=True, help="Seconds to stay when nobody needs it.")] = None,
) -> None:
    """Runs a Temporal server with its UI and a worker on this machine, until Ctrl-C."""
    import asyncio

    from ..server.dev import run_dev_server
    from ..server.state_dir import StateDir
    from .client import silence_sdk

    silence_sdk()
    state_dir = StateDir.of(os.environ)

    def announce(dev: "DevServer") -> None:
        where = f"Temporal is at {dev.address}, its UI at {dev.ui}; everything is kept in {state_dir.folder}"
        print_message(f"{where}. End with Ctrl-C.")

    if not asyncio.run(run_dev_server(state_dir, linger, announce)):
        running = state_dir.read_dev_server()
        print_message(f"it runs already, at {running.address}" if running else "it runs already")
        raise CommandEndError(REFUSED)


@app.command("scripted-model")
def scripted_model(
    script: Annotated[Path, typer.Argument(help="A YAML file with the replies.")],
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8000,
) -> None:
    """Serves OpenAI's protocol with the replies of a script, to try a team without a language model."""
    from ..scripted_model.script import Script
    from ..scripted_model.server import ScriptedModel

    with ScriptedModel(Script.read(script).answer).serve(port) as url:
        print_message(f"scripted, no model is asked: OPENAI_BASE_URL={url}")
        signal.pause()
