"""Commands for encryption: encryption-key and codec-server."""

import os
import signal
from datetime import UTC, datetime
from typing import Annotated

import typer

from .terminal import print_message, print_result

UI_ORIGINS = "http://localhost:8233", "http://127.0.0.1:8233"

PORT = 8234
"""The default port of the codec server, next to the UI's 8233."""

app = typer.Typer()


@app.command("encryption-key")
def encryption_key(
    key_id: Annotated[str, typer.Argument(metavar="[ID]", help="Its id; by default today's date.")] = "",
) -> None:
    """Prints a new key for BATON_ENCRYPTION_KEYS."""
    from ...conversation.temporal.encryption import Key

    print_result(str(Key.generate(key_id or f"{datetime.now(UTC):%Y-%m-%d}")))


@app.command("codec-server")
def codec_server(
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    origin: Annotated[list[str] | None, typer.Option(help="Where a browser finds the UI; may be repeated.")] = None,
) -> None:
    """Decrypts payloads for Temporal's UI, with the keys of BATON_ENCRYPTION_KEYS."""
    from ...conversation.settings_error import SettingsError
    from ...conversation.temporal.encryption import KEYS, Codec, Keys
    from ..http.thread_server import serve_in_thread
    from ..server.codec_server import codec_app

    keys, origins = Keys.from_environment(os.environ), origin or UI_ORIGINS
    if not keys.ids:
        raise SettingsError(f"{KEYS} is not set: nothing can be decrypted without a key")
    with serve_in_thread(codec_app(Codec(keys), origins), port, host) as url:
        print_message(f"for the Temporal UI at {' or '.join(origins)}, the codec endpoint is {url}. End with Ctrl-C.")
        signal.pause()
