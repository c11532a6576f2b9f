"""Evaluates expressions in CEL, and judges beforehand what they cost: their loops, and whether they are quick."""

import re
from collections.abc import Collection, Mapping
from typing import Any

MAX_LENGTH = 1_000
"""The maximum number of characters of an expression."""

QUICK_LENGTH = 10_000
"""Characters in the facts up to which an expression without a loop takes less than 20 ms."""

_MACROS = ("all", "exists", "exists_one", "existsOne", "map", "filter")
_TOKEN = re.compile(
    r"""//[^\r\n]*                                     # a comment
    | [bB]?(?:[rR](?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\r\n]*"|'[^'\r\n]*')
             |\"{3}(?:\\.|.)*?\"{3}|'{3}(?:\\.|.)*?'{3}|"(?:\\.|[^"\\\r\n])*"|'(?:\\.|[^'\\\r\n])*')
    | [A-Za-z_]\w* | \d+ | \S""",
    re.VERBOSE | re.DOTALL,
)


def loops_in(expression: str) -> list[str]:
    """The variable of each loop over a list, in order; a comment or a line end between two tokens changes nothing."""
    tokens = [each for each in _TOKEN.findall(expression) if not each.startswith("//")]
    calls = zip(tokens, tokens[1:], tokens[2:], [*tokens[3:], ""], strict=False)
    return [variable for dot, name, opened, variable in calls if dot == "." and name in _MACROS and opened == "("]


def names_in(expression: str) -> list[str]:
    """The names of all variables, those of loops included. Raises an error of the library where it can't be parsed."""
    import cel  # noqa: PLC0415  # slow to load (0.1 s), and most manifests need none

    return cel.compile(expression).variables()


def is_quick(expression: str, facts: Collection[Any] | Mapping[str, Any]) -> bool:
    """Whether it is evaluated at once, as the parser sees it: it has no loop and no pattern, and the facts are short.

    Without these each part of an expression is evaluated once at most. It may say False for one that is quick.
    """
    import cel  # noqa: PLC0415

    functions = {*cel.compile(expression).functions()}
    named = any(each in expression for each in ("all", "exists", "map", "filter"))
    may_loop = named and bool(functions & {"@not_strictly_false", "_+_"})  # what each of the macros becomes
    return not may_loop and "matches" not in functions and _length(facts) <= QUICK_LENGTH


def _length(value: Any) -> int:
    """The characters of all texts in a value, and one for each other value."""
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
    """The same, with the errors of the library."""
    import cel  # noqa: PLC0415

    value = cel.evaluate(expression, dict(facts))
    if not isinstance(value, bool):
        raise ValueError(f"gives {type(value).__name__}, not true or false")
    return value


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0][:300]
    return f"there is no value {text}" if isinstance(error, KeyError) else text
