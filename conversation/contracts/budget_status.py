"""What is left of the budget of a run."""

from ...resources.base import JsonModel
from ...resources.budget import Budget
from ..messages.message import TokenUsage


class BudgetLeft(JsonModel):
    """What is left, of those amounts that are limited; ``cost`` in US dollars."""

    tokens: int | None = None
    cost: float | None = None
    model_calls: int | None = None
    tool_calls: int | None = None


class BudgetStatus(JsonModel):
    """The budget of a run, and what is ``left`` of it; what was used is the run's token usage."""

    limits: Budget
    left: BudgetLeft

    @classmethod
    def of(cls, limits: Budget | None, used: TokenUsage) -> "BudgetStatus | None":
        """The state of a budget after that much was used; None where there is no budget."""
        if limits is None:
            return None
        pairs = {
            "tokens": (limits.tokens, used.total_tokens),
            "cost": (limits.cost, used.cost or 0),
            "model_calls": (limits.model_calls, used.model_calls),
            "tool_calls": (limits.tool_calls, used.tool_calls),
        }
        left = {name: round(max(0, limit - spent), 9) for name, (limit, spent) in pairs.items() if limit is not None}
        return cls(limits=limits, left=BudgetLeft.model_validate(left))
