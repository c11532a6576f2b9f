"""Decisions of people: what a run waits for, the update ``approve``, and what a continued run is given."""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from ...resources.base import JsonModel, JsonObject
from ..messages.person_decision import PersonDecision
from ..text import Text, byte_size, truncate

MAX_REASON = 2_000
"""Bytes of a reason."""

MAX_ARGUMENTS = 16_000
"""Bytes of arguments that a person has changed; of a call's arguments, what is shown to people."""

MAX_SHOWN = 100_000
"""Bytes of the arguments of all pending calls in a status."""

MAX_NAME = 256
"""Bytes of a person's name."""

DECISION = "decision "
"""The beginning of the summary of a timer that limits how long a decision is waited for, before its id."""

DecisionKind = Literal["approval", "question", "budget"]


class PendingDecision(JsonModel):
    """What a run waits for: the decision of a person.

    ``id`` is unique among all runs below one root; ``run`` is the id of the run that waits, and ``speaker`` the name of
    whom it waits for. It waits from ``since`` until ``until``, or without a limit. ``kind`` ``approval``: whether the
    ``tool`` may be called with ``arguments`` (JSON text); ``question``: what ``speaker``, a person, replies to it;
    ``budget``: whether the budget of ``speaker`` is raised by ``arguments``. ``rule`` is the id of the manifest that
    asks for it, for which a decision may be remembered. ``decision`` is what was decided, until the run goes on.

    A server (``asked_by``, such as ``MCPServer/default/shop``) may also ask a question, in a call of ``speaker``. That
    can be declined; an answer has to fit ``reply_schema``, and ``record`` is that of the ``Question``.
    """

    id: str
    kind: DecisionKind = "approval"
    run: str
    speaker: str
    since: datetime
    until: datetime | None = None
    tool: Text | None = None
    arguments: Text | None = None
    rule: str | None = None
    question: Text | None = None
    asked_by: Text | None = None
    reply_schema: JsonObject | None = None
    record: str | None = None
    decision: PersonDecision | None = None


class ApproveRequest(JsonModel):
    """The update ``approve``: yes or no to the ``call`` with that id, by whom, with other arguments, or for all calls.

    A rejection has no arguments; its ``reason`` is told to the model.
    """

    call: str
    approved: bool = True
    arguments: JsonObject | None = None
    reason: str = ""
    remember: bool = False
    by: str | None = None

    def decision(self, at: datetime) -> PersonDecision:
        """The decision that is taken at that time."""
        arguments = None if self.arguments is None else json.dumps(self.arguments, ensure_ascii=False)
        other = {"by": self.by, "reason": self.reason, "arguments": arguments, "remember": self.remember}
        return PersonDecision(approved=self.approved, at=at).model_copy(update={k: v for k, v in other.items() if v})

    @property
    def problem(self) -> str | None:
        """What makes it unacceptable for a history; None if nothing does."""
        if byte_size(self.reason) > MAX_REASON:
            return f"a reason may have at most {MAX_REASON:,} bytes"
        if self.by is not None and not 0 < byte_size(self.by) <= MAX_NAME:
            return f"the name of who decides needs 1 to {MAX_NAME} bytes"
        if self.arguments is not None and not self.approved:
            return "a call that is rejected has no arguments"
        if self.arguments is not None and byte_size(json.dumps(self.arguments)) > MAX_ARGUMENTS:
            return f"the arguments may have at most {MAX_ARGUMENTS:,} bytes"
        return None


class WaitingChild(JsonModel):
    """The signal ``child_waits``: whether a child run, or a run below it, waits for a person."""

    run: str
    waits: bool


class RememberedDecision(JsonModel):
    """The signals ``remember``, to the run above, and ``remembered``, to the runs below: a decision for a rule."""

    rule: str
    decision: PersonDecision


class DecisionsState(JsonModel):
    """What a continued run needs: what waits, what holds for rules, and who decided what lately, by id."""

    asked: tuple[PendingDecision, ...] = ()
    remembered: dict[str, PersonDecision] = {}
    decided: dict[str, PersonDecision] = {}


def shown(pending: Sequence[PendingDecision]) -> tuple[PendingDecision, ...]:
    """What waits, as a status shows it: with arguments that are truncated to equal shares of MAX_SHOWN."""
    share = max(200, MAX_SHOWN // max(1, len(pending)))
    return tuple(
        each.model_copy(update={"arguments": truncate(each.arguments, share)}) if each.arguments else each
        for each in pending
    )


def decision_id(*place: str) -> str:
    """The id of a decision at a place, such as a message of the journal and the number of its call; always the same."""
    return hashlib.sha256("/".join(place).encode()).hexdigest()[:10]
