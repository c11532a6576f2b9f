"""Writes the output of a panel's referee, moderator and judge, which is JSON, as text for people."""

from pydantic import ValidationError

from ...conversation.contracts.panel_requests import SpeakerBrief
from ...conversation.messages.panel import Decision, RefereeOutput, Verdict


def role_output_text(brief: SpeakerBrief | None, text: str) -> str:
    """The answer to a brief as text; unchanged if it is no JSON of the kind that the role is asked for."""
    formatter = _FORMATTERS.get(brief.part) if brief else None
    try:
        return formatter(text) if formatter else text
    except ValidationError:
        return text


def _critique(text: str) -> str:
    return RefereeOutput.model_validate_json(text).critique


def _decision(text: str) -> str:
    decision = Decision.model_validate_json(text)
    lines = [
        f"next speakers: {', '.join(decision.next_speakers) or 'none'}",
        decision.briefing,
        f"new angle: {decision.new_angle}" if decision.new_angle else None,
        "last round" if decision.done else None,
    ]
    return "\n".join(filter(None, lines))


def _verdict(text: str) -> str:
    verdict = Verdict.model_validate_json(text)
    winner = f"winner: {verdict.winner}" if verdict.winner else "no single winner"
    return f"{verdict.verdict}\n{winner}\n{verdict.reasoning}"


_FORMATTERS = {"referee": _critique, "moderator": _decision, "judge": _verdict}
