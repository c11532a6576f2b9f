"""Conditions: expressions in CEL over some facts of a run, which give true or false."""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Annotated

from pydantic import AfterValidator, JsonValue

from .expression import MAX_LENGTH, is_quick, loops_in, names_in, truth

Facts = Mapping[str, JsonValue]

SAMPLE_FACTS: Facts = {"message": "text", "speaker": "name", "turn": 1, "round": 1, "tokens": 1, "elapsed": 1.5}
"""The facts, with a value of each type: the last message and its speaker, the number of turns, rounds and tokens,
and the seconds since the start."""

SAMPLE_PANEL_FACTS: Facts = {**SAMPLE_FACTS, "goal": "text", "critiques": [], "contributions": [], "session": {}}
"""The facts of a panel: also its goal, ``[{round, critique}]``, ``[{round, agentName, text}]``, and the session."""

MAX_LOOPS = 2
"""The maximum number of loops over lists: nested loops take time that grows with each level."""


def check_condition(expression: str, sample: Facts = SAMPLE_FACTS) -> str:
    """The expression itself; raises ValueError if it is no condition over facts such as those of the sample.

    It is evaluated with the sample only if that is quick: whoever brings it to a worker is not trusted.
    """
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH:,} characters")
    loops = loops_in(expression)
    if loops and sample is SAMPLE_FACTS:
        raise ValueError("is not a condition: it loops over a list, and only panels have lists")
    if len(loops) > MAX_LOOPS:
        raise ValueError(f"loops over lists more than {MAX_LOOPS} times")
    try:
        names = names_in(expression)
        unknown = [name for name in names if name not in sample and name not in loops]
        if unknown:
            raise ValueError(f"'{min(unknown)}' is not known in a condition; known: {', '.join(sorted(sample))}")
        if "session" not in names and is_quick(expression, sample):  # the session's values are only known in a run
            said = {"critiques", "contributions"} & {*names}  # so is the length of these lists
            with suppress(IndexError) if said else nullcontext():
                truth(expression, sample)
    except Exception as error:
        raise ValueError(f"is not a condition: {str(error).splitlines()[0][:300]}") from None
    return expression


def _check_panel(expression: str) -> str:
    return check_condition(expression, SAMPLE_PANEL_FACTS)


Condition = Annotated[str, AfterValidator(check_condition)]
"""An expression in CEL, such as ``turn > 3 && message.contains('done')``."""

PanelCondition = Annotated[str, AfterValidator(_check_panel)]
"""A condition that may also use the goal, critiques, contributions and session of a panel."""
