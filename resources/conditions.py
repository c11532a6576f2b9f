"""Conditions: boolean CEL expressions over facts of a run."""

import re
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from typing import Annotated, Any

from pydantic import AfterValidator, JsonValue

from ..installation import is_installed

MAX_LENGTH = 1_000
"""The maximum number of characters of an expression."""

QUICK_LENGTH = 10_000
"""Characters of the facts up to which an expression without a loop takes less than 20 ms."""

_MACROS = ("all", "exists", "exists_one", "existsOne", "map", "filter")
_TOKEN = re.compile(
    r"""//[^\r\n]*                                     # a comment
    | [bB]?(?:[rR](?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\r\n]*"|'[^'\r\n]*')
             |\"{3}(?:\\.|.)*?\"{3}|'{3}(?:\\.|.)*?'{3}|"(?:\\.|[^"\\\r\n])*"|'(?:\\.|[^'\\\r\n])*')
    | [A-Za-z_]\w* | \d+ | \S""",
    re.VERBOSE | re.DOTALL,
)


def loops_in(expression: str) -> list[str]:
    """The variables of all loops over lists, in order. Comments and line breaks between tokens are ignored."""
    tokens = [token for token in _TOKEN.findall(expression) if not token.startswith("//")]
    calls = zip(tokens, tokens[1:], tokens[2:], [*tokens[3:], ""], strict=False)
    return [variable for dot, name, opened, variable in calls if dot == "." and name in _MACROS and opened == "("]


def names_in(expression: str) -> list[str]:
    """The names of all variables, including those of loops. Raises the library's error if it can't be parsed."""
    import cel  # noqa: PLC0415  # slow to import (0.1 s), and most manifests don't need it

    return cel.compile(expression).variables()


def is_quick(expression: str, facts: Collection[Any] | Mapping[str, Any]) -> bool:
    """Whether an expression is fast enough for the event loop: no loop, no regular expression, and short facts.

    Then every part of the expression is evaluated at most once. It may return False for a fast expression.
    """
    import cel  # noqa: PLC0415

    functions = {*cel.compile(expression).functions()}
    named = any(macro in expression for macro in ("all", "exists", "map", "filter"))
    may_loop = named and bool(functions & {"@not_strictly_false", "_+_"})  # what macros expand to
    return not may_loop and "matches" not in functions and _length(facts) <= QUICK_LENGTH


def _length(value: Any) -> int:
    """The characters of all texts in a value, plus one for every other value."""
    if isinstance(value, str):
        return len(value)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return 1 + sum(map(_length, parts))


def evaluate(expression: str, facts: Mapping[str, Any]) -> bool:
    """Whether an expression is true of these facts; raises ValueError if it can't be evaluated."""
    try:
        return truth(expression, facts)
    except Exception as error:  # the library raises many kinds of errors
        raise ValueError(_reason(error)) from None


def truth(expression: str, facts: Mapping[str, Any]) -> bool:
    """Whether an expression is true of these facts; raises the library's errors."""
    import cel  # noqa: PLC0415

    value = cel.evaluate(expression, dict(facts))
    if not isinstance(value, bool):
        raise ValueError(f"returns {type(value).__name__}, not true or false")
    return value


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0][:300]
    return f"there is no value {text}" if isinstance(error, KeyError) else text


Facts = Mapping[str, JsonValue]

SAMPLE_FACTS: Facts = {
    "message": "text",
    "value": {},
    "speaker": "name",
    "turn": 1,
    "round": 1,
    "tokens": 1,
    "elapsed": 1.5,
}
"""The facts, with a value of each type: the last message, the JSON value in it and its speaker, the number of turns,
rounds and tokens, and the seconds since the start. The value of a message that is not a JSON object or array is {}."""

OPEN_FACTS = {"session", "value"}
"""Facts whose fields are only known in a run."""

SAMPLE_PANEL_FACTS: Facts = {**SAMPLE_FACTS, "goal": "text", "critiques": [], "contributions": [], "session": {}}
"""The facts of a panel: also its goal, ``[{round, critique}]``, ``[{round, agentName, text}]``, and the session."""

MAX_LOOPS = 2
"""The maximum number of loops over lists: nested loops multiply the time."""


def check_condition(expression: str, sample: Facts = SAMPLE_FACTS) -> str:
    """The expression itself; raises ValueError if it is not a condition over facts like those of the sample.

    It is evaluated with the sample only if that is fast: an inline manifest is not trusted. A client without the
    library checks the length alone.
    """
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH:,} characters")
    if not is_installed("cel"):
        return expression
    loops = loops_in(expression)
    if loops and sample is SAMPLE_FACTS and not re.search(r"\bvalue\b", expression):
        raise ValueError("is not a condition: it loops over a list, and only panels and values have lists")
    if len(loops) > MAX_LOOPS:
        raise ValueError(f"loops over lists more than {MAX_LOOPS} times")
    try:
        names = names_in(expression)
        unknown = [name for name in names if name not in sample and name not in loops]
        if unknown:
            raise ValueError(f"'{min(unknown)}' is not known in a condition; known: {', '.join(sorted(sample))}")
        if not OPEN_FACTS & {*names} and is_quick(expression, sample):
            lists = {"critiques", "contributions"} & {*names}  # so is the length of these lists
            with suppress(IndexError) if lists else nullcontext():
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
