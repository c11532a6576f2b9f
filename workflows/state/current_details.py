"""What does the Temporal UI show of a run? The latest part of its conversation, as Markdown."""

from temporalio import workflow

from ...conversation.contracts.status import Status
from ...conversation.messages.message import Message, cut, latest
from ...conversation.messages.turn import Turn

SHOWN = 8_000
"""Characters of a conversation that the details show."""


def show(name: str, turn: Turn, of: int | None = None) -> None:
    """Makes ``turn`` so far the run's current details."""
    count = f"{turn.turns} of {of}" if of else f"{turn.turns}"
    end = f" · {turn.stop_reason}" if turn.stop_reason != "completed" else ""
    last = turn.messages[-1].round if turn.messages else None
    place = f"round {last}" if last else f"turn {count}"
    title = f"### {name} · {place}{end} · {turn.usage.total_tokens} tokens"
    failure = [f"**{turn.failure.type}** {turn.failure.message}"] if turn.failure else []
    said = [_said(message) for message in latest(turn.messages, SHOWN)]
    workflow.set_current_details("\n\n".join((title, *said, *failure)))


def show_status(status: Status) -> None:
    """Makes a query's status so far its current details."""
    title = f"### {status.token_usage.total_tokens} tokens"
    targets = (
        f"- **{each.target.type}/{each.target.name}** {each.status} {each.error or ''}" for each in status.responses
    )
    workflow.set_current_details("\n".join((title, *targets, "", cut(status.message, SHOWN))))


def _said(message: Message) -> str:
    place = f"round {message.round} · " if message.round else ""
    speaker = f"{place}**{message.name or message.role}**" + (f" ({message.model})" if message.model else "")
    calls = "".join(f"\n- calls `{call.name}` with `{cut(call.arguments, 200)}`" for call in message.tool_calls)
    return f"{speaker}: {cut(message.content, 2_000)}{calls}"
