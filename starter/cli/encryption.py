"""What can be typed about encryption? A new key, and the server that shows what is encrypted in Temporal's UI."""

import os
import signal
from datetime import UTC, datetime
from typing import Annotated

import typer

from ...conversation.settings_error import SettingsError
from ...conversation.temporal.encryption import KEYS, Codec, Key, Keys
from ..http.thread_server import serve_in_thread
from ..server.codec_server import PORT, codec_app
from .terminal import say, show

UI = "http://localhost:8233", "http://127.0.0.1:8233"


def encryption_key(
    key_id: Annotated[str, typer.Argument(metavar="[ID]", help="Its id; otherwise it is named after today.")] = "",
) -> None:
    """Prints a new key for BATON_ENCRYPTION_KEYS."""
    show(str(Key.fresh(key_id or f"{datetime.now(UTC):%Y-%m-%d}")))


def codec_server(
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    origin: Annotated[
        list[str] | None, typer.Option(help="Where the UI is seen in a browser; may be repeated.")
    ] = None,
) -> None:
    """Serves Temporal's UI with what is encrypted, decrypted by the keys of BATON_ENCRYPTION_KEYS."""
    keys = Keys.of(os.environ)
    if not keys.ids:
        raise SettingsError(f"{KEYS} is not set, and there is nothing to decrypt without a key")
    with serve_in_thread(codec_app(Codec(keys), origin or UI), port, host) as url:
        say(f"for the Temporal UI at {' or '.join(origin or UI)}, the codec endpoint is {url}. End with Ctrl-C.")
        signal.pause()
