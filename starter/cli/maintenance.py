"""Commands that look after an installation: doctor, migrate, prune, replace-journal, version, keys."""

import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from .exit_codes import REFUSED, CommandEndError
from .options import Output, OutputFormat, Recursive
from .terminal import print_message, print_result

app = typer.Typer()


@app.command()
def doctor(
    file: Annotated[list[Path] | None, typer.Option("-f", "--file", help="Manifests whose Models are checked.")] = None,
    recursive: Recursive = False,
    output: Output = OutputFormat.text,
) -> None:
    """Checks what is reachable and what is stuck, and says what to do; exit code 1 if anything is wrong."""
    from dataclasses import asdict

    from ..operations.doctor import as_text, run_checks
    from .client import silence_sdk
    from .formats import dump
    from .targets import load_manifests

    silence_sdk()
    results = run_checks(load_manifests(file or (), recursive=recursive), print_message)
    values = [asdict(each) for each in results]
    print_result(as_text(results) if output is OutputFormat.text else dump([*values], output))
    if not all(each.ok for each in results):
        raise CommandEndError(REFUSED)


@app.command()
def migrate() -> None:
    """Brings the tables of the journal at BATON_JOURNAL_URL to the version that workers of this Baton need."""
    import asyncio
    import os

    from ..operations.prune import migrate_journal

    print_message(asyncio.run(migrate_journal(os.environ)))


@app.command()
def prune(
    older_than: Annotated[
        str | None, typer.Option(help="An age such as 30d: only runs that ended before. Default: the retention.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
) -> None:
    """Deletes conversations that no run needs any longer from the journal at BATON_JOURNAL_URL."""
    from ..operations.prune import journal_address, prune_journal, read_age
    from .client import with_client

    url, age = journal_address(), read_age(older_than) if older_than else None
    pruned = with_client(lambda client: prune_journal(client, url, age, dry=dry_run))
    deleted = "would be deleted" if dry_run else "were deleted"
    print_message(f"{pruned.conversations} conversations with {pruned.messages} messages {deleted}, {pruned.kept} stay")


@app.command("replace-journal")
def replace_journal(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The journals that are lost, as the worker says.")],
) -> None:
    """Lets the journal at BATON_JOURNAL_URL take the place of others: open runs that need what they held will fail."""
    import asyncio

    from ..operations.prune import journal_address, replace_journals

    place = asyncio.run(replace_journals(journal_address(), ids))
    print_message(f"the journal at {place} takes the place of {', '.join(ids)}: start the workers again")


@app.command()
def version() -> None:
    """Prints the version."""
    from importlib.metadata import version as version_of

    print(version_of("baton"))


UI_ORIGINS = "http://localhost:8233", "http://127.0.0.1:8233"

PORT = 8234
"""The default port of the codec server, next to the UI's 8233."""


@app.command("encryption-key")
def encryption_key(
    key_id: Annotated[str, typer.Argument(metavar="[ID]", help="Its id; by default today's date.")] = "",
) -> None:
    """Prints a new key for BATON_ENCRYPTION_KEYS."""
    from ...temporal.encryption import Key

    print_result(str(Key.generate(key_id or f"{datetime.now(UTC):%Y-%m-%d}")))


@app.command("codec-server")
def codec_server(
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    origin: Annotated[list[str] | None, typer.Option(help="Where a browser finds the UI; may be repeated.")] = None,
) -> None:
    """Decrypts payloads for Temporal's UI, with the keys of BATON_ENCRYPTION_KEYS."""
    from ...contracts.settings import SettingsError
    from ...temporal.encryption import KEYS, Codec, Keys
    from ..scripted_model import serve_in_thread
    from ..server.codec_server import codec_app

    keys, origins = Keys.from_environment(os.environ), origin or UI_ORIGINS
    if not keys.ids:
        raise SettingsError(f"{KEYS} is not set: nothing can be decrypted without a key")
    with serve_in_thread(codec_app(Codec(keys), origins), port, host) as url:
        print_message(f"for the Temporal UI at {' or '.join(origins)}, the codec endpoint is {url}. End with Ctrl-C.")
        signal.pause()
