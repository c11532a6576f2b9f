"""``questions``: people answer what a server asks in the middle of a call."""

from typing import Literal, Self

from pydantic import Field, model_validator

from .base import FieldError, JsonModel
from .duration import Duration, parse_duration


class Questions(JsonModel):
    """What a server asks in the middle of a call is put to a person; without this, the call can't go on."""

    timeout: Duration | None = Field(
        None, description="how long a question waits, such as '24h'; by default without end"
    )
    on_timeout: Literal["fail", "skip"] = Field(
        "fail", description="after that time: 'fail' the call, or 'skip' the question: the call goes on without it"
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.on_timeout == "skip" and self.timeout is None:
            raise FieldError(("timeout",), "is missing: onTimeout needs it")
        return self

    @property
    def seconds(self) -> float | None:
        """The timeout in seconds."""
        return parse_duration(self.timeout).total_seconds() if self.timeout else None
