"""Writes a report as one HTML file, which needs no network and no script to be read."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from ...contracts.message import TokenUsage
from ...contracts.text import truncate
from ...installation import version
from ...resources.catalog import Resource
from ...resources.team import Team
from ..diagram.build import Arrow, Box, box_lines, build_diagram, shorten
from ..diagram.layout import Drawing, drawing_of
from ..diagram.svg import element_of, style_sheet
from . import charts
from .markup import clock, duration, h, moment, money, speaker_color, words
from .report import Entry, Note, Report, Round, RunPart, SaidText, Turn, UsedTool, WaitTime, pretty

MAX_TEXTS = 6_000_000
"""Bytes of all texts of a conversation in a report. Of a longer one, the longest texts are truncated."""

MIN_TEXT = 1_000
"""Bytes of a text that are never truncated."""

PHASES = {
    "InputRequired": "waits for a person",
    "Waiting": "waits for a server",
    "Running": "is running",
    "Paused": "is paused",
}

STYLE = Path(__file__).with_name("style.css")


def html_of(report: Report) -> str:
    """The report as the text of an HTML file."""
    page = _Page(report)
    title = f"{', '.join(report.targets) or report.id}: {shorten(report.question, 80)}"
    return document(title, h("body", page.header(), h("main", *page.sections()), page.footer()))


def document(title: str, body: Element) -> str:
    """The text of an HTML file that may load nothing and run no script."""
    style = f"{STYLE.read_text()}\n{style_sheet()}"
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", http_equiv="Content-Security-Policy", content=policy),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="referrer", content="no-referrer"),
        h("meta", name="color-scheme", content="light dark"),
        h("title", title),
    )
    styles = Element("style")
    styles.text = style  # as it is: a browser compares its digest
    head.append(styles)
    return f"<!doctype html>\n{tostring(h('html', head, body, lang='en'), encoding='unicode', method='html')}\n"


class _Page:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._limit = _limit_of(report)
        self._drawings = 0

    def header(self) -> Element:
        """What was asked, how it has ended, and what it has cost."""
        report = self._report
        root = report.root
        ended = report.root.end
        usage = report.usage
        took = (report.ended_at - root.start.at).total_seconds()
        status = f"The run {PHASES[report.phase]}." if report.phase in PHASES else report.phase
        facts: list[tuple[str, Element | str | None]] = [
            ("Target", ", ".join(report.targets) or None),
            ("Started", moment(root.start.at)),
            ("Ended", moment(ended.at) if ended else None),
            ("Started by", report.caller),
            ("Duration", duration(took)),
            ("Turns", f"{len([turn for turn in report.turns if turn.start.kind != 'team']):,}"),
            ("Model calls", f"{usage.model_calls:,}"),
            ("Tool calls", f"{usage.tool_calls:,}"),
            ("Tokens", f"{usage.total_tokens:,}"),
            ("Cost", money(usage.cost) if usage.cost is not None else None),
            ("Run", h("code", report.id)),
        ]
        why = []
        if ended and ended.stop_reason and ended.stop_reason != "completed":
            why.append(h("span", f"Reason: {ended.stop_reason.replace('_', ' ')}", class_="reason"))
        if ended and ended.note:
            why.append(h("bdi", ended.note, class_="reason"))
        header = h(
            "header",
            h("p", h("span", status, class_=f"phase {report.phase.lower()}"), *why, class_="state"),
            h("h1", shorten(report.question, 300) or report.id, dir="auto"),
            _folded("The whole question", [words(self._cut(report.question))]) if len(report.question) > 300 else None,
            h("p", ended.error, class_="failure", dir="auto") if ended and ended.error else None,
            h(
                "dl",
                *chain.from_iterable(
                    (h("div", h("dt", name), h("dd", value)),) for name, value in facts if value is not None
                ),
            ),
        )
        if not ended:
            read = h("p", "The run has not ended: this is its state at ", moment(report.read_at), ".", class_="remark")
            header.append(read)
        notes = ended.notices if ended else ()
        failures = [f"{each.member}: {each.message}" for each in ended.member_failures] if ended else []
        for text in (*notes, *failures):
            header.append(h("p", text, class_="remark", dir="auto"))
        return header

    def sections(self) -> Iterator[Element]:
        """The conversation, the teams, the lanes, the members and the waits; those that there are."""
        report = self._report
        yield h("section", h("h2", "Conversation", id="conversation"), *self._run(report.root), class_="conversation")
        if teams := [*self._teams()]:
            yield h("section", h("h2", "Teams" if len(teams) > 1 else "Team", id="teams"), *teams)
        if lanes := charts.lanes(report.lanes):
            yield h("section", h("h2", "Time", id="time"), _legend(BARS), _wide(lanes, "Time"))
        if any(member.turns or member.usage.model_calls for member in report.members.values()):
            yield self._members()
        turns = [turn for turn in report.turns if turn.start.kind != "team"]
        if len(turns) > 1 and (columns := charts.time_by_turn(turns, report.ended_at)):
            plot = _wide(columns, "Time by turn")
            yield h("section", h("h2", "Time by turn", id="turns"), _legend(PARTS_OF_TURNS), plot)
        if report.waits:
            yield self._waits()

    def footer(self) -> Element:
        """Who has written this, and when."""
        return h("footer", f"Written by Baton {version()} at ", moment(self._report.read_at), ".")

    def _run(self, run: RunPart, speaker: str | None = None) -> Iterator[Element]:
        """What happened in a run; a panel is divided into its rounds. Messages of ``speaker`` need no name."""
        group: list[Element] = []
        heading: Round | None = None
        for entry in run.entries:
            if isinstance(entry, Round):
                yield from self._round(heading, group)
                heading, group = entry, []
            else:
                group.extend(self._entry(entry, speaker))
        yield from self._round(heading, group)
        if not run.entries and not run.end:
            yield h("p", "Nothing has been said yet.", class_="remark")

    def _round(self, heading: Round | None, content: list[Element]) -> Iterator[Element]:
        if heading is None or not content:
            yield from content
            return
        last = f" of {heading.last}" if heading.last else ""
        yield _folded(h("h3", f"Round {heading.number}{last}"), content, class_="round", is_open=True)

    def _entry(self, entry: Entry, speaker: str | None = None) -> Iterator[Element]:
        match entry:
            case RunPart():
                yield from self._child(entry, speaker=speaker)
            case Turn(entries=[RunPart() as run]) if run.start.kind == "team":
                yield from self._child(run, turn=entry)
            case Turn():
                yield self._turn(entry)
            case SaidText():
                yield from self._said(entry, speaker)
            case UsedTool():
                yield self._tool(entry)
            case WaitTime():
                yield _wait(entry, self._cut(entry.start.text or ""))
            case Note():
                shown = h("p", h("b", entry.title), ": " if entry.text else "", h("bdi", self._cut(entry.text)))
                shown.set("class", "event error" if entry.is_error else "event")
                yield shown

    def _child(self, run: RunPart, *, turn: Turn | None = None, speaker: str | None = None) -> Iterator[Element]:
        """A child run: folded if it is a team's, as its ``turn``, unless it is a target of the query."""
        if run.start.kind != "team":
            yield from self._run(run, speaker)
            return
        usage = run.end.usage if run.end else TokenUsage()
        parts = [f"turn {turn.start.turn}" if turn and turn.start.turn else "", run.start.strategy or ""]
        parts += [_count(len(run.steps), "turn"), f"{usage.total_tokens:,} tokens" if run.end else ""]
        parts += (
            [duration((run.end.at - run.start.at).total_seconds()), run.end.phase] if run.end else ["has not ended"]
        )
        name = turn.start.speaker if turn else run.start.name
        title = h("bdi", name, class_=f"speaker s{speaker_color(name)}" if turn else None)
        summary = h("span", title, h("span", " · ".join(filter(None, parts)), class_="facts"))
        is_target = any(run is target for target in self._report.root.entries)
        yield _folded(summary, [*self._run(run)], class_="team", is_open=is_target)

    def _turn(self, turn: Turn) -> Element:
        start = turn.start
        notes = [f"turn {start.turn}" if start.turn else "", start.part if start.part != start.speaker else ""]
        usage = turn.end.usage if turn.end else None
        if turn.end:
            notes.append(duration(turn.end.seconds))
        if usage and usage.total_tokens:
            notes.append(f"{usage.total_tokens:,} tokens")
        if usage and usage.cost:
            notes.append(money(usage.cost))
        head = h(
            "h4",
            h("bdi", start.speaker, class_=f"speaker s{speaker_color(start.speaker)}"),
            h("span", start.stance, class_="badge", dir="auto") if start.stance else None,
            h("span", " · ".join(filter(None, notes)), class_="facts"),
            clock(start.at),
        )
        article = h("article", head, class_=f"turn s{speaker_color(start.speaker)}")
        for entry in turn.entries:
            article.extend(self._entry(entry, start.speaker))
        if start.hidden:
            article.append(h("p", "The text of this turn is not shown.", class_="event"))
        if turn.end and turn.end.outcome != "completed":
            text = f"{turn.end.outcome}: {turn.end.error}" if turn.end.error else turn.end.outcome
            article.append(
                h("p", f"The turn {text}" if turn.end.error else f"The turn was {text}.", class_="event error")
            )
        if turn.end is None:
            article.append(h("p", "The turn has not ended.", class_="event"))
        return article

    def _said(self, said: SaidText, speaker: str | None) -> Iterator[Element]:
        if said.name != speaker:
            name = h("bdi", said.name, class_=f"speaker s{speaker_color(said.name)}")
            yield h("h4", name, clock(said.at))
        text = self._cut(said.text)
        shown = pretty(text)
        marked = f" {said.part}" if said.part else ""
        if shown != text:
            yield h("pre", shown, class_=f"words{marked}", dir="auto")
        elif text:
            yield words(text, f"words{marked}")

    def _tool(self, tool: UsedTool) -> Element:
        outcome = "failed" if tool.error else "" if tool.is_over else "has not returned"
        facts = [duration(tool.seconds) if tool.seconds is not None else "", outcome]
        summary = h(
            "span", h("code", tool.name), h("span", " · ".join(filter(None, facts)), class_="facts"), class_="call"
        )
        content = [h("p", "Arguments", class_="label"), h("pre", pretty(self._cut(tool.arguments or "")) or "hidden")]
        content += chain.from_iterable(self._child(run) for run in tool.runs)
        if tool.error:
            content += [h("p", "Error", class_="label"), h("pre", self._cut(tool.error), class_="error")]
        elif tool.is_over:
            result = pretty(self._cut(tool.result)) if tool.result is not None else "hidden"
            content += [h("p", "Result", class_="label"), h("pre", result, dir="auto")]
        return _folded(summary, content, class_="tool failed" if tool.error else "tool")

    def _teams(self) -> Iterator[Element]:
        """The drawings of the teams that have run. A nested team is in the drawing of the outermost one around it."""
        drawn: set[str] = set()
        for resource, runs in self._report.team_runs().items():
            if resource in drawn:
                continue
            drawing = self._drawing(resource, runs)
            drawn |= {node.resource for node in drawing.nodes if node.resource}
            self._drawings += 1
            lit, taken = self._ways(drawing)
            picture = element_of(drawing, f"team-{self._drawings}", lit=lit, taken=taken)
            caption = ["Ways that were taken are blue."]
            if self._report.is_current:
                caption.append("Drawn from the manifests that workers have now.")
            figure = h("figure", _wide(picture, runs[0].start.name), h("figcaption", " ".join(caption)))
            yield figure

    def _drawing(self, resource: str, runs: Sequence[RunPart]) -> Drawing:
        manifest: Resource | None = self._report.catalog.by_id(resource)
        if isinstance(manifest, Team):
            page = build_diagram(self._report.catalog, [manifest], manifest.namespace, missing="not known")
            return drawing_of(page)
        return drawing_of(_as_seen(resource, runs))

    def _ways(self, drawing: Drawing) -> tuple[set[str], set[str]]:
        """The ids of the nodes whose turn it is, and of the edges that were taken."""
        lit: set[str] = set()
        taken: set[str] = set()
        labels = {node.id: node.speaker or node.part for node in drawing.nodes}
        runs_of_teams = self._report.team_runs()
        for team in drawing.nodes:
            inside = {node.id for node in drawing.nodes if node.parent == team.id}
            for run in runs_of_teams.get(team.resource or "", []):
                ways = {*pairwise(run.steps)}
                for edge in drawing.edges:
                    if edge.start in inside:
                        start, end = labels[edge.start], labels[edge.end]
                        there = (start, end) in ways or (edge.two_way and (end, start) in ways)
                        selects = start == "selector" and end in run.steps
                        if there or selects or _is_way_of_dot(run, start, end):
                            taken.add(edge.id)
                open_labels = {
                    entry.label for entry in run.entries if isinstance(entry, Turn) and not entry.end and not run.end
                }
                lit |= {node for node in inside if labels[node] in open_labels}
        return lit, taken

    def _members(self) -> Element:
        members = sorted(self._report.members.values(), key=lambda member: -member.usage.total_tokens)
        has_cost = any(member.usage.cost for member in members)
        columns = ["Member", "Turns", "Model calls", "Tool calls", "Prompt", "Answers", "Tokens", "Time"]
        rows = []
        for member in members:
            usage = member.usage
            numbers = [member.turns, usage.model_calls, usage.tool_calls]
            numbers += [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]
            cells = [*(f"{number:,}" for number in numbers), duration(member.seconds) if member.seconds else "–"]
            if has_cost:
                cells.append(money(usage.cost) if usage.cost is not None else "–")
            name = h("th", h("bdi", member.name, class_=f"speaker s{speaker_color(member.name)}"), scope="row")
            rows.append(h("tr", name, *(h("td", cell) for cell in cells)))
        heads = (h("th", column, scope="col") for column in [*columns, *(["Cost"] if has_cost else [])])
        table = h("table", h("thead", h("tr", *heads)), h("tbody", *rows))
        section = h("section", h("h2", "Members", id="members"), _wide(table, "Members"))
        with_tokens = [member for member in members if member.usage.total_tokens]
        if len(with_tokens) > 1:
            plot = charts.bars(
                "Tokens by member",
                [
                    (
                        member.name,
                        [("prompt", member.usage.prompt_tokens), ("answers", member.usage.completion_tokens)],
                        f"{member.usage.total_tokens:,}",
                    )
                    for member in with_tokens
                ],
            )
            section.extend([h("h3", "Tokens"), _legend(TOKENS), _wide(plot, "Tokens by member")])
        with_cost = sorted((m for m in members if m.usage.cost), key=lambda member: -(member.usage.cost or 0))
        if len(with_cost) > 1:
            costs = [(m.name, [("cost", m.usage.cost or 0)], money(m.usage.cost or 0)) for m in with_cost]
            section.extend([h("h3", "Cost"), _wide(charts.bars("Cost by member", costs), "Cost by member")])
        return section

    def _waits(self) -> Element:
        waits = self._report.waits
        rows = []
        for wait in waits:
            last = wait.end.at if wait.end else self._report.ended_at
            what = wait.start.tool or shorten(wait.start.text or "", 120)
            cells: list[Element | str] = [
                h("bdi", wait.start.speaker or "–"),
                h("bdi", what),
                duration((last - wait.start.at).total_seconds()),
                h("bdi", _end_of(wait)),
            ]
            kind = h("th", WAITS[wait.start.kind], scope="row")
            rows.append(h("tr", kind, *(h("td", cell) for cell in cells)))
        heads = (h("th", column, scope="col") for column in ("Wait", "Whose turn", "For", "How long", "How it ended"))
        table = h("table", h("thead", h("tr", *heads)), h("tbody", *rows), class_="texts")
        totals: dict[str, float] = {}
        for wait in waits:
            last = wait.end.at if wait.end else self._report.ended_at
            name = WAITS[wait.start.kind]
            totals[name] = totals.get(name, 0) + (last - wait.start.at).total_seconds()
        section = h("section", h("h2", "Waits", id="waits"), _wide(table, "Waits"))
        if len(totals) > 1:
            plot = charts.bars("Waits", [(name, [("wait", value)], duration(value)) for name, value in totals.items()])
            section.append(_wide(plot, "Waits by kind"))
        return section

    def _cut(self, text: str) -> str:
        return truncate(text, self._limit)


OUTCOMES = {"failed": "failed", "canceled": "was canceled"}

BARS = (("turn", "turn"), ("model", "model call"), ("tool", "tool call"), ("wait", "wait"))
PARTS_OF_TURNS = (("model", "model calls"), ("tool", "tool calls"), ("turn", "the rest of the turn"))
TOKENS = (("prompt", "prompts"), ("answers", "answers"))
"""The classes of bars in plots, with their meanings."""

WAITS = {
    "approval": "Approval",
    "question": "Question",
    "budget": "Budget",
    "client_tool": "Tool of the client",
    "circuit": "Circuit breaker",
    "outage": "Outage",
    "quota": "Quota",
    "pause": "Pause",
}
"""The words for the kinds of waits."""


def _limit_of(report: Report) -> int:
    """The bytes that each text may have so that all of them fit."""
    sizes = sorted(len(text.encode(errors="replace")) for run in report.root.below() for text in _texts(run.entries))
    room = MAX_TEXTS
    for index, size in enumerate(sizes):
        share = room // (len(sizes) - index)
        if size > share:
            return max(MIN_TEXT, share)
        room -= size
    return MAX_TEXTS


def _texts(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        match entry:
            case Turn():
                yield from _texts(entry.entries)
            case SaidText() | Note():
                yield entry.text
            case UsedTool():
                yield from filter(None, (entry.arguments, entry.result, entry.error))
            case WaitTime():
                yield entry.start.text or ""


def _is_way_of_dot(run: RunPart, start: str | None, end: str | None) -> bool:
    """Whether a run has taken an edge from the dot at its start, or to the one at its end: those have no label."""
    if start is None:
        return end in run.steps if run.start.strategy == "parallel" else [end] == run.steps[:1]
    return end is None and start in run.steps


def _as_seen(resource: str, runs: Sequence[RunPart]) -> Box:
    """The diagram of a team whose manifest is not known: its speakers, and the ways that were taken."""
    steps = [run.steps for run in runs]
    speakers = [*dict.fromkeys(chain.from_iterable(steps))]
    places = {speaker: index for index, speaker in enumerate(speakers)}
    ways = dict.fromkeys((places[start], places[end]) for each in steps for start, end in pairwise(each))
    members = tuple(
        Box("agent", box_lines(speaker), column=index, speaker=speaker) for index, speaker in enumerate(speakers)
    )
    lines = box_lines(runs[0].start.name, runs[0].start.strategy or "")
    arrows = tuple(Arrow(start, end) for start, end in ways)
    team = Box("team", lines, inside=members, arrows=arrows, resource=resource)
    return Box("page", inside=(team,))


def _wait(wait: WaitTime, text: str) -> Element:
    whom = f" of {wait.start.tool}" if wait.start.tool else ""
    summary = h("p", h("b", f"{WAITS[wait.start.kind]}{whom}"), ": ", h("bdi", _end_of(wait)), class_="event")
    if not text:
        return summary
    return h("div", summary, h("pre", pretty(text), dir="auto"), class_="wait")


def _end_of(wait: WaitTime) -> str:
    """How a wait has ended, such as ``approved by alice: enough``."""
    if wait.end is None:
        return "still waits"
    by = f" by {wait.end.by}" if wait.end.by else ""
    said = wait.end.reason or (wait.end.text if wait.end.outcome == "replied" else None)
    why = f": {shorten(said, 200)}" if said else ""
    return f"{'over' if wait.end.outcome == 'over' else wait.end.outcome}{by}{why}"


def _folded(
    summary: Element | str, content: Sequence[Element], class_: str = "folded", *, is_open: bool = False
) -> Element:
    """What is folded until somebody opens it."""
    return h("details", h("summary", summary), *content, class_=class_, open=is_open)


def _wide(content: Element, label: str) -> Element:
    """What may be wider than the page, and is scrolled then, also by keyboard."""
    return h("div", content, class_="wide", tabindex="0", role="region", aria_label=label)


def _legend(keys: Sequence[tuple[str, str]]) -> Element:
    return h("ul", *(h("li", h("span", class_=f"key {name}"), text) for name, text in keys), class_="legend")


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
