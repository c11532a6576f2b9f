"""Evaluates a condition in a bounded process. This module imports everything that the process needs."""

import cel  # noqa: F401  # loaded before the process loses access to files
from pydantic import JsonValue

from ...resources.conditions import evaluate


def evaluate_request(request: JsonValue) -> bool:
    """Whether an expression is true; ``request`` is ``[expression, facts]``. Raises ValueError."""
    assert isinstance(request, list)
    expression, facts = request
    assert isinstance(facts, dict)
    return evaluate(str(expression), facts)
