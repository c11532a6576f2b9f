"""Reading the answers of members of one's own, a referee, a moderator and a judge as what their role asks for."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError

from ...conversation.errors import WrongPart
from ...conversation.messages.panel import Decision, RefereeOutput, Verdict
from ...conversation.text import parse_json
from ...resources.base import JsonModel
from ..state.errors import ActivityFailed

Output = TypeVar("Output", bound=JsonModel)


def read_contribution(text: str) -> str | None:
    """The text of an answer ``{"text": "…"}``; None for any other (round-robin pattern: customizing members)."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    own = value.get("text") if isinstance(value, dict) else None
    return own if isinstance(own, str) else None


def read_critique(text: str) -> str:
    """A referee's critique: a plain text, or ``{"critique": "…"}``. Raises ActivityFailed for any other object."""
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return _read("referee", text, RefereeOutput).critique if isinstance(value, dict) else text


def read_decision(text: str, names: Sequence[str]) -> Decision:
    """A moderator's decision. Raises ActivityFailed for an unknown name, or if nobody is to speak and it goes on."""
    decision = _read("moderator", text, Decision)
    if unknown := [name for name in decision.next_speakers if name not in names]:
        raise _wrong(f"the moderator calls on '{unknown[0]}', who takes no part; there are: {', '.join(names)}")
    if not (decision.next_speakers or decision.done):
        raise _wrong("the moderator calls on nobody, and doesn't end the debate either")
    return decision


def read_verdict(text: str, stances: Sequence[str]) -> Verdict:
    """A judge's verdict. Raises ActivityFailed where the winner is none of the stances."""
    verdict = _read("judge", text, Verdict)
    if verdict.winner is not None and verdict.winner not in stances:
        raise _wrong(f"the judge's winner is no stance of this debate: '{verdict.winner[:200]}'")
    return verdict


def _read(role: str, text: str, output: type[Output]) -> Output:
    try:
        return output.model_validate_json(text)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        raise _wrong(f"the {role} has not answered with its {output.__name__}: {wrong[:500]}") from None


def _wrong(text: str) -> ActivityFailed:
    return ActivityFailed.of(WrongPart(text))
