"""The activity ``grant``: adds to a budget's account what a person has granted."""

from temporalio import activity

from ..conversation.contracts.grants import GrantRequest, GrantResult
from ..resources.budget import NANO
from .journal.accounts import Accounts, Amount
from .journal.journal import Journal


class Grant:
    """The activity ``grant``."""

    def __init__(self, journal: Journal) -> None:
        self._accounts = Accounts(journal.database)

    @activity.defn(name="grant")
    async def grant(self, request: GrantRequest) -> GrantResult:
        """Adds the amounts once, however many runs ask for the same grant."""
        more = request.more
        cost = round((more.cost or 0) * NANO)
        amount = Amount(more.tokens or 0, cost, more.model_calls or 0, more.tool_calls or 0)
        await self._accounts.grant(request.account, request.number, amount, more.seconds)
        return GrantResult()
