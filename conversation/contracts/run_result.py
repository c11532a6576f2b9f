"""The result of a run that a client has started: its status."""

from ..messages.message import TokenUsage
from ..messages.turn import TurnResult
from .status import Status


class RunResult(Status):
    """The result of a team, an agent, a model or a tool that a client has started: its status.

    ``usage`` and ``answer`` are earlier names of ``token_usage`` and ``message``, for clients that read those.
    """

    usage: TokenUsage = TokenUsage()
    answer: str | None = None

    @classmethod
    def of(cls, status: Status, turn: TurnResult) -> "RunResult":
        """The result of a run that has ended with this status."""
        known = {name: getattr(status, name) for name in status.model_fields_set}
        return cls(**known, usage=turn.usage, **({} if turn.answer is None else {"answer": turn.answer}))
