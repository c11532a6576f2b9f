"""Builders for panels and debates, script lines for their roles, and the requests that they sent to the model."""

import json
from dataclasses import dataclass
from typing import Any

from baton.contracts.turn import TurnResult
from baton.testing import ScriptLine
from tests.harness.environment import Environment, Json, manifest


def panel(*roster: Json | str, **spec: Any) -> Json:
    """A panel named ``panel``; a bare name is a member without a role."""
    members = [{"name": member} if isinstance(member, str) else member for member in roster]
    return manifest("Team", "panel", {"strategy": "round-robin", "members": members, **spec})


def debate(*debaters: Json, **spec: Any) -> Json:
    """A debate named ``debate``."""
    return manifest("Team", "debate", {"strategy": "debate", "members": [*debaters], **spec})


def role_member(name: str) -> Json:
    """A member with a role, played by the default agent."""
    return {"name": name, "role": f"the {name} of the panel"}


def panelist_line(name: str, *say: str | Json) -> ScriptLine:
    """A script line: the replies of a default agent, round by round."""
    return ScriptLine.model_validate({"system": f"You are {name}, ", "agent": name, "say": [*say]})


def prompt_line(prompt: str, *say: str | Json) -> ScriptLine:
    """A script line: the replies to a system prompt that starts so."""
    return ScriptLine.model_validate({"system": prompt, "say": [*say]})


SYNTHESIS = ScriptLine.model_validate({"system": "You write what", "agent": "synthesizer", "say": ["The deliverable."]})


@dataclass(frozen=True)
class ModelRequest:
    """A request to the model: its system prompt, its user messages, and its body."""

    system: str
    user: str
    request: Json


def model_requests(env: Environment) -> list[ModelRequest]:
    """All requests to the model, in order."""
    return [_model_request(request.body) for request in env.model.requests]


def _model_request(request: Json) -> ModelRequest:
    messages = request["messages"]
    system = [message["content"] for message in messages if message["role"] == "system"]
    user = [message["content"] for message in messages if message["role"] == "user"]
    return ModelRequest("".join(system), "".join(user), request)


def panel_result(turn: TurnResult) -> Json:
    """The result of a panel without a synthesizer."""
    value: Json = json.loads(turn.message)
    return value
