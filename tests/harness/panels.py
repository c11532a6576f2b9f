"""How does a test set up a panel, script its speakers, and see what each was told?"""

import json
from dataclasses import dataclass
from typing import Any

from baton.conversation.messages.turn import TurnResult
from baton.starter.scripted_model.script import Line
from tests.harness.environment import Environment, Json, manifest


def panel(*roster: Json | str, **spec: Any) -> Json:
    """A panel by the name ``panel``; a bare name is a member without a role."""
    members = [{"name": each} if isinstance(each, str) else each for each in roster]
    return manifest("Team", "panel", {"strategy": "round-robin", "members": members, **spec})


def debate(*debaters: Json, **spec: Any) -> Json:
    """A debate by the name ``debate``."""
    return manifest("Team", "debate", {"strategy": "debate", "members": [*debaters], **spec})


def seat(name: str) -> Json:
    """A default member with a role."""
    return {"name": name, "role": f"the {name} of the panel"}


def says(name: str, *say: str | Json) -> Line:
    """What a default speaker says, round by round."""
    return Line.model_validate({"system": f"You are {name}, ", "agent": name, "say": [*say]})


def reads(prompt: str, *say: str | Json) -> Line:
    """What whoever has such a prompt says."""
    return Line.model_validate({"system": prompt, "say": [*say]})


SYNTHESIS = Line.model_validate({"system": "You write what", "agent": "synthesizer", "say": ["The deliverable."]})


@dataclass(frozen=True)
class Heard:
    """A request to the model."""

    system: str
    user: str
    request: Json


def heard(env: Environment) -> list[Heard]:
    """What every speaker was told, in order."""
    return [_heard(each.request) for each in env.model.asked]


def _heard(request: Json) -> Heard:
    messages = request["messages"]
    system = [each["content"] for each in messages if each["role"] == "system"]
    user = [each["content"] for each in messages if each["role"] == "user"]
    return Heard("".join(system), "".join(user), request)


def shape(turn: TurnResult) -> Json:
    """What a panel has come to, where nobody has put it into words."""
    value: Json = json.loads(turn.message)
    return value
