"""The exceptions by which workflow code leaves off: an activity failed, the run is to stop, or it continues as new."""

from ...conversation.failure import BatonError, Failure


class ActivityInterrupted(Exception):
    """An activity was given up, because the run is to stop."""


class ActivityFailed(Exception):
    """An activity failed and is not tried again, or the workflow itself found the failure."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)

    @classmethod
    def of(cls, error: BatonError) -> "ActivityFailed":
        """A failure that the workflow itself has found."""
        return cls(error.as_failure())


class ContinueAsNew(Exception):
    """The run goes on in a new one; raised where the state to carry on is complete."""
