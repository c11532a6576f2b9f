"""Commands that maintain an installation: doctor, migrate, prune, replace-journal, reencrypt, version, keys."""

import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ...installation import require
from ..errors import UsageError
from .exit_codes import REFUSED, CommandEndError
from .options import Output, OutputFormat, Recursive
from .terminal import dump, print_message, print_result

app = typer.Typer()


@app.command()
def doctor(
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="A file or folder with Models to check; repeatable.")
    ] = None,
    recursive: Recursive = False,
    output: Output = OutputFormat.text,
) -> None:
    """Check the server, workers, runs, journal and models, and suggest fixes; exits with 1 on problems."""
    from dataclasses import asdict

    from ..operations.doctor import as_text, run_checks
    from .client import silence_sdk
    from .targets import load_manifests

    silence_sdk()
    results = run_checks(load_manifests(file or (), recursive=recursive), print_message)
    if output is OutputFormat.text:
        print_result(as_text(results))
    else:
        print_result(dump([asdict(result) for result in results], output))
    if not all(result.ok for result in results):
        raise CommandEndError(REFUSED)


@app.command()
def migrate() -> None:
    """Migrate the journal at BATON_JOURNAL_URL to the version that workers of this release need."""
    import asyncio
    import os

    from ..operations.journals import migrate_journal

    print_message(asyncio.run(migrate_journal(os.environ)))


@app.command()
def prune(
    older_than: Annotated[
        str | None, typer.Option(help="Only runs that ended longer ago, such as 30d; by default the retention.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted, without deleting.")] = False,
) -> None:
    """Delete conversations that no run needs from the journal at BATON_JOURNAL_URL."""
    from ..operations.journals import journal_address
    from ..operations.prune import prune_journal, read_age
    from .client import with_client

    url = journal_address()
    age = read_age(older_than) if older_than else None
    pruned = with_client(lambda client: prune_journal(client, url, age, dry=dry_run))
    done = "Would delete" if dry_run else "Deleted"
    print_message(
        f"{done} {pruned.conversations} conversations with {pruned.messages} messages; "
        f"{pruned.remaining} are still needed."
    )


@app.command("replace-journal")
def replace_journal(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="The ids of lost journals, from the worker's error.")
    ],
) -> None:
    """Use the journal at BATON_JOURNAL_URL instead of lost ones; open runs that need their data fail."""
    import asyncio

    from ..operations.journals import journal_address, replace_journals

    place = asyncio.run(replace_journals(journal_address(), ids))
    print_message(f"The journal at {place} replaces {', '.join(ids)}. Restart the workers.")


@app.command("reencrypt")
def reencrypt() -> None:
    """Encrypt the journal at BATON_JOURNAL_URL again with the first key; no worker may still encrypt with another."""
    import asyncio
    import os

    from ..operations.journals import reencrypt_journal

    done = asyncio.run(reencrypt_journal(os.environ))
    counts = ", ".join(f"{count:,} {name}" for name, count in done.counts.items())
    print_message(f"Encrypted with the key {done.key}: {counts}.")
    if done.unneeded:
        print_message(
            f"The journal no longer needs {', '.join(done.unneeded)}. Histories need it until the retention of their "
            "namespace has ended: keep it until then."
        )
    for text in done.unreadable[:MAX_SHOWN]:
        print_message(f"Unchanged: {text}")
    if done.unreadable:
        print_message(f"{len(done.unreadable):,} texts can't be read and were left unchanged.")
        raise CommandEndError(REFUSED)


MAX_SHOWN = 20
"""The number of unreadable texts that are printed."""


@app.command()
def version() -> None:
    """Print the version."""
    from ...installation import version as version_of

    print(version_of())


UI_ORIGINS = "http://localhost:8233", "http://127.0.0.1:8233"

PORT = 8234
"""The default port of the codec server, next to the UI's 8233."""


@app.command("encryption-key")
def encryption_key(
    key_id: Annotated[str, typer.Argument(metavar="[ID]", help="The key's id; by default today's date.")] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A new file for the key, which only its owner can read.")
    ] = None,
) -> None:
    """Generate a key for BATON_ENCRYPTION_KEYS."""
    from ...contracts.settings import private_file
    from ...temporal.encryption import Key

    key = Key.generate(key_id or f"{datetime.now(UTC):%Y-%m-%d}")
    if output is None:
        print_result(str(key))
        return
    try:
        with open(output, "x", opener=private_file) as file:
            file.write(f"{key}\n")
    except FileExistsError:
        text = f"{output} already exists: a key is never overwritten, or its data could no longer be read"
        raise UsageError(text) from None
    except OSError as error:
        raise UsageError(f"{output} can't be written: {error.strerror}") from None


@app.command("codec-server")
def codec_server(
    port: Annotated[int, typer.Option(help="The port to listen on; 0 selects a free port.")] = PORT,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    origin: Annotated[list[str] | None, typer.Option(help="The UI's address in the browser; repeatable.")] = None,
) -> None:
    """Decrypt payloads for Temporal's UI, with the keys in BATON_ENCRYPTION_KEYS."""
    require("worker", "a codec server")
    from ...contracts.settings import SettingsError
    from ...temporal.encryption import KEYS, EncryptionCodec, Keys
    from ..scripted_model import serve_in_thread
    from ..server.codec_server import codec_app

    keys = Keys.from_environment(os.environ)
    origins = origin or UI_ORIGINS
    if not keys.ids:
        raise SettingsError(f"{KEYS} is not set: payloads can't be decrypted without a key")
    with serve_in_thread(codec_app(EncryptionCodec(keys), origins), port, host) as url:
        print_message(f"Codec endpoint for the Temporal UI at {' or '.join(origins)}: {url}. Press Ctrl-C to stop.")
        signal.pause()
