"""What a report of a run tells: its conversation as a tree of runs and turns, and sums and times of its members."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from temporalio.client import Client

from ...contracts.message import PanelMessageKind, TokenUsage
from ...contracts.scope import CALLER
from ...contracts.text import parse_json
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...temporal.executions import memo_of
from ..history.events import (
    Event,
    HandoffEvent,
    MessageEvent,
    ModelAnsweredEvent,
    ModelCalledEvent,
    ModelFailedEvent,
    NoticeEvent,
    RoundStartedEvent,
    RunEndedEvent,
    RunForkedEvent,
    RunResetEvent,
    RunRetriedEvent,
    RunStartedEvent,
    SessionChangedEvent,
    SpeakerSelectedEvent,
    SteeredEvent,
    StopRequestedEvent,
    ToolCalledEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
    TurnEndedEvent,
    TurnStartedEvent,
    WaitEndedEvent,
    WaitStartedEvent,
)
from ..history.live_state import usage_of
from ..history.members import MemberSum, MemberSums
from ..history.stream import stream_events
from ..runs.runs import RunHandle
from ..runs.start import original_input, readable_manifests_of_run


@dataclass
class TimedCall:
    """A call of a model or a tool, or a wait: what took the time from ``started`` to ``ended``."""

    kind: str
    name: str
    started: datetime
    ended: datetime | None = None


@dataclass
class Note:
    """Something that happened, in a sentence: ``text`` is what somebody has said with it."""

    at: datetime
    title: str
    text: str = ""
    is_error: bool = False


@dataclass
class SaidText:
    """A message: ``name`` is its author."""

    at: datetime
    name: str
    text: str
    part: PanelMessageKind | None = None


@dataclass
class UsedTool:
    """A tool call with its arguments and its result, as JSON or text; ``runs`` are those that it has started."""

    id: str
    at: datetime
    name: str
    arguments: str | None
    result: str | None = None
    error: str | None = None
    seconds: float | None = None
    is_over: bool = False
    runs: list["RunPart"] = field(default_factory=list)


@dataclass
class WaitTime:
    """A wait: ``end`` is how it ended, ``None`` if it has not."""

    start: WaitStartedEvent
    end: WaitEndedEvent | None = None


@dataclass
class Round:
    """The beginning of a round."""

    number: int
    last: int | None


Entry: TypeAlias = "Turn | RunPart | SaidText | UsedTool | WaitTime | Note | Round"
"""Something in a conversation."""


@dataclass
class Turn:
    """The turn of a speaker: what was said and done in it, and the calls that it made."""

    start: TurnStartedEvent
    end: TurnEndedEvent | None = None
    entries: list[Entry] = field(default_factory=list)
    calls: list[TimedCall] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The name by which a drawing knows the speaker: its role, if it is not a member."""
        return self.start.part or self.start.speaker


@dataclass
class RunPart:
    """A run with all that happened in it, in order."""

    start: RunStartedEvent
    end: RunEndedEvent | None = None
    entries: list[Entry] = field(default_factory=list)
    calls: list[TimedCall] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    """The speakers, in the order of their turns, as ``Turn.label``."""

    @property
    def resource(self) -> str:
        """The id of the manifest that it runs."""
        return f"{self.start.kind.capitalize()}/{self.start.namespace}/{self.start.name}"

    def below(self) -> Iterator["RunPart"]:
        """The run, and all runs that it has started."""
        yield self
        for run in _runs_in(self.entries):
            yield from run.below()


def _runs_in(entries: list[Entry]) -> Iterator[RunPart]:
    for entry in entries:
        match entry:
            case RunPart():
                yield entry
            case Turn():
                yield from _runs_in(entry.entries)
            case UsedTool():
                yield from entry.runs


@dataclass(frozen=True)
class Bar:
    """A span of time in a lane: a turn, a call or a wait."""

    kind: str
    title: str
    start: datetime
    end: datetime


@dataclass
class Report:
    """A run, as it was read at a time: the conversation, and sums and times by member.

    ``question`` is what it was asked, ``targets`` whom; ``caller`` is who has started it through a gateway.
    ``catalog`` has manifests from which its teams are drawn; ``is_current``: workers have them now, and the run may
    have begun with others.
    """

    id: str
    read_at: datetime
    root: RunPart
    question: str
    targets: list[str]
    caller: str | None
    catalog: Catalog
    is_current: bool
    members: dict[str, MemberSum] = field(default_factory=dict)
    lanes: dict[str, list[Bar]] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    waits: list[WaitTime] = field(default_factory=list)
    usage: TokenUsage = field(default_factory=TokenUsage)

    @property
    def ended_at(self) -> datetime:
        """When the run has ended, or when it was read."""
        return self.root.end.at if self.root.end else self.read_at

    @property
    def phase(self) -> str:
        """The phase of the run."""
        if self.root.end:
            return self.root.end.phase
        waits = [wait.start.kind for wait in self.waits if wait.end is None]
        if {"approval", "question", "budget", "client_tool"}.intersection(waits):
            return "InputRequired"
        return "Paused" if "pause" in waits else "Waiting" if waits else "Running"

    def team_runs(self) -> dict[str, list[RunPart]]:
        """The runs of teams, by the id of the team, in the order of their start."""
        runs: dict[str, list[RunPart]] = {}
        for run in self.root.below():
            if run.start.kind == "team":
                runs.setdefault(run.resource, []).append(run)
        return runs


async def read_report(client: Client, handle: RunHandle, of_workers: Catalog | None = None) -> Report:
    """Reads the report of a run so far from its history.

    ``of_workers`` are the manifests that workers have now; a run with inline manifests has its own. Raises RPCError.
    """
    described = await handle.describe()
    run_id = handle.run_id or described.run_id
    workflow_type, run_input = await original_input(client, handle.id, run_id)
    inline = await readable_manifests_of_run(client, handle.id, run_id)
    builder = ReportBuilder()
    async for event in stream_events(client, handle, wait=False, live=False):
        builder.apply(event)
    caller = (await memo_of(described)).get(CALLER)
    known = inline.overlaid_on(of_workers) if of_workers else inline
    return builder.report(
        handle.id,
        started=described.start_time,
        question=_question(run_input, known),
        targets=_targets(run_input, workflow_type, known),
        caller=caller if isinstance(caller, str) else None,
        catalog=known,
        is_current=not inline.manifests and bool(known.manifests),
    )


def _spec(run_input: JsonObject, known: Catalog) -> JsonObject:
    spec = run_input.get("spec")
    if isinstance(spec, dict):
        return spec
    name, namespace = run_input.get("name"), run_input.get("namespace", "default")
    query = known.get("Query", str(namespace), str(name)) if name else None
    found = query.model_dump(mode="json", by_alias=True)["spec"] if query else {}
    return found if isinstance(found, dict) else {}


def _question(run_input: JsonObject, known: Catalog) -> str:
    """What a run was asked; images and files are named by their types."""
    asked = run_input.get("input") or _spec(run_input, known).get("input")
    if isinstance(asked, str):
        return asked
    texts = (_text_of(message) for message in asked if isinstance(message, dict)) if isinstance(asked, list) else ()
    return "\n\n".join(text for text in texts if text)


def _text_of(message: JsonObject) -> str:
    content = message.get("content", message.get("text"))
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "\n".join(str(part.get("text") or f"[{part.get('type', 'file')}]") for part in parts)


def _targets(run_input: JsonObject, workflow_type: str, known: Catalog) -> list[str]:
    """What a run asks: ``team/NAME``."""
    targets = _spec(run_input, known).get("targets")
    named = [target for target in targets if isinstance(target, dict)] if isinstance(targets, list) else []
    if named:
        return [f"{target.get('type')}/{target.get('name')}" for target in named]
    if isinstance(run_input.get("agent"), str):
        return [f"{workflow_type}/{run_input['agent']}"]
    return [f"team/{run_input['team']}"] if isinstance(run_input.get("team"), str) else []


@dataclass
class ReportBuilder:
    """Builds a report from the events of a run and its child runs, in any order in which each follows its parent."""

    runs: dict[str, RunPart] = field(default_factory=dict)
    roots: list[RunPart] = field(default_factory=list)
    _open: dict[str, list[Turn]] = field(default_factory=dict)
    _turn_of_run: dict[str, Turn] = field(default_factory=dict)
    _last: dict[tuple[str, str], Turn] = field(default_factory=dict)
    _tools: dict[str, list[UsedTool]] = field(default_factory=dict)
    _calls: dict[tuple[str, str], TimedCall] = field(default_factory=dict)
    _waits: dict[tuple[str, str], WaitTime] = field(default_factory=dict)
    _all_waits: list[tuple[str, WaitTime]] = field(default_factory=list)
    _all_turns: list[Turn] = field(default_factory=list)
    _members: MemberSums = field(default_factory=MemberSums)
    _usage: TokenUsage = field(default_factory=TokenUsage)

    def apply(self, event: Event) -> None:  # noqa: C901  # one case for each kind of event
        """Adds the next event."""
        if isinstance(event, RunStartedEvent):
            self._start_run(event)
            return
        run = self.runs.get(event.run)
        if run is None:
            return
        self._members.apply(event)
        self._usage += usage_of(event)
        match event:
            case RunEndedEvent():
                run.end = event
            case RunRetriedEvent():
                run.entries.append(Note(event.at, "The run retries a failed one, and keeps the answers of that one"))
            case RunForkedEvent(forked_from=str() as origin, place=place):
                run.entries.append(Note(event.at, f"Forked from {origin} at {place}"))
            case RunResetEvent():
                run.entries.append(Note(event.at, f"Reset: what happened after {event.since:%H:%M:%S} is discarded"))
            case NoticeEvent():
                run.entries.append(Note(event.at, "Note", event.text))
            case RoundStartedEvent():
                run.entries.append(Round(event.round, event.max_rounds))
            case TurnStartedEvent():
                self._start_turn(run, event)
            case TurnEndedEvent():
                self._end_turn(event)
            case MessageEvent():
                self._say(run, event)
            case SpeakerSelectedEvent():
                whom = f"The selector chose {event.speaker}" if event.speaker else "The selector ended the team"
                run.entries.append(Note(event.at, whom))
            case HandoffEvent():
                self._place(run, event.speaker).append(Note(event.at, f"Transferred to {event.receiver}"))
            case WaitStartedEvent():
                wait = WaitTime(event)
                self._waits[event.run, event.wait] = wait
                self._all_waits.append((event.run, wait))
                self._place(run, event.speaker).append(wait)
            case WaitEndedEvent():
                if open_wait := self._waits.pop((event.run, event.wait), None):
                    open_wait.end = event
            case SteeredEvent():
                run.entries.append(Note(event.at, f"{event.by} to the team", event.text))
            case SessionChangedEvent():
                names = ", ".join(event.changes)
                run.entries.append(Note(event.at, f"{event.by} changed the session: {names}"))
            case StopRequestedEvent():
                verb = "canceled the run" if event.kind == "cancel" else "asked the run to end"
                run.entries.append(Note(event.at, f"{event.by} has {verb}", event.reason or ""))
            case _:
                self._apply_call(run, event)

    def _apply_call(self, run: RunPart, event: Event) -> None:
        """Adds the next event of a call of a model or a tool."""
        match event:
            case ModelCalledEvent():
                self._begin_call(run, event.call, TimedCall("model", event.model, event.at), event.speaker)
            case ModelAnsweredEvent():
                self._end_call(event.run, event.call, event.at)
                self._answered(run, event)
            case ModelFailedEvent():
                self._end_call(event.run, event.call, event.at)
                reason = event.error or "canceled"
                self._place(run, event.speaker).append(Note(event.at, "The call of the model failed", reason, True))
            case ToolCalledEvent():
                self._begin_call(run, event.call, TimedCall("tool", event.tool, event.at), event.speaker)
                self._tool_called(run, event)
            case ToolReturnedEvent():
                self._end_call(event.run, event.call, event.at)
                if tool := self._tool_of(event.run, event.tool_call, event.tool):
                    tool.result, tool.seconds, tool.is_over = event.text, event.seconds, True
            case ToolFailedEvent():
                self._end_call(event.run, event.call, event.at)
                if tool := self._tool_of(event.run, event.tool_call, event.tool):
                    tool.error, tool.seconds, tool.is_over = event.error or "canceled", event.seconds, True

    def report(
        self,
        run_id: str,
        *,
        started: datetime,
        question: str,
        targets: list[str],
        caller: str | None,
        catalog: Catalog,
        is_current: bool,
    ) -> Report:
        """The report of what was added."""
        now = datetime.now(UTC)
        if not self.roots:
            start = RunStartedEvent(run=run_id, at=started, kind="query", name=run_id, namespace="default")
            self.roots.append(RunPart(start))
        root = self.roots[0]
        usage = root.end.usage if root.end else self._usage
        report = Report(
            id=run_id,
            read_at=now,
            root=root,
            question=question,
            targets=targets or [f"{run.start.kind}/{run.start.name}" for run in _runs_in(root.entries)],
            caller=caller,
            catalog=catalog,
            is_current=is_current,
            members=self._members.members,
            turns=self._all_turns,
            waits=[wait for _, wait in self._all_waits],
            usage=usage,
        )
        self._fill_lanes(report)
        return report

    def _start_run(self, event: RunStartedEvent) -> None:
        run = RunPart(event)
        self.runs[event.run] = run
        parent = self.runs.get(event.parent or "")
        if parent is None:
            self.roots.append(run)
            return
        path = event.run.removeprefix(f"{parent.start.run}/")
        number = re.match(r"turn-(\d+)/", path)
        tool = re.match(r"call-\d+-(\d+)/", path)
        open_turns = self._open.get(parent.start.run, [])
        of_tool = self._tools.get(parent.start.run, [])
        turn = next((turn for turn in open_turns if number and turn.start.turn == int(number[1])), None)
        if tool and int(tool[1]) <= len(of_tool):
            of_tool[int(tool[1]) - 1].runs.append(run)
        elif turn or open_turns:
            around = turn or open_turns[-1]
            around.entries.append(run)
            if event.kind in ("agent", "model"):
                self._turn_of_run[event.run] = around
        else:
            parent.entries.append(run)

    def _start_turn(self, run: RunPart, event: TurnStartedEvent) -> None:
        turn = Turn(event)
        run.entries.append(turn)
        run.steps.append(turn.label)
        self._all_turns.append(turn)
        self._open.setdefault(event.run, []).append(turn)
        self._last[event.run, event.speaker] = turn

    def _end_turn(self, event: TurnEndedEvent) -> None:
        for turn in self._open.get(event.run, []):
            start = turn.start
            if (start.speaker, start.turn, start.round, start.part) == (
                event.speaker,
                event.turn,
                event.round,
                event.part,
            ):
                turn.end = event
                self._open[event.run].remove(turn)
                if event.text:
                    turn.entries.append(SaidText(event.at, event.speaker, event.text))
                return

    def _place(self, run: RunPart, speaker: str | None) -> list[Entry]:
        """Where something of a speaker belongs: in its open turn, or in the run."""
        open_turns = self._open.get(run.start.run, [])
        turn = next((turn for turn in open_turns if turn.start.speaker == speaker), None)
        return turn.entries if turn else run.entries

    def _say(self, run: RunPart, event: MessageEvent) -> None:
        """Adds a message to the last turn of its author, which may have ended; before the tool calls in it."""
        turn = self._last.get((run.start.run, event.name))
        place = turn.entries if turn else run.entries
        index = len(place)
        while index and (call := place[index - 1]) and isinstance(call, UsedTool) and call.at == event.at:
            index -= 1
        place.insert(index, SaidText(event.at, event.name, event.text, event.part))
        if event.finish_reason == "length":
            place.insert(index + 1, Note(event.at, "The answer was cut off at the model's token limit", "", True))

    def _answered(self, run: RunPart, event: ModelAnsweredEvent) -> None:
        place = self._place(run, event.speaker)
        if event.wrong:
            place.append(Note(event.at, f"The answer was requested again: it {event.wrong}", event.text or "", True))
        tools = [
            UsedTool(id=called.id, at=event.at, name=called.name, arguments=called.arguments)
            for called in event.tool_calls
        ]
        if tools:
            self._tools[event.run] = tools
            place.extend(tools)

    def _tool_called(self, run: RunPart, event: ToolCalledEvent) -> None:
        tool = self._tool_of(event.run, event.tool_call, event.tool)
        if tool is None or tool.is_over:
            tool = UsedTool(id=event.tool_call or event.call, at=event.at, name=event.tool, arguments=event.arguments)
            self._tools.setdefault(event.run, []).append(tool)
            self._place(run, event.speaker).append(tool)
        elif event.arguments is not None:
            tool.arguments = event.arguments

    def _tool_of(self, run: str, id_: str | None, name: str) -> UsedTool | None:
        open_tools = [tool for tool in self._tools.get(run, []) if not tool.is_over]
        by_id = next((tool for tool in open_tools if id_ and tool.id == id_), None)
        return by_id or next((tool for tool in open_tools if not id_ and tool.name == name), None)

    def _begin_call(self, run: RunPart, id_: str, call: TimedCall, speaker: str) -> None:
        self._calls[run.start.run, id_] = call
        open_turns = self._open.get(run.start.run, [])
        turn = next(
            (turn for turn in open_turns if turn.start.speaker == speaker), self._turn_of_run.get(run.start.run)
        )
        (turn.calls if turn else run.calls).append(call)

    def _end_call(self, run: str, id_: str, at: datetime) -> None:
        if call := self._calls.pop((run, id_), None):
            call.ended = at

    def _fill_lanes(self, report: Report) -> None:
        """The bars by speaker: turns, within them calls, and waits."""
        end = report.ended_at
        for run in report.root.below():
            where = f"{run.start.name} · " if run.start.kind == "team" else ""
            for entry in run.entries:
                if isinstance(entry, Turn) and entry.start.kind != "team":
                    lane = report.lanes.setdefault(where + entry.start.speaker, [])
                    last = entry.end.at if entry.end else end
                    outcome = entry.end.outcome if entry.end else "running"
                    lane.append(Bar("turn", f"{_name_of_turn(entry)}: {outcome}", entry.start.at, last))
                    lane.extend(_bars_of_calls(entry.calls, end))
            if run.calls:
                name = run.start.name if run.start.kind != "query" else "query"
                in_team = f"{run.start.team} · " if run.start.team and run.start.kind != "team" else where
                report.lanes.setdefault(f"{in_team}{name}", []).extend(_bars_of_calls(run.calls, end))
        for path, wait in self._all_waits:
            run = self.runs[path]
            where = f"{run.start.team} · " if run.start.team else ""
            lane = report.lanes.setdefault(f"{where}{wait.start.speaker or run.start.name}", [])
            last = wait.end.at if wait.end else end
            lane.append(Bar("wait", f"waits: {wait.start.kind}", wait.start.at, last))


def _bars_of_calls(calls: list[TimedCall], end: datetime) -> Iterator[Bar]:
    for call in calls:
        yield Bar(call.kind, f"{call.kind} {call.name}", call.started, call.ended or end)


def _name_of_turn(turn: Turn) -> str:
    if turn.start.turn:
        return f"turn {turn.start.turn}"
    if turn.start.part:
        return turn.start.part
    return f"round {turn.start.round}" if turn.start.round else "turn"


def _without_spaces(text: str) -> str:
    return "".join(text.split())


MAX_GROWTH = 4
"""How many times as long as the JSON its indented form may be: deeply nested JSON becomes a thousand times as long."""


def pretty(text: str | None) -> str:
    """JSON with indentation; the text itself if that would change a value or is far longer."""
    if not text or text[:1] not in "{[":
        return text or ""
    try:
        value = parse_json(text)
        plain, escaped = (json.dumps(value, ensure_ascii=is_escaped) for is_escaped in (False, True))
        if _without_spaces(text) not in (_without_spaces(plain), _without_spaces(escaped)):
            return text  # digits, or a field that is there twice, would be lost
        pieces = list[str]()
        room = MAX_GROWTH * len(text) + 1_000
        for piece in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(value):
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                return text
        return "".join(pieces)
    except (ValueError, RecursionError):
        return text
