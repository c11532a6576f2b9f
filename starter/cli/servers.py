"""Commands that run a server until Ctrl-C: dev and scripted-model."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .exit_codes import REFUSED, CommandEndError
from .terminal import print_message

if TYPE_CHECKING:
    from ..server.state_dir import Dev

app = typer.Typer()


@app.command()
def dev(
    linger: Annotated[float | None, typer.Option(hidden=True, help="Seconds to stay when nobody needs it.")] = None,
) -> None:
    """Runs a Temporal server with its UI and a worker on this machine, until Ctrl-C."""
    import asyncio

    from ..server.dev import run_dev
    from ..server.state_dir import Home
    from .client import silence_sdk

    silence_sdk()
    home = Home.of(os.environ)

    def announce(dev: "Dev") -> None:
        print_message(
            f"Temporal is at {dev.address}, its UI at {dev.ui}; everything is kept in {home.folder}. End with Ctrl-C."
        )

    if not asyncio.run(run_dev(home, linger, announce)):
        running_dev = home.read_dev()
        print_message(f"it runs already, at {running_dev.address}" if running_dev else "it runs already")
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
