"""The current details of a run in Temporal's UI: the latest part of its conversation, as Markdown."""

from collections.abc import Sequence

from temporalio import workflow

from ...conversation.contracts.control_messages import Pause
from ...conversation.contracts.decisions import PendingDecision
from ...conversation.contracts.status import Status
from ...conversation.messages.message import Message, latest_within
from ...conversation.messages.turn import TurnResult
from ...conversation.text import truncate

SHOWN_CHARACTERS = 8_000
"""Characters of a conversation that the details show."""

SHOWN_DECISIONS = 20
"""Decisions, and runs, that the details show."""


class CurrentDetails:
    """What Temporal's UI shows of a run at the moment."""

    def __init__(self) -> None:
        self._text, self._pause, self._question, self._waits = "", "", "", ""

    def show_question(self, question: str) -> None:
        """Shows above what is said what the run was asked."""
        self._question = f"> {' '.join(question.split())}\n\n" if question else ""
        self._set(self._text)

    def show_turn(self, name: str, turn: TurnResult, max_turns: int | None = None) -> None:
        """Shows what was said so far in a team or by an agent."""
        count = f"{turn.turns} of {max_turns}" if max_turns else f"{turn.turns}"
        end = f" · {turn.stop_reason}" if turn.stop_reason != "completed" else ""
        last = turn.messages[-1].round if turn.messages else None
        place = f"round {last}" if last else f"turn {count}"
        title = f"### {name} · {place}{end} · {turn.usage.total_tokens} tokens"
        failure = [f"**{turn.failure.type}** {turn.failure.message}"] if turn.failure else []
        said = [_as_markdown(message) for message in latest_within(turn.messages, SHOWN_CHARACTERS)]
        self._set("\n\n".join((title, *said, *failure)))

    def show_status(self, status: Status) -> None:
        """Shows the status of a query so far."""
        title = f"### {status.token_usage.total_tokens} tokens"
        targets = (
            f"- **{each.target.type}/{each.target.name}** {each.status} {each.error or ''}" for each in status.responses
        )
        self._set("\n".join((title, *targets, "", truncate(status.message, SHOWN_CHARACTERS))))

    def show_pause(self, pause: Pause | None) -> None:
        """Shows above everything else that the run is paused, until it is resumed."""
        by = f" by {pause.by}" if pause and pause.by else ""
        self._pause = f"**Paused{by} since {pause.since}**\n\n" if pause else ""
        self._set(self._text)

    def show_decisions(self, pending: Sequence[PendingDecision], runs: Sequence[str]) -> None:
        """Shows for which decisions the run waits, and which of its child runs do."""
        own = (_waiting_line(each) for each in pending[:SHOWN_DECISIONS])
        below = (f"- **waits for a person** in the run `{run}`" for run in runs[:SHOWN_DECISIONS])
        self._waits = "".join(f"{line}\n" for line in (*own, *below)) + ("\n" if pending or runs else "")
        self._set(self._text)

    def _set(self, text: str) -> None:
        self._text = text
        workflow.set_current_details(self._pause + self._waits + self._question + text)


def _waiting_line(asked: PendingDecision) -> str:
    if asked.kind == "question":
        return f"- **waits for {asked.speaker}** `{asked.id}`: {truncate(asked.question or '', 500)}"
    arguments = truncate(asked.arguments or "", 500)
    if asked.kind == "budget":
        return f"- **waits for approval** `{asked.id}`: {asked.question}; a yes grants `{arguments}`"
    return f"- **waits for approval** `{asked.id}`: {asked.speaker} calls `{asked.tool}` with `{arguments}`"


def _as_markdown(message: Message) -> str:
    place = f"round {message.round} · " if message.round else ""
    speaker = f"{place}**{message.name or message.role}**" + (f" ({message.model})" if message.model else "")
    calls = "".join(f"\n- calls `{call.name}` with `{truncate(call.arguments, 200)}`" for call in message.tool_calls)
    return f"{speaker}: {truncate(message.content, 2_000)}{calls}"
