"""How is a run told to a person? Line by line, on stderr, so that stdout holds the result alone."""

from datetime import UTC, datetime, timedelta
from textwrap import indent

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from ...conversation.contracts.panel_requests import PerformResult
from ...conversation.contracts.requests import AskModelRequest, AskModelResult, SelectResult, UseToolResult
from ...conversation.contracts.status import Status
from ...conversation.failure import Failure
from ...conversation.text import truncate
from ...resources.problems import ManifestError
from ..history.run_events import ActivityCall, CallEnded, RunEvent, RunInfo, RunStarted
from ..scripted_model.script import MODEL_PREFIX
from ..text.escape import escape_control_characters
from ..text.role_output_text import role_output_text
from ..text.units import format_duration, format_usage

SCRIPTED = "the words below are scripted: no model is asked"
"""What stands above the words of a scripted model."""


class EventPrinter:
    """Tells what happens. ``runs`` is how many are told at once: then each line names its run."""

    def __init__(self, console: Console, runs: int = 1) -> None:
        self._console, self._several = console, runs > 1
        self._warned, self._teams = False, 0

    def print_event(self, happening: RunEvent) -> None:
        """Tells one thing that has happened, if it is anything to a person."""
        match happening:
            case RunStarted(run=run):
                self._teams += run.kind == "team"
                if run.parent:
                    self._line(Text(f"{run.id} ({run.type})", style="dim"))
            case CallEnded(call=ActivityCall(hidden=True), failure=None):
                pass
            case CallEnded(reply=AskModelResult() | PerformResult() as reply, call=call):
                self._said(happening.run, call, reply, happening.at - call.scheduled_at)
            case CallEnded(reply=UseToolResult(message=message)):
                self._used(message.name or "tool", message.content)
            case CallEnded(reply=SelectResult(member=member, how=how)):
                self._line(Text.assemble("selector → ", (member or "nobody", "cyan"), (f"  {how}", "dim")))
            case CallEnded(failure=Failure(message=error), call=ActivityCall(activity_type="use_tool") as call):
                self._used(call.name or "tool", f"failed: {error}")
            case CallEnded(failure=Failure(message=error), call=call):
                self._line(Text.assemble("  ✗ ", (call.speaker or call.activity_type, "red"), f": {error}"))

    def print_unfinished(self, name: str, about: str, text: str) -> None:
        """Tells what is being said at this moment."""
        self._line(Text.assemble((name, "bold yellow"), (f"  {about} · unfinished", "dim")))
        self._text(f"{text}…")

    def _said(self, run: RunInfo, call: ActivityCall, reply: AskModelResult | PerformResult, took: timedelta) -> None:
        message = reply.message
        if not self._warned and (message.model or "").startswith(MODEL_PREFIX):
            self._warned = True
            self._console.print(Text(f"({SCRIPTED})", style="bold magenta"))
        tokens = f"{message.usage.prompt_tokens} + {message.usage.completion_tokens} tokens" if message.usage else ""
        team = run.name if run.kind == "team" and self._teams > 1 and not self._several else ""
        place = run.id if self._several else ""
        by = message.model if isinstance(call.request, AskModelRequest) else f"function {call.name}"
        about = " · ".join(filter(None, (team, format_turn(call), by, tokens, format_duration(took), place)))
        self._line(Text.assemble((call.speaker or "?", "bold green"), (f"  {about}", "dim")))
        if message.content:
            self._text(role_output_text(call.brief, message.content))
        for wanted in message.tool_calls:
            self._line(Text.assemble("  → ", (wanted.name, "cyan"), f" {truncate(wanted.arguments, 500)}"))
        if isinstance(reply, AskModelResult) and reply.wrong:
            self._line(Text.assemble(("  ✗ ", "red"), truncate(f"the answer {reply.wrong}", 500)))

    def _used(self, tool: str, text: str) -> None:
        self._line(Text.assemble("  ← ", (tool, "cyan"), f": {indent(truncate(text, 500), '    ').lstrip()}"))

    def _text(self, text: str) -> None:
        """A text of some lines, indented; on a terminal they are broken between words."""
        if self._console.is_terminal:
            self._console.print(Padding(Text(escape_control_characters(text.strip("\n"))), (0, 0, 0, 2)))
        else:
            self._line(Text(indent(text, "  ")))

    def _line(self, text: Text) -> None:
        text.plain = escape_control_characters(text.plain)
        self._console.print(text, soft_wrap=True)


def format_turn(call: ActivityCall) -> str:
    """Which turn it is, as in ``turn 3 of 9``; in a panel the round, and the part of who goes by another name."""
    brief, request = call.brief, call.request
    if brief:
        part = "" if brief.seat is not None or brief.part == call.speaker else f" · {brief.part}"
        return f"round {brief.round}{part}"
    if not isinstance(request, AskModelRequest):
        return ""
    return f"turn {request.turn}" + (f" of {request.turns}" if request.turns else "")


def print_status(console: Console, name: str, status: Status) -> None:
    """Tells how a run has ended."""
    colour = {"Completed": "green", "Running": "yellow"}.get(status.phase, "red")
    reason = f" ({status.stop_reason})" if status.stop_reason else ""
    told = f"{name} · {format_usage(status.token_usage)} · {format_duration(_taken(status))}"
    console.print(f"[{colour} bold]{status.phase}[/]{reason} [dim]{escape(told)}[/]", soft_wrap=True)
    if status.error:
        kind = f"{status.failure.type}: " if status.failure else ""
        console.print(Text(escape_control_characters(f"{kind}{status.error}"), style="red"), soft_wrap=True)


def _taken(status: Status) -> timedelta:
    end = datetime.fromisoformat(status.completion_time) if status.completion_time else datetime.now(UTC)
    return end - datetime.fromisoformat(status.start_time)


def print_problems(console: Console, error: ManifestError) -> None:
    """Tells everything that is wrong with manifests."""
    for line in error.told():
        console.print(Text(line), soft_wrap=True)
    count = len(error.problems)
    console.print(Text(f"{count} {'problem' if count == 1 else 'problems'}: nothing was started", style="red"))
