"""How does a test set up a panel, script its speakers, and see what each was told?"""

import json
from dataclasses import dataclass
from typing import Any

from baton.conversation.messages.turn import TurnResult
from baton.starter.scripted_model.script import ScriptLine
from tests.harness.environment import Environment, Json, manifest


def panel(*roster: Json | str, **spec: Any) -> Json:
    """A panel by the name ``panel``; a bare name is a member without a role."""
    members = [{"name": each} if isinstance(each, str) else each for each in roster]
    return manifest("Team", "panel", {"strategy": "round-robin", "members": members, **spec})


def debate(*debaters: Json, **spec: Any) -> Json:
    """A debate by the name ``debate``."""
    return manifest("Team", "debate", {"strategy": "debate", "members": [*debaters], **spec})


def role_member(name: str) -> Json:
    """A default member with a role."""
    return {"name": name, "role": f"the {name} of the panel"}


def panelist_line(name: str, *say: str | Json) -> ScriptLine:
    """What a default speaker says, round by round."""
    return ScriptLine.model_validate({"system": f"You are {name}, ", "agent": name, "say": [*say]})


def prompt_line(prompt: str, *say: str | Json) -> ScriptLine:
    """What whoever has such a prompt says."""
    return ScriptLine.model_validate({"system": prompt, "say": [*say]})


SYNTHESIS = ScriptLine.model_validate({"system": "You write what", "agent": "synthesizer", "say": ["The deliverable."]})


@dataclass(frozen=True)
class ModelRequest:
    """A request to the model."""

    system: str
    user: str
    request: Json


def model_requests(env: Environment) -> list[ModelRequest]:
    """What every speaker was told, in order."""
    return [_model_request(each.body) for each in env.model.requests]


def _model_request(request: Json) -> ModelRequest:
    messages = request["messages"]
    system = [each["content"] for each in messages if each["role"] == "system"]
    user = [each["content"] for each in messages if each["role"] == "user"]
    return ModelRequest("".join(system), "".join(user), request)


def panel_result(turn: TurnResult) -> Json:
    """What a panel has come to, where nobody has put it into words."""
    value: Json = json.loads(turn.message)
    return value
