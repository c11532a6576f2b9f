"""How is a run told to a person? Line by line, on stderr, so that stdout holds the result alone."""

from datetime import UTC, datetime, timedelta
from textwrap import indent

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from ...conversation.contracts.panel_requests import Performed
from ...conversation.contracts.requests import Asked, AskRequest, Selected, Used
from ...conversation.contracts.status import Status
from ...conversation.failure import Failure
from ...conversation.messages.message import TokenUsage, cut
from ...resources.problems import ManifestError
from ..history.run_events import Call, CallEnded, Happening, Run, RunBegan
from ..scripted_model.server import LABEL
from .escape import harmless
from .role_output_text import worded

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
            case CallEnded(reply=Asked() | Performed() as reply, call=call):
                self._said(happening.run, call, reply, happening.at - call.since)
            case CallEnded(reply=Used(message=message)):
                self._used(message.name or "tool", message.content)
            case CallEnded(reply=Selected(member=member, how=how)):
                self._line(Text.assemble("selector → ", (member or "nobody", "cyan"), (f"  {how}", "dim")))
            case CallEnded(failure=Failure(message=error), call=Call(effect="use_tool") as call):
                self._used(call.what or "tool", f"failed: {error}")
            case CallEnded(failure=Failure(message=error), call=call):
                self._line(Text.assemble("  ✗ ", (call.speaker or call.effect, "red"), f": {error}"))

    def tell_unfinished(self, name: str, about: str, text: str) -> None:
        """Tells what is being said at this moment."""
        self._line(Text.assemble((name, "bold yellow"), (f"  {about} · unfinished", "dim")))
        self._text(f"{text}…")

    def _said(self, run: Run, call: Call, reply: Asked | Performed, took: timedelta) -> None:
        message = reply.message
        if not self._warned and (message.model or "").startswith(LABEL):
            self._warned = True
            self._console.print(Text(f"({SCRIPTED})", style="bold magenta"))
        tokens = f"{message.usage.prompt_tokens} + {message.usage.completion_tokens} tokens" if message.usage else ""
        team = run.name if run.kind == "team" and self._teams > 1 and not self._several else ""
        place = run.id if self._several else ""
        by = message.model if isinstance(call.request, AskRequest) else f"function {call.what}"
        about = " · ".join(filter(None, (team, turn_of(call), by, tokens, time_of(took), place)))
        self._line(Text.assemble((call.speaker or "?", "bold green"), (f"  {about}", "dim")))
        if message.content:
            self._text(worded(call.brief, message.content))
        for wanted in message.tool_calls:
            self._line(Text.assemble("  → ", (wanted.name, "cyan"), f" {cut(wanted.arguments, 500)}"))
        if isinstance(reply, Asked) and reply.wrong:
            self._line(Text.assemble(("  ✗ ", "red"), cut(f"the answer {reply.wrong}", 500)))

    def _used(self, tool: str, text: str) -> None:
        self._line(Text.assemble("  ← ", (tool, "cyan"), f": {indent(cut(text, 500), '    ').lstrip()}"))

    def _text(self, text: str) -> None:
        """A text of some lines, indented; on a terminal they are broken between words."""
        if self._console.is_terminal:
            self._console.print(Padding(Text(harmless(text.strip("\n"))), (0, 0, 0, 2)))
        else:
            self._line(Text(indent(text, "  ")))

    def _line(self, text: Text) -> None:
        text.plain = harmless(text.plain)
        self._console.print(text, soft_wrap=True)


def turn_of(call: Call) -> str:
    """Which turn it is, as in ``turn 3 of 9``; in a panel the round, and the part of who goes by another name."""
    brief, request = call.brief, call.request
    if brief:
        part = "" if brief.seat is not None or brief.part == call.speaker else f" · {brief.part}"
        return f"round {brief.round}{part}"
    if not isinstance(request, AskRequest):
        return ""
    return f"turn {request.turn}" + (f" of {request.turns}" if request.turns else "")


def spent_on(usage: TokenUsage) -> str:
    """What was spent, as in ``3 model calls, 1 tool call, 120 tokens``."""
    counts = (usage.model_calls, "model call"), (usage.tool_calls, "tool call"), (usage.total_tokens, "token")
    return ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)


def time_of(span: timedelta) -> str:
    """A span of time for people, as in ``2 min 05 s``."""
    seconds = max(0, int(span.total_seconds()))  # another machine's clock may be ahead of ours
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def tell_end(console: Console, name: str, status: Status) -> None:
    """Tells how a run has ended."""
    colour = {"Completed": "green", "Running": "yellow"}.get(status.phase, "red")
    reason = f" ({status.stop_reason})" if status.stop_reason else ""
    told = f"{name} · {spent_on(status.token_usage)} · {time_of(_taken(status))}"
    console.print(f"[{colour} bold]{status.phase}[/]{reason} [dim]{escape(told)}[/]", soft_wrap=True)
    if status.error:
        kind = f"{status.failure.type}: " if status.failure else ""
        console.print(Text(harmless(f"{kind}{status.error}"), style="red"), soft_wrap=True)


def _taken(status: Status) -> timedelta:
    end = datetime.fromisoformat(status.completion_time) if status.completion_time else datetime.now(UTC)
    return end - datetime.fromisoformat(status.start_time)


def tell_problems(console: Console, error: ManifestError) -> None:
    """Tells everything that is wrong with manifests."""
    for line in error.told():
        console.print(Text(line), soft_wrap=True)
    count = len(error.problems)
    console.print(Text(f"{count} {'problem' if count == 1 else 'problems'}: nothing was started", style="red"))
