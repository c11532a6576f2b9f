"""Prints the events of runs for people, line by line on stderr: stdout is for results."""

import json
from datetime import timedelta
from textwrap import indent

from pydantic import ValidationError
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ...contracts.errors import Failure
from ...contracts.message import SCRIPTED, PersonDecision
from ...contracts.panel import Decision, PerformResult, RefereeOutput, SpeakerBrief, Verdict
from ...contracts.requests import AskModelRequest, AskModelResult, SelectResult, UseToolResult
from ...contracts.text import truncate
from ...resources.agent import TERMINATING
from ..history.live_state import OpenCall
from ..history.run_events import (
    PINNING,
    ActivityCall,
    CallEnded,
    DecisionMade,
    DecisionRequested,
    RequestReceived,
    RunEvent,
    RunInfo,
    RunStarted,
)
from ..text import escape_control_characters, format_duration


def _is_silent(ended: CallEnded) -> bool:
    """Whether nothing is printed: for a hidden call, and where the status of the run will have the same error."""
    is_of_root = ended.call.activity_type in PINNING and ended.run.parent is None
    return is_of_root or (ended.call.hidden and ended.failure is None)


MAX_ARGUMENTS = 500
"""The length to which arguments changed by a person are truncated."""


def decision_line(event: DecisionRequested | DecisionMade) -> Text:
    """A pending decision with the commands to decide it, or the decision; a reply with its text."""
    pending = event if isinstance(event, DecisionRequested) else event.pending
    if pending.kind == "question":
        return _question_line(event, pending.who)
    if pending.kind == "budget":
        return _budget_line(event, pending.who)
    if pending.kind == "client_tool":
        return _client_line(event, pending.call.name)
    if isinstance(event, DecisionRequested):
        place = f"{event.run.root.id} {event.id}"
        commands = f" needs approval: baton approve {place}, or baton reject {place}"
        return Text.assemble("? ", (event.call.name, "bold yellow"), commands)
    decision = event.decision
    who = "timeout" if decision.how == "timeout" else decision.by or "an unknown person"
    remembered = " (remembered)" if decision.how == "remembered" else ""
    sign, verb = ("✓", "approved") if decision.approved else ("✗", "rejected")
    result = f" {verb} by {who}{remembered}{_arguments_and_reason(decision)}"
    return Text.assemble(f"  {sign} ", (pending.call.name, "cyan"), result)


def _arguments_and_reason(decision: PersonDecision) -> str:
    arguments = f" with {truncate(decision.arguments, MAX_ARGUMENTS)}" if decision.arguments else ""
    return f"{arguments}: {decision.reason}" if decision.reason else arguments


def _budget_line(event: DecisionRequested | DecisionMade, owner: str) -> Text:
    if isinstance(event, DecisionRequested):
        command = f" needs approval: baton approvals {event.run.root.id}"
        return Text.assemble("? the budget of ", (owner, "bold yellow"), command)
    decision = event.decision
    sign, verb = ("✓", "extended") if decision.approved else ("✗", "not extended")
    result = f" {verb} by {decision.by or 'an unknown person'}{_arguments_and_reason(decision)}"
    return Text.assemble(f"  {sign} the budget of ", (owner, "cyan"), result)


def _question_line(event: DecisionRequested | DecisionMade, member: str) -> Text:
    if isinstance(event, DecisionRequested):
        command = f": baton reply {event.run.root.id} TEXT --to {event.id}"
        return Text.assemble("? question for ", (member, "bold yellow"), f"{command}\n{event.arguments}")
    decision = event.decision
    if decision.how == "timeout":
        return Text.assemble("  ✗ ", (member, "cyan"), " did not reply in time")
    by = f"  {'replied' if decision.approved else 'declined'} by {decision.by or 'an unknown person'}"
    return Text.assemble((member, "bold green"), (by, "dim"), f"\n{event.decision.text or ''}")


def _client_line(event: DecisionRequested | DecisionMade, tool: str) -> Text:
    if isinstance(event, DecisionRequested):
        return Text.assemble("? ", (tool, "bold yellow"), f" waits for the client's result of {event.id}")
    by = event.decision.by or "an unknown client"
    return Text.assemble("  ✓ ", (tool, "cyan"), f" got its result from {by}")


def role_output_text(brief: SpeakerBrief | None, text: str) -> str:
    """The answer to a brief as text; unchanged if it is not the JSON output of the role."""
    formatter = _FORMATTERS.get(brief.part) if brief else None
    try:
        return formatter(text) if formatter else text
    except ValidationError:
        return text


def _critique(text: str) -> str:
    return RefereeOutput.model_validate_json(text).critique


def _decision(text: str) -> str:
    decision = Decision.model_validate_json(text)
    lines = [
        f"next speakers: {', '.join(decision.next_speakers) or 'none'}",
        decision.briefing,
        f"new angle: {decision.new_angle}" if decision.new_angle else None,
        "last round" if decision.done else None,
    ]
    return "\n".join(filter(None, lines))


def _verdict(text: str) -> str:
    verdict = Verdict.model_validate_json(text)
    winner = f"winner: {verdict.winner}" if verdict.winner else "no single winner"
    return f"{verdict.verdict}\n{winner}\n{verdict.reasoning}"


_FORMATTERS = {"referee": _critique, "moderator": _decision, "judge": _verdict}


SCRIPTED_NOTE = "(the answers below are scripted: no language model is called)"
"""Printed once before the first answer of a scripted model."""

MAX_SHOWN_BYTES = 500
"""The length to which the arguments and the result of a tool call are truncated."""


class EventPrinter:
    """Prints run events. If it prints several ``runs``, every line names its run.

    ``last_text`` is the text of the latest message, if it was printed in full.
    """

    def __init__(self, console: Console, runs: int = 1) -> None:
        self._console = console
        self._several_runs = runs > 1
        self._scripted_note_printed = False
        self._teams = 0
        self.last_text = ""

    def print_event(self, event: RunEvent) -> None:
        """Prints an event, unless it is internal."""
        match event:
            case RunStarted(run=run):
                self._teams += run.kind == "team"
                if run.parent and run.team in (None, run):
                    self._print_line(Text(f"{run.id} ({run.type})", style="dim"))
            case RequestReceived():
                self._print_request(event)
            case DecisionRequested() | DecisionMade():
                self._print_line(decision_line(event))
            case CallEnded() if _is_silent(event):
                pass
            case CallEnded(result=AskModelResult() | PerformResult() as result, call=call):
                self._print_answer(event.run, call, result, event.at - call.scheduled_at)
            case CallEnded(result=UseToolResult(message=message, ends=ends), call=call):
                self._print_tool_result(message.name or "tool", call.agent, message.content, in_full=ends)
            case CallEnded(result=SelectResult(member=member, how=how)):
                self._print_line(Text.assemble("selector → ", (member or "none", "cyan"), (f"  {how}", "dim")))
            case CallEnded(failure=Failure(message=error), call=call):
                self._print_failure(call, error)

    def print_failed_attempt(self, call: OpenCall) -> None:
        """Prints the failure of a call's last attempt, and when the next one starts."""
        start = f"starts at {call.next_at.astimezone():%H:%M:%S}" if call.next_at else "has started"
        reason = " ".join(call.failure.split())
        error = f": attempt {call.attempt - 1} failed: {reason}; attempt {call.attempt} {start}"
        run = f" · {call.run.root.id}" if self._several_runs else ""
        self._print_line(Text.assemble("  ✗ ", (call.call.speaker, "red"), error, (run, "dim")))

    def print_unfinished(self, name: str, about: str, text: str) -> None:
        """Prints the received part of an answer that a model is still streaming."""
        self._print_line(Text.assemble((name, "bold yellow"), (f"  {about} · unfinished", "dim")))
        self._print_text(f"{text}…")

    def _print_answer(
        self, run: RunInfo, call: ActivityCall, result: AskModelResult | PerformResult, duration: timedelta
    ) -> None:
        """Prints the answer of a model or a function: a line about it, its text, its tool calls."""
        message = result.message
        if not self._scripted_note_printed and (message.model or "").startswith(SCRIPTED):
            self._scripted_note_printed = True
            self._console.print(Text(SCRIPTED_NOTE, style="bold magenta"))
        about = self._about(run, call, result, duration)
        self._print_line(Text.assemble((call.speaker or "?", "bold green"), (f"  {about}", "dim")))
        for earlier in result.earlier if isinstance(result, AskModelResult) else ():
            self._print_text(earlier.content)
        if message.content:
            self._print_text(role_output_text(call.brief, message.content))
        for tool_call in message.tool_calls:
            ends = tool_call.name in TERMINATING  # then its result repeats its arguments
            arguments = "" if ends else truncate(tool_call.arguments, MAX_SHOWN_BYTES)
            self._print_line(Text.assemble("  → ", (tool_call.name, "cyan"), f" {arguments}"))
        if isinstance(result, AskModelResult) and result.wrong:
            self._print_line(Text.assemble(("  ✗ ", "red"), truncate(f"the answer {result.wrong}", MAX_SHOWN_BYTES)))

    def _print_request(self, received: RequestReceived) -> None:
        """Prints a client's request to the run: its message, or a line about it."""
        run = f" · {received.run.id}" if self._several_runs or received.run.parent else ""
        time = f"{received.at.astimezone():%H:%M:%S}{run}"
        action = {
            "steer": "",
            "pause": " paused the run",
            "resume": " resumed the run",
            "session": f" changed the session: {json.dumps(received.data.get('changes'), ensure_ascii=False)}",
            "terminate_team": " requested termination",
            "cancel": " canceled the run",
        }[received.kind]
        reason = f": {reason}" if (reason := received.data.get("reason")) else ""
        self._print_line(Text.assemble((received.by, "bold cyan"), action, reason, (f"  {time}", "dim")))
        if received.kind == "steer":
            self._print_text(str(received.data["text"]))

    def _about(
        self, run: RunInfo, call: ActivityCall, result: AskModelResult | PerformResult, duration: timedelta
    ) -> str:
        """The team, turn, model, tokens, duration and run, where needed."""
        usage = result.message.usage
        parts = (
            run.team.name if run.team and self._teams > 1 and not self._several_runs else "",
            format_turn(call),
            result.message.model if isinstance(call.request, AskModelRequest) else f"function {call.name}",
            f"{usage.prompt_tokens} + {usage.completion_tokens} tokens" if usage else "",
            format_duration(duration),
            run.id if self._several_runs else "",
        )
        return " · ".join(filter(None, parts))

    def _print_failure(self, call: ActivityCall, error: str) -> None:
        if call.activity_type == "use_tool":
            self._print_tool_result(call.name or "tool", call.agent, f"failed: {error}")
        else:
            self._print_line(Text.assemble("  ✗ ", (call.speaker or call.activity_type, "red"), f": {error}"))

    def _print_tool_result(self, tool: str, caller: str, text: str, *, in_full: bool = False) -> None:
        shown = "" if in_full else indent(truncate(text, MAX_SHOWN_BYTES), "    ").lstrip()
        self._print_line(Text.assemble("  ← ", (tool, "cyan"), f" for {caller}" if caller else "", f": {shown}"))
        if in_full:
            self._print_text(text)

    def _print_text(self, text: str) -> None:
        """Prints an indented multi-line text; on a terminal, long lines are wrapped between words."""
        self.last_text = text
        if self._console.is_terminal:
            self._console.print(Padding(Text(escape_control_characters(text.strip("\n"))), (0, 0, 0, 2)))
        else:
            self._console.print(Text(escape_control_characters(indent(text, "  "))), soft_wrap=True)

    def _print_line(self, text: Text) -> None:
        """Prints a line; its continuation lines are indented, so that untrusted text can't imitate Baton's output."""
        text.plain = escape_control_characters(text.plain)
        self._console.print(Text("\n    ").join(text.split("\n")), soft_wrap=True)


def format_turn(call: ActivityCall) -> str:
    """The turn of a call, such as ``turn 3 of 9``; in a panel its round, and the role of a named speaker."""
    brief, request = call.brief, call.request
    if brief:
        part = "" if brief.member_index is not None or brief.part == call.speaker else f" · {brief.part}"
        return f"round {brief.round}{part}"
    if not isinstance(request, AskModelRequest):
        return ""
    return f"turn {request.turn}" + (f" of {request.turns}" if request.turns else "")
