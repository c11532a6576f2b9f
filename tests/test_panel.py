"""A panel: round-robin with rounds, a goal and a deliverable, as seed 002 has it."""

from typing import Any

from starter.script import Line
from tests.stage import Json, Stage, manifest, texts


def panel(*roster: Json | str, **spec: Any) -> Json:
    """A panel by the name ``panel``; a bare name is a default member."""
    members = [{"name": each} if isinstance(each, str) else each for each in roster]
    return manifest("Team", "panel", {"strategy": "round-robin", "members": members, **spec})


def seat(name: str) -> Json:
    """A default member with a role, by which a script knows it."""
    return {"name": name, "role": f"the {name} of the panel"}


def says(name: str, *say: str | Json) -> Line:
    """What a default speaker says, in order."""
    return Line.model_validate({"system": f"You are {name}, ", "agent": name, "say": [*say]})


SYNTHESIS = Line.model_validate(
    {"system": "You write what a panel", "agent": "synthesizer", "say": ["The deliverable."]}
)


async def test_the_rounds_are_held_in_order_and_a_synthesizer_delivers(stage: Stage) -> None:
    stage.script(says("writer", "w1", "w2"), says("editor", "e1", "e2"), SYNTHESIS)
    turn = await stage.turn(await stage.start_team([panel(seat("writer"), seat("editor"), maxRounds=2)], "panel"))
    assert (turn.stop_reason, turn.failure, turn.message) == ("completed", None, "The deliverable.")
    assert texts(turn.messages) == ["w1", "e1", "w2", "e2", "The deliverable."]

    assert [row["content"] for row in stage.transcript(turn.head.id)] == [
        "Why?",
        "w1",
        "e1",
        "w2",
        "e2",
        "The deliverable.",
    ]
