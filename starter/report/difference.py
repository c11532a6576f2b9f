"""Writes the difference between two runs as one HTML file, which needs no network and no script to be read."""

from collections.abc import Iterator
from datetime import UTC, datetime
from xml.etree.ElementTree import Element

from ...contracts.text import truncate
from ...installation import version
from ..history.difference import REASONS, ComparedRun, Difference, DifferingField, RunStep
from .html import document
from .markup import duration, h, moment, money, speaker_color, words
from .report import pretty

MAX_RESULT_BYTES = 20_000
"""The length to which a result of a tool is truncated."""


def html_of_difference(difference: Difference) -> str:
    """The difference as the text of an HTML file."""
    header = h(
        "header",
        h("h1", difference.summary),
        h("div", _run("A", difference.a), _run("B", difference.b), class_="pair"),
    )
    rows = [
        h("div", _step("A", pair.a, pair.differs_in), _step("B", pair.b, pair.differs_in), class_="pair")
        for pair in difference.pairs
    ]
    steps = h("section", h("h2", "Steps from there on", id="steps"), *rows) if rows else None
    footer = h("footer", f"Written by Baton {version()} at ", moment(datetime.now(UTC)), ".")
    return document(
        f"{difference.a.id} and {difference.b.id}", h("body", header, h("main", steps), footer, class_="compared")
    )


def _run(label: str, run: ComparedRun) -> Element:
    """How a run has ended, and what it has cost."""
    phase = run.phase or "Running"
    usage = run.usage
    facts: list[tuple[str, str | None]] = [
        ("Duration", duration(run.seconds)),
        ("Turns", None if run.turns is None else f"{run.turns:,}"),
        ("Model calls", f"{usage.model_calls:,}"),
        ("Tool calls", f"{usage.tool_calls:,}"),
        ("Tokens", f"{usage.total_tokens:,}"),
        ("Cost", None if usage.cost is None else money(usage.cost)),
    ]
    reason = run.stop_reason if run.stop_reason != "completed" else None
    return h(
        "div",
        h("h2", f"{label}  ", h("code", run.id)),
        h(
            "p",
            h("span", phase, class_=f"phase {phase.lower()}"),
            h("span", f"Reason: {reason.replace('_', ' ')}", class_="reason") if reason else None,
            class_="state",
        ),
        h("p", run.error, class_="failure", dir="auto") if run.error else None,
        h("dl", *(h("div", h("dt", name), h("dd", value)) for name, value in facts if value is not None)),
    )


def _step(label: str, step: RunStep | None, differs_in: DifferingField | None) -> Element:
    """A step of a run; the field in which it differs from the one beside it is marked."""
    if step is None:
        return h("div", h("p", f"{label} has no such step.", class_="event"))
    color = f"s{speaker_color(step.speaker)}"
    where = " · ".join(filter(None, (step.place, f"round {step.round}" if step.round else "")))
    article = h(
        "article",
        h(
            "h4",
            h("bdi", step.speaker, class_=f"speaker {color}{_mark(differs_in, 'speaker')}"),
            h("span", where, class_=f"facts{_mark(differs_in, 'place')}") if where else None,
        ),
        class_=f"turn {color}",
    )
    article.extend(_content(step, differs_in))
    if facts := [*_facts(step)]:
        article.append(h("p", " · ".join(facts), class_="facts"))
    if differs_in:
        article.append(h("p", f"Differs: {REASONS[differs_in]}.", class_="event"))
    return article


def _content(step: RunStep, differs_in: DifferingField | None) -> Iterator[Element]:
    if step.kind == "message":
        yield words(step.words or "", f"words{_mark(differs_in, 'words')}")
        return
    yield h("p", "calls ", h("code", step.tool or "", class_=_mark(differs_in, "tool").strip() or None))
    yield h("pre", pretty(step.arguments), class_=f"words{_mark(differs_in, 'arguments')}", dir="auto")
    outcome = truncate(step.error or step.result or "", MAX_RESULT_BYTES)
    kind = "error words" if step.error else "words"
    yield h("pre", pretty(outcome), class_=f"{kind}{_mark(differs_in, 'result')}", dir="auto")


def _mark(differs_in: DifferingField | None, field: DifferingField) -> str:
    """The class of what differs, after those of the element."""
    return " differs" if differs_in == field else ""


def _facts(step: RunStep) -> Iterator[str]:
    if step.model:
        yield step.model
    if step.usage.total_tokens:
        yield f"{step.usage.prompt_tokens:,} + {step.usage.completion_tokens:,} tokens"
    if step.usage.cost is not None:
        yield money(step.usage.cost)
    if step.seconds or step.kind == "tool":
        yield duration(step.seconds)
