"""What is an error of a run? It belongs to one of six families, and says whether it is worth another try."""

from datetime import timedelta
from typing import ClassVar

from temporalio.exceptions import ApplicationError

from ..resources.base import JsonModel
from .text import truncate

MAX_ERROR_TEXT = 2_000


class Failure(JsonModel):
    """An error as a status shows it."""

    family: str
    type: str
    message: str
    target: str | None = None
    member: str | None = None
    turn: int | None = None


class BatonError(ApplicationError):
    """The base of all errors of a run. Its text is shown to people and never holds a secret."""

    family: ClassVar[str] = "BatonError"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, retryable: bool | None = None, retry_after: timedelta | None = None) -> None:
        super().__init__(
            truncate(
                message, 10 * MAX_ERROR_TEXT
            ),  # and to its length where it is written, after it was searched for secrets
            self.family,
            type=type(self).__name__,
            non_retryable=not (self.retryable if retryable is None else retryable),
            next_retry_delay=retry_after,
        )

    def as_failure(self) -> Failure:
        """This error as a value."""
        return Failure(family=self.family, type=type(self).__name__, message=truncate(self.message, MAX_ERROR_TEXT))


class ValidationFault(BatonError):
    """What was asked for makes no sense."""

    family = "ValidationError"


class AuthenticationFault(BatonError):
    """A key is missing or was refused."""

    family = "AuthenticationError"


class ModelFault(BatonError):
    """A model could not answer."""

    family = "ModelError"


class ToolFault(BatonError):
    """A tool could not be used."""

    family = "ToolError"


class TimeoutFault(BatonError):
    """A limit in time, turns or calls was reached."""

    family = "TimeoutError"


class MemoryFault(BatonError):
    """What was said can't be kept or read."""

    family = "MemoryError"
