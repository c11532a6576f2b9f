"""Which functions does a worker of the tests have? Such as a program's module would give it."""

from baton.activities.process.functions import function
from baton.conversation.messages.panel import Briefing


@function
def ballot(briefing: Briefing) -> dict[str, int]:
    """A contribution that is no text."""
    return {"choice": briefing.round}
