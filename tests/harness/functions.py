"""The functions of the tests' workers, as a user's module would register them."""

from baton.contracts.panel import Briefing
from baton.resources.functions import function


@function
def ballot(briefing: Briefing) -> dict[str, int]:
    """A contribution that is not a text."""
    return {"choice": briefing.round}
