"""What may a condition say? An expression in CEL over a few facts of a discussion, true or false."""

import re
from typing import Annotated

from pydantic import AfterValidator

Fact = str | int | float

SAMPLE: dict[str, Fact] = {"message": "text", "speaker": "name", "turn": 1, "round": 1, "tokens": 1, "elapsed": 1.5}
"""The facts, with a value of each one's type: the last words and who said them, the turns and rounds that have been
taken, the tokens that were spent, the seconds that have passed."""

LONGEST = 1_000
"""Characters of an expression."""


_LOOP = re.compile(r"\.\s*(all|exists|exists_one|map|filter)\s*\(")
"""What could take for ever: everything else takes a moment."""


def holds(expression: str, facts: dict[str, Fact]) -> bool:
    """Whether a condition is true of these facts; raises ValueError with the reason where it is no condition."""
    import cel  # noqa: PLC0415  # it takes a tenth of a second, and most manifests need none

    try:
        value = cel.evaluate(expression, facts)
    except Exception as error:  # whatever the library makes of it, the expression can't be judged
        raise ValueError(str(error).splitlines()[0][:300]) from None
    if not isinstance(value, bool):
        raise ValueError(f"gives {type(value).__name__}, not true or false")
    return value


def _check(expression: str) -> str:
    import cel  # noqa: PLC0415

    if len(expression) > LONGEST:
        raise ValueError(f"is longer than {LONGEST:,} characters")
    if _LOOP.search(expression):
        raise ValueError("is not a condition: it goes through a list, and a discussion has none")
    try:
        unknown = [name for name in cel.compile(expression).variables() if name not in SAMPLE]
        if unknown:
            raise ValueError(f"'{min(unknown)}' is no fact of a discussion; known: {', '.join(sorted(SAMPLE))}")
        holds(expression, SAMPLE)
    except Exception as error:
        raise ValueError(f"is not a condition: {str(error).splitlines()[0][:300]}") from None
    return expression


Condition = Annotated[str, AfterValidator(_check)]
"""An expression in CEL, such as ``turn > 3 && message.contains('done')``."""
