"""Human decisions: what a run waits for, the updates ``approve`` and ``reply``, and the state for continue-as-new."""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from ..resources.approval import Approvers, who_decides
from ..resources.base import JsonModel, JsonObject
from ..resources.budget import Budget
from .identity import DecisionPlace, Identity, digest_of
from .message import Message, PersonDecision
from .panel import SpeakerBrief
from .text import MAX_MESSAGE, Text, byte_size, truncate
from .turn import Thread

MAX_REASON = 2_000
"""Bytes of a reason."""

MAX_ARGUMENTS = 100_000
"""Bytes of arguments changed by a person, and of a call's arguments as shown to people."""

MAX_SHOWN = 100_000
"""Bytes of the arguments of all pending calls in a status."""

MAX_SCHEMA = 32_000
"""Bytes of the schema of a person's reply that a pending decision has, as JSON. Each question has it in the history."""

MAX_CLIENT_CALLS = 10
"""Calls of a client's tools that wait for it at the same time.

Their arguments and results have to fit into the input of the next run at continue-as-new, which may have 2 MB.
"""

MAX_CLIENT_RESULT = 100_000
"""Bytes of a result that a client gives, as JSON."""

MAX_NAME = 256
"""Bytes of a person's name."""

MAX_ID = 256
"""Bytes of the id of a decision in a request, of which the run's answer has a copy."""

DECISION = "decision "
"""The prefix, before the decision's id, of the summary of a timer that limits the wait for a decision."""

DecisionKind = Literal["approval", "question", "budget", "client_tool"]


class PendingDecision(JsonModel):
    """A decision that a run waits for a person to make, or a call that it waits for its client to execute.

    ``id`` is unique among all runs below one root; ``run`` is the id of the waiting run, and ``speaker`` the name of
    the member that waits, or of the person it waits for. It waits from ``since`` until ``until``, or without a limit.
    ``kind`` is ``approval``: may the ``tool`` be called with ``arguments`` (JSON text)? ``question``: what does
    ``speaker``, a person, reply? ``budget``: is the budget of ``speaker`` raised by ``arguments``? ``rule`` is the id
    of the manifest that requires the decision; a decision may be remembered for it. ``client_tool``: what does the
    client's ``tool`` return for ``arguments``, of which all are here? ``decision`` is set once it is made, until the
    run continues.

    A reply of a person who is a member has to match the member's ``output_schema``, if it has one. Of a schema that is
    longer than 32,000 bytes, only the beginning is known, in the ``question``.

    A server (``asked_by``, such as ``MCPServer/default/shop``) may also ask a question, in a call of ``speaker``. Such
    a question can be declined; an answer has to fit ``reply_schema``, and ``record`` is that of the ``Question``. If it
    ``authorizes``, the person gives the server a permission elsewhere, such as by signing in, and replies afterwards.

    Only ``approvers`` may decide; each of these rules has to be met. ``approvals`` are those so far.
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
    output_schema: JsonObject | None = None
    record: str | None = None
    authorizes: bool = False
    decision: PersonDecision | None = None
    approvers: tuple[Approvers, ...] = ()
    approvals: tuple[PersonDecision, ...] = ()

    @property
    def needs_approval(self) -> bool:
        """Whether a person is to approve or reject it."""
        return self.kind in ("approval", "budget")

    def decided(self, decision: PersonDecision) -> "PendingDecision":
        """The same with its decision."""
        return self.model_copy(update={"decision": decision})

    def approved_by(self, decision: PersonDecision) -> "PendingDecision":
        """The same with one more approval."""
        return self.model_copy(update={"approvals": (*self.approvals, decision)})

    @property
    def missing(self) -> int:
        """How many people still have to approve, at least."""
        return max((rule.required - self._count(rule) for rule in self.approvers), default=0)

    @property
    def needs_several(self) -> bool:
        """Whether several people have to approve, as a rule needs several or there are several rules."""
        return len(self.approvers) > 1 or any(rule.required > 1 for rule in self.approvers)

    def _count(self, rule: Approvers) -> int:
        counting = (given for given in self.approvals if not (rule.not_requester and given.as_requester))
        return sum(rule.admit(given.by or "", given.groups) for given in counting)

    def admitting(self, identity: Identity) -> list[Approvers]:
        """The rules that admit a person, whoever has started the run."""
        return [rule for rule in self.approvers if rule.admit(identity.name, identity.groups)]

    @property
    def who(self) -> str:
        """Who may decide, in words; empty if anyone may."""
        return who_decides(self.approvers)

    def refusal(self, sender: "ApproveRequest | ReplyRequest") -> str | None:
        """Why its sender may not decide, in a sentence, as far as the request says who that is; None if it may."""
        if not self.approvers:
            return None
        identity = sender.identity
        if identity is None:
            return (
                f"{self.id} may only be decided by {self.who}, and {sender.by or 'the sender'} is not verified: "
                "decide over a gateway that has BATON_IDENTITY_KEY, with your key or token"
            )
        if any(given.by == identity.name for given in self.approvals):
            return f"{identity.name} has approved {self.id} already; it may be decided by {self.who}"
        if not self.admitting(identity):
            return f"{identity.name} may not decide {self.id}; it may be decided by {self.who}"
        if isinstance(sender, ApproveRequest):
            if sender.remember:
                return f"{self.id} needs its approvers ({self.who}) each time: 'remember' is not possible"
            if sender.arguments is not None and self.needs_several:
                return f"several people approve {self.id}, all of them the same: reject it instead of changing it"
        return None

    def place(self, namespace: str, request: "ApproveRequest | ReplyRequest") -> DecisionPlace:
        """What a gateway signs of a request."""
        return DecisionPlace(
            namespace=namespace,
            run=self.run,
            id=self.id,
            since=self.since,
            update="approve" if isinstance(request, ApproveRequest) else "reply",
            digest=digest_of(request),
        )


class ApproveRequest(JsonModel):
    """The update ``approve``: approves or rejects the ``call`` with that id, optionally with changed ``arguments``.

    ``remember`` applies the decision to all calls of the tool; ``by`` is the person's name, which nobody has verified.
    ``identity`` is who sends it, as verified by a gateway.

    A rejection has no arguments; the model receives its ``reason``.
    """

    call: str
    approved: bool = True
    arguments: JsonObject | None = None
    reason: str = ""
    remember: bool = False
    by: str | None = None
    identity: Identity | None = None

    def signed(self, identity: Identity | None) -> "ApproveRequest":
        """The request with the identity of its sender."""
        return self.model_copy(update={"identity": identity})

    def decision(self, at: datetime) -> PersonDecision:
        """The decision, taken at that time."""
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
        """Why the update is rejected; None if it is acceptable."""
        if byte_size(self.call) > MAX_ID:
            return f"the id in 'call' has at most {MAX_ID} bytes"
        if byte_size(self.reason) > MAX_REASON:
            return f"a reason may have at most {MAX_REASON:,} bytes"
        if self.by is not None and not 0 < byte_size(self.by) <= MAX_NAME:
            return f"the name in 'by' must have 1 to {MAX_NAME} bytes"
        if self.arguments is not None and not self.approved:
            return "a rejection takes no arguments"
        if self.arguments is not None and byte_size(json.dumps(self.arguments)) > MAX_ARGUMENTS:
            return f"the arguments may have at most {MAX_ARGUMENTS:,} bytes"
        return None


class WaitingChild(JsonModel):
    """The signal ``child_waits``: whether a child run, or a run below it, waits for a person, or during an outage."""

    run: str
    waits: bool
    outage: bool = False


class RememberedDecision(JsonModel):
    """The signals ``remember``, to the run above, and ``remembered``, to the runs below: a decision for a rule."""

    rule: str
    decision: PersonDecision


class DecisionsState(JsonModel):
    """Decisions at continue-as-new: the pending ones, those remembered by rule, and recent ones by id."""

    pending: tuple[PendingDecision, ...] = ()
    remembered: dict[str, PersonDecision] = {}
    decided: dict[str, PersonDecision] = {}


def shown(pending: Sequence[PendingDecision]) -> tuple[PendingDecision, ...]:
    """Pending decisions as a status shows them, with equal shares of MAX_SHOWN.

    Arguments are truncated to a share, and schemas that are longer are left out.
    """
    share = MAX_SHOWN // max(1, len(pending))
    return tuple(_within(decision, share) for decision in pending)


def _within(decision: PendingDecision, share: int) -> PendingDecision:
    if decision.output_schema and byte_size(json.dumps(decision.output_schema)) > max(2_000, share):
        decision = decision.model_copy(update={"output_schema": None})
    if decision.arguments and decision.kind != "client_tool":  # the client needs all of them
        decision = decision.model_copy(update={"arguments": truncate(decision.arguments, max(200, share))})
    return decision


def decision_id(*place: str) -> str:
    """The deterministic id of a decision, derived from its place, such as a journal row and the number of a call."""
    return hashlib.sha256("/".join(place).encode()).hexdigest()[:10]


class QuestionsPlan(JsonModel):
    """A ``server`` (an id) may ask a person, who has ``timeout`` seconds to answer, or no limit.

    Without an answer in time the call fails, or with ``skips`` continues without one. Only ``approvers`` may answer.
    """

    server: str
    timeout: float | None = None
    skips: bool = False
    approvers: tuple[Approvers, ...] = ()


class Question(JsonModel):
    """A server's question: the ``id`` under which the run waits for the answer, and the text for the person.

    The answer has to fit ``reply_schema``, if there is one. ``record`` is the idempotency key of the call that stores
    in the journal what the server needs to continue; None if it needs nothing but the conversation. ``authorizes`` is
    that of a PendingDecision.
    """

    id: str
    text: Text
    reply_schema: JsonObject | None = None
    record: str | None = None
    authorizes: bool = False


class Answer(JsonModel):
    """The outcome of a question: a reply, a refusal, or a timeout. ``number`` counts the questions of one call.

    ``record`` is that of the question.
    """

    record: str
    number: int
    decision: PersonDecision


BUDGET_RULE = "budget/"
"""The prefix of the rules of budget decisions, which apply to all runs that wait for the same budget."""


class GrantRequest(JsonModel):
    """``grant``: adds ``more`` to an account, as its grant of that ``number``."""

    account: str
    number: int
    more: Budget


class GrantResult(JsonModel):
    """The empty result of ``grant``."""


class ReplyRequest(JsonModel):
    """The update ``reply``: a person's ``text`` in reply to the question with the id ``to``; ``by`` is their name.

    Without ``to`` it answers the only pending question of the run. ``declines``: the person refuses to answer a
    server's question; the text may give a reason. ``identity`` is that of an ApproveRequest.
    """

    text: str
    to: str | None = None
    by: str | None = None
    declines: bool = False
    identity: Identity | None = None

    def signed(self, identity: Identity | None) -> "ReplyRequest":
        """The request with the identity of its sender."""
        return self.model_copy(update={"identity": identity})

    @property
    def problem(self) -> str | None:
        """Why the update is rejected; None if it is acceptable."""
        if byte_size(self.to or "") > MAX_ID:
            return f"the id in 'to' has at most {MAX_ID} bytes"
        if not (self.text.strip() or self.declines) or byte_size(self.text) > MAX_MESSAGE:
            return f"a reply needs a text of 1 to {MAX_MESSAGE:,} bytes"
        if self.by is not None and not 0 < byte_size(self.by) <= MAX_NAME:
            return f"the name in 'by' must have 1 to {MAX_NAME} bytes"
        return None


class GiveResultRequest(JsonModel):
    """The update ``give_result``: what a client's tool has returned for the ``call`` with that id.

    ``by`` is the name of the client.
    """

    call: str
    output: Text
    by: str | None = None

    def decision(self, at: datetime) -> PersonDecision:
        """The result as a decision, given at that time."""
        return PersonDecision(approved=True, at=at, by=self.by or None, text=self.output, digest=self.digest)

    @property
    def digest(self) -> str:
        """A digest of the output, by which a repeated result is recognized."""
        return hashlib.sha256(self.output.encode()).hexdigest()[:32]

    @property
    def problem(self) -> str | None:
        """Why the update is rejected; None if it is acceptable."""
        if byte_size(self.call) > MAX_ID:
            return f"the id in 'call' has at most {MAX_ID} bytes"
        if byte_size(self.output) > MAX_CLIENT_RESULT:
            return f"the result of a client's tool may have at most {MAX_CLIENT_RESULT:,} bytes as JSON"
        if self.by is not None and not 0 < byte_size(self.by) <= MAX_NAME:
            return f"the name in 'by' must have 1 to {MAX_NAME} bytes"
        return None


class AskPersonRequest(JsonModel):
    """``ask_person``: compose the question for the ``member`` of a ``team`` (an id), a person, in turn ``turn``.

    ``waiting`` are messages of people that are not in the conversation yet.
    """

    thread: Thread
    team: str
    member: str
    turn: int
    brief: SpeakerBrief | None = None
    waiting: tuple[Message, ...] = ()

    def decision_id(self, run: str) -> str:
        """The id of the decision for which the run ``run`` waits."""
        return decision_id(run, self.thread.head.id, self.member, str(self.turn))


class AskPersonResult(JsonModel):
    """The result of ``ask_person``: the question with the latest messages, and who may reply.

    It has the member's schema, up to MAX_SCHEMA.
    """

    question: Text
    output_schema: JsonObject | None = None
    approvers: tuple[Approvers, ...] = ()


class CheckReplyRequest(JsonModel):
    """``check_reply``: check a reply against the schema of a ``member`` of a ``team`` (an id), or ``reply_schema``."""

    thread: Thread
    text: Text
    team: str | None = None
    member: str | None = None
    reply_schema: JsonObject | None = None


class CheckReplyResult(JsonModel):
    """The result of ``check_reply``: what is wrong with the reply; None if it fits."""

    wrong: str | None = None


class CheckIdentityRequest(JsonModel):
    """``check_identity``: whether a gateway has verified who decides at a ``place``.

    It is ``required``, or else only of interest. With ``not_requester``, a rule that admits the person excludes who has
    started the root run ``root``. They may decide if another rule lets them: ``requester_may``.
    """

    identity: Identity
    place: DecisionPlace
    root: str
    required: bool = False
    not_requester: bool = False
    requester_may: bool = False


class CheckIdentityResult(JsonModel):
    """The result of ``check_identity``: whether the identity is verified, and why the decision is refused, if it is.

    ``as_requester`` is that of the decision.
    """

    verified: bool = False
    as_requester: bool = False
    refusal: Text | None = None
