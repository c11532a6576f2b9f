"""More for a budget, which a person has granted: the request of the activity ``grant``."""

from ...resources.base import JsonModel
from ...resources.budget import Budget

BUDGET_RULE = "budget/"
"""The beginning of the rule by which a decision about a budget holds for all runs that wait for it."""


class GrantRequest(JsonModel):
    """``grant``: adds ``more`` to an account, whose grant of that ``number`` it is."""

    account: str
    number: int
    more: Budget


class GrantResult(JsonModel):
    """The result of ``grant``, which has none."""
