"""Conditions: what takes long to evaluate is ended, holds nobody up, and is not evaluated before a run at all."""

import time

import pytest

from baton.activities.teams import SECONDS, holds
from baton.resources.conditions import SAMPLE_FACTS, SAMPLE_PANEL_FACTS, Facts, check_condition, is_quick, loops_in
from tests.harness.event_loop import watched_loop

DIGITS = "[0,1,2,3,4,5,6,7,8,9]"
MANY = f"[{','.join('1' * 200)}]"
SLOW_PATTERN = f"{MANY}.all(x, {MANY}.all(y, !message.matches('((a{{99}}){{99}}){{9}}')))"


def nested(call: str, levels: int = 12, variable: str = "turn") -> str:
    """Loops in loops, each over ten values."""
    return f"{DIGITS}{call}{variable}, " * levels + "true" + ")" * levels


HIDDEN = [
    ".all(",
    ".all//\n(",
    ".\tall // (\r\n (",
    ".exists(",
    ".existsOne(",
    ".exists_one(",
    ".filter(",
    ".map//(\n(",
]


@pytest.mark.parametrize("call", HIDDEN)
@pytest.mark.parametrize("variable", ["turn", "x", "all"])
def test_a_loop_is_found_however_it_is_written(call: str, variable: str) -> None:
    assert len(loops_in(nested(call, 3, variable))) == 3
    for sample in (SAMPLE_FACTS, SAMPLE_PANEL_FACTS):
        with pytest.raises(ValueError, match="loops over"):
            check_condition(nested(call, variable=variable), sample)


@pytest.mark.parametrize(
    "expression",
    [
        "message.contains('[1].all(x, true)')",
        "message == r'\\' || message.contains('.map(')",
        '"""a".exists(x, """ == message',
        "message.contains('all done') && turn + 1 > 3 // .all(x, y)",
    ],
)
def test_a_loop_in_a_text_or_a_comment_is_none(expression: str) -> None:
    assert check_condition(expression) == expression
    assert loops_in(expression) == []


@pytest.mark.parametrize("expression", [SLOW_PATTERN, "message.matches('((a{99}){99}){9}')"])
def test_nothing_slow_is_evaluated_when_a_manifest_is_read(expression: str) -> None:
    began = time.process_time()
    assert check_condition(expression, SAMPLE_PANEL_FACTS) == expression
    assert time.process_time() - began < SECONDS / 4


SLOW = [
    (nested(".all("), {}),
    (SLOW_PATTERN, {"message": "a" * 1_000}),
    (" + ".join(["message"] * 100) + " == ''", {"message": "a" * 8_000_000}),
    pytest.param(nested(".all//\n("), {}, marks=pytest.mark.full),
    pytest.param(nested(".existsOne("), {}, marks=pytest.mark.full),
]


@pytest.mark.full
@pytest.mark.parametrize(("expression", "facts"), SLOW, ids=["loops", "patterns", "joined", "comments", "one"])
async def test_a_condition_that_takes_for_ever_is_ended_and_holds_nobody_up(expression: str, facts: Facts) -> None:
    async with watched_loop() as waits:
        with pytest.raises(ValueError, match=r"it takes longer than 2 s|it needs more than 512 MB"):
            await holds(expression, facts)
    assert waits.held < 0.1, "one that were judged here would hold the event loop for a second"


@pytest.mark.full
async def test_a_condition_that_takes_all_memory_is_ended() -> None:
    with pytest.raises(ValueError, match=r"it needs more than 512 MB|it takes longer"):
        await holds("size([1, 2, 3].map(x, message + message + message + message)) == 0", {"message": "a" * 60_000_000})


QUICK = ["turn > 3 && message.contains('done')", "speaker == 'a' || tokens + 1 > 5", "message == 'all'"]


@pytest.mark.parametrize("expression", QUICK)
async def test_a_plain_condition_is_evaluated_without_a_process(expression: str) -> None:
    assert is_quick(expression, SAMPLE_FACTS)
    with pytest.raises(StopIteration):
        holds(expression, SAMPLE_FACTS).send(None)  # it would wait for a process


async def test_a_process_and_the_worker_itself_say_the_same() -> None:
    assert await holds("critiques.exists(c, c.round == 1)", {"critiques": [{"round": 1}]})
    assert not await holds("critiques.exists(c, c.round == 1)", {"critiques": []})
    with pytest.raises(ValueError, match="returns str, not true or false"):
        await holds("critiques.map(c, c)[0]", {"critiques": ["a"]})
    with pytest.raises(ValueError, match="there is no value"):
        await holds("critiques.all(c, c.other == 1)", {"critiques": [{"round": 1}]})
