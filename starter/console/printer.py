"""Prints the events of runs for people, line by line on stderr: stdout is for results."""

import json
from datetime import timedelta
from textwrap import indent

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ...conversation.contracts.panel_requests import PerformResult
from ...conversation.contracts.requests import AskModelRequest, AskModelResult, SelectResult
from ...conversation.contracts.tool_requests import UseToolResult
from ...conversation.failure import Failure
from ...conversation.text import truncate
from ...resources.agent_tool import TERMINATING
from ..history.live_state import OpenCall
from ..history.run_events import (
    ActivityCall,
    CallEnded,
    DecisionAsked,
    DecisionMade,
    RequestReceived,
    RunEvent,
    RunInfo,
    RunStarted,
)
from ..scripted_model.script import MODEL_PREFIX
from ..text.escape import escape_control_characters
from ..text.role_output_text import role_output_text
from ..text.units import format_duration
from .decision_line import decision_line

SCRIPTED_NOTE = "(the answers below are scripted: no language model is called)"
"""Printed once before the first answer of a scripted model."""

MAX_SHOWN_BYTES = 500
"""The length at which the arguments and the result of a tool call are cut."""


class EventPrinter:
    """Prints run events. If it prints several ``runs``, each line names its run.

    ``last_text`` is the text that a member has said last, if it was printed in full.
    """

    def __init__(self, console: Console, runs: int = 1) -> None:
        self._console, self._several_runs = console, runs > 1
        self._scripted_note_printed, self._teams = False, 0
        self.last_text = ""

    def print_event(self, event: RunEvent) -> None:
        """Prints an event; events that people do not need are left out."""
        match event:
            case RunStarted(run=run):
                self._teams += run.kind == "team"
                if run.parent:
                    self._print_line(Text(f"{run.id} ({run.type})", style="dim"))
            case RequestReceived():
                self._print_request(event)
            case DecisionAsked() | DecisionMade():
                self._print_line(decision_line(event))
            case CallEnded(call=ActivityCall(hidden=True), failure=None):
                pass
            case CallEnded(result=AskModelResult() | PerformResult() as result, call=call):
                self._print_answer(event.run, call, result, event.at - call.scheduled_at)
            case CallEnded(result=UseToolResult(message=message, ends=ends)):
                self._print_tool_result(message.name or "tool", message.content, in_full=ends)
            case CallEnded(result=SelectResult(member=member, how=how)):
                self._print_line(Text.assemble("selector → ", (member or "nobody", "cyan"), (f"  {how}", "dim")))
            case CallEnded(failure=Failure(message=error), call=call):
                self._print_failure(call, error)

    def print_failed_attempt(self, call: OpenCall) -> None:
        """Prints a line about the last attempt of a call, which has failed, and when the next one begins."""
        begins = f"begins at {call.next_at.astimezone():%H:%M:%S}" if call.next_at else "has begun"
        reason = " ".join(call.failure.split())
        error = f": attempt {call.attempt - 1} failed: {reason}; attempt {call.attempt} {begins}"
        run = f" · {call.run.root.id}" if self._several_runs else ""
        self._print_line(Text.assemble("  ✗ ", (call.call.speaker, "red"), error, (run, "dim")))

    def print_unfinished(self, name: str, about: str, text: str) -> None:
        """Prints the part of an answer that a model has written until now."""
        self._print_line(Text.assemble((name, "bold yellow"), (f"  {about} · unfinished", "dim")))
        self._print_text(f"{text}…")

    def _print_answer(
        self, run: RunInfo, call: ActivityCall, result: AskModelResult | PerformResult, duration: timedelta
    ) -> None:
        """Prints the answer of a model or a function: a line about it, its text, its tool calls."""
        message = result.message
        if not self._scripted_note_printed and (message.model or "").startswith(MODEL_PREFIX):
            self._scripted_note_printed = True
            self._console.print(Text(SCRIPTED_NOTE, style="bold magenta"))
        about = self._about(run, call, result, duration)
        self._print_line(Text.assemble((call.speaker or "?", "bold green"), (f"  {about}", "dim")))
        if message.content:
            self._print_text(role_output_text(call.brief, message.content))
        for tool_call in message.tool_calls:
            ends = tool_call.name in TERMINATING  # then its result repeats its arguments
            arguments = "" if ends else truncate(tool_call.arguments, MAX_SHOWN_BYTES)
            self._print_line(Text.assemble("  → ", (tool_call.name, "cyan"), f" {arguments}"))
        if isinstance(result, AskModelResult) and result.wrong:
            self._print_line(Text.assemble(("  ✗ ", "red"), truncate(f"the answer {result.wrong}", MAX_SHOWN_BYTES)))

    def _print_request(self, received: RequestReceived) -> None:
        """Prints what a client has asked of the run: its message, or a line that says it."""
        run = f" · {received.run.id}" if self._several_runs or received.run.parent else ""
        time = f"{received.at.astimezone():%H:%M:%S}{run}"
        did = {
            "steer": "",
            "pause": " paused the run",
            "resume": " resumed the run",
            "session": f" changed the session: {json.dumps(received.data.get('changes'), ensure_ascii=False)}",
            "terminate_team": " asked the run to end",
            "cancel": " canceled the run",
        }[received.kind]
        reason = f": {reason}" if (reason := received.data.get("reason")) else ""
        self._print_line(Text.assemble((received.by, "bold cyan"), did, reason, (f"  {time}", "dim")))
        if received.kind == "steer":
            self._print_text(str(received.data["text"]))

    def _about(
        self, run: RunInfo, call: ActivityCall, result: AskModelResult | PerformResult, duration: timedelta
    ) -> str:
        """The team, the turn, the model, the tokens, the duration and the run, as far as each is needed."""
        usage = result.message.usage
        parts = (
            run.name if run.kind == "team" and self._teams > 1 and not self._several_runs else "",
            format_turn(call),
            result.message.model if isinstance(call.request, AskModelRequest) else f"function {call.name}",
            f"{usage.prompt_tokens} + {usage.completion_tokens} tokens" if usage else "",
            format_duration(duration),
            run.id if self._several_runs else "",
        )
        return " · ".join(filter(None, parts))

    def _print_failure(self, call: ActivityCall, error: str) -> None:
        if call.activity_type == "use_tool":
            self._print_tool_result(call.name or "tool", f"failed: {error}")
        else:
            self._print_line(Text.assemble("  ✗ ", (call.speaker or call.activity_type, "red"), f": {error}"))

    def _print_tool_result(self, tool: str, text: str, *, in_full: bool = False) -> None:
        shown = "" if in_full else indent(truncate(text, MAX_SHOWN_BYTES), "    ").lstrip()
        self._print_line(Text.assemble("  ← ", (tool, "cyan"), f": {shown}"))
        if in_full:
            self._print_text(text)

    def _print_text(self, text: str) -> None:
        """Prints an indented text of several lines; on a terminal, long lines are wrapped between words."""
        self.last_text = text
        if self._console.is_terminal:
            self._console.print(Padding(Text(escape_control_characters(text.strip("\n"))), (0, 0, 0, 2)))
        else:
            self._console.print(Text(escape_control_characters(indent(text, "  "))), soft_wrap=True)

    def _print_line(self, text: Text) -> None:
        """Prints a line; what comes after a line end in it is indented, so that nobody else writes lines as Baton's."""
        text.plain = escape_control_characters(text.plain)
        self._console.print(Text("\n    ").join(text.split("\n")), soft_wrap=True)


def format_turn(call: ActivityCall) -> str:
    """The turn of a call, such as ``turn 3 of 9``; in a panel its round, and the part of a speaker with a name."""
    brief, request = call.brief, call.request
    if brief:
        part = "" if brief.seat is not None or brief.part == call.speaker else f" · {brief.part}"
        return f"round {brief.round}{part}"
    if not isinstance(request, AskModelRequest):
        return ""
    return f"turn {request.turn}" + (f" of {request.turns}" if request.turns else "")
