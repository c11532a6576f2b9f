"""The line that says that a tool call waits for a person, or who has decided it."""

from rich.text import Text

from ...conversation.text import truncate
from ..history.run_events import DecisionAsked, DecisionMade

MAX_ARGUMENTS = 500
"""The length at which arguments that a person has changed are cut."""


def decision_line(event: DecisionAsked | DecisionMade) -> Text:
    """One line, with the commands by which a call that waits is decided; a reply with its text."""
    call = event.call if isinstance(event, DecisionAsked) else event.asked.call
    if call.activity_type == "ask_person":
        return _question_line(event, call.name)
    if isinstance(event, DecisionAsked):
        place = f"{event.run.root.id} {event.id}"
        about = f" waits for a yes: baton approve {place}, or baton reject {place}"
        return Text.assemble("  ? ", (event.call.name, "bold yellow"), about)
    made, name = event.decision, event.asked.call.name
    who = "the timeout" if made.how == "timeout" else made.by or "somebody"
    remembered = " (remembered)" if made.how == "remembered" else ""
    changed = f" with {truncate(made.arguments, MAX_ARGUMENTS)}" if made.arguments else ""
    reason = f": {made.reason}" if made.reason else ""
    sign, verb = ("✓", "approved") if made.approved else ("✗", "rejected")
    return Text.assemble(f"  {sign} ", (name, "cyan"), f" {verb} by {who}{remembered}{changed}{reason}")


def _question_line(event: DecisionAsked | DecisionMade, member: str) -> Text:
    if isinstance(event, DecisionAsked):
        about = f" is asked: baton reply {event.run.root.id} TEXT --to {event.id}"
        return Text.assemble("  ? ", (member, "bold yellow"), f"{about}\n{event.arguments}")
    by = f"  replied by {event.decision.by or 'somebody'}"
    return Text.assemble((member, "bold green"), (by, "dim"), f"\n{event.decision.text or ''}")
