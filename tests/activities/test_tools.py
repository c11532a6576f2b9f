"""Tests of the built-in tools: the calculator runs no code, and texts are formatted."""

import time

import pytest

from baton.activities.tool.built_in import BUILT_IN_TOOLS, MAX_CHARACTERS, calculate, format_text, repeat
from baton.contracts.errors import ToolFailed
from baton.resources.agent import BUILT_INS, TERMINATING


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(19.99 * 3 + 4.50) * 1.21", "78.0087"),
        ("0.1 + 0.2", "0.3"),
        ("2 ** 100", "1267650600228229401496703205376"),
        ("2 ^ 10", "1024"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("10 / 4", "2.5"),
        ("1 / 3", "0." + "3" * 34),
        ("-(2 ** 100)", "-1267650600228229401496703205376"),
        ("sqrt(2) ** 2", "2"),
        ("round(2.675, 2)", "2.68"),
        ("max(1, min(5, 3), abs(-2))", "3"),
        ("1000000 * 1000000", "1000000000000"),
        ("1_000 + 1", "1001"),
        ("0.12345678901234567890123", "0.12345678901234567890123"),
        ("1e-50", "1E-50"),
    ],
)
async def test_the_calculator_calculates(expression: str, value: str) -> None:
    result = await calculate({"expression": expression})
    assert result == value


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("__import__('os').system('true')", "is not an arithmetic expression"),
        ("(1).__class__", "is not an arithmetic expression"),
        ("[x for x in (1,)]", "is not an arithmetic expression"),
        ("'a' * 9", "is not an arithmetic expression"),
        ("True + 1", "is not an arithmetic expression"),
        ("1 if 1 else 2", "is not an arithmetic expression"),
        ("abs(x=1)", "is not an arithmetic expression"),
        ("abs(1, 2, 3)", "has no value"),
        ("1 +", "is not an arithmetic expression"),
        ("", "is not an arithmetic expression"),
        ("-" * 400 + "1", "is not an arithmetic expression"),
        ("(" * 240 + "1" + ")" * 240, "is not an arithmetic expression"),
        ("1 / 0", "division by zero"),
        ("0 / 0", "has no value"),
        ("5 % 0", "division by zero"),
        ("9 ** 9 ** 9 ** 9", "the result is too large"),
        ("sqrt(-1)", "has no value"),
        ("round(1, 99999)", "has no value"),
        ("1" * (MAX_CHARACTERS + 1), "longer than"),
    ],
)
async def test_anything_but_arithmetic_is_refused_at_once(expression: str, says: str) -> None:
    begun = time.process_time()
    if expression.startswith("---"):
        assert await calculate({"expression": expression}) == "1"
    else:
        with pytest.raises(ToolFailed, match=says):
            await calculate({"expression": expression})
    assert time.process_time() - begun < 2


@pytest.mark.parametrize(
    ("style", "text", "formatted"),
    [
        ("upper", "über", "ÜBER"),
        ("lower", "ÜBER", "über"),
        ("title", "a fine day", "A Fine Day"),
        ("sentence", "a FINE day", "A fine day"),
        ("one-line", " a\n  fine\tday ", "a fine day"),
        ("bullets", "a\n\n b", "- a\n- b"),
        ("numbered", "a\n\n b", "1. a\n2. b"),
        ("wrap", "a fine day", "a\nfine\nday"),
    ],
)
async def test_a_text_is_formatted(style: str, text: str, formatted: str) -> None:
    assert await format_text({"text": text, "style": style, "width": 5}) == formatted


async def test_noop_gives_its_message_back() -> None:
    assert await repeat({"message": "hi"}) == "hi"
    assert await repeat({}) == ""


def test_every_built_in_tool_that_a_manifest_may_name_exists_and_two_of_them_terminate() -> None:
    assert set(BUILT_IN_TOOLS) == set(BUILT_INS)
    assert {name for name, tool in BUILT_IN_TOOLS.items() if tool.ends} == TERMINATING
