"""Checking values against JSON Schemas: a schema or a value that is made for it does not hold up the worker."""

import pytest
from pydantic import JsonValue

from baton.activities.context.output_schema import SECONDS, schema_errors
from tests.harness.environment import Environment, Json, agent, call, line, manifest
from tests.harness.event_loop import watched_loop

SLOW = "^([A-Za-z]+ ?)+$"
"""A pattern for which Python's own ``re`` takes years, if a text is nearly what it describes."""

SLOWER = "^(([A-Za-z])+.)+[A-Z]([a-z]|(?=x)[x])+\\2$"
NEARLY = "a" * 50 + "!"

HELD = 0.05
"""Seconds for which the event loop may be held."""


def doubled(keyword: str, levels: int) -> Json:
    """A schema that applies another twice, which applies another twice, and so on."""
    schemas: Json = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**schemas, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def tree(depth: int) -> JsonValue:
    """A value of that depth, for a schema that applies itself twice to each part of a value."""
    value: JsonValue = {}
    for _ in range(depth):
        value = {"a": value}
    return value


TWICE: Json = {"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}


@pytest.mark.full
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": SLOW}, NEARLY),
        ({"pattern": SLOWER}, NEARLY),
        ({"patternProperties": {SLOW: False}}, {NEARLY: 1}),
        ({"patternProperties": {SLOW: {}}, "additionalProperties": False}, {NEARLY: 1}),
        (doubled("allOf", 30), "x"),
        (doubled("anyOf", 30), 1),
        (TWICE, tree(40)),
        ({"uniqueItems": True}, [each for n in range(20_000) for each in (n, str(n))]),
    ],
)
async def test_a_schema_or_a_value_that_takes_for_ever_is_given_up(schema: Json, value: JsonValue) -> None:
    async with watched_loop() as waits:
        errors = await schema_errors(value, schema)
    assert waits.used < SECONDS / 2, "it is another process that is busy"
    assert waits.held < HELD
    slow = ["$: can't be validated: it takes longer than 1 s"]
    assert (
        errors == slow
        or "match" in str(errors)
        or "unexpected" in str(errors)
        or schema.keys() == {"patternProperties"}
    )


@pytest.mark.full
async def test_a_check_that_needs_too_much_memory_is_given_up() -> None:
    both = {"anyOf": [{"$ref": "#/$defs/c"}] * 1_000}
    schema: Json = {"$defs": {"c": {"anyOf": [{"const": "y" * 100_000}] * 2}}, "allOf": [both], "pattern": "x"}
    (error,) = await schema_errors("x" * 1_000_000, schema)
    assert error.startswith("$: can't be validated: it ")


async def test_a_plain_schema_is_checked_without_a_process() -> None:
    properties = {f"p{number}": {"type": "string"} for number in range(20)}
    schema: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    check = schema_errors(dict.fromkeys(properties, "text"), schema)
    with pytest.raises(StopIteration) as returned:
        check.send(None)  # it would wait for a process
    assert returned.value.value == []


async def test_a_number_that_the_library_cant_check_is_reported() -> None:
    assert await schema_errors(10**400, {"multipleOf": 0.5}) == [
        "$: can't be validated: int too large to convert to float"
    ]


async def test_a_value_that_is_nested_too_deeply_is_refused_with_a_sentence() -> None:
    assert await schema_errors(tree(900), {"properties": {"a": {"$ref": "#"}}}) == ["$: is nested too deeply"]
    assert await schema_errors({"a": 1}, {"$ref": "#"}) == ["$: is nested too deeply"]


@pytest.mark.parametrize(
    ("schema", "value", "errors"),
    [
        ({"pattern": "b+"}, "abc", []),
        ({"pattern": "^b+$"}, "abc", ["$: 'abc' does not match '^b+$'"]),
        ({"pattern": "^(?!a)"}, "abc", ["$: 'abc' does not match '^(?!a)'"]),
        ({"pattern": "x"}, 5, []),
        (
            {"patternProperties": {"^n": {"type": "integer"}}},
            {"n1": "a", "m": "a"},
            ["$.n1: 'a' is not of type 'integer'"],
        ),
        (
            {"patternProperties": {"^n": {}}, "properties": {"m": {}}, "additionalProperties": False},
            {"n1": 1, "m": 1, "o": 1},
            ["$: Additional properties are not allowed ('o' was unexpected)"],
        ),
        (
            {"patternProperties": {"^n": {}}, "additionalProperties": {"type": "string"}},
            {"n1": 1, "o": 1},
            ["$.o: 1 is not of type 'string'"],
        ),
        ({"additionalProperties": False, "patternProperties": {"a": {}}}, [1], []),
        (
            {"pattern": "("},
            "a",
            ["$: can't be validated: a pattern in its schema is not a regular expression: missing ) at position 1"],
        ),
    ],
)
async def test_patterns_mean_what_the_standard_says(schema: Json, value: JsonValue, errors: list[str]) -> None:
    assert await schema_errors(value, schema) == errors


@pytest.mark.full
async def test_a_model_is_told_of_arguments_that_cant_be_checked(env: Environment) -> None:
    spec = {
        "type": "http",
        "inputSchema": {"type": "object", **doubled("anyOf", 30)},
        "http": {"url": "http://127.0.0.1:9/"},
    }
    env.script(line("one", call("t", a=1), "Done."))
    resources = [agent("one", "t"), manifest("Tool", "t", spec)]
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "Why?", "resources": resources}))
    assert "can't be validated: it takes longer than 1 s" in turn.messages[1].content
    assert turn.message == "Done."
