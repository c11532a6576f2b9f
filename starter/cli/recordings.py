"""Commands of recordings: record, test."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import UsageError
from .exit_codes import FAILED, REFUSED, CommandEndError
from .options import Files, Namespace, Recursive, RunName
from .terminal import check_file, print_message, print_result, write_file

if TYPE_CHECKING:
    from temporalio.client import Client

    from ...testing.replays import Replay
    from ..operations.recording import Recording
    from ..runs.runs import RunHandle

app = typer.Typer()


@app.command()
def record(
    name: RunName,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file, NAME.run.json; by default named after the run.")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", help="Files with Secrets, whose values are redacted; repeatable."),
    ] = None,
    namespace: Namespace = "default",
    *,
    recursive: Recursive = False,
) -> None:
    """Record a run that has ended in a file, which 'baton test' replays without calling anything."""
    from ...resources.loader import load_files
    from ..operations.record import record_run
    from ..operations.recording import SUFFIX
    from .client import with_run

    if output and not output.name.endswith(SUFFIX):
        raise UsageError(
            f"the name of a recording ends with {SUFFIX}, as in -o {output.stem.partition('.')[0]}{SUFFIX}"
        )
    own = load_files(files or [], recursive=recursive)

    async def read(client: "Client", handle: "RunHandle") -> "tuple[str, Recording]":
        return handle.id, await record_run(client, handle, os.environ, own)

    run, recording = with_run(name, namespace, read)
    path = output or Path(f"{run.replace('/', '-')}{SUFFIX}")
    recording.write(path)
    print_message(f"recorded {run} in {path}: {_count(len(recording.calls), 'call')}")


Source = Literal["recorded", "live"]


@app.command()
def test(
    recordings: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recordings: NAME.run.json.")],
    files: Files,
    models: Annotated[
        Source, typer.Option(help="live: call models and remote agents for requests without a recording.")
    ] = "recorded",
    tools: Annotated[Source, typer.Option(help="live: call tools for calls without a recording.")] = "recorded",
    *,
    update: Annotated[
        bool, typer.Option("--update", help="Rewrite the files with the calls of these runs, unless one has failed.")
    ] = False,
    junit: Annotated[Path | None, typer.Option("--junit", help="Also write a report in JUnit's format.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds within which each run must end.")] = 60,
    recursive: Recursive = False,
) -> None:
    """Replay recordings with the manifests of -f.

    Exit code 2: a call or an answer differs; 1: a file is no recording, and the others were replayed.
    """
    from ...testing.replays import own_settings, play
    from .client import silence_sdk

    silence_sdk()
    check_file(junit)
    replays: list[Replay] = []
    invalid: dict[Path, str] = {}
    for path in recordings:
        try:
            with _failed_attempts_in_report():
                replay = play(
                    path,
                    files,
                    models=models,
                    tools=tools,
                    settings=own_settings(),
                    update=update,
                    seconds=timeout,
                    recursive=recursive,
                )
        except UsageError as error:
            invalid[path] = str(error)
            print_message(str(error), style="red")
            continue
        replays.append(replay)
        _print(replay)
    unchanged = sum(replay.unchanged for replay in replays)
    if len(recordings) > 1:
        print_result(f"{unchanged} of {len(recordings)} unchanged")
    if junit:
        write_file(junit, _junit(replays, invalid))
    if invalid:
        raise CommandEndError(REFUSED)
    if unchanged < len(replays):
        raise CommandEndError(FAILED)


@contextmanager
def _failed_attempts_in_report() -> Iterator[None]:
    """Keeps failed calls out of the log while a recording is replayed: its report has them."""
    logger = logging.getLogger("temporalio.activity")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _print(replay: "Replay") -> None:
    calls = _count(len(replay.recording.calls), "call")
    live = f" · {replay.live_calls} live" if replay.live_calls else ""
    updated = " · updated" if replay.updated else ""
    verdict = "unchanged" if replay.unchanged else "differs"
    print_result(f"{verdict}  {replay.path}  {calls}{live} · {replay.seconds:.1f} s{updated}")
    for line in replay.report.splitlines():
        print_result(f"  {line}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _junit(replays: "list[Replay]", invalid: Mapping[Path, str]) -> str:
    """A report in JUnit's format: a test case for each recording; those of ``invalid`` files are errors."""
    from xml.etree import ElementTree as ET

    from ..report.markup import h

    def case(path: Path, seconds: float, *outcome: ET.Element) -> ET.Element:
        return h("testcase", *outcome, classname="baton", name=str(path), time=f"{seconds:.3f}")

    errors = [case(path, 0, h("error", problem, message=problem)) for path, problem in invalid.items()]
    cases = []
    for replay in replays:
        outcome = []
        if not replay.unchanged:
            outcome.append(h("failure", replay.report, message=replay.report.partition("\n")[0]))
        cases.append(case(replay.path, replay.seconds, *outcome))
    suite = h(
        "testsuite",
        *errors,
        *cases,
        name="baton",
        tests=str(len(errors) + len(cases)),
        failures=str(sum(not replay.unchanged for replay in replays)),
        errors=str(len(errors)),
        time=f"{sum(replay.seconds for replay in replays):.3f}",
    )
    suites = h("testsuites", suite)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'
