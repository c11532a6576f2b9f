"""What comes of a run for a program: its result, or why there is none."""

from dataclasses import dataclass

from ...conversation.contracts.status import Status
from ...conversation.messages.message import Message, TokenUsage
from ...conversation.messages.panel import Contribution, contributions_in


@dataclass(frozen=True)
class Result:
    """The result of a completed run. ``value`` is its ``message``, read into the type that the target declares:

    JSON or a pydantic model for an ``output_schema``; a ``PanelShape`` or ``DebateShape`` for a panel without a
    synthesizer, or for one that was terminated or whose budget is used up; otherwise the message itself, as where
    a run with an ``output_schema`` was ended before its answer had that form.
    """

    id: str
    status: Status
    value: object

    @property
    def message(self) -> str:
        """The answer."""
        return self.status.message

    @property
    def usage(self) -> TokenUsage:
        """The tokens and calls it used."""
        return self.status.token_usage


class RunFailed(Exception):
    """A run has failed or was canceled: ``status`` says why, and ``messages`` are its latest messages."""

    def __init__(self, run_id: str, status: Status) -> None:
        self.id, self.status = run_id, status
        why = (
            f"has failed: {status.error}"
            if status.phase == "Failed"
            else f"was canceled: {status.note or 'no reason given'}"
        )
        super().__init__(f"the run {run_id} {why}")

    @property
    def messages(self) -> tuple[Message, ...]:
        """The latest messages, target by target."""
        messages = tuple(message for response in self.status.responses for message in response.messages)
        return messages or self.status.messages

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        """The contributions to a panel or a debate among the messages."""
        return contributions_in(self.messages)


class Refused(Exception):
    """A run rejects a message or a change of its session; the text says why."""
