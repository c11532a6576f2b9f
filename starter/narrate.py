"""How is a run told to a person? Line by line, on stderr, so that stdout holds the result alone."""

import asyncio
from textwrap import indent

from rich.console import Console
from rich.markup import escape
from rich.text import Text
from temporalio.client import Client
from temporalio.service import RPCError

from conversation.message import cut
from conversation.status import Status
from resources.problems import ManifestError
from starter.follow import CallFailed, Happening, RunBegan, Said, ToolUsed, follow
from starter.runs import Handle
from starter.scripted_model import LABEL

SCRIPTED = "the words below are scripted: no model is asked"
"""What stands above the words of a scripted model."""


class Narrator:
    """Tells what happens. ``runs`` is how many are told at once: then each line names its run."""

    def __init__(self, console: Console, runs: int = 1) -> None:
        self._console, self._several = console, runs > 1
        self._warned = False

    def tell(self, happening: Happening) -> None:
        """Tells one thing that has happened."""
        match happening:
            case Said():
                self._said(happening)
            case ToolUsed(message=message, error=error):
                name, text = (message.name, message.content) if message else ("tool", f"failed: {error}")
                self._line(Text.assemble("  ← ", (str(name), "cyan"), f": {indent(cut(text, 500), '    ').lstrip()}"))
            case CallFailed(what=what, error=error):
                self._line(Text.assemble("  ✗ ", (what, "red"), f": {error}"))
            case RunBegan(run=run, type=kind):
                self._line(Text(f"{run} ({kind})", style="dim"))

    def _said(self, said: Said) -> None:
        message, request = said.message, said.request
        if not self._warned and (message.model or "").startswith(LABEL):
            self._warned = True
            self._console.print(Text(f"({SCRIPTED})", style="bold magenta"))
        turn = f"turn {request.turn}" + (f" of {request.turns}" if request.turns else "")
        tokens = f"{message.usage.prompt_tokens} + {message.usage.completion_tokens} tokens" if message.usage else ""
        about = " · ".join(filter(None, (turn, message.model, tokens, said.run if self._several else "")))
        self._line(Text.assemble((message.name or "?", "bold green"), (f"  {about}", "dim")))
        if message.content:
            self._line(Text(indent(message.content, "  ")))
        for call in message.tool_calls:
            self._line(Text.assemble("  → ", (call.name, "cyan"), f" {cut(call.arguments, 500)}"))

    def _line(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


async def follow_all(client: Client, started: list[Handle], console: Console) -> None:
    """Tells what happens in runs until they are over; says how to come back where that ends before."""
    narrator = Narrator(console, len(started))
    try:
        await asyncio.gather(*(follow(client, handle, narrator.tell) for handle in started))
    except (asyncio.CancelledError, RPCError) as end:
        back = " or ".join(f"baton watch {handle.id}" for handle in started)
        lost = "lost: the run goes on as soon as Temporal and a worker are back"
        what = lost if isinstance(end, RPCError) else "detached: the run goes on"
        console.print(f"{what}. Come back with: {back}", soft_wrap=True)
        raise


def tell_end(console: Console, name: str, status: Status) -> None:
    """Tells how a run has ended."""
    usage = status.token_usage
    colour = {"Completed": "green", "Running": "yellow"}.get(status.phase, "red")
    reason = f" ({status.stop_reason})" if status.stop_reason else ""
    counts = (usage.model_calls, "model call"), (usage.tool_calls, "tool call"), (usage.total_tokens, "token")
    spent = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
    console.print(f"[{colour} bold]{status.phase}[/]{reason} [dim]{escape(name)} · {spent}[/]", soft_wrap=True)
    if status.error:
        kind = f"{status.failure.type}: " if status.failure else ""
        console.print(Text(f"{kind}{status.error}", style="red"), soft_wrap=True)


def tell_problems(console: Console, error: ManifestError) -> None:
    """Tells everything that is wrong with manifests."""
    for problem in error.problems:
        console.print(Text(str(problem)), soft_wrap=True)
    count = len(error.problems)
    console.print(Text(f"{count} {'problem' if count == 1 else 'problems'}: nothing was started", style="red"))
