"""The base of all workflow types: reading the input, the handlers of signals and updates, and closing the run."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Generic

from pydantic import JsonValue
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, CancelledError

from ...conversation.contracts.continuation import Continuation, State
from ...conversation.contracts.control_messages import SteerRequest, SteerResult
from ...conversation.contracts.decisions import ApproveRequest
from ...conversation.contracts.inputs import TurnInput
from ...conversation.contracts.replies import ReplyRequest
from ...conversation.contracts.requests import Pinned
from ...conversation.contracts.status import Status
from ...conversation.errors import InvalidInput
from ...conversation.messages.message import Head, Message
from ...conversation.messages.person_decision import PersonDecision
from ...resources.base import JsonObject
from ..calls import effects, run_traces
from ..calls.child_workflows import ChildWorkflows
from ..state.cancellation import uncancelled
from ..state.constants import INPUT_BEFORE_MESSAGES, MESSAGES_JOIN, SESSION_BOUND_AT_START
from ..state.errors import ActivityFailed
from ..state.metrics import run_begins
from ..state.run_state import RunState
from .decision_handlers import DecisionHandlers
from .message_handlers import SESSION_TOO_LARGE, MessageHandlers, first_value
from .read_input import Input, parent_of, read_input
from .shown_phase import ShownPhase


class BaseWorkflow(Generic[Input]):
    """A run with a state, children and message handlers; its input is read as ``input_type``.

    The input is read before any signal or update is handled, however early that comes.
    """

    input_type: type[Input]

    @workflow.init
    def __init__(self, *given: JsonValue) -> None:
        run = self.run_state = RunState()
        self.children = ChildWorkflows(run)
        self._given: Input | ActivityFailed = read_input(given, self.input_type)
        self._decisions = DecisionHandlers(run, self.children, parent_of(self._given))
        self._phase = ShownPhase(run, self._decisions.tell_parent)
        self._handlers = MessageHandlers(run, self.children, self._decisions, self.next_turn, self._phase.show_pause)
        self._pinned: Pinned | None = None
        self.ended_at: datetime | None = None
        if isinstance(self._given, ActivityFailed) or not self._given.carried:
            self._begin_first()
        elif workflow.patched(INPUT_BEFORE_MESSAGES):
            self._restore(self._given.carried)

    def _begin_first(self) -> None:
        """A run begins: what a parent hands down, of its session too, is within the bounds already."""
        run_begins()
        if isinstance(self._given, ActivityFailed):
            return
        if not self._handlers.fits_session(self._given.session) and workflow.patched(SESSION_BOUND_AT_START):
            self._given = ActivityFailed.of(InvalidInput(f"session: {SESSION_TOO_LARGE}"))
        else:
            self.run_state.begin(self._given)

    @property
    def given(self) -> Input:
        """The input; raises ActivityFailed with InvalidInput if it is not what the workflow takes."""
        if isinstance(self._given, ActivityFailed):
            raise self._given
        return self._given

    @property
    def pinned(self) -> Pinned:
        """The manifests and the place in the conversation; there as soon as the run has begun."""
        assert self._pinned
        return self._pinned

    def next_turn(self) -> int | None:
        """The turn in which a message that comes now is read at the latest; None where that is not known."""
        return None

    def is_continued(self) -> bool:
        """Whether the run continues another one, rather than to begin."""
        if self.given.carried and not self._pinned:  # in a history from before the patch
            self._restore(self.given.carried)
        return self.given.carried is not None

    def begin(self, pinned: Pinned) -> None:
        """Takes up what the run is about, and sets its search attributes where the server knows them."""
        self._take_up(pinned)
        self._phase.begin(pinned.plan)

    def _take_up(self, pinned: Pinned) -> None:
        run, given = self.run_state, self.given.question if isinstance(self.given, TurnInput) else None
        self._pinned, run.task_queues, run.question = pinned, pinned.route, given or pinned.question
        self._phase.searchable, self._phase.shows_cost = pinned.searchable, pinned.shows_cost
        run.details.show_question(run.question)
        run_traces.begin_trace(run, pinned)

    def continuation(self, state: State) -> Continuation:
        """What the next run needs to continue this one."""
        run = self.run_state
        return Continuation(
            pinned=self.pinned,
            since=run.started_at,
            wish=run.stop.state,
            floor=run.inbox.state,
            decisions=run.decisions.state,
            session=run.session.values,
            state=state,
        )

    def _restore(self, continuation: Continuation) -> None:
        """Takes up the state of the run before this one; Temporal itself hands on the search attributes."""
        run, run.started_at = self.run_state, continuation.since
        self._take_up(continuation.pinned)
        run.stop.restore(continuation.wish)
        run.session.update(continuation.session)
        run.inbox.restore(continuation.floor)
        self._decisions.restore(continuation.decisions)
        self._phase.restore()

    async def settle(self) -> None:
        """Waits until all handlers of messages have finished, so that nothing they were given is lost."""
        if not workflow.all_handlers_finished() and workflow.patched(MESSAGES_JOIN):
            await uncancelled(asyncio.create_task(workflow.wait_condition(workflow.all_handlers_finished)))
        await self._decisions.settle()

    async def close_inbox(self) -> list[Message]:
        """Accepts no further message of a person; the messages that nobody has read."""
        await self.settle()
        self.run_state.inbox.is_closed = True
        self.run_state.decisions.close()
        empty = self.run_state.inbox.is_empty or not workflow.patched(MESSAGES_JOIN)
        return [] if empty else self.run_state.inbox.drain()

    async def join(self, messages: Sequence[Message], head: Head) -> Head:
        """Adds messages to the conversation after ``head``, even while the run is being cancelled; the new head."""
        if not messages:
            return head
        return await uncancelled(asyncio.create_task(effects.append(self.run_state, head, tuple(messages))))

    def close(self, status: Status, result: object, *, is_root: bool = True, fails: bool = True) -> None:
        """Sets the search attributes of the end. A run that failed is closed as such by raising, if it ``fails``; so is
        a root run that was canceled: Temporal drops its result, and no parent needs it."""
        self._phase.end(status)
        if is_root and status.phase == "Canceled":
            raise CancelledError(f"canceled: {status.note}" if status.note else "canceled", result)
        if fails and status.phase == "Failed":
            kind = status.failure.type if status.failure else None
            raise ApplicationError(status.error or "failed", result, type=kind, non_retryable=True)

    @workflow.signal(dynamic=True, unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def receive(self, name: str, payloads: Sequence[RawValue]) -> None:
        """``terminate_team`` and ``cancel`` with ``{reason, now}``, a text, nothing, or anything unreadable; others.

        One handler takes every signal, because one with declared parameters would fail on payloads that don't fit them.
        """
        await self._handlers.signal(name, first_value(payloads))

    @workflow.update(name="session", description="Changes values of the session; null removes one. Returns them all.")
    async def change_session(self, changes: JsonObject) -> JsonObject:
        """What conditions and functions of running panels read from then on, in this run and in its children."""
        return await self._handlers.change_session(changes)

    @change_session.validator
    def _validate_session(self, changes: JsonObject) -> None:
        self._handlers.validate_session(changes)

    @workflow.update(name="approve", description="Yes or no to a call that waits: {call, approved, arguments, reason}.")
    async def approve(self, request: ApproveRequest) -> PersonDecision:
        """A person's decision about a tool call that waits in this run."""
        return await self._decisions.approve(request)

    @approve.validator
    def _validate_approve(self, request: ApproveRequest) -> None:
        self._decisions.validate(request)

    @workflow.update(name="reply", description="A person's reply to a question that waits: {text, to, by}.")
    async def reply(self, request: ReplyRequest) -> PersonDecision:
        """The reply to what a person is asked in this run."""
        return await self._decisions.reply(request)

    @reply.validator
    def _validate_reply(self, request: ReplyRequest) -> None:
        self._decisions.validate_reply(request)

    @workflow.update(name="steer", description="A message to whoever speaks next: {text, name}. Returns its turn.")
    async def steer(self, request: SteerRequest) -> SteerResult:
        """A person's message, read before the next model call of this run or, if any runs, of its children."""
        return await self._handlers.steer(request)

    @steer.validator
    def _validate_steer(self, request: SteerRequest) -> None:
        self._handlers.validate_steer(request)
