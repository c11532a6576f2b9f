"""The base of all workflow types: reading the input, the handlers of signals and updates, and closing the run."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, NoReturn, TypeVar

from pydantic import JsonValue, ValidationError
from pydantic_core import PydanticSerializationError
from temporalio import workflow
from temporalio.common import RawValue, VersioningBehavior
from temporalio.exceptions import ApplicationError, CancelledError

from ...contracts.control_messages import ASK_AGAIN, SESSION_TOO_LARGE, Pause, SteerRequest, SteerResult
from ...contracts.decisions import ApproveRequest, DecisionsState, GiveResultRequest, ReplyRequest
from ...contracts.errors import BatonError, InvalidInput
from ...contracts.fork import unfit
from ...contracts.inputs import CLIENT_FIELDS, Continuation, QueryInput, ReadForkRequest, State, TurnInput
from ...contracts.message import Head, PersonDecision
from ...contracts.plan import Plan, QueryPlan, TeamPlan
from ...contracts.requests import AuditRequest, Pinned, PinRequest
from ...contracts.status import Status
from ...contracts.turn import Thread, TurnResult
from ...observability.metrics import RUNS_ENDED
from ...observability.run_log import Fields
from ...resources.base import JsonObject
from ...resources.problems import dotted_path, explain_errors
from ...temporal import search_attributes
from ..calls import effects
from ..calls.children import ChildWorkflows
from ..calls.traces import end_trace
from ..state.constants import REPEATED_INPUT, SETTLE_AGAIN
from ..state.decisions import record, run_begins
from ..state.run_state import RunState
from ..state.stopping import ActivityFailed, ActivityInterrupted, uncancelled
from ..state.telling import tell, tell_update
from .messages import DecisionHandlers, MessageHandlers, first_value

Input = TypeVar("Input", QueryInput, TurnInput)
WorkflowClass = TypeVar("WorkflowClass", bound=type)
Result = TypeVar("Result")

FAILURES = (ValidationError, PydanticSerializationError, BatonError)
"""Exceptions that fail a run. Any other exception is a bug, which fails the workflow task until a fix is deployed."""


def workflow_type(
    name: str, versioning: VersioningBehavior = VersioningBehavior.UNSPECIFIED
) -> Callable[[WorkflowClass], WorkflowClass]:
    """Defines a workflow type of Baton, also in a worker that an application has configured for its own workflows.

    It runs outside of the SDK's sandbox: all its code is Baton's, and tests replay it in the sandbox.
    """
    return workflow.defn(name=name, sandboxed=False, failure_exception_types=FAILURES, versioning_behavior=versioning)


def read_input(payloads: Sequence[JsonValue], input_type: type[Input]) -> Input | ActivityFailed:
    """The parsed input of a run. Raises ActivityFailed with InvalidInput if it is invalid."""
    try:
        (value,) = payloads
        return input_type.model_validate_json(json.dumps(value))
    except ValidationError as error:
        problems = "; ".join(
            f"{dotted_path(path) or 'the input'}: {text}" for path, text in explain_errors(error, input_type)
        )
        return ActivityFailed.of(InvalidInput(problems))
    except (TypeError, ValueError):
        return ActivityFailed.of(InvalidInput("the workflow takes one JSON object as its input"))


def pin_request(run_input: QueryInput | TurnInput) -> PinRequest:
    """The request of the activity ``pin`` for the input of a run."""
    common = {
        "workflow": workflow.info().workflow_type,
        "namespace": run_input.namespace,
        "resources": run_input.resources,
        "redacted": run_input.redacted or None,
    }
    if isinstance(run_input, QueryInput):
        return PinRequest(kind="query", name=run_input.name, spec=run_input.spec, after=run_input.after, **common)
    return PinRequest(
        kind=run_input.kind, name=run_input.name, input=run_input.input, thread=run_input.thread, **common
    )


def pin_fork_request(run_input: QueryInput | TurnInput, forked: Thread) -> PinRequest | None:
    """The request of ``pin`` for a fork whose manifests differ from those of the ``forked`` run; None if none does."""
    request = pin_request(run_input)
    if forks := run_input.forks:
        differs = forks.changes or run_input.resources or forks.pins_anew
        return request.for_fork(forked, forks.changes, pins_anew=forks.pins_anew) if differs else None
    return request if request.thread and request.thread.catalog != forked.catalog else None


def continues_a_run(run_input: QueryInput | TurnInput) -> bool:
    """Whether a run of Baton has continued as new as this one.

    Temporal repeats a client's input, too: by a cron schedule, and by a retry of the workflow. So the input has the id
    of the first run, which no client can know when it starts one.
    """
    info = workflow.info()
    if not info.continued_run_id:
        return False
    if run_input.carried and run_input.carried.first_run:
        return run_input.carried.first_run == info.first_execution_run_id
    is_repeated = bool(info.cron_schedule) or info.attempt > 1
    return not (is_repeated and workflow.patched(REPEATED_INPUT))


def not_from_baton(run_input: QueryInput | TurnInput, *, continues: bool) -> ActivityFailed | None:
    """The error for an input with fields that no client may set; None if there are none.

    These fields contain a plan and a place in a conversation, which ``pin`` determines for runs of clients. A child run
    may have all of them except the state of a previous run, and a run that has continued as new may have all.
    """
    if continues:
        return None
    internal = ["carried"] if workflow.info().parent else sorted(run_input.model_fields_set - CLIENT_FIELDS)
    for name in internal:
        if getattr(run_input, name):
            return ActivityFailed.of(InvalidInput(f"{name}: only Baton's own workflows set this field"))
    return None


def _origin_of(run_input: QueryInput | TurnInput | ActivityFailed) -> Fields:
    """What a run executes, and the run that it goes on from, for the line that says that it begins."""
    if isinstance(run_input, ActivityFailed):
        return {"error": run_input.failure.type}
    kind = "query" if isinstance(run_input, QueryInput) else run_input.kind
    return {
        "target": f"{kind}/{run_input.namespace}/{run_input.name}" if run_input.name else None,
        "retries": run_input.retries,
        "forks": run_input.fork.run if run_input.fork else None,
    }


def parent_of(run_input: QueryInput | TurnInput | ActivityFailed) -> str | None:
    """The id of the parent run; None for a run started by a client or by a workflow of another application."""
    parent = workflow.info().parent
    return parent.workflow_id if parent and isinstance(run_input, TurnInput) and run_input.thread else None


NOTHING_MORE = AuditRequest()


def began(run_input: QueryInput | TurnInput | ActivityFailed) -> AuditRequest | None:
    """What the audit log has of the beginning of a run; None for a child run."""
    if isinstance(run_input, ActivityFailed) or (isinstance(run_input, TurnInput) and run_input.thread):
        return None
    return AuditRequest(began="retry" if run_input.retries else "fork" if run_input.fork else "start")


class ShownPhase:
    """Publishes the phase of a run in its search attributes and current details.

    ``shows_cost``: the server has also the attribute of the cost, which is set at the end. ``notify_parent`` is called
    when the run begins or ceases to wait for a person or a server, ``on_input_required`` when it begins to wait for a
    person.
    """

    def __init__(self, run: RunState, notify_parent: Callable[[], None]) -> None:
        self._run = run
        self._notify_parent = notify_parent
        self._shown = "Running"
        self.shows_cost = False
        self.on_input_required: Callable[[], None] = lambda: None
        run.decisions.on_change = self.show_decisions
        run.outages.on_change = self.show_outages

    @property
    def _phase(self) -> str:
        if self._run.inbox.pause:
            return "Paused"
        if self._run.decisions.are_awaited:
            return "InputRequired"
        return "Waiting" if self._run.outages.are_awaited else "Running"

    def restore(self) -> None:
        """Restores the phase of the previous run; Temporal itself copies the search attributes."""
        self._shown = self._phase
        self._run.details.show_pause(self._run.inbox.pause)
        self.show_decisions()

    def begin(self, pinned: Pinned) -> None:
        """Publishes the first phase of a run, which may begin paused."""
        self._shown = self._phase
        self._run.details.show_pause(self._run.inbox.pause)
        fork = pinned.forked_from
        forked_from = fork.run if fork and fork.searchable else None
        self._set(
            {
                **_attributes_of(pinned.plan),
                search_attributes.PHASE: self._phase,
                search_attributes.FORKED_FROM: forked_from,
            }
        )

    def show_pause(self, pause: Pause | None) -> None:
        """Publishes that the run was paused or resumed."""
        self._run.details.show_pause(pause)
        self._show_phase()

    def show_decisions(self) -> None:
        """Publishes the pending decisions of the run and of the runs below."""
        decisions = self._run.decisions
        self._run.details.show_decisions(decisions.pending, decisions.waiting_below)
        self._show_phase()
        self._notify_parent()

    def show_outages(self) -> None:
        """Publishes the outages that calls of the run, and of the runs below, wait for."""
        outages = self._run.outages
        self._run.details.show_outages(outages.own, outages.below)
        self._show_phase()
        self._notify_parent()

    def _show_phase(self) -> None:
        if self._phase != self._shown:
            self._shown = self._phase
            self._set({search_attributes.PHASE: self._phase})
            if self._phase == "InputRequired":
                self.on_input_required()

    def end(self, status: Status) -> None:
        """Publishes the end of the run."""
        record(RUNS_ENDED, phase=status.phase, reason=status.stop_reason or "")
        tell(
            "run ended",
            {
                "workflow_type": workflow.info().workflow_type,
                "phase": status.phase,
                "reason": status.stop_reason,
                "error": status.failure.type if status.failure else None,
                "turns": status.turns,
                "tokens": status.token_usage.total_tokens,
                "cost": status.token_usage.cost,
                "seconds": (workflow.now() - self._run.started_at).total_seconds(),
            },
        )
        self._set({search_attributes.PHASE: status.phase, search_attributes.STOP_REASON: status.stop_reason})
        if self.shows_cost and status.token_usage.cost is not None:
            workflow.upsert_search_attributes([search_attributes.COST.value_set(status.token_usage.cost)])

    def _set(self, values: search_attributes.AttributeValues) -> None:
        if self._run.searchable:
            workflow.upsert_search_attributes(search_attributes.updates(values))


class AuditTrail:
    """Has the audit log written of what clients do to the run, if its worker keeps one.

    The activity reads the history, which has each request and its sender once. It is executed soon after a request, and
    at the end of the run.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._is_kept = False
        self._due: AuditRequest | None = None
        self._writing: asyncio.Task[None] | None = None

    def begin(self, pinned: Pinned, request: AuditRequest | None) -> None:
        """Begins to write, also what came before the run was pinned; ``request`` says how it has begun."""
        self._is_kept = pinned.audited
        if due := request or self._due:
            self.note(due)

    def note(self, request: AuditRequest = NOTHING_MORE) -> None:
        """Notes that a client has sent a request, or how the run has begun or ended."""
        due = self._due or NOTHING_MORE
        self._due = AuditRequest(began=request.began or due.began, ended=request.ended or due.ended).without_defaults
        if self._is_kept and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while request := self._due:
            self._due = None
            try:
                await effects.audit(self._run, request)
            except (ActivityFailed, ActivityInterrupted) as error:
                workflow.logger.error("the audit log lacks what clients have done to this run: %s", error)

    @property
    def is_settled(self) -> bool:
        """Whether all is written."""
        return self._writing is None or self._writing.done()

    async def settle(self) -> None:
        """Waits until all is written."""
        if self._writing:
            await uncancelled(self._writing)

    async def end(self, phase: Callable[[], str], *, is_root: bool) -> None:
        """Writes the end of a root run with its phase, and waits until all is written."""
        await self.settle()
        if is_root and self._is_kept:
            self.note(AuditRequest(ended=phase()))
        await self.settle()


def signal(name: str, description: str, *, is_internal: bool = False) -> Callable[..., Coroutine[Any, Any, None]]:
    """Declares a signal whose handler accepts any number of payloads of any shape, and ignores invalid ones.

    An internal one comes from Baton itself, not from a client: it is no part of the protocol and not noted for the
    audit log.

    The SDK converts payloads according to the handler's parameters. It would drop a signal that it can't convert, and
    fail the workflow task if there are more payloads than parameters. So the SDK sees a single unconverted parameter,
    while the handler itself takes any number.
    """

    async def handle(self: "BaseWorkflow[Any]", *payloads: RawValue | JsonValue) -> None:
        await self._handlers.signal(name, first_value(payloads))
        if not is_internal:
            self.audit.note()

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("self", "payload")]
    handle.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by the SDK
    handle.__annotations__ = {"payload": RawValue}
    abandon = workflow.HandlerUnfinishedPolicy.ABANDON
    shown = f"Internal: {description}" if is_internal else description
    return workflow.signal(name=name, description=shown, unfinished_policy=abandon)(handle)


class BaseWorkflow(Generic[Input]):
    """A run with a state, children and message handlers; its input is parsed as ``input_type``.

    The input is parsed before any signal or update is handled, even one that arrives with the first workflow task.
    """

    input_type: type[Input]

    @workflow.init
    def __init__(self, *payloads: JsonValue) -> None:
        run = self.run_state = RunState()
        self.children = ChildWorkflows(run)
        self._run_input: Input | ActivityFailed = read_input(payloads, self.input_type)
        self._decisions = DecisionHandlers(run, self.children, parent_of(self._run_input))
        self._phase = ShownPhase(run, self._decisions.notify_parent)
        self.audit = AuditTrail(run)
        self._handlers = MessageHandlers(run, self.children, self._decisions, self.next_turn, self._phase.show_pause)
        self._pinned: Pinned | None = None
        self.ended_at: datetime | None = None
        self._began = began(self._run_input)
        self._continues = not isinstance(self._run_input, ActivityFailed) and continues_a_run(self._run_input)
        if not isinstance(self._run_input, ActivityFailed):
            self._run_input = not_from_baton(self._run_input, continues=self._continues) or self._run_input
        if isinstance(self._run_input, ActivityFailed) or not self._run_input.carried:
            self._begin_first()
        else:
            self._restore(self._run_input.carried)
        if isinstance(self._run_input, TurnInput):
            run.gives_up = self._run_input.gives_up

    def _begin_first(self) -> None:
        """Begins a run that continues no other. A session inherited from a parent has been checked there."""
        run_begins(_origin_of(self._run_input))
        if isinstance(self._run_input, ActivityFailed):
            return
        if not self._handlers.fits_session(self._run_input.session):
            self._run_input = ActivityFailed.of(InvalidInput(f"session: {SESSION_TOO_LARGE}"))
        else:
            self.run_state.begin(self._run_input)

    @property
    def run_input(self) -> Input:
        """The input; raises ActivityFailed with InvalidInput if it does not match ``input_type``."""
        if isinstance(self._run_input, ActivityFailed):
            raise self._run_input
        return self._run_input

    @property
    def pinned(self) -> Pinned:
        """The manifests and the place in the conversation; available once the run is pinned."""
        assert self._pinned
        return self._pinned

    def next_turn(self) -> int | None:
        """The turn in which a message received now is read at the latest; None if unknown."""
        return None

    def begin(self, pinned: Pinned) -> None:
        """Stores the result of ``pin``, and sets the search attributes if the server has them."""
        self._take_up(pinned)
        self._phase.begin(pinned)
        self.audit.begin(pinned, self._began)

    async def continue_failed(self) -> None:
        """Reads the failed run that this one resumes, if there is one, and restores its input and state.

        A failed run that had no state yet, as it could not be pinned, is started again with its own input.
        """
        while self.run_input.retries:
            self._run_input = await effects.read_failed_run(self.run_state, self.run_input.retries, self.input_type)
        if self.run_input.carried is None:
            return
        self._restore_before_call(self.run_input.carried)

    async def continue_fork(self) -> TurnResult | None:
        """Reads the run that this one goes on from, and restores its state, with the manifests that were changed.

        Returns the result of a child run that had ended at the point of the fork. One that had not begun begins anew.
        """
        run_input = self.run_input
        assert run_input.fork
        thread = run_input.thread if isinstance(run_input, TurnInput) else None
        at = run_input.forks.at if run_input.forks else ""
        forked = await effects.read_fork(
            self.run_state, ReadForkRequest(fork=run_input.fork, at=at, thread=thread).without_defaults
        )
        if forked.carried is None:
            return forked.result
        continuation = forked.carried
        if request := pin_fork_request(run_input, continuation.pinned.thread):
            own = run_input.pinned if isinstance(run_input, TurnInput) else None
            changed = own or await effects.pin(self.run_state, request)
            if reason := unfit(continuation.state, continuation.pinned.plan, changed.plan):
                raise ActivityFailed.of(InvalidInput(reason))
            continuation = continuation.pinned_to(changed)
        self._run_input = run_input.going_on_with(continuation)
        self._restore_before_call(continuation)
        return None

    def _restore_before_call(self, continuation: Continuation) -> None:
        """Restores the state of another run before a call: a retry of it, or a fork."""
        run = self.run_state
        self._take_up(continuation.pinned)
        run.session.update({**continuation.session, **run.session.values})
        run.inbox.restore_messages(continuation.inbox)
        self._decisions.restore(continuation.decisions)
        self.children.retry(continuation.unfinished)
        self.children.fork(continuation.forks)
        self._phase.begin(continuation.pinned)
        self.audit.begin(continuation.pinned, self._began)

    @workflow.query(description="Internal: the input with which a retry resumes this failed run.")
    def retry_input(self) -> Input:
        """The input of a run that resumes this failed one: before the failed call, or from its start."""
        if self._pinned is None:
            return self.run_input
        remembered = self.run_state.decisions.remembered
        return self.run_input.continued_with(
            Continuation(
                pinned=self._pinned,
                since=self.run_state.started_at,
                unfinished=self.children.unfinished,
                forks=self.children.to_fork,
                inbox=self.run_state.inbox.undelivered,
                decisions=DecisionsState(remembered=remembered) if remembered else None,
                session=self.run_state.session.values,
                state=self.retry_state(),
            )
        )

    def retry_state(self) -> State:
        """The state from which a retry of this failed run resumes it."""
        return self.state()

    async def admitted(self) -> bool:
        """Waits until the tenant of a root run has room for it; returns whether it has to ask for that at all."""
        tenant = self.pinned.thread.tenant
        if tenant is None or not self.pinned.admission or self._continues:
            return False
        await effects.admit_run(self.run_state, tenant)
        return True

    async def release(self) -> None:
        """Gives the place of this run among those of its tenant to the next one, even during cancellation."""
        if self._pinned and self._pinned.admission:
            await uncancelled(asyncio.create_task(effects.release_run()))

    def _take_up(self, pinned: Pinned) -> None:
        run = self.run_state
        question = self.run_input.question if isinstance(self.run_input, TurnInput) else None
        self._pinned = pinned
        run.task_queues = pinned.route
        run.max_outage = timedelta(seconds=pinned.max_outage)
        run.question = question or pinned.question
        run.searchable = pinned.searchable
        self._phase.shows_cost = pinned.shows_cost
        run.details.show_question(run.question)
        run.trace.begin(pinned, run.started_at)

    def state(self) -> State:
        """The state from which the next run resumes this one; complete wherever ContinueAsNew is raised."""
        raise NotImplementedError

    async def continue_as_new(self) -> NoReturn:
        """Ends this run, and starts the next one on the current worker version.

        The next run gets what arrives meanwhile: messages, decisions, and a cancellation by Temporal.
        """
        self.run_state.decisions.leave()
        await self.settle()
        end_trace(self.run_state)
        self.run_state.stop.take_up_cancellation()
        workflow.continue_as_new(
            self.run_input.continued_with(self._continuation()),
            initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
        )

    def _continuation(self) -> Continuation:
        run = self.run_state
        return Continuation(
            pinned=self.pinned,
            since=run.started_at,
            stop_request=run.stop.state,
            inbox=run.inbox.state,
            decisions=run.decisions.state,
            session=run.session.values,
            unfinished=self.children.to_retry,
            forks=self.children.to_fork,
            first_run=workflow.info().first_execution_run_id,
            state=self.state(),
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
        self.children.retry(continuation.unfinished)
        self.children.fork(continuation.forks)
        self._phase.restore()
        self.audit.begin(continuation.pinned, None)

    async def settle(self) -> None:
        """Waits until all handlers of signals and updates have finished, so that no message is lost, until the parent
        has been notified, and until the audit log is written."""
        await self._settle_once()
        await self.settle_again()

    async def settle_again(self) -> None:
        """Waits for what has come since then, until nothing is left. Without that, nothing is awaited."""
        while not self._is_settled and workflow.patched(SETTLE_AGAIN):
            await self._settle_once()

    @property
    def _is_settled(self) -> bool:
        return workflow.all_handlers_finished() and self._decisions.is_settled and self.audit.is_settled

    async def _settle_once(self) -> None:
        if not workflow.all_handlers_finished():
            await uncancelled(asyncio.create_task(workflow.wait_condition(workflow.all_handlers_finished)))
        await self._decisions.settle()
        await self.audit.settle()

    async def close_inbox(self) -> list[SteerRequest]:
        """Closes the inbox to further messages, and returns the unread ones."""
        await self.settle()
        self.run_state.inbox.is_closed = True
        self.run_state.decisions.close()
        return self.run_state.inbox.take()

    async def join(self, requests: Sequence[SteerRequest], head: Head) -> Head:
        """Appends messages to the conversation after ``head``, even during cancellation; returns the new head."""
        if not requests:
            return head
        messages = tuple(request.message for request in requests)
        return await uncancelled(asyncio.create_task(effects.append(self.run_state, head, messages)))

    def take_unread(self) -> tuple[SteerRequest, ...]:
        """The messages that came by signals after the inbox was closed. Nothing is awaited after this."""
        self.run_state.inbox.is_closed = True
        return tuple(self.run_state.inbox.take())

    def close(self, status: Status, result: object, *, is_root: bool = True) -> None:
        """Publishes the end, and raises if the run closes as failed or canceled.

        The parent of a canceled child run has got the result by a signal.
        """
        self._phase.end(status)
        if status.phase == "Canceled":
            details = [result] if is_root else []
            raise CancelledError(f"canceled: {status.note}" if status.note else "canceled", *details)
        if status.phase == "Failed":
            kind = status.failure.type if status.failure else None
            raise ApplicationError(status.error or "failed", result, type=kind, non_retryable=True)

    terminate_team = signal("terminate_team", "End after the current turn, or immediately with now: {reason, now}.")
    cancel = signal("cancel", "Cancel the run immediately: {reason}.")
    pause = signal("pause", "Pause the run and its children before their next model call: {name}.")
    resume = signal("resume", "Resume a paused run and its children: {name}.")
    set_session = signal("session", "Change values of the session; null removes one.")
    say = signal("steer", "Send a message to the next speaker: {text, name}.")
    child_waits = signal("child_waits", "whether a child run waits for a person.", is_internal=True)
    ask_again = signal(ASK_AGAIN, "the run may be the next one of its tenant.", is_internal=True)
    child_canceled = signal("child_canceled", "the result of a child run that was canceled.", is_internal=True)
    remember = signal("remember", "a child run asks to remember a decision.", is_internal=True)
    remembered = signal("remembered", "the parent run has remembered a decision.", is_internal=True)

    @workflow.signal(dynamic=True, description="Ignored: no signal of this name is defined.")
    async def ignore(self, name: str, _payloads: Sequence[RawValue]) -> None:
        """Logs and ignores a signal with an unknown, such as misspelt, name."""
        workflow.logger.warning("the signal %r is ignored: no signal of this name is defined", name[:100])

    @workflow.update(name="session", description="Changes values of the session; null removes one. Returns them all.")
    async def change_session(self, changes: JsonObject) -> JsonObject:
        """Changes the session that conditions and functions of this run and its children read from now on."""
        tell_update({})
        return await self._noted(self._handlers.change_session(changes))

    @change_session.validator
    def _validate_session(self, changes: JsonObject) -> None:
        self._handlers.validate_session(changes)

    @workflow.update(
        name="approve", description="Approve or reject a pending call: {call, approved, arguments, reason}."
    )
    async def approve(self, request: ApproveRequest) -> PersonDecision:
        """Takes a person's decision about a pending tool call of this run."""
        return await self._noted(self._decisions.approve(request))

    @approve.validator
    def _validate_approve(self, request: ApproveRequest) -> None:
        self._decisions.validate(request)

    @workflow.update(name="reply", description="Reply to a pending question: {text, to, by}.")
    async def reply(self, request: ReplyRequest) -> PersonDecision:
        """Takes a person's reply to a question of this run."""
        return await self._noted(self._decisions.reply(request))

    @reply.validator
    def _validate_reply(self, request: ReplyRequest) -> None:
        self._decisions.validate_reply(request)

    @workflow.update(name="give_result", description="Give the result of a client's tool: {call, output, by}.")
    async def give_result(self, request: GiveResultRequest) -> PersonDecision:
        """Takes what a tool of the client has returned for a call that this run waits for."""
        self.audit.note()
        return self._decisions.give_result(request)

    @give_result.validator
    def _validate_result(self, request: GiveResultRequest) -> None:
        self._decisions.validate_result(request)

    @workflow.update(name="steer", description="Send a message to the next speaker: {text, name}. Returns its turn.")
    async def steer(self, request: SteerRequest) -> SteerResult:
        """Takes a person's message, read before the next model call of this run or, if any runs, of its children."""
        tell_update({"by": request.name})
        return await self._noted(self._handlers.steer(request.identified(workflow.uuid4().hex)))

    async def _noted(self, handled: Awaitable[Result]) -> Result:
        """The result of an update, which is noted for the audit log, also if the update is refused."""
        try:
            result = await handled
        except Exception:
            self.audit.note()
            raise
        self.audit.note()
        return result

    @steer.validator
    def _validate_steer(self, request: SteerRequest) -> None:
        self._handlers.validate_steer(request)


def _attributes_of(plan: Plan) -> search_attributes.AttributeValues:
    """The team of a run, or of a query with a team as its only target, and the strategy of the team."""
    if isinstance(plan, TeamPlan):
        return {search_attributes.TEAM: plan.name, search_attributes.STRATEGY: plan.strategy}
    if isinstance(plan, QueryPlan) and len(plan.targets) == 1 and plan.targets[0].type == "team":
        (target,) = plan.targets
        return {search_attributes.TEAM: target.name, search_attributes.STRATEGY: target.workflow}
    return {}
