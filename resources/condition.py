"""Conditions: expressions in CEL over some facts of a run, which give true or false."""

import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Annotated

from pydantic import AfterValidator, JsonValue

Facts = Mapping[str, JsonValue]

SAMPLE_FACTS: Facts = {"message": "text", "speaker": "name", "turn": 1, "round": 1, "tokens": 1, "elapsed": 1.5}
"""The facts, with a value of each type: the last message and its speaker, the number of turns, rounds and tokens,
and the seconds since the start."""

SAMPLE_PANEL_FACTS: Facts = {**SAMPLE_FACTS, "goal": "text", "critiques": [], "contributions": [], "session": {}}
"""The facts of a panel: also its goal, ``[{round, critique}]``, ``[{round, agentName, text}]``, and the session."""

MAX_LENGTH = 1_000
"""The maximum number of characters of an expression."""

MAX_LOOPS = 2
"""The maximum number of loops over lists: nested loops take time that grows with each level; nothing else is slow."""

_LOOP = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*(\w*)")


def evaluate_condition(expression: str, facts: Facts) -> bool:
    """Whether a condition is true of these facts; raises ValueError if it can't be evaluated."""
    try:
        return _truth(expression, facts)
    except Exception as error:  # the library raises many kinds of errors
        raise ValueError(_reason(error)) from None


def _truth(expression: str, facts: Facts) -> bool:
    import cel  # noqa: PLC0415  # slow to load (0.1 s), and most manifests need none

    value = cel.evaluate(expression, dict(facts))
    if not isinstance(value, bool):
        raise ValueError(f"gives {type(value).__name__}, not true or false")
    return value


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0][:300]
    return f"there is no value {text}" if isinstance(error, KeyError) else text


def check_condition(expression: str, sample: Facts = SAMPLE_FACTS) -> str:
    """The expression itself; raises ValueError if it is no condition over facts such as those of the sample."""
    import cel  # noqa: PLC0415

    loops = _LOOP.findall(expression)
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH:,} characters")
    if loops and sample is SAMPLE_FACTS:
        raise ValueError("is not a condition: it loops over a list, and only panels have lists")
    if len(loops) > MAX_LOOPS:
        raise ValueError(f"loops over lists more than {MAX_LOOPS} times")
    try:
        names = cel.compile(expression).variables()
        unknown = [name for name in names if name not in sample and name not in loops]
        if unknown:
            raise ValueError(f"'{min(unknown)}' is not known in a condition; known: {', '.join(sorted(sample))}")
        if "session" not in names:  # its values are only known in a run
            said = {"critiques", "contributions"} & {*names}  # so is the length of these lists
            with suppress(IndexError) if said else nullcontext():
                _truth(expression, sample)
    except Exception as error:
        raise ValueError(f"is not a condition: {str(error).splitlines()[0][:300]}") from None
    return expression


def _check_panel(expression: str) -> str:
    return check_condition(expression, SAMPLE_PANEL_FACTS)


Condition = Annotated[str, AfterValidator(check_condition)]
"""An expression in CEL, such as ``turn > 3 && message.contains('done')``."""

PanelCondition = Annotated[str, AfterValidator(_check_panel)]
"""A condition that may also use the goal, critiques, contributions and session of a panel."""
