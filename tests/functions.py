"""Which functions does a worker of the tests have? Such as a program's module would give it."""

from activities.functions import function
from conversation.panel import Briefing


@function
def ballot(briefing: Briefing) -> dict[str, int]:
    """A contribution that is no text."""
    return {"choice": briefing.round}
