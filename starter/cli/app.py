"""What can be typed? The command ``baton``.

Exit codes: 0 done, 1 bad usage or refused manifest, 2 the query failed or was canceled, 3 Temporal can't be reached.
"""

import asyncio
import contextlib
import os
import signal
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ...activities.process.settings import Settings
from ...resources.loader import Loaded
from ..diagram.mermaid import mermaid
from ..diagram.model import chart
from ..diagram.svg import svg
from ..scripted_model.script import Script
from ..scripted_model.server import ScriptedModel
from ..server.connection import is_elsewhere, temporal
from ..server.state_dir import Dev, Home
from . import control, encryption, inspect, manifests, targets
from .exit_codes import FAILED, REFUSED, CommandEndError, exit_code
from .manifests import Files
from .run import ended_well, printed, run_queries
from .terminal import Drawn, Form, Output, at_temporal, err, keep_stdout_clean, say, show

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Runs teams of language-model agents as durable Temporal workflows.",
)


@app.command()
def run(
    target: Annotated[str | None, typer.Argument(metavar="[KIND/NAME]", help="Such as team/NAME.")] = None,
    text: Annotated[str | None, typer.Argument(metavar="[INPUT]", help="The question to it.")] = None,
    file: Files = ...,  # type: ignore[assignment]  # typer's way to say that it is required
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Run only what is in it.")] = None,
    own_id: Annotated[
        str | None, typer.Option("--id", help="The run's id; a run of it that is open is joined.")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--parameter", help="A query parameter, as name=value; may be repeated.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start, don't follow.")] = False,
    output: Output = Form.text,
) -> None:
    """Runs the queries in FILE, or puts INPUT to a target such as team/NAME, and prints what comes of it."""
    parameters = targets.read_parameters(parameter or ())
    loaded = targets.load(file, err, parameters)
    queries = targets.chosen(loaded, target, text, namespace, parameters)
    for query in queries:
        loaded.reach(query, elsewhere=is_elsewhere())
    with temporal(say, start=True) as place:
        work = run_queries(place, loaded, queries, file, err, run_id=own_id, detach=detach)
        results = asyncio.run(work)
    show(printed(results, output))
    if not detach and not all(map(ended_well, results)):
        raise CommandEndError(FAILED)


app.command()(manifests.validate)
app.command()(manifests.schema)


@app.command()
def graph(
    target: Annotated[str | None, typer.Argument(metavar="[KIND/NAME]", help="Such as team/NAME.")] = None,
    file: Files = ...,  # type: ignore[assignment]  # typer's way to say that it is required
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Draw only what is in it.")] = None,
    output: Annotated[Drawn, typer.Option("-o", "--output", help="The form of the drawing on stdout.")] = Drawn.mermaid,
) -> None:
    """Draws the queries in FILE with whom they ask, or else the teams, or what is named."""
    loaded = targets.load(file, err)
    page = chart(loaded.catalog, targets.shown(loaded, target, namespace), namespace or "default")
    show(svg(page) if output is Drawn.svg else mermaid(page))


app.add_typer(inspect.app)
app.add_typer(control.app)


@app.command()
def dev(
    linger: Annotated[float | None, typer.Option(hidden=True, help="Seconds to stay when nobody needs it.")] = None,
) -> None:
    """Runs a Temporal server with its UI and a worker on this machine, until Ctrl-C."""
    from ..server.dev import run_dev  # noqa: PLC0415  # it takes a second to import, and no other command needs it

    home = Home.of(os.environ)

    def announce(dev: Dev) -> None:
        say(f"Temporal is at {dev.address}, its UI at {dev.ui}; everything is kept in {home.folder}. End with Ctrl-C.")

    if not asyncio.run(run_dev(home, linger, announce)):
        running_dev = home.read_dev()
        say(f"it runs already, at {running_dev.address}" if running_dev else "it runs already")
        raise CommandEndError(REFUSED)


app.command("encryption-key")(encryption.encryption_key)
app.command("codec-server")(encryption.codec_server)


@app.command()
def doctor(
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="Manifests whose Models are looked at, too.")
    ] = None,
    output: Output = Form.text,
) -> None:
    """Says what is reachable, what is stuck, and what to do; exit code 1 where anything is wrong."""
    from ..operations.doctor import examine, told  # noqa: PLC0415  # it, too, takes a second to import

    findings = examine(targets.load(file, err) if file else Loaded())
    show(told(findings, output))
    if not all(each.well for each in findings):
        raise CommandEndError(REFUSED)


@app.command()
def prune(
    older_than: Annotated[
        str | None, typer.Option(help="Such as 30d: what was closed before. By default the namespace's retention.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Deletes from the journal of BATON_JOURNAL_URL the conversations that no run needs any longer."""
    from ..operations.prune import prune_journal, read_age  # noqa: PLC0415  # it, too

    url, age = Settings.of(os.environ).journal, read_age(older_than) if older_than else None
    pruned = at_temporal(lambda client, _place: prune_journal(client, url, age, dry=dry_run))
    would = "would go" if dry_run else "are gone"
    say(f"{pruned.conversations} conversations with {pruned.messages} messages {would}, {pruned.kept} stay")


@app.command("scripted-model")
def scripted_model(
    script: Annotated[Path, typer.Argument(help="The YAML file with its words.")],
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8000,
) -> None:
    """Serves OpenAI's protocol with the words of a script, to try a team without a language model."""
    with ScriptedModel(Script.read(script).answer).serving(port) as url:
        say(f"scripted, no model is asked: OPENAI_BASE_URL={url}")
        signal.pause()


@app.command()
def version() -> None:
    """Prints the version."""
    print(version_of("baton"))


def main() -> NoReturn:
    """Runs the command line and exits with the code that its result has."""
    keep_stdout_clean()
    code = exit_code(app, err)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it may have gone
            stream.flush()
    os._exit(code)  # the SDK's threads can't be waited for, and would abort an interpreter that ends before them
