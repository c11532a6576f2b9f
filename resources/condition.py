"""What may a condition say? An expression in CEL over a few facts of a discussion, true or false."""

import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Annotated

from pydantic import AfterValidator, JsonValue

Facts = Mapping[str, JsonValue]

SAMPLE_FACTS: Facts = {"message": "text", "speaker": "name", "turn": 1, "round": 1, "tokens": 1, "elapsed": 1.5}
"""The facts, with a value of each one's type: the last words and who said them, the turns and rounds that have been
taken, the tokens that were spent, the seconds that have passed."""

SAMPLE_PANEL_FACTS: Facts = {**SAMPLE_FACTS, "goal": "text", "critiques": [], "contributions": [], "session": {}}
"""A panel's facts: also its goal, ``[{round, critique}]``, ``[{round, agentName, text}]``, and its session's values."""

MAX_LENGTH = 1_000
"""Characters of an expression."""

MAX_LOOPS = 2
"""Loops over a panel's lists: more of them, one in the other, could take for ever; everything else takes a moment."""

_LOOP = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*(\w*)")


def evaluate_condition(expression: str, facts: Facts) -> bool:
    """Whether a condition is true of these facts; raises ValueError with the reason where it is no condition."""
    try:
        return _truth(expression, facts)
    except Exception as error:  # whatever the library makes of it, the expression can't be judged
        raise ValueError(_reason(error)) from None


def _truth(expression: str, facts: Facts) -> bool:
    import cel  # noqa: PLC0415  # it takes a tenth of a second, and most manifests need none

    value = cel.evaluate(expression, dict(facts))
    if not isinstance(value, bool):
        raise ValueError(f"gives {type(value).__name__}, not true or false")
    return value


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0][:300]
    return f"there is no value {text}" if isinstance(error, KeyError) else text


def check_condition(expression: str, sample: Facts = SAMPLE_FACTS) -> str:
    """The expression itself; raises ValueError where it is no condition over facts like those of the sample."""
    import cel  # noqa: PLC0415

    loops = _LOOP.findall(expression)
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH:,} characters")
    if loops and sample is SAMPLE_FACTS:
        raise ValueError("is not a condition: it goes through a list, and a discussion has none")
    if len(loops) > MAX_LOOPS:
        raise ValueError(f"goes through lists more than {MAX_LOOPS} times")
    try:
        names = cel.compile(expression).variables()
        unknown = [name for name in names if name not in sample and name not in loops]
        if unknown:
            raise ValueError(f"'{min(unknown)}' is no fact of a discussion; known: {', '.join(sorted(sample))}")
        if "session" not in names:  # what stands in it, only a run knows
            said = {"critiques", "contributions"} & {*names}  # and how much was said
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
"""One that may also speak of a panel's goal, critiques, contributions and session."""
