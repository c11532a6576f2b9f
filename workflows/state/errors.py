"""The exceptions by which workflow code leaves off: an activity failed, the run is to stop, or it continues as new."""

from ...conversation.failure import BatonError, Failure
from ...conversation.messages.person_decision import PersonDecision


class ActivityInterrupted(Exception):
    """An activity was given up, because the run is to stop: that with the id ``activity``, if it was begun at all."""

    def __init__(self, activity: str | None = None) -> None:
        self.activity = activity
        super().__init__()


class ActivityFailed(Exception):
    """An activity failed and is not tried again, or the workflow itself found the failure."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)

    @classmethod
    def of(cls, error: BatonError) -> "ActivityFailed":
        """A failure that the workflow itself has found."""
        return cls(error.as_failure())


class NotAllowed(Exception):
    """A tool call is not carried out: it was rejected, or nobody has approved it in time."""

    def __init__(self, decision: PersonDecision) -> None:
        self.decision = decision
        super().__init__(rejection_text(decision))


def rejection_text(decision: PersonDecision) -> str:
    """What a model reads instead of the tool's answer."""
    if decision.how == "timeout":
        return "Not carried out: nobody has approved this call in time."
    return f"Not carried out: a person has rejected this call. {decision.reason}".rstrip()


class ContinueAsNew(Exception):
    """The run goes on in a new one; raised where the state to carry on is complete."""
