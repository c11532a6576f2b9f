"""Evaluates a condition in a bounded process, which loads here all that it needs."""

import cel  # noqa: F401  # loaded before the process can open no file any more
from pydantic import JsonValue

from ...resources.conditions import evaluate


def evaluate_given(given: JsonValue) -> bool:
    """Whether an expression is true of facts: ``given`` is a list of both. Raises ValueError."""
    assert isinstance(given, list)
    expression, facts = given
    assert isinstance(facts, dict)
    return evaluate(str(expression), facts)
