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
from ..history.run_events import Call, CallEnded, Happening, Run, RunBegan
from ..scripted_model.script import LABEL
from ..text.escape import escape_control_characters
from ..text.role_output_text import worded
from ..text.units import format_duration, format_usage

SCRIPTED = "the words below are scripted: no model is asked"
"""What stands above the words of a scripted model."""


class Narrator:
    """Tells what happens. ``runs`` is how many are told at once: then each line names its run."""

    def __init__(self, console: Console, runs: int = 1) -> None:
        self._console, self._several = console, runs > 1
        self._warned, self._teams = False, 0

    def tell(self, happening: Happening) -> None:
        """Tells one thing that has happened, if it is anything to a person."""
        match happening:
            case RunBegan(run=run):
                self._teams += run.kind == "team"
                if run.parent:
                    self._line(Text(f"{run.id} ({run.type})", style="dim"))
            case CallEnded(call=Call(hidden=True), failure=None):
                pass
            case CallEnded(reply=AskModelResult() | PerformResult() as reply, call=call):
                self._said(happening.run, call, reply, happening.at - call.since)
            case CallEnded(reply=UseToolResult(message=message)):
                self._used(message.name or "tool", message.content)
            case CallEnded(reply=SelectResult(member=member, how=how)):
                self._line(Text.assemble("selector → ", (member or "nobody", "cyan"), (f"  {how}", "dim")))
            case CallEnded(failure=Failure(message=error), call=Call(effect="use_tool") as call):
                self._used(call.what or "tool", f"failed: {error}")
            case CallEnded(failure=Failure(message=error), call=call):
                self._line(Text.assemble("  ✗ ", (call.speaker or call.effect, "red"), f": {error}"))

    def tell_unfinished(self, name: str, about: str, text: str) -> None:
        """Tells what is being said at this moment."""
        self._line(Text.assemble((name, "bold yellow"), (f"  {about} · unfinished", "dim")))
        self._text(f"{text}…")

    def _said(self, run: Run, call: Call, reply: AskModelResult | PerformResult, took: timedelta) -> None:
        message = reply.message
        if not self._warned and (message.model or "").startswith(LABEL):
            self._warned = True
            self._console.print(Text(f"({SCRIPTED})", style="bold magenta"))
        tokens = f"{message.usage.prompt_tokens} + {message.usage.completion_tokens} tokens" if message.usage else ""
        team = run.name if run.kind == "team" and self._teams > 1 and not self._several else ""
        place = run.id if self._several else ""
        by = message.model if isinstance(call.request, AskModelRequest) else f"function {call.what}"
        about = " · ".join(filter(None, (team, turn_of(call), by, tokens, format_duration(took), place)))
        self._line(Text.assemble((call.speaker or "?", "bold green"), (f"  {about}", "dim")))
        if message.content:
            self._text(worded(call.brief, message.content))
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


def turn_of(call: Call) -> str:
    """Which turn it is, as in ``turn 3 of 9``; in a panel the round, and the part of who goes by another name."""
    brief, request = call.brief, call.request
    if brief:
        part = "" if brief.seat is not None or brief.part == call.speaker else f" · {brief.part}"
        return f"round {brief.round}{part}"
    if not isinstance(request, AskModelRequest):
        return ""
    return f"turn {request.turn}" + (f" of {request.turns}" if request.turns else "")


def tell_end(console: Console, name: str, status: Status) -> None:
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


def tell_problems(console: Console, error: ManifestError) -> None:
    """Tells everything that is wrong with manifests."""
    for line in error.told():
        console.print(Text(line), soft_wrap=True)
    count = len(error.problems)
    console.print(Text(f"{count} {'problem' if count == 1 else 'problems'}: nothing was started", style="red"))
