"""Evaluates a team's conditions: quick ones at once, any other in a process that can be killed."""

from ...resources.condition import Facts
from ...resources.expression import evaluate, is_quick
from ..process.bounded_process import BoundedFunction, LimitExceeded

SECONDS = 2.0
"""The time of one evaluation."""

_evaluate = BoundedFunction(f"{__package__}.condition_process:evaluate_given", seconds=SECONDS)


async def holds(expression: str, facts: Facts) -> bool:
    """Whether a condition is true of these facts; raises ValueError if it can't be evaluated within its limits."""
    try:
        quick = is_quick(expression, facts)
    except Exception:  # the library raises many kinds of errors, and `evaluate` says which
        quick = True
    if quick:
        return evaluate(expression, facts)
    try:
        return await _evaluate.call([expression, dict(facts)]) is True
    except LimitExceeded as exceeded:
        raise ValueError(str(exceeded)) from None
