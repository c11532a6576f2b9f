"""The base of every workflow type but ``query``: a run that takes one turn, of a team, an agent, a model or a tool."""

import asyncio
from typing import Protocol

from temporalio import workflow

from ...contracts.ark_status import ArkTarget, in_dialect
from ...contracts.inputs import QueryInput, State, TurnInput
from ...contracts.message import Head
from ...contracts.plan import AgentPlan, TeamPlan
from ...contracts.requests import Pinned, PinRequest
from ...contracts.status import Status, turn_status
from ...contracts.turn import TurnResult
from ...resources.base import JsonObject
from ...resources.budget import Budget
from ..calls import effects
from ..calls.traces import end_trace
from ..state.stopping import (
    ActivityFailed,
    ActivityInterrupted,
    ContinueAsNew,
    continue_as_new,
    run_in_scope,
    take_up_cancellation,
)
from .base import BaseWorkflow


def for_client(status: Status, pinned: Pinned | None, target: ArkTarget | None = None) -> Status | JsonObject:
    """The status in the dialect in which the run was pinned, or in which it could not be pinned.

    ``target`` is what runs, where that is no query. Until a run is pinned, its dialect is not known.
    """
    failed = status.failure.dialect if status.failure else None
    return in_dialect(status, pinned.thread.dialect if pinned else failed, target)


def pin_request(given: QueryInput | TurnInput) -> PinRequest:
    """The request of the activity ``pin`` for the input of a run."""
    common = {"workflow": workflow.info().workflow_type, "namespace": given.namespace, "resources": given.resources}
    if isinstance(given, QueryInput):
        return PinRequest(kind="query", name=given.name, spec=given.spec, **common)
    return PinRequest(kind=given.kind, name=given.name, input=given.input, thread=given.thread, **common)


TurnOutput = TurnResult | Status | JsonObject
"""What a turn's workflow returns: for a parent its result, for a client its status, in the dialect of the run."""


class RunningTurn(Protocol):
    """A turn in progress."""

    @property
    def so_far(self) -> TurnResult:
        """The result so far."""

    @property
    def state(self) -> State:
        """The state from which a continued run resumes."""

    @property
    def next_turn(self) -> int | None:
        """The turn in which a message received now is read at the latest, where that is known."""

    async def execute(self) -> TurnResult:
        """Runs the turn to its end."""


class TurnWorkflow(BaseWorkflow[TurnInput]):
    """Pins what it needs, then takes its turn; each workflow type says by ``new_turn`` which one."""

    input_type = TurnInput
    turn: RunningTurn | None = None
    result = TurnResult(head=Head(), turns=0)

    def new_turn(self, state: State | None) -> RunningTurn:
        """The turn that is pinned, at its beginning, or where the ``state`` of the run before this one has left it."""
        raise NotImplementedError

    async def execute(self) -> TurnOutput:
        """The result of the turn; for a client it is a status. A failure is raised with it."""
        is_root = True
        try:
            is_root = self.given.thread is None
            self.result = await run_in_scope(self.run_state.stop, self._take_turn(self.given))
            await self._close_inbox(is_root=is_root)
            self.run_state.details.show_turn(self.given.name, self.result)
        except ContinueAsNew:
            assert self.turn
            await self.settle()
            end_trace(self.run_state)
            take_up_cancellation(self.run_state.stop)
            continue_as_new(self.given.continued_with(self.continuation(self.turn.state)))
        except ActivityFailed as failed:
            self.result = self.result.failed(failed.failure)
        self.ended_at = workflow.now()
        status = self._status()
        result = self._for_client(status) if is_root else self.result.without_defaults
        end_trace(self.run_state, status)
        self.close(status, result, is_root=is_root)
        return result

    async def _close_inbox(self, *, is_root: bool) -> None:
        """Unread messages join the conversation of a root run; a child returns them to its parent."""
        unread = await self.close_inbox()
        if unread and is_root:
            self.result = self.result.at(await self.join(unread, self.result.head))
        elif unread:
            self.result = self.result.with_unread(unread)

    async def _take_turn(self, given: TurnInput) -> TurnResult:
        nothing = TurnResult(head=given.thread.head if given.thread else Head(), turns=0)
        stop = self.run_state.stop
        try:
            if given.carried is None:
                self.begin(await effects.pin(self.run_state, pin_request(given)))
            state = given.carried.state if given.carried else None
            self.turn = self.new_turn(state)
            return (await self.turn.execute()).of_run(stop.note)
        except (ActivityInterrupted, asyncio.CancelledError):
            return nothing.stopped(stop.interruption, stop.note)
        except ActivityFailed as failed:
            return nothing.failed(failed.failure)

    def next_turn(self) -> int | None:
        """What the turn knows; a team that has not begun reads messages in its first turn."""
        if self.turn is None:
            return 1 if not isinstance(self._given, ActivityFailed) and self._given.team else None
        return self.turn.next_turn

    @workflow.query(description="The status of the run, open or closed.")
    def status(self) -> Status | JsonObject:
        """The status of a query (ARK: queries), without responses."""
        return self._for_client(self._status())

    def _for_client(self, status: Status) -> Status | JsonObject:
        """The status in the dialect of the run, if a client has started it with an input that can be read."""
        given = None if isinstance(self._given, ActivityFailed) else self._given
        if given is None or given.thread:
            return status
        return for_client(status, self._pinned, ArkTarget(type=given.kind, name=given.name or ""))

    def _status(self) -> Status:
        result = self.turn.so_far if self.turn and not self.ended_at else self.result
        status = turn_status(result, self.run_state.started_at, self.ended_at, self._budget())
        if self.ended_at:
            return status
        return self.run_state.with_requests(status).with_runs(self.children.running)

    def _budget(self) -> Budget | None:
        """The budget of what runs, with what people have granted to it."""
        plan = self._pinned and self._pinned.plan
        if not isinstance(plan, TeamPlan | AgentPlan):
            return None
        owner = plan.id if isinstance(plan, TeamPlan) else plan.speaker
        return self.run_state.decisions.raised(owner, plan.budget)
