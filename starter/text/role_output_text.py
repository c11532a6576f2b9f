"""How do the words of a panel's parts read? What they write as JSON is told as lines."""

from pydantic import ValidationError

from ...conversation.contracts.panel_requests import SpeakerBrief
from ...conversation.messages.panel import Decision, RefereeOutput, Verdict


def role_output_text(brief: SpeakerBrief | None, text: str) -> str:
    """What was said on a brief, for people; as it is where it is not what its part is asked for."""
    part = brief.part if brief else "member"
    try:
        return _WORDED[part](text) if part in _WORDED else text
    except ValidationError:
        return text


def _critique(text: str) -> str:
    return RefereeOutput.model_validate_json(text).critique


def _decision(text: str) -> str:
    decision = Decision.model_validate_json(text)
    lines = [
        f"calls on {', '.join(decision.next_speakers) or 'nobody'}",
        decision.briefing,
        f"another angle: {decision.new_angle}" if decision.new_angle else None,
        "and then it is enough" if decision.done else None,
    ]
    return "\n".join(filter(None, lines))


def _verdict(text: str) -> str:
    verdict = Verdict.model_validate_json(text)
    winner = f"the winner: {verdict.winner}" if verdict.winner else "no stance alone wins"
    return f"{verdict.verdict}\n{winner}\n{verdict.reasoning}"


_WORDED = {"referee": _critique, "moderator": _decision, "judge": _verdict}
