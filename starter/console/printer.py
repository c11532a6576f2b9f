"""Prints the events of runs for people, line by line on stderr: stdout is for results."""

import json
from datetime import timedelta
from textwrap import indent

from pydantic import ValidationError
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ...contracts.message import SCRIPTED
from ...contracts.panel import Decision, RefereeOutput, Verdict
from ...contracts.text import truncate
from ...resources.agent import TERMINATING
from ..history.events import (
    AttemptFailedEvent,
    Event,
    MemoryReadEvent,
    MemoryWrittenEvent,
    ModelAnsweredEvent,
    ModelCalledEvent,
    ModelFailedEvent,
    RunStartedEvent,
    SessionChangedEvent,
    SpeakerSelectedEvent,
    SteeredEvent,
    StopRequestedEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
    TurnEndedEvent,
    TurnStartedEvent,
    WaitEndedEvent,
    WaitStartedEvent,
)
from ..history.live_state import Beginning, LiveState, OpenCall
from ..text import escape_control_characters, format_duration
from .lines import print_line

MAX_ARGUMENTS = 500
"""The length to which arguments changed by a person are truncated."""


def _wait_line(event: WaitStartedEvent, root: str) -> Text | None:
    """What a run waits for, with the command to decide it; None for a pause, which is a request."""
    match event.kind:
        case "approval":
            place = f"{root} {event.wait}"
            commands = f" needs approval: baton approve {place}, or baton reject {place}"
            return Text.assemble("? ", (event.tool or "a tool", "bold yellow"), commands)
        case "budget":
            command = f" needs approval: baton approvals {root}"
            return Text.assemble("? the budget of ", (event.speaker or "the run", "bold yellow"), command)
        case "question":
            command = f": baton reply {root} TEXT --to {event.wait}"
            question = f"\n{event.text}" if event.text else ""
            return Text.assemble("? question for ", (event.speaker or "?", "bold yellow"), f"{command}{question}")
        case "client_tool":
            tool = event.tool or "a tool"
            return Text.assemble("? ", (tool, "bold yellow"), f" waits for the client's result of {event.wait}")
    return None


def _decision_line(event: WaitEndedEvent, started: WaitStartedEvent) -> Text | None:
    """A decision, a reply with its text; None for waits that have ended without one."""
    if event.outcome == "over":
        return None
    sign = "✓" if event.approved else "✗"
    by = ", ".join((*event.earlier, event.by or "an unknown person"))
    match event.kind:
        case "approval":
            who = "timeout" if event.outcome == "timeout" else by
            verb = "approved" if event.approved else "rejected"
            remembered = " (remembered)" if event.remembered else ""
            result = f" {verb} by {who}{remembered}{_arguments_and_reason(event)}"
            return Text.assemble(f"  {sign} ", (started.tool or "a tool", "cyan"), result)
        case "budget":
            verb = "extended" if event.approved else "not extended"
            result = f" {verb} by {by}{_arguments_and_reason(event)}"
            return Text.assemble(f"  {sign} the budget of ", (started.speaker or "the run", "cyan"), result)
        case "client_tool":
            who = event.by or "an unknown client"
            return Text.assemble("  ✓ ", (started.tool or "a tool", "cyan"), f" got its result from {who}")
    speaker = started.speaker or "?"
    if event.outcome == "timeout":
        return Text.assemble("  ✗ ", (speaker, "cyan"), " did not reply in time")
    about = f"  {'replied' if event.approved else 'declined'} by {by}"
    return Text.assemble((speaker, "bold green"), (about, "dim"), f"\n{event.text or ''}")


def _arguments_and_reason(event: WaitEndedEvent) -> str:
    arguments = f" with {truncate(event.text, MAX_ARGUMENTS)}" if event.text else ""
    return f"{arguments}: {event.reason}" if event.reason else arguments


def role_output_text(part: str | None, text: str) -> str:
    """The answer of a role in a panel as text; unchanged if it is not the JSON output of the role."""
    formatter = _FORMATTERS.get(part) if part else None
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
    """Prints events. If it prints several ``runs``, every line names its run.

    ``state`` is that after the event. ``last_text`` is the text of the latest message, if it was printed in full.
    """

    def __init__(self, console: Console, state: LiveState, runs: int = 1) -> None:
        self._console = console
        self._state = state
        self._several_runs = runs > 1
        self._scripted_note_printed = False
        self._teams = 0
        self._errors = set[str]()
        self.last_text = ""

    def print_event(  # noqa: C901  # one case for each kind
        self, event: Event, beginning: Beginning | None, *, attempts: bool = True
    ) -> None:
        """Prints an event, unless it is internal; with ``attempts`` also failed attempts of open calls.

        ``beginning`` is the start of the call, the turn or the wait that it ends.
        """
        match event:
            case RunStartedEvent():
                self._teams += event.kind == "team"
                if event.parent and (event.kind == "team" or not event.team):
                    self._print_line(Text(f"{event.run} ({event.strategy or event.kind})", style="dim"))
            case SteeredEvent() | SessionChangedEvent() | StopRequestedEvent():
                self._print_request(event)
            case WaitStartedEvent(kind="pause", text=by):
                self._print_by(event, by or "", " paused the run")
            case WaitEndedEvent(kind="pause", by=str(by)):
                self._print_by(event, by, " resumed the run")
            case WaitStartedEvent(kind="circuit" | "outage" | "quota"):
                self._print_failure(event.speaker or "a call", event.tool, event.text or "")
            case WaitStartedEvent():
                self._print_wait(_wait_line(event, self._state.root_of(event.run)))
            case WaitEndedEvent() if isinstance(beginning, WaitStartedEvent):
                self._print_wait(_decision_line(event, beginning))
            case AttemptFailedEvent() if attempts:
                self._print_failed_attempt(event)
            case ModelAnsweredEvent(text=str(text)) if isinstance(beginning, ModelCalledEvent):
                self._print_answer(event, beginning, text)
            case ModelFailedEvent(error=str(error)):
                self._print_failure(event.speaker, None, error)
            case ToolReturnedEvent(text=str(text)):
                caller = event.speaker if event.tool_call else ""
                self._print_tool_result(event.tool, caller, text, in_full=event.ends)
            case ToolFailedEvent(error=str(error)):
                self._print_failure(event.speaker if event.tool_call else "", event.tool, error)
            case TurnEndedEvent() if isinstance(beginning, TurnStartedEvent):
                self._print_end_of_turn(event, beginning)
            case SpeakerSelectedEvent(speaker=member, how=how):
                self._print_line(Text.assemble("selector → ", (member or "none", "cyan"), (f"  {how}", "dim")))
            case MemoryReadEvent(error=str(error)) | MemoryWrittenEvent(error=str(error)):
                self._print_failure(event.memory or event.conversation, None, error)

    def print_unfinished(self, call: OpenCall, about: str, text: str) -> None:
        """Prints the received part of an answer that a model is still streaming."""
        self._print_line(Text.assemble((call.started.speaker, "bold yellow"), (f"  {about} · unfinished", "dim")))
        self._print_text(f"{text}…")

    def _print_failed_attempt(self, event: AttemptFailedEvent) -> None:
        """Prints the failure of a call's last attempt, and when the next one starts."""
        start = f"starts at {event.next_at.astimezone():%H:%M:%S}" if event.next_at else "has started"
        reason = " ".join(event.error.split())
        error = f": attempt {event.attempt} failed: {reason}; attempt {event.attempt + 1} {start}"
        run = f" · {self._state.root_of(event.run)}" if self._several_runs else ""
        self._print_line(Text.assemble("  ✗ ", (event.speaker, "red"), error, (run, "dim")))

    def _print_answer(self, event: ModelAnsweredEvent, called: ModelCalledEvent, text: str) -> None:
        """Prints the answer of a model: a line about it, its text, its tool calls."""
        self._note_script(event.model)
        usage = event.usage
        tokens = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens" if usage.total_tokens else ""
        self._print_speaker(event, format_turn(called), event.model or "", tokens, event.seconds)
        for said in filter(None, (*event.earlier, role_output_text(called.part, text))):
            self._print_text(said)
        for tool_call in event.tool_calls:
            ends = tool_call.name in TERMINATING  # then its result repeats its arguments
            arguments = "" if ends else truncate(tool_call.arguments, MAX_SHOWN_BYTES)
            self._print_line(Text.assemble("  → ", (tool_call.name, "cyan"), f" {arguments}"))
        if event.finish_reason == "length":
            self._print_line(Text.assemble(("  ✗ ", "red"), "the answer was cut off at the model's token limit"))
        if event.wrong:
            self._print_line(Text.assemble(("  ✗ ", "red"), truncate(f"the answer {event.wrong}", MAX_SHOWN_BYTES)))

    def _note_script(self, model: str | None) -> None:
        """Prints once that models are scripted, before the first answer of one."""
        if not self._scripted_note_printed and (model or "").startswith(SCRIPTED):
            self._scripted_note_printed = True
            self._console.print(Text(SCRIPTED_NOTE, style="bold magenta"))

    def _print_end_of_turn(self, event: TurnEndedEvent, turn: TurnStartedEvent) -> None:
        """Prints what a function has returned, or its error; the error of a team, unless it was printed before."""
        if event.error is not None and (turn.function or (turn.kind == "team" and event.error not in self._errors)):
            self._print_failure(event.speaker, None, event.error)
        elif event.text is not None:
            self._print_speaker(event, format_turn(turn), f"function {turn.function}", "", event.seconds)
            if event.text:
                self._print_text(role_output_text(event.part, event.text))

    def _print_speaker(
        self, event: ModelAnsweredEvent | TurnEndedEvent, turn: str, callee: str, tokens: str, seconds: float
    ) -> None:
        """Prints who speaks, with the team, turn, callee, tokens, duration and run, where needed."""
        parts = (
            event.team or "" if self._teams > 1 and not self._several_runs else "",
            turn,
            callee,
            tokens,
            format_duration(timedelta(seconds=seconds)),
            event.run if self._several_runs else "",
        )
        about = " · ".join(filter(None, parts))
        self._print_line(Text.assemble((event.speaker or "?", "bold green"), (f"  {about}", "dim")))

    def _print_request(self, event: SteeredEvent | SessionChangedEvent | StopRequestedEvent) -> None:
        """Prints a client's request to the run: its message, or a line about it."""
        match event:
            case SteeredEvent():
                self._print_by(event, event.by, "")
                self._print_text(event.text)
            case SessionChangedEvent():
                changes = json.dumps(event.changes, ensure_ascii=False)
                self._print_by(event, event.by, f" changed the session: {changes}")
            case StopRequestedEvent():
                action = " canceled the run" if event.kind == "cancel" else " requested termination"
                self._print_by(event, event.by, f"{action}: {event.reason}" if event.reason else action)

    def _print_by(self, event: Event, by: str, action: str) -> None:
        is_child = self._state.root_of(event.run) != event.run
        run = f" · {event.run}" if self._several_runs or is_child else ""
        time = f"{event.at.astimezone():%H:%M:%S}{run}"
        self._print_line(Text.assemble((by, "bold cyan"), action, (f"  {time}", "dim")))

    def _print_wait(self, line: Text | None) -> None:
        if line:
            self._print_line(line)

    def _print_failure(self, speaker: str, tool: str | None, error: str) -> None:
        self._errors.add(error)
        if tool is None:
            self._print_line(Text.assemble("  ✗ ", (speaker, "red"), f": {error}"))
        else:
            self._print_tool_result(tool or "tool", speaker, f"failed: {error}")

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
        print_line(self._console, text)


def format_turn(event: ModelCalledEvent | TurnStartedEvent) -> str:
    """The turn, such as ``turn 3 of 9``; in a panel its round, and the role of a named speaker."""
    if event.turn:
        limit = event.turns if isinstance(event, ModelCalledEvent) else None
        return f"turn {event.turn}" + (f" of {limit}" if limit else "")
    if event.round is None:
        return ""
    part = "" if event.part in (None, event.speaker) else f" · {event.part}"
    return f"round {event.round}{part}"
