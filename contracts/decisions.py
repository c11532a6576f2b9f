"""Human decisions: what a run waits for, the updates ``approve`` and ``reply``, and what a continued run is given."""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from ..resources.base import JsonModel, JsonObject
from ..resources.budget import Budget
from .message import PersonDecision
from .panel import SpeakerBrief
from .text import MAX_MESSAGE, Text, byte_size, truncate
from .turn import Thread

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
    asks for it, for which a decision may be remembered. ``decision`` is the decision, until the run continues.

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

    def decided(self, decision: PersonDecision) -> "PendingDecision":
        """The same with what was decided."""
        return self.model_copy(update={"decision": decision})


class ApproveRequest(JsonModel):
    """The update ``approve``: yes or no to the ``call`` with that id, by whom, with other arguments, or for all calls.

    A rejection has no arguments; the model receives its ``reason``.
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
        return PersonDecision(
            approved=self.approved,
            at=at,
            by=self.by or None,
            reason=self.reason,
            arguments=arguments,
            remember=self.remember,
        ).without_defaults

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

    pending: tuple[PendingDecision, ...] = ()
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


class QuestionsPlan(JsonModel):
    """A ``server`` (an id) may ask a person, who has ``timeout`` seconds to answer, or all the time.

    Without an answer in time the call fails, or continues without one if it ``skips``.
    """

    server: str
    timeout: float | None = None
    skips: bool = False


class Question(JsonModel):
    """What a server asks: the ``id`` under which the run waits for the answer, and what a person gets to read.

    The answer has to fit ``reply_schema``, if there is one. ``record`` is the idempotency key of the call that notes
    in the journal what the server needs to go on; None if it needs nothing but the conversation.
    """

    id: str
    text: Text
    reply_schema: JsonObject | None = None
    record: str | None = None


class Answer(JsonModel):
    """What became of a question: a reply, a refusal to reply, or nothing in time. ``number`` counts those of one call.

    ``record`` is that of the question.
    """

    record: str
    number: int
    decision: PersonDecision


BUDGET_RULE = "budget/"
"""The beginning of the rule by which a decision about a budget holds for all runs that wait for it."""


class GrantRequest(JsonModel):
    """``grant``: adds ``more`` to an account, whose grant of that ``number`` it is."""

    account: str
    number: int
    more: Budget


class GrantResult(JsonModel):
    """The result of ``grant``, which has none."""


class ReplyRequest(JsonModel):
    """The update ``reply``: the ``text`` of a person, ``by`` whom, to the question with the id ``to``.

    Without ``to`` it is the only question that waits in the run. ``declines``: the person refuses to answer a server's
    question, perhaps with a text that says why.
    """

    text: str
    to: str | None = None
    by: str | None = None
    declines: bool = False

    @property
    def problem(self) -> str | None:
        """What makes it unacceptable for a history; None if nothing does."""
        if not (self.text.strip() or self.declines) or byte_size(self.text) > MAX_MESSAGE:
            return f"a reply needs a text of 1 to {MAX_MESSAGE:,} bytes"
        if self.by is not None and not 0 < byte_size(self.by) <= MAX_NAME:
            return f"the name of who replies needs 1 to {MAX_NAME} bytes"
        return None


class AskPersonRequest(JsonModel):
    """``ask_person``: what the ``member`` of a ``team`` (an id), a person, gets to read in turn ``turn``."""

    thread: Thread
    team: str
    member: str
    turn: int
    brief: SpeakerBrief | None = None

    def decision_id(self, run: str) -> str:
        """The id under which the run with the id ``run`` waits for the reply."""
        return decision_id(run, self.thread.head.id, self.member, str(self.turn))


class AskPersonResult(JsonModel):
    """The result of ``ask_person``: the question with the latest messages."""

    question: Text


class CheckReplyRequest(JsonModel):
    """``check_reply``: does a reply fit the schema of a ``member`` of a ``team`` (an id), or ``reply_schema``?"""

    thread: Thread
    text: Text
    team: str | None = None
    member: str | None = None
    reply_schema: JsonObject | None = None


class CheckReplyResult(JsonModel):
    """The result of ``check_reply``: what is wrong with the reply; None if it fits."""

    wrong: str | None = None
