"""What can people ask of a run that goes on? To end, or to hear them."""

from pydantic import JsonValue, ValidationError

from ...resources.base import JsonModel
from ..failure import MAX_ERROR_TEXT
from ..text import MAX_MESSAGE, byte_size, truncate


class TerminateRequest(JsonModel):
    """The signal ``terminate_team``: why, and whether the call in flight is given up."""

    reason: str = ""
    now: bool = False


class SteerRequest(JsonModel):
    """The update ``steer``: what a person says to whoever speaks next, and under which name."""

    text: str
    name: str = "user"

    @property
    def is_acceptable(self) -> bool:
        """Whether anything is said, and no more than a history holds."""
        return bool(self.text.strip()) and byte_size(self.text) <= MAX_MESSAGE and len(self.name) <= 64


class SteerResult(JsonModel):
    """The reply to ``steer``: the turn in which it is heard at the latest; none where a run below hears it."""

    turn: int | None = None


def read_steer_request(value: JsonValue) -> SteerRequest | None:
    """What a signal ``steer`` says, if it says anything."""
    try:
        said = SteerRequest.model_validate(value)
    except ValidationError:
        return None
    return said if said.is_acceptable else None


def read_terminate_request(value: JsonValue) -> TerminateRequest:
    """What a signal's payload asks for: an object, a text, or anything else, which asks for a graceful end."""
    given = value if isinstance(value, dict) else {"reason": value}
    reason = given.get("reason")
    return TerminateRequest(
        reason=truncate(reason, MAX_ERROR_TEXT) if isinstance(reason, str) else "", now=given.get("now") is True
    )
