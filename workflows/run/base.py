"""The base of all workflow types: reading the input, the handlers of signals and updates, and closing the run."""

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import JsonValue, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, CancelledError

from ...contracts.control_messages import Pause, SteerRequest, SteerResult
from ...contracts.decisions import ApproveRequest, ReplyRequest
from ...contracts.errors import InvalidInput
from ...contracts.inputs import Continuation, QueryInput, State, TurnInput
from ...contracts.message import Head, Message, PersonDecision
from ...contracts.plan import Plan
from ...contracts.requests import Pinned
from ...contracts.status import Status
from ...observability.metrics import RUNS_ENDED
from ...resources.base import JsonObject
from ...resources.problems import dotted_path, explain_errors
from ...temporal import search_attributes
from ..calls import effects
from ..calls.children import ChildWorkflows
from ..state.decisions import record, run_begins
from ..state.run_state import RunState
from ..state.stopping import ActivityFailed, uncancelled
from .messages import SESSION_TOO_LARGE, DecisionHandlers, MessageHandlers, first_value

Input = TypeVar("Input", QueryInput, TurnInput)


def read_input(given: Sequence[JsonValue], input_type: type[Input]) -> Input | ActivityFailed:
    """The input of a run, which a client may have sent in any shape; or what is wrong with it, as InvalidInput."""
    try:
        (value,) = given
        return input_type.model_validate_json(json.dumps(value))
    except ValidationError as error:
        wrong = "; ".join(
            f"{dotted_path(path) or 'the input'}: {text}" for path, text in explain_errors(error, input_type)
        )
        return ActivityFailed.of(InvalidInput(wrong))
    except (TypeError, ValueError):
        return ActivityFailed.of(InvalidInput("the workflow takes one JSON object as its input"))


def parent_of(given: QueryInput | TurnInput | ActivityFailed) -> str | None:
    """The id of the run above; None for a run that a client, or a workflow that is not Baton's, has started."""
    parent = workflow.info().parent
    return parent.workflow_id if parent and isinstance(given, TurnInput) and given.thread else None


class ShownPhase:
    """The phase of a run as others see it. ``searchable``: the server has Baton's search attributes, ``shows_cost``:
    also that of the cost, which is set at the end.

    ``notify_parent`` is called whenever the run waits for a person, or no longer.
    """

    def __init__(self, run: RunState, notify_parent: Callable[[], None]) -> None:
        self._run = run
        self._notify_parent = notify_parent
        self._shown = "Running"
        self.searchable = self.shows_cost = False
        run.decisions.on_change = self.show_decisions

    @property
    def _phase(self) -> str:
        return "Paused" if self._run.inbox.pause else "InputRequired" if self._run.decisions.are_awaited else "Running"

    def restore(self) -> None:
        """The phase that the run before this one has shown: Temporal itself hands on the search attributes."""
        self._shown = self._phase
        self._run.details.show_pause(self._run.inbox.pause)
        self.show_decisions()

    def begin(self, plan: Plan) -> None:
        """The run begins, perhaps paused."""
        self._shown = self._phase
        self._run.details.show_pause(self._run.inbox.pause)
        self._set({**search_attributes.attributes_of(plan), search_attributes.PHASE: self._phase})

    def show_pause(self, pause: Pause | None) -> None:
        """The run was paused, or resumed."""
        self._run.details.show_pause(pause)
        self._show_phase()

    def show_decisions(self) -> None:
        """The run waits for a person, or no longer."""
        decisions = self._run.decisions
        self._run.details.show_decisions(decisions.pending, decisions.waiting_below)
        self._show_phase()
        self._notify_parent()

    def _show_phase(self) -> None:
        if self._phase != self._shown:
            self._shown = self._phase
            self._set({search_attributes.PHASE: self._phase})

    def end(self, status: Status) -> None:
        """The run ends."""
        record(RUNS_ENDED, phase=status.phase, reason=status.stop_reason or "")
        self._set({search_attributes.PHASE: status.phase, search_attributes.STOP_REASON: status.stop_reason})
        if self.shows_cost and status.token_usage.cost is not None:
            workflow.upsert_search_attributes([search_attributes.COST.value_set(status.token_usage.cost)])

    def _set(self, values: search_attributes.AttributeValues) -> None:
        if self.searchable:
            workflow.upsert_search_attributes(search_attributes.updates(values))


def signal(name: str, description: str) -> Callable[..., Coroutine[Any, Any, None]]:
    """Declares a signal, whose handler takes any payloads, none, or several: what makes no sense is ignored.

    The SDK converts payloads by the handler's parameters. It would drop a signal that it can't convert, and fail the
    workflow task where there are more payloads than parameters. So it sees one parameter, of a value that is not
    converted yet, while the handler itself takes any number.
    """

    async def handle(self: "BaseWorkflow[Any]", *payloads: RawValue | JsonValue) -> None:
        await self._handlers.signal(name, first_value(payloads))

    parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_ONLY) for each in ("self", "payload")]
    handle.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by the SDK
    handle.__annotations__ = {"payload": RawValue}
    abandon = workflow.HandlerUnfinishedPolicy.ABANDON
    return workflow.signal(name=name, description=description, unfinished_policy=abandon)(handle)


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
        self._phase = ShownPhase(run, self._decisions.notify_parent)
        self._handlers = MessageHandlers(run, self.children, self._decisions, self.next_turn, self._phase.show_pause)
        self._pinned: Pinned | None = None
        self.ended_at: datetime | None = None
        if isinstance(self._given, ActivityFailed) or not self._given.carried:
            self._begin_first()
        else:
            self._restore(self._given.carried)

    def _begin_first(self) -> None:
        """A run begins: what a parent hands down, of its session too, is within the bounds already."""
        run_begins()
        if isinstance(self._given, ActivityFailed):
            return
        if not self._handlers.fits_session(self._given.session):
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
        """The turn in which a message received now is read at the latest; None where that is not known."""
        return None

    def begin(self, pinned: Pinned) -> None:
        """Stores what was pinned, and sets the search attributes where the server knows them."""
        self._take_up(pinned)
        self._phase.begin(pinned.plan)

    def _take_up(self, pinned: Pinned) -> None:
        run = self.run_state
        given = self.given.question if isinstance(self.given, TurnInput) else None
        self._pinned = pinned
        run.task_queues = pinned.route
        run.question = given or pinned.question
        self._phase.searchable = pinned.searchable
        self._phase.shows_cost = pinned.shows_cost
        run.details.show_question(run.question)
        run.trace.begin(pinned, run.started_at)

    def continuation(self, state: State) -> Continuation:
        """What the next run needs to continue this one."""
        run = self.run_state
        return Continuation(
            pinned=self.pinned,
            since=run.started_at,
            stop_request=run.stop.state,
            inbox=run.inbox.state,
            decisions=run.decisions.state,
            session=run.session.values,
            state=state,
        )

    def _restore(self, continuation: Continuation) -> None:
        """Restores the state of the previous run; Temporal itself copies the search attributes."""
        run = self.run_state
        run.started_at = continuation.since
        self._take_up(continuation.pinned)
        run.stop.restore(continuation.stop_request)
        run.session.update(continuation.session)
        run.inbox.restore(continuation.inbox)
        self._decisions.restore(continuation.decisions)
        self._phase.restore()

    async def settle(self) -> None:
        """Waits until all handlers of messages have finished, so that nothing they were given is lost."""
        if not workflow.all_handlers_finished():
            await uncancelled(asyncio.create_task(workflow.wait_condition(workflow.all_handlers_finished)))
        await self._decisions.settle()

    async def close_inbox(self) -> list[Message]:
        """Accepts no further message of a person; returns the unread messages."""
        await self.settle()
        self.run_state.inbox.is_closed = True
        self.run_state.decisions.close()
        return self.run_state.inbox.drain()

    async def join(self, messages: Sequence[Message], head: Head) -> Head:
        """Adds messages to the conversation after ``head``, even while the run is being cancelled; the new head."""
        if not messages:
            return head
        return await uncancelled(asyncio.create_task(effects.append(self.run_state, head, tuple(messages))))

    def close(self, status: Status, result: object, *, is_root: bool = True) -> None:
        """Sets the search attributes of the end. A run that failed is closed as such by raising; so is a root run that
        was canceled: Temporal drops its result, and no parent needs it."""
        self._phase.end(status)
        if is_root and status.phase == "Canceled":
            raise CancelledError(f"canceled: {status.note}" if status.note else "canceled", result)
        if status.phase == "Failed":
            kind = status.failure.type if status.failure else None
            raise ApplicationError(status.error or "failed", result, type=kind, non_retryable=True)

    terminate_team = signal("terminate_team", "End after the current turn, or with now at once: {reason, now}.")
    cancel = signal("cancel", "Cancel the run at once: {reason}.")
    pause = signal("pause", "Pause the run and its children before their next model call: {name}.")
    resume = signal("resume", "Resume a paused run and its children: {name}.")
    set_session = signal("session", "Change values of the session; null removes one.")
    say = signal("steer", "Send a message to the next speaker: {text, name}.")
    child_waits = signal("child_waits", "Internal: whether a child run waits for a person.")
    remember = signal("remember", "Internal: a child run asks to remember a decision.")
    remembered = signal("remembered", "Internal: the parent run has remembered a decision.")

    @workflow.signal(dynamic=True, description="Ignored: no other signal is known.")
    async def ignore(self, name: str, _payloads: Sequence[RawValue]) -> None:
        """A signal of any other name, such as one that is misspelt."""
        workflow.logger.warning("the signal %r is ignored: a run takes no signal of this name", name[:100])

    @workflow.update(name="session", description="Changes values of the session; null removes one. Returns them all.")
    async def change_session(self, changes: JsonObject) -> JsonObject:
        """What conditions and functions of running panels read from then on, in this run and in its children."""
        return await self._handlers.change_session(changes)

    @change_session.validator
    def _validate_session(self, changes: JsonObject) -> None:
        self._handlers.validate_session(changes)

    @workflow.update(
        name="approve", description="Approve or reject a waiting call: {call, approved, arguments, reason}."
    )
    async def approve(self, request: ApproveRequest) -> PersonDecision:
        """A person's decision about a tool call that waits in this run."""
        return await self._decisions.approve(request)

    @approve.validator
    def _validate_approve(self, request: ApproveRequest) -> None:
        self._decisions.validate(request)

    @workflow.update(name="reply", description="A person's reply to a question that waits: {text, to, by}.")
    async def reply(self, request: ReplyRequest) -> PersonDecision:
        """A person's reply to a question of this run."""
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
