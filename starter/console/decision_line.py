"""The line that says that a call waits for a person, or who has decided it."""

from rich.text import Text

from ...conversation.text import truncate
from ..history.run_events import DecisionAsked, DecisionMade

MAX_ARGUMENTS = 500
"""The length at which arguments that a person has changed are cut."""


def decision_line(event: DecisionAsked | DecisionMade) -> Text:
    """One line, with the commands by which a call that waits is decided; a reply with its text."""
    asked = event if isinstance(event, DecisionAsked) else event.asked
    if asked.kind == "question":
        return _question_line(event, asked.who)
    if asked.kind == "budget":
        return _budget_line(event, asked.who)
    if isinstance(event, DecisionAsked):
        place = f"{event.run.root.id} {event.id}"
        about = f" waits for a yes: baton approve {place}, or baton reject {place}"
        return Text.assemble("? ", (event.call.name, "bold yellow"), about)
    made, name = event.decision, event.asked.call.name
    who = "the timeout" if made.how == "timeout" else made.by or "somebody"
    remembered = " (remembered)" if made.how == "remembered" else ""
    changed = f" with {truncate(made.arguments, MAX_ARGUMENTS)}" if made.arguments else ""
    reason = f": {made.reason}" if made.reason else ""
    sign, verb = ("✓", "approved") if made.approved else ("✗", "rejected")
    return Text.assemble(f"  {sign} ", (name, "cyan"), f" {verb} by {who}{remembered}{changed}{reason}")


def _budget_line(event: DecisionAsked | DecisionMade, owner: str) -> Text:
    if isinstance(event, DecisionAsked):
        where = f"baton approvals {event.run.root.id}"
        return Text.assemble("? the budget of ", (owner, "bold yellow"), f" waits for a yes: {where}")
    made = event.decision
    more = f"has {truncate(made.arguments, MAX_ARGUMENTS)} more" if made.arguments else "has more"
    sign, now = ("✓", more) if made.approved else ("✗", "has no more")
    reason = f": {made.reason}" if made.reason else ""
    return Text.assemble(f"  {sign} the budget of ", (owner, "cyan"), f" {now} by {made.by or 'somebody'}{reason}")


def _question_line(event: DecisionAsked | DecisionMade, member: str) -> Text:
    if isinstance(event, DecisionAsked):
        about = f" is asked: baton reply {event.run.root.id} TEXT --to {event.id}"
        return Text.assemble("? ", (member, "bold yellow"), f"{about}\n{event.arguments}")
    decision = event.decision
    if decision.how == "timeout":
        return Text.assemble("  ✗ ", (member, "cyan"), " has not replied in time")
    by = f"  {'replied' if decision.approved else 'declined'} by {decision.by or 'somebody'}"
    return Text.assemble((member, "bold green"), (by, "dim"), f"\n{event.decision.text or ''}")
