"""Which functions does a worker of the tests have? Such as a program's module would give it."""

from baton.conversation.messages.panel import Briefing
from baton.resources.functions import function


@function
def ballot(briefing: Briefing) -> dict[str, int]:
    """A contribution that is no text."""
    return {"choice": briefing.round}
