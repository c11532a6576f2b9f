"""The base of every workflow type but ``query``: a run that takes one turn, of a team, an agent, a model or a tool."""

import asyncio
from typing import Protocol

from temporalio import workflow

from ...contracts.ark_status import ArkTarget, in_dialect
from ...contracts.control_messages import SteerRequest
from ...contracts.inputs import State, TurnInput
from ...contracts.message import Head
from ...contracts.plan import AgentPlan, TeamPlan
from ...contracts.requests import Pinned
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
    run_in_scope,
)
from .base import BaseWorkflow, pin_request


def for_client(status: Status, pinned: Pinned | None, target: ArkTarget | None = None) -> Status | JsonObject:
    """The status with the value of its answer, in the dialect of the run, which is known once pinning has ended.

    ``target`` is what runs, if it is not a query.
    """
    if pinned and (fork := pinned.forked_from):
        status = status.forked(fork.run, fork.at)
    refusal = status.failure.refusal if status.failure else None
    dialect = pinned.thread.dialect if pinned else refusal.dialect if refusal else None
    return in_dialect(status.with_value(), dialect, target)


TurnOutput = TurnResult | Status | JsonObject
"""The result of a turn workflow: a TurnResult for a parent, a status in the dialect of the run for a client."""


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
    """Pins its manifests, then takes its turn, which the workflow types define in ``new_turn``."""

    input_type = TurnInput
    turn: RunningTurn | None = None
    result = TurnResult(head=Head(), turns=0)
    _unread: tuple[SteerRequest, ...] = ()

    def new_turn(self, state: State | None) -> RunningTurn:
        """The pinned turn, at its beginning or as restored from the ``state`` of the previous run."""
        raise NotImplementedError

    async def execute(self) -> TurnOutput:
        """The result of the turn, or for a client its status. Raises ApplicationError with it if the turn failed."""
        is_root = True
        try:
            is_root = self.run_input.thread is None
            self.result = await run_in_scope(self.run_state.stop, self._take_turn(self.run_input))
            await self._close_inbox(is_root=is_root)
            self.run_state.details.show_turn(self.run_input.name, self.result)
        except ContinueAsNew:
            await self.continue_as_new()
        except ActivityFailed as failed:
            self.result = self.result.failed(failed.failure)
        self.ended_at = workflow.now()
        await self.audit.end(lambda: self._status().phase, is_root=is_root)
        await self.release()
        await self.settle_again()
        self._unread = self.take_unread()
        if not is_root:
            self.result = self.result.with_unread((*self.result.unread, *self._unread))
            if self.result.stop_reason == "canceled":
                await self._report_to_parent()
        status = self._status()
        result = self._for_client(status) if is_root else self.result.without_defaults
        end_trace(self.run_state, status)
        self.close(status, result, is_root=is_root)
        return result

    def state(self) -> State:
        """The state of the turn."""
        assert self.turn
        return self.turn.state

    async def _report_to_parent(self) -> None:
        """Sends the result to the parent, as Temporal drops that of a canceled run.

        It is sent again with the messages of people that came meanwhile.
        """
        reported = None
        while self.result != reported:
            reported = self.result
            await self._decisions.report_canceled(reported)
            await self.settle_again()
            self.result = reported.with_unread((*reported.unread, *self.take_unread()))

    async def _close_inbox(self, *, is_root: bool) -> None:
        """Unread messages join the conversation of a root run; a child returns them to its parent."""
        unread = await self.close_inbox()
        if unread and is_root:
            self.run_state.inbox.keep(unread)
            self.result = self.result.at(await self.join(unread, self.result.head))
        elif unread:
            self.result = self.result.with_unread(unread)

    async def _take_turn(self, turn_input: TurnInput) -> TurnResult:
        nothing = TurnResult(head=turn_input.thread.head if turn_input.thread else Head(), turns=0)
        stop = self.run_state.stop
        try:
            if turn_input.retries:
                await self.continue_failed()
                turn_input = self.run_input
            elif turn_input.fork:
                if ended := await self.continue_fork():
                    return ended
                turn_input = self.run_input
            if turn_input.carried is None:
                self.begin(turn_input.pinned or await effects.pin(self.run_state, pin_request(turn_input)))
            state = turn_input.carried.state if turn_input.carried else None
            await self.admitted()
            self.turn = self.new_turn(state)
            turn = await self.turn.execute()
            return turn.of_member(stop.note) if turn_input.turn else turn.of_run(stop.note)
        except (ActivityInterrupted, asyncio.CancelledError):
            return nothing.stopped(stop.interruption, stop.note)
        except ActivityFailed as failed:
            return nothing.failed(failed.failure)

    def next_turn(self) -> int | None:
        """The turn's own value; a team that has not begun reads messages in its first turn."""
        if self.turn is None:
            return 1 if not isinstance(self._run_input, ActivityFailed) and self._run_input.team else None
        return self.turn.next_turn

    @workflow.query(description="The status of the run, open or closed.")
    def status(self) -> Status | JsonObject:
        """The status of a query (ARK: queries), without responses."""
        return self._for_client(self._status())

    def _for_client(self, status: Status) -> Status | JsonObject:
        """The status in the dialect of the run, if a client has started it with a valid input."""
        run_input = None if isinstance(self._run_input, ActivityFailed) else self._run_input
        if run_input is None or run_input.thread:
            return status
        return for_client(status, self._pinned, ArkTarget(type=run_input.kind, name=run_input.name or ""))

    def _status(self) -> Status:
        result = self.turn.so_far if self.turn and not self.ended_at else self.result
        status = turn_status(result, self.run_state.started_at, self.ended_at, self._budget())
        if self.ended_at:
            return status.with_unread(self._unread)
        return self.run_state.with_requests(status).with_runs(self.children.running, self.children.of_application)

    def _budget(self) -> Budget | None:
        """The budget of the team or agent, with the amounts that people have granted."""
        plan = self._pinned and self._pinned.plan
        if not isinstance(plan, TeamPlan | AgentPlan):
            return None
        owner = plan.id if isinstance(plan, TeamPlan) else plan.speaker
        return self.run_state.decisions.raised(owner, plan.budget)
