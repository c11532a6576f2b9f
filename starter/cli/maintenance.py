"""Commands that maintain an installation: doctor, capacity, migrate, prune, replace-journal, reencrypt, keys."""

import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from temporalio.client import Client

    from ..operations.erase import Erased
    from ..operations.prune import Pruned

from ...installation import require
from ..errors import UsageError
from .exit_codes import REFUSED, CommandEndError
from .options import Output, OutputFormat, Recursive
from .terminal import dump, print_line, print_message, print_result, print_rows

app = typer.Typer()


@app.command()
def doctor(
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="A file or folder with Models to check; repeatable.")
    ] = None,
    recursive: Recursive = False,
    output: Output = OutputFormat.text,
) -> None:
    """Check the server, workers, runs, journal and models, and suggest fixes; exit with 1 on problems."""
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
        str | None,
        typer.Option(
            help="Only runs that ended longer ago than this, such as 30d; by default Temporal's retention period."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted, without deleting.")] = False,
) -> None:
    """Delete from the journal at BATON_JOURNAL_URL conversations that no run needs, and data past BATON_RETENTION."""
    from ..operations.erase import erase_expired
    from ..operations.journals import journal_address, retention
    from ..operations.prune import Ages, prune_journal, read_age
    from .client import with_client

    url = journal_address()
    age = read_age(older_than) if older_than else None
    kept = retention()

    async def work(client: "Client") -> "tuple[Erased | None, Pruned]":
        ages = await Ages.of(client, kept, age)
        erased = await erase_expired(client, ages, dry=dry_run) if kept else None
        return erased, await prune_journal(client, url, age, dry=dry_run, retention=kept)

    erased, pruned = with_client(work)
    done = "Would delete" if dry_run else "Deleted"
    if erased:
        print_message(
            f"{done} {len(erased.runs)} runs whose retention has ended, with {erased.executions} executions in "
            f"Temporal and {erased.messages} messages."
        )
    print_message(
        f"{done} {pruned.conversations} conversations with {pruned.messages} messages; "
        f"{pruned.remaining} are still needed."
    )


@app.command("check-journal")
def check_journal() -> None:
    """Check whether the journal has the rows of all open runs, for example after a restore; exits with 1 if not."""
    from ..operations.lost_rows import runs_without_rows
    from .client import with_client

    lost = with_client(runs_without_rows)
    for run in lost.runs:
        print_line(run)
    if lost.runs:
        print_message(
            f"The journal lacks rows of {len(lost.runs)} of {lost.checked} open runs: it is older than Temporal's "
            "database. They wait for the rows, and then fail as JournalLost: restore a newer backup of the journal, or "
            "end them with baton terminate --now RUN."
        )
        raise CommandEndError(REFUSED)
    print_message(f"The journal has the rows of all {lost.checked} open runs.")


@app.command("replace-journal")
def replace_journal(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="The ids of lost journals, from the worker's error.")
    ],
) -> None:
    """Use the journal at BATON_JOURNAL_URL in place of lost ones; open runs that need the lost data fail."""
    import asyncio

    from ..operations.journals import journal_address, replace_journals

    place = asyncio.run(replace_journals(journal_address(), ids))
    print_message(f"The journal at {place} replaces {', '.join(ids)}. Restart the workers.")


@app.command("reencrypt")
def reencrypt() -> None:
    """Encrypt the journal at BATON_JOURNAL_URL again with the first key, which all workers must already use."""
    import asyncio
    import os

    from ..operations.journals import reencrypt_journal

    place, done = asyncio.run(reencrypt_journal(os.environ))
    counts = ", ".join(f"{count:,} {name}" for name, count in done.counts.items())
    print_message(f"Encrypted the journal at {place} with the key {done.key}: {counts}.")
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
def capacity(
    runs_per_day: Annotated[int, typer.Option(min=1, help="The load: runs per day.")] = 10_000,
    turns: Annotated[int, typer.Option(min=1, help="The turns of a run.")] = 12,
    reply: Annotated[int, typer.Option(min=1, help="The bytes of a model's answer.")] = 1_000,
    call_seconds: Annotated[float, typer.Option(min=0, help="How long a model takes to answer.")] = 10.0,
    runs: Annotated[int, typer.Option(min=1, help="How many runs are measured.")] = 40,
    at_once: Annotated[int, typer.Option(min=1, help="How many of them run at once.")] = 20,
    journal: Annotated[
        str | None, typer.Option(metavar="URL", help="An empty database to measure with; by default a temporary file.")
    ] = None,
    output: Output = OutputFormat.text,
) -> None:
    """Measure what a run uses on this machine, with a scripted model, and print what a load needs."""
    require("worker", "baton capacity")
    import asyncio

    from ..operations.capacity import Load, as_json, measure, measured_rows, needs, needs_rows, worker_calls_at_once
    from .client import silence_sdk

    silence_sdk()
    load = Load(turns=turns, reply=reply, runs=runs, at_once=at_once)
    measured = asyncio.run(measure(load, journal, encrypted=(False, True)))
    calls_at_once = worker_calls_at_once()
    wanted = [needs(each, runs_per_day, turns, call_seconds, calls_at_once) for each in measured]
    if output is not OutputFormat.text:
        print_result(dump(as_json(load, measured, wanted), output))
        return
    print_message(
        f"{runs:,} runs of {turns} turns with replies of {reply:,} bytes, {at_once} at once, on {os.cpu_count()} CPUs"
    )
    columns = ("", "plain", "encrypted")
    print_rows(columns, [(cells, None) for cells in measured_rows(measured)], output, "")
    print_message(f"For {runs_per_day:,} runs a day, with models that answer after {call_seconds:g} s:")
    print_rows(columns, [(cells, None) for cells in needs_rows(wanted)], output, "")


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
    """Decode payloads for Temporal's UI, with BATON_ENCRYPTION_KEYS or the codec of BATON_DATA_CONVERTER."""
    require("worker", "a codec server")
    from ...contracts.settings import CONVERTER, SettingsError
    from ...temporal.converter import codec_for_ui
    from ...temporal.encryption import KEYS
    from ..scripted_model import serve_in_thread
    from ..server.codec_server import codec_app

    codec = codec_for_ui(os.environ)
    origins = origin or UI_ORIGINS
    if codec is None:
        raise SettingsError(f"{KEYS} is not set, and no {CONVERTER} with a codec: payloads can't be decoded")
    with serve_in_thread(codec_app(codec, origins), port, host) as url:
        print_message(f"Codec endpoint for the Temporal UI at {' or '.join(origins)}: {url}. Press Ctrl-C to stop.")
        signal.pause()
