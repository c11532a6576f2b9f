"""Random teams: whatever the nesting, a run ends within its bounds, and nothing is lost, doubled or counted wrongly."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Any

import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conversation.message import TokenUsage
from conversation.turn import Turn
from starter.events import Event, Recorder
from starter.follow import follow
from starter.happenings import Happening
from starter.scripted_model import _usage
from tests.random_teams import AGGREGATOR, HABITS, TOKEN, Cast, Node, is_choice, teams
from tests.stage import Json, Stage, texts

Wish = tuple[int, str, Json | None]
"""A signal (or a cancel) that is sent once the model has been asked so often."""

WISHES = st.tuples(
    st.integers(1, 6),
    st.sampled_from(("terminate_team", "cancel")),
    st.sampled_from((None, {"reason": "enough"}, {"reason": "enough", "now": True})),
)
EXAMPLES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
Until = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest_asyncio.fixture(loop_scope="session")
async def until(stage: Stage) -> AsyncIterator[Until]:
    """Runs a coroutine to its end, on the loop of the stage's worker."""
    yield asyncio.get_running_loop().run_until_complete


@dataclass
class Played:
    """A run of a random team that has ended."""

    team: Node
    cast: Cast
    turn: Turn
    rows: list[Json]
    events: list[Json]
    answered: list[bool]

    @property
    def calm(self) -> bool:
        """Whether no call was given up."""
        return not any(event["event"].endswith("CallCanceled") for event in self.events)

    def counted(self, *, choices: bool) -> list[tuple[int, TokenUsage]]:
        """What the model's server counted for each of its answers, with their numbers."""
        return [
            (number, TokenUsage(**_usage(request, reply)) + TokenUsage(model_calls=1, tool_calls=calls))
            for number, (request, reply) in enumerate(self.cast.told)
            if self.answered[number] and (choices or not is_choice(request))
            for calls in [0 if is_choice(request) else len(reply.calls)]
        ]


async def play(stage: Stage, team: Node, habits: list[str], wish: Wish | None = None) -> Played:
    """Runs a team to its end, whatever that is."""
    cast = Cast(team, habits, slow=wish and wish[0])
    stage.answer = cast.answer
    stage.model.asked.clear()
    async with asyncio.timeout(30):
        handle = await stage.start_team(team.manifests())
        ending = asyncio.create_task(stage.turn(handle))
        if wish:
            asked = asyncio.create_task(stage.asked(wish[0]))
            await asyncio.wait([ending, asked], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await (handle.signal(wish[1], wish[2]) if wish[2] else handle.cancel())
            asked.cancel()
        turn = await ending
        recorder, told = Recorder(), list[Event]()

        def tell(happening: Happening) -> None:
            told.extend(recorder.record(happening))

        await follow(stage.client, handle, tell)
    answered = [asked.answered for asked in stage.model.asked]
    return Played(team, cast, turn, stage.transcript(turn.head.id), [each.value for each in told], answered)


@EXAMPLES
@given(team=teams(), habits=st.lists(st.sampled_from(HABITS), min_size=1, max_size=5))
def test_every_team_ends_within_its_bounds_with_everything_said_once_and_counted(
    stage: Stage, until: Until, team: Node, habits: list[str]
) -> None:
    played = until(play(stage, team, habits))
    check(played)


@EXAMPLES
@given(team=teams(), habits=st.lists(st.sampled_from(HABITS), min_size=1, max_size=5), wish=WISHES)
def test_every_team_that_is_ended_from_outside_keeps_what_was_said_until_then(
    stage: Stage, until: Until, team: Node, habits: list[str], wish: Wish
) -> None:
    played = until(play(stage, team, habits, wish))
    check(played)


def check(played: Played) -> None:
    """All that holds for every run."""
    assert texts(played.turn.messages) == [row["content"] for row in played.rows[1:]], "what is shown is what is kept"
    check_turns(played)
    check_order(played)
    check_tools(played.rows)
    check_usage(played)
    check_pairs(played.events)


def check_turns(played: Played) -> None:
    """No team takes more turns than it may, all are told of, and a failure is there exactly where one should be."""
    nodes = dict(played.team.named())
    begun = Counter(e["run"] for e in played.events if e["event"] == "TeamTurn" and e["type"] == "Start")
    for end in (event for event in played.events if is_end(event) and event["event"].startswith("TeamExecution")):
        node, reason = nodes[end["team"]], end["stopReason"]
        assert end["turns"] <= node.bound, end
        assert begun[end["run"]] == end["turns"] or not played.calm, end
        unwanted = reason == "max_turns" and node.spec.get("onMaxTurns") != "complete"
        assert ("error" in end) == (reason == "failed" or unwanted), end


def check_order(played: Played) -> None:
    """Each answer stands once, after all that its speaker had heard; beside each other only in a parallel team."""
    heard = {f"<{n}>": set(TOKEN.findall(str(request))) for n, (request, _) in enumerate(played.cast.told)}
    said = [
        (found, row["name"]) for row in played.rows if row["role"] == "assistant" and (found := token(row["content"]))
    ]
    kept = [each for each, _ in said]
    assert len(kept) == len(set(kept)), "twice in the conversation"
    if played.calm:
        spoken = {f"<{number}>" for number, _ in played.counted(choices=False)}
        assert {each for each in kept if not is_choice(played.cast.told[int(each[1:-1])][0])} == spoken
    for (earlier, one), (later, other) in combinations(said, 2):
        assert earlier in heard[later] or are_beside(played.team, one, other), (earlier, later)
        assert later not in heard[earlier]


def are_beside(team: Node, one: str, other: str) -> bool:
    """Whether two speak at once in a parallel team, and the one comes before the other there."""
    pairs = zip(one.split("-"), other.split("-"), strict=False)
    common = [a for (a, b), _ in groupby(pairs) if a == b]
    if len(common) == min(one.count("-"), other.count("-")) + 1:
        return False
    seats = one.split("-")[len(common)], other.split("-")[len(common)]
    node = dict(team.named())["-".join(common)]
    return node.spec["strategy"] == "parallel" and AGGREGATOR not in seats and seats[0] < seats[1]


def check_tools(rows: list[Json]) -> None:
    """Behind a message with tool calls stand their answers, each once."""
    waiting: list[str] = []
    for row in rows:
        if row["role"] == "tool":
            waiting.remove(row["toolCallId"])
        else:
            assert not waiting, row
            waiting = [call["id"] for call in row.get("toolCalls", [])]
    assert not waiting


def check_usage(played: Played) -> None:
    """What the run counts is what the model's server has counted, and what the events tell."""
    own = played.turn.usage
    all_ = sum((usage for _, usage in played.counted(choices=True)), TokenUsage())
    kept = {number for row in played.rows for number in token(row["content"])}
    assert own == all_ if played.calm else own.total_tokens <= all_.total_tokens, (own, all_, kept)
    (end,) = [e for e in played.events if is_end(e) and e.get("team") == "team" and e["event"].startswith("TeamEx")]
    assert own == TokenUsage.model_validate_json(str(end["tokenUsage"]).replace("'", '"'))


def check_pairs(events: list[Json]) -> None:
    """What has begun ends, once, and nothing ends that has not begun."""
    open_ = Counter[tuple[str, ...]]()
    for event in events:
        base = event["event"].removesuffix("Started") if not is_end(event) else event["event"]
        for ending in ENDINGS:
            base = base.removesuffix(ending)
        key = (event["run"], base, str(event.get("call")), str(event.get("agent")), str(event.get("turn")))
        if event["event"].endswith("Started"):
            open_[key] += 1
        elif is_end(event):
            open_[key] -= 1
        assert open_[key] in (0, 1), event
    assert not any(open_.values()), [key for key, count in open_.items() if count]


ENDINGS = ("Completed", "Failed", "Canceled")


def is_end(event: Json) -> bool:
    """Whether an event is the end of something."""
    return str(event["event"]).endswith(ENDINGS)


def token(text: str) -> str:
    """The number of a text of the model's."""
    return next(iter(TOKEN.findall(text)), "")
