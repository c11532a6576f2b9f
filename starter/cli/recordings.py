"""Commands of recordings: record, test."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .exit_codes import FAILED, CommandEndError
from .options import Files, Namespace, Recursive, RunName
from .terminal import print_message, print_result

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
    from ..errors import UsageError
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
    """Replay recordings with the manifests of -f. Exit code 2: a call or an answer differs."""
    from ...testing.replays import play
    from .client import silence_sdk

    silence_sdk()
    logging.getLogger("temporalio.activity").setLevel(logging.CRITICAL)  # the report has what it would log
    replays: list[Replay] = []
    for path in recordings:
        replay = play(path, files, models=models, tools=tools, update=update, seconds=timeout, recursive=recursive)
        replays.append(replay)
        _print(replay)
    if junit:
        junit.write_text(_junit(replays))
    differing = sum(not replay.unchanged for replay in replays)
    if len(replays) > 1:
        print_result(f"{len(replays) - differing} of {len(replays)} unchanged")
    if differing:
        raise CommandEndError(FAILED)


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


def _junit(replays: "list[Replay]") -> str:
    """A report in JUnit's format: a test case for each recording."""
    from xml.etree import ElementTree as ET

    failures = sum(not replay.unchanged for replay in replays)
    seconds = sum(replay.seconds for replay in replays)
    suite = ET.Element(
        "testsuite",
        {
            "name": "baton",
            "tests": str(len(replays)),
            "failures": str(failures),
            "errors": "0",
            "time": f"{seconds:.3f}",
        },
    )
    for replay in replays:
        case = ET.SubElement(
            suite, "testcase", {"classname": "baton", "name": str(replay.path), "time": f"{replay.seconds:.3f}"}
        )
        if not replay.unchanged:
            failure = ET.SubElement(case, "failure", {"message": replay.report.partition("\n")[0]})
            failure.text = replay.report
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'
