"""The handlers of signals and updates: stop, pause, steering, decisions, and changes of the session."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import cast

from pydantic import JsonValue, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ...contracts.control_messages import (
    ASK_AGAIN,
    MAX_SESSION,
    SESSION_TOO_LARGE,
    Pause,
    SteerRequest,
    SteerResult,
    TerminateRequest,
    read_person,
    read_steer_request,
    read_terminate_request,
)
from ...contracts.decisions import (
    ApproveRequest,
    CheckIdentityRequest,
    DecisionsState,
    GiveResultRequest,
    PendingDecision,
    RememberedDecision,
    ReplyRequest,
    WaitingChild,
)
from ...contracts.errors import BatonError, InvalidInput, UnknownDecision
from ...contracts.message import PersonDecision
from ...contracts.text import byte_size, format_time
from ...contracts.turn import CanceledChild, TurnResult
from ...observability.run_log import Fields, current_clients
from ...resources.base import JsonModel, JsonObject
from ..calls import effects
from ..calls.children import ChildWorkflows
from ..state.decisions import NotWaiting, tell_decision, too_late
from ..state.run_state import RunState
from ..state.stopping import ActivityFailed, ActivityInterrupted, uncancelled
from ..state.telling import tell


class DecisionHandlers:
    """Handles people's decisions; ``parent`` is the id of the parent run, if there is one.

    A run notifies its parent whether it waits for a person, or during an outage, so that the root of a tree of runs
    knows. Decisions to be remembered are signaled up to the root, which signals them to all runs, so that they reach
    all runs in one order.
    """

    def __init__(self, run: RunState, children: ChildWorkflows, parent: str | None) -> None:
        self._run = run
        self._children = children
        self._parent = parent
        self._notified = False, False
        self._notifying: asyncio.Task[None] | None = None

    async def signal(self, name: str, value: JsonValue) -> None:
        """Handles a signal of the parent or of a child run; invalid ones are ignored."""
        with contextlib.suppress(ValidationError):
            if name == "child_waits":
                child = WaitingChild.model_validate(value)
                is_open = self._children.is_open(child.run)
                self._run.decisions.child_waits(child.run, waits=child.waits and is_open)
                self._run.outages.child_waits(child.run, waits=child.outage and is_open)
            elif name == ASK_AGAIN:
                self._run.outages.asks_again = True
            elif name == "child_canceled":
                self._children.take_result(CanceledChild.model_validate_json(json.dumps(value)))
            elif name == "remember":
                await self._remember_everywhere(RememberedDecision.model_validate(value))
            elif name == "remembered":
                await self._remember_below(RememberedDecision.model_validate(value))

    def validate(self, request: ApproveRequest) -> None:
        """Raises ValueError for a decision that is invalid, and a BatonError for one that is not pending."""
        if problem := request.problem:
            raise ValueError(problem)
        try:
            pending = self._run.decisions.find(request.call)
        except NotWaiting as error:
            raise _refusal(error) from None
        if not pending.needs_approval:
            raise ValueError(f"{request.call} is not waiting for approval")
        if refusal := pending.refusal(request):
            raise ValueError(refusal)

    async def approve(self, request: ApproveRequest) -> PersonDecision:
        """Takes a decision about a call, after checking changed arguments. Raises InvalidInput or UnknownDecision."""
        try:
            decision = await self._identified(request.call, request, request.decision(workflow.now()))
            if decision.arguments is not None:
                await self._run.decisions.check(request.call, decision)
            pending, decision = self._run.decisions.approve(request.call, decision)
        except NotWaiting as error:
            raise _refusal(error) from None
        except ActivityFailed as error:
            raise InvalidInput(str(error)) from None
        tell_decision(pending, decision)
        if pending.rule and not decision.missing and (decision.remember or pending.kind == "budget"):
            shared = decision.for_others() if pending.kind != "budget" else decision
            remembered = RememberedDecision(rule=pending.rule, decision=shared)
            self._run.decisions.remember(remembered.rule, remembered.decision)
            await self._remember_everywhere(remembered)
        return decision

    def validate_reply(self, request: ReplyRequest) -> None:
        """Raises ValueError for a reply that is invalid, and a BatonError if its question is not pending."""
        if problem := request.problem:
            raise ValueError(problem)
        try:
            pending = self._run.decisions.find(self._question(request))
        except NotWaiting as error:
            raise _refusal(error) from None
        if pending.kind != "question":
            awaited = "approval" if pending.needs_approval else "the result of a client's tool"
            raise ValueError(f"{pending.id} is waiting for {awaited}, not for a reply")
        if request.declines and not pending.asked_by:
            raise ValueError(f"{pending.speaker} is a member of the team: only a server's question can be declined")
        if refusal := pending.refusal(request):
            raise ValueError(refusal)

    async def reply(self, request: ReplyRequest) -> PersonDecision:
        """Takes a person's reply after checking it. Raises InvalidInput or UnknownDecision."""
        decision = PersonDecision(
            approved=not request.declines, at=workflow.now(), by=request.by or None, text=request.text
        )
        try:
            id_ = self._question(request)
            decision = await self._identified(id_, request, decision)
            if decision.approved:
                await self._run.decisions.check(id_, decision)
            pending = self.decide(id_, decision)
        except NotWaiting as error:
            raise _refusal(error) from None
        except ActivityFailed as failed:
            raise InvalidInput(failed.failure.message) from None
        tell_decision(pending, decision)
        return decision.to_remember()

    async def _identified(
        self, id_: str, request: ApproveRequest | ReplyRequest, decision: PersonDecision
    ) -> PersonDecision:
        """The decision of its sender, if a gateway has verified who that is. An activity has the key to check it.

        Raises InvalidInput for a sender that may not decide, and NotWaiting.
        """
        pending = self._run.decisions.find(id_)
        if refusal := pending.refusal(request):  # as the validator of the update: nothing leads around it
            raise InvalidInput(refusal)
        identity = request.identity
        if identity is None:
            return decision
        info = workflow.info()
        admitting = pending.admitting(identity)
        check = CheckIdentityRequest(
            identity=identity,
            place=pending.place(info.namespace, request),
            root=info.root.workflow_id if info.root else info.workflow_id,
            required=bool(pending.approvers),
            not_requester=any(rule.not_requester for rule in admitting),
            requester_may=any(not rule.not_requester for rule in admitting),
        )
        try:
            checked = await effects.check_identity(self._run, check)
        except ActivityInterrupted:  # from the handler of an update, it would fail the workflow task again and again
            raise too_late(id_) from None
        if checked.refusal or (pending.approvers and not checked.verified):
            raise InvalidInput(checked.refusal or "who decides is not verified")
        if not checked.verified:
            return decision
        return decision.verified_as(identity.name, identity.groups, as_requester=checked.as_requester)

    def validate_result(self, request: GiveResultRequest) -> None:
        """Raises ValueError for a result that is invalid, and a BatonError if its call does not wait for it."""
        if problem := request.problem:
            raise ValueError(problem)
        if self._run.decisions.is_repeated(request.call, request.digest):
            return
        try:
            pending = self._run.decisions.find(request.call)
        except NotWaiting as error:
            raise _refusal(error) from None
        if pending.kind != "client_tool":
            raise ValueError(f"{pending.id} is waiting for a person, not for the result of a client's tool")

    def give_result(self, request: GiveResultRequest) -> PersonDecision:
        """Takes what a client's tool has returned; the same again has no further effect."""
        result = request.decision(workflow.now())
        if not self._run.decisions.is_repeated(request.call, request.digest):
            try:
                tell_decision(self.decide(request.call, result), result)
            except NotWaiting as error:
                raise _refusal(error) from None
        return result.to_remember()

    def _question(self, request: ReplyRequest) -> str:
        """The id of the question that a reply answers. Raises NotWaiting if that is ambiguous."""
        if request.to:
            return request.to
        questions = [decision for decision in self._run.decisions.pending if decision.kind == "question"]
        if len(questions) == 1:
            return questions[0].id
        listed = ", ".join(f"{question.id} ({question.speaker})" for question in questions[:10]) or "nothing"
        raise NotWaiting(f"specify which question the reply is for; waiting in this run: {listed}")

    def decide(self, id_: str, decision: PersonDecision) -> PendingDecision:
        """Takes a decision, and returns what was pending. Raises NotWaiting."""
        pending = self._run.decisions.find(id_)
        self._run.decisions.decide(id_, decision)
        return pending

    async def _remember_everywhere(self, remembered: RememberedDecision) -> None:
        await (self._signal_parent("remember", remembered) if self._parent else self._remember_below(remembered))

    async def _remember_below(self, remembered: RememberedDecision) -> None:
        self._run.decisions.remember(remembered.rule, remembered.decision)
        await self._children.signal_all("remembered", remembered)

    def restore(self, state: DecisionsState | None) -> None:
        """Restores the state of the previous run, of which the parent was notified."""
        self._run.decisions.restore(state)
        self._notified = bool(state and state.pending), False

    def notify_parent(self) -> None:
        """Notifies the parent whether the run waits for a person or a server, if that has changed."""
        if self._parent and self._waits != self._notified and (self._notifying is None or self._notifying.done()):
            self._notifying = asyncio.create_task(self._notify_parent())

    @property
    def _waits(self) -> tuple[bool, bool]:
        return self._run.decisions.are_awaited, self._run.outages.are_awaited

    async def _notify_parent(self) -> None:
        while self._waits != self._notified:
            self._notified = self._waits
            waits, outage = self._notified
            child = WaitingChild(run=workflow.info().workflow_id, waits=waits, outage=outage)
            await self._signal_parent("child_waits", child.without_defaults)

    @property
    def is_settled(self) -> bool:
        """Whether the parent has been notified."""
        return self._notifying is None or self._notifying.done()

    async def settle(self) -> None:
        """Waits until the parent has been notified."""
        if self._notifying:
            await uncancelled(self._notifying)

    async def report_canceled(self, result: TurnResult) -> None:
        """Sends the result of this run, which is about to close as canceled, to the parent."""
        report = CanceledChild(run=workflow.info().first_execution_run_id, result=result.without_defaults)
        await uncancelled(asyncio.create_task(self._signal_parent("child_canceled", report)))

    async def _signal_parent(self, signal: str, value: JsonModel) -> None:
        with contextlib.suppress(ApplicationError):  # the run above may have ended
            await workflow.get_external_workflow_handle(self._parent or "").signal(signal, value)


_CONTROLLING = ("terminate_team", "cancel", "pause", "resume", "session", "steer")
"""The signals of clients. Runs send them to their children as well."""


def _refusal(error: NotWaiting) -> BatonError:
    return UnknownDecision(str(error)) if error.is_unknown else InvalidInput(str(error))


class MessageHandlers:
    """Handles signals and updates of clients, and forwards them to the running children.

    ``next_turn`` returns the turn in which a message received now is read at the latest, if known; ``on_pause`` is
    called when the run is paused or resumed.
    """

    def __init__(
        self,
        run: RunState,
        children: ChildWorkflows,
        decisions: DecisionHandlers,
        next_turn: Callable[[], int | None],
        on_pause: Callable[[Pause | None], None],
    ) -> None:
        self._run = run
        self._children = children
        self._decisions = decisions
        self._next_turn = next_turn
        self._on_pause = on_pause

    async def signal(self, name: str, value: JsonValue) -> None:
        """Handles the signal ``name``. Invalid values are ignored: a signal has no reply."""
        request = read_terminate_request(value)
        if name in _CONTROLLING:
            self._tell(name, value)
        if name == "terminate_team":
            self._run.stop.request("terminated", request)
            await self._children.terminate_all()
        elif name == "cancel":
            self._run.stop.request("canceled", TerminateRequest(reason=request.reason, now=True))
        elif name in ("pause", "resume"):
            await self.pause(read_person(value), resume=name == "resume")
        elif name == "session" and isinstance(value, dict) and self.fits_session(value):
            await self.change_session(value)
        elif name == "steer" and (message := read_steer_request(value)):
            await self.steer(message if message.id else message.identified(workflow.uuid4().hex))
        else:
            await self._decisions.signal(name, value)

    def _tell(self, name: str, value: JsonValue) -> None:
        """Logs a signal of a client: who has sent it, as far as it says so, and from where."""
        by = read_person(value) if isinstance(value, dict) or name in ("pause", "resume") else None
        fields: Fields = {"request": name, "by": by, "via": current_clients().take_signal(name)}
        ignored_steer = name == "steer" and read_steer_request(value) is None
        ignored_session = name == "session" and not (isinstance(value, dict) and self.fits_session(value))
        if ignored_steer or ignored_session:
            fields["outcome"] = "ignored"
        tell("control message", fields)

    async def pause(self, person: str | None, *, resume: bool) -> None:
        """Pauses the run and its children before their next model call, or resumes them."""
        inbox = self._run.inbox
        inbox.pause = None if resume else inbox.pause or Pause(since=format_time(workflow.now()), by=person)
        self._on_pause(inbox.pause)
        await self._children.signal_all("resume" if resume else "pause", {"name": person})

    async def change_session(self, changes: JsonObject) -> JsonObject:
        """Changes the session of the run and of its running children; returns all its values."""
        values = self._run.session.update(changes)
        await self._children.signal_all("session", changes)
        return values

    async def steer(self, request: SteerRequest) -> SteerResult:
        """Forwards a person's message, with its id, to the running children, or queues it for the next model call."""
        if self._children.can_forward(request) and await self._children.signal_all("steer", request):
            return SteerResult()
        self._run.inbox.put(request)
        turn = self._next_turn()
        return SteerResult() if turn is None else SteerResult(turn=turn)

    def fits_session(self, changes: JsonObject) -> bool:
        """Whether the session still has at most MAX_SESSION bytes after the changes."""
        return byte_size(json.dumps({**self._run.session.values, **changes})) <= MAX_SESSION

    def validate_session(self, changes: JsonObject) -> None:
        """Raises ValueError for changes that make the session too large."""
        if not self.fits_session(changes):
            raise ValueError(SESSION_TOO_LARGE)

    def validate_steer(self, request: SteerRequest) -> None:
        """Raises ValueError for a message that is empty, too long, too late, or that the history has no space for."""
        if self._run.inbox.is_closed:
            raise ValueError("the run is ending: no member would read the message")
        if problem := request.problem:
            raise ValueError(problem)
        if not self._children.can_forward(request):
            raise ValueError(
                "the history has no space left to send this to every running member: wait until some of them end"
            )


def first_value(payloads: Sequence[RawValue | JsonValue]) -> JsonValue:
    """The JSON value of a signal's first payload; None if there is none, or it can't be decoded.

    The SDK has already converted the values if there are several payloads, but not a single one.
    """
    if not payloads:
        return None
    first = payloads[0]
    if not isinstance(first, RawValue):
        return first
    converter = workflow.payload_converter()
    problem: Exception | None = None
    # Baton's clients and runs send JSON. A client of an application may send what only its own converter reads.
    for hints in ([JsonValue], None):
        try:
            value: JsonValue = converter.from_payloads([first.payload], cast("list[type] | None", hints))[0]
        except Exception as error:  # an application's converter may raise anything
            problem = problem or error
        else:
            return value
    workflow.logger.warning("the payload of a signal is ignored: %s", problem)
    return None
