"""What have a referee, a moderator and a judge said? Their answers, read as what their part asks for."""

import json
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError

from ...conversation.errors import WrongPart
from ...conversation.messages.panel import Decision, RefereeOutput, Verdict
from ...resources.base import Plain
from ..calls.execute_activity import Failed

Shape = TypeVar("Shape", bound=Plain)


def critique_in(text: str) -> str:
    """A referee's critique: a plain text, or ``{"critique": "…"}``. Raises Failed for any other object."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return _read("referee", text, RefereeOutput).critique if isinstance(value, dict) else text


def decision_in(text: str, names: Sequence[str]) -> Decision:
    """A moderator's decision. Raises Failed for a name that no debater has, and where nothing would ever happen."""
    decision = _read("moderator", text, Decision)
    if unknown := [name for name in decision.next_speakers if name not in names]:
        raise _wrong(f"the moderator calls on '{unknown[0]}', who takes no part; there are: {', '.join(names)}")
    if not (decision.next_speakers or decision.done):
        raise _wrong("the moderator calls on nobody, and doesn't end the debate either")
    return decision


def verdict_in(text: str, stances: Sequence[str]) -> Verdict:
    """A judge's verdict. Raises Failed where the winner is none of the stances."""
    verdict = _read("judge", text, Verdict)
    if verdict.winner is not None and verdict.winner not in stances:
        raise _wrong(f"the judge's winner is no stance of this debate: '{verdict.winner[:200]}'")
    return verdict


def _read(part: str, text: str, shape: type[Shape]) -> Shape:
    try:
        return shape.model_validate_json(text)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        raise _wrong(f"the {part} has not answered with its {shape.__name__}: {wrong[:500]}") from None


def _wrong(text: str) -> Failed:
    return Failed.by(WrongPart(text))
