"""The retry policy of a Model or a Tool: how often, and how soon, a failed call is attempted again."""

from pydantic import Field

from .base import Duration, JsonModel, parse_duration


class RetryPolicy(JsonModel):
    """The attempts of a call, in the terms of Temporal's retry policies. The interval doubles after each attempt.

    What follows the last attempt: a fallback, a failure that the model reads, or waiting for the end of an outage.
    """

    maximum_attempts: int | None = Field(None, ge=1, le=100, description="the number of attempts")
    initial_interval: Duration = Field("500ms", description="the time before the second attempt")
    maximum_interval: Duration = Field("30s", description="the longest time between two attempts")

    @property
    def initial_seconds(self) -> float:
        """The time before the second attempt, in seconds."""
        return parse_duration(self.initial_interval).total_seconds()

    @property
    def maximum_seconds(self) -> float:
        """The longest time between two attempts, in seconds; never shorter than the first one."""
        return max(self.initial_seconds, parse_duration(self.maximum_interval).total_seconds())
