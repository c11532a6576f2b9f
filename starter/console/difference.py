"""Prints the difference between two runs side by side."""

from collections.abc import Iterator
from datetime import timedelta
from textwrap import indent

from rich.box import MINIMAL
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...contracts.text import truncate
from ..history.difference import ComparedRun, Difference, DifferingField, RunStep
from ..text import format_duration, format_usage
from .lines import escaped, one_line

WIDTH = 80
"""The width of what is printed through a pipe; on a terminal it is as wide as the terminal."""

MAX_RESULT_BYTES = 400
"""The length to which the result of a tool is truncated."""


def print_difference(console: Console, difference: Difference) -> None:
    """Prints how two runs have ended, where they part, and their steps from there on in two columns."""
    for label, run in (("A", difference.a), ("B", difference.b)):
        _print(console, _heading(label, run))
        if run.error:
            _print(console, Text(indent(run.error, "   "), style="red"))
    _print(console, Text(difference.summary))
    if not difference.pairs:
        return
    table = Table(show_header=True, show_edge=False, pad_edge=False, expand=True, box=MINIMAL)
    table.add_column("A", ratio=1, overflow="fold")
    table.add_column("B", ratio=1, overflow="fold")
    for index, pair in enumerate(difference.pairs):
        if index:
            table.add_row("", "")
        table.add_row(_step(pair.a, pair.differs_in), _step(pair.b, pair.differs_in))
    console.print(table)


def _print(console: Console, text: Text) -> None:
    console.print(escaped(text), soft_wrap=False)


def _heading(label: str, run: ComparedRun) -> Text:
    phase = run.phase or "Running"
    reason = f" ({run.stop_reason})" if run.stop_reason else ""
    about = f"{format_usage(run.usage)} · {format_duration(timedelta(seconds=run.seconds))}"
    return Text.assemble((f"{label}  ", "bold"), one_line(Text(run.id)), f"\n   {phase}{reason} · ", (about, "dim"))


def _step(step: RunStep | None, differs_in: DifferingField | None) -> Text:
    """A step as the lines of a cell; what differs is emphasized."""
    if step is None:
        return Text("–", style="dim")
    mark = "bold" if differs_in else "dim"
    place = f"  {step.place}" if step.place else ""
    in_round = f"  round {step.round}" if step.round else ""
    lines = [one_line(Text.assemble((step.speaker, mark), (f"{in_round}{place}", "dim")))]
    if step.kind == "tool":
        lines.append(one_line(Text(f"→ {step.tool} {step.arguments or ''}".rstrip(), style=mark)))
        outcome = f"error: {step.error}" if step.error else step.result or ""
        lines.append(Text(f"← {truncate(outcome, MAX_RESULT_BYTES)}".rstrip()))
    else:
        lines.append(Text(step.words or ""))
    if facts := [*_facts(step)]:
        lines.append(one_line(Text(" · ".join(facts), style="dim")))
    return escaped(Text("\n").join(lines))


def _facts(step: RunStep) -> Iterator[str]:
    usage = step.usage
    if step.model is not None:
        yield step.model
    if usage.total_tokens:
        yield f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
    if usage.cost is not None:
        yield f"${usage.cost:.4f}"
    if step.kind == "tool" or usage.model_calls or step.seconds:
        yield f"{step.seconds:.1f} s"
