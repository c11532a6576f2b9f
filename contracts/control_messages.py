"""The signals and updates of a run: `terminate_team`, `steer` and `pause`."""

from pydantic import JsonValue, ValidationError

from ..resources.base import JsonModel
from .errors import MAX_ERROR_TEXT
from .identity import Identity
from .message import Message
from .text import MAX_MESSAGE, byte_size, truncate

ASK_AGAIN = "ask_again"
"""The signal to a run that waits until others of its tenant have ended: it may be its turn."""

MAX_SESSION = 16_000
"""Bytes of a session's values, as JSON: they are part of every brief."""

SESSION_TOO_LARGE = f"a session's values may not be longer than {MAX_SESSION:,} bytes"


class TerminateRequest(JsonModel):
    """The signal ``terminate_team``: the reason, and whether the activity in progress is canceled (``now``).

    ``name`` is that of the person who sends it; ``identity``, here and below, is verified by a gateway.
    """

    reason: str = ""
    now: bool = False
    name: str | None = None
    identity: Identity | None = None


class CancelRequest(JsonModel):
    """The signal ``cancel``: the reason, and the name of the person who sends it."""

    reason: str = ""
    name: str | None = None
    identity: Identity | None = None


class PauseRequest(JsonModel):
    """The signals ``pause`` and ``resume``: the name of the person who sends it."""

    name: str | None = None
    identity: Identity | None = None


class SteerRequest(JsonModel):
    """The update ``steer``: a message from a person to the next speaker, and the person's name.

    The ``id`` is given by the run that receives the message: by it, the runs above and below know that they have it.
    """

    text: str
    name: str = "user"
    id: str = ""
    identity: Identity | None = None

    def identified(self, id_: str) -> "SteerRequest":
        """The message with that id."""
        return SteerRequest(text=self.text, name=self.name, id=id_)

    @property
    def message(self) -> Message:
        """The message as it joins a conversation."""
        return Message(role="user", content=self.text, name=self.name)

    @property
    def problem(self) -> str | None:
        """Why it is rejected; None if there is a text, and text, name and id are short enough for a history."""
        lengths = len(self.name) <= 64 and len(self.id) <= 64
        if self.text.strip() and byte_size(self.text) <= MAX_MESSAGE and lengths:
            return None
        return f"a text of 1 to {MAX_MESSAGE:,} bytes is needed, and a name of at most 64 characters"


class SteerResult(JsonModel):
    """The reply to ``steer``: the turn that reads the message at the latest; None if a child workflow reads it."""

    turn: int | None = None


class Pause(JsonModel):
    """Since when a run is paused, as in ``2025-09-03T10:00:15Z``, and by whom, if ``pause`` named a person."""

    since: str
    by: str | None = None


def read_person(value: JsonValue) -> str | None:
    """The sender of a signal: ``{"name": …}`` or a text of at most 64 characters; None for anything else."""
    name = value.get("name") if isinstance(value, dict) else value
    return name if isinstance(name, str) and 0 < len(name) <= 64 else None


def read_steer_request(value: JsonValue) -> SteerRequest | None:
    """The payload of a signal ``steer``; None if it is not acceptable."""
    try:
        request = SteerRequest.model_validate(value)
    except ValidationError:
        return None
    return None if request.problem else request


def read_terminate_request(value: JsonValue) -> TerminateRequest:
    """The payload of the signal: an object, or a text as the reason; any other value requests a graceful end."""
    payload = value if isinstance(value, dict) else {"reason": value}
    reason = payload.get("reason")
    return TerminateRequest(
        reason=truncate(reason, MAX_ERROR_TEXT) if isinstance(reason, str) else "", now=payload.get("now") is True
    )
