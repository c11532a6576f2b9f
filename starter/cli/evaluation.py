"""Commands that evaluate and compare: eval, compare, and diff of two runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .exit_codes import FAILED, CommandEndError
from .options import Output, OutputFormat, Recursive, Target
from .terminal import check_file, dump, print_message, print_result, print_rows, write_file

if TYPE_CHECKING:
    from temporalio.client import Client

    from ..history.difference import Difference

app = typer.Typer()


def show_difference(first: str, second: str, namespace: str, output: str) -> None:
    """Prints where two runs diverge, and their steps from there on, or writes them into a file that ends with .html."""
    import sys

    from rich.console import Console

    from ..console.difference import WIDTH, print_difference
    from ..history.difference import compare_runs
    from ..report.difference import html_of_difference
    from ..runs.runs import find_run
    from .client import with_client

    is_file = output.endswith(".html")
    if not is_file and output not in (*OutputFormat, "html"):
        raise UsageError(f"-o {output}: two runs are shown as {', '.join(OutputFormat)}, html, or in a file NAME.html")

    async def read(client: "Client") -> "Difference":
        a = await find_run(client, first, namespace)
        b = await find_run(client, second, namespace)
        return await compare_runs(client, a, b)

    difference = with_client(read)
    if is_file:
        write_file(Path(output), html_of_difference(difference))
    elif output == "html":
        print_result(html_of_difference(difference).rstrip("\n"))
    elif output == OutputFormat.text:
        width = None if sys.stdout.isatty() else WIDTH
        print_difference(Console(highlight=False, width=width), difference)
    else:
        print_result(dump(difference.model_dump(mode="json", by_alias=True), OutputFormat(output)))


@app.command("eval")
def evaluate(
    *,
    target: Target = None,
    file: Annotated[
        list[Path],
        typer.Option(
            "-f",
            "--file",
            help="A file of cases, or a file or folder of manifests; repeatable. One file has the cases.",
        ),
    ],
    recursive: Recursive = False,
    own_id: Annotated[
        str | None, typer.Option("--id", help="The evaluation's id; an interrupted evaluation continues under its id.")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="How often each case is run.")] = 1,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="How many cases run at once.")] = 10,
    timeout: Annotated[str | None, typer.Option("--timeout", help="How long each run may take, such as 5m.")] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="An earlier report; a lower score is a regression: exit code 2.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0, help="By how much a mean may fall below that of the baseline.")
    ] = 0.0,
    save: Annotated[Path | None, typer.Option("--save", help="Write the report to this file, as a baseline.")] = None,
    evaluators: Annotated[
        list[str] | None,
        typer.Option("--evaluators", help="A Python module with evaluators of your own; repeatable."),
    ] = None,
    output: Output = OutputFormat.text,
) -> None:
    """Run the cases in FILE as durable queries of a target, evaluate them, and print the report.

    KIND/NAME can be omitted if the files have a single outermost team, or a single agent. ARK's Evaluations in the
    files are run instead if no file has cases.
    """
    import asyncio

    from ...installation import require

    require("evals", "an evaluation")
    from .client import silence_sdk
    from .evaluate import EvaluationSettings, run_evaluation

    silence_sdk()
    settings = EvaluationSettings(
        target=target,
        files=file,
        recursive=recursive,
        id=own_id,
        repeat=repeat,
        concurrency=concurrency,
        timeout=timeout,
        baseline=baseline,
        tolerance=tolerance,
        save=save,
        evaluators=evaluators or (),
        output=output,
    )
    if not asyncio.run(run_evaluation(settings)):
        raise CommandEndError(FAILED)


@app.command()
def compare(
    *,
    variants: Annotated[
        Path, typer.Option("-f", "--file", help="The file of variants, with its question or cases and its manifests.")
    ],
    manifests: Annotated[
        list[Path] | None, typer.Option("--manifests", help="A file or folder of more manifests; repeatable.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TURN",
            help="The turn of the file's run after which each variant continues, as for baton fork.",
        ),
    ] = None,
    own_id: Annotated[
        str | None, typer.Option("--id", help="The comparison's id; an interrupted comparison continues under its id.")
    ] = None,
    times: Annotated[int | None, typer.Option("--times", min=1, help="How often each case is asked.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="How many runs are open at once.")] = 10,
    timeout: Annotated[str | None, typer.Option("--timeout", help="How long each run may take, such as 5m.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Plot quality against cost in this SVG file.")] = None,
    output: Output = OutputFormat.text,
) -> None:
    """Ask several models, prompts or teams the same questions in durable runs; compare quality, cost and time."""
    import asyncio

    from ...installation import require

    require("evals", "a comparison")
    from ..evaluation.comparison import COLUMNS, row_of
    from ..evaluation.plot import plot as draw
    from .client import silence_sdk
    from .evaluate import run_comparison

    silence_sdk()
    check_file(plot)
    comparison = asyncio.run(
        run_comparison(
            variants, manifests or (), own_id=own_id, times=times, concurrency=concurrency, run_timeout=timeout, at=at
        )
    )
    try:
        if output is OutputFormat.text:
            print_rows(COLUMNS, [(row_of(one), None) for one in comparison.variants], "text", "No variants.")
        else:
            print_result(dump(comparison.model_dump(mode="json"), output))
        for variant in comparison.variants:
            for error in variant.errors:
                print_message(f"failed: {variant.name}: {error}", style="red")
    finally:  # also if the reader of what is printed has gone
        if plot:
            write_file(plot, draw(comparison.variants))
    if any(variant.failed for variant in comparison.variants):
        raise CommandEndError(FAILED)
