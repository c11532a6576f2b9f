"""How does a team, an agent, a model or a tool take its turn as a run of its own?"""

import asyncio
from typing import Protocol

from temporalio import workflow

from ...conversation.contracts.continuation import State
from ...conversation.contracts.inputs import TurnInput
from ...conversation.contracts.requests import Pinned, PinRequest
from ...conversation.contracts.status import Status, turn_status
from ...conversation.messages.message import Head
from ...conversation.messages.turn import Turn
from ..calls import effects
from ..calls.execute_activity import Failed, Interrupted
from ..state.continue_as_new import Rest, go_on
from ..state.current_details import show
from .base_workflow import Run, close


class Speaking(Protocol):
    """A turn in progress."""

    @property
    def so_far(self) -> Turn:
        """What has been said until now."""

    @property
    def state(self) -> State:
        """What a run must know to go on from here."""


class Member(Run[TurnInput]):
    """The base of every workflow but ``query``: pins what it needs, then takes its turn."""

    takes = TurnInput
    speaking: Speaking | None = None
    turn = Turn(head=Head(), turns=0)

    async def conduct(self) -> Turn:
        """Takes the turn that is asked for. Where there is no parent to return it to, a failure is raised."""
        parent = False
        try:
            parent = self.given.thread is not None
            self.turn = await self.stop.guard(self._take(self.given, goes_on=self.goes_on()))
            show(self.given.name, self.turn)
        except Rest:
            assert self.speaking
            go_on(self.given.going_on(self.carried(self.speaking.state)))
        except Failed as failed:
            self.turn = self.turn.model_copy(update={"stop_reason": "failed", "failure": failed.failure})
        self.end = workflow.now()
        status = self.status()
        self.finish(status)
        if not parent:
            close(status, self.turn)
        return self.turn

    async def speak(self, pinned: Pinned, state: State | None) -> Turn:
        """Takes the turn, or what is left of it; what a subclass is for."""
        raise NotImplementedError

    async def _take(self, given: TurnInput, *, goes_on: bool) -> Turn:
        nothing = Turn(head=given.thread.head if given.thread else Head(), turns=0)
        try:
            if not goes_on:
                self.begin(await effects.pin(_pin_request(given)))
            return await self.speak(self.pinned, given.carried.state if given.carried else None)
        except (Interrupted, asyncio.CancelledError):
            return nothing.model_copy(update={"stop_reason": self.stop.reason or "canceled", "note": self.stop.note})
        except Failed as failed:
            return nothing.model_copy(update={"stop_reason": "failed", "failure": failed.failure})

    @workflow.query(description="How the run stands, or how it has ended.")
    def status(self) -> Status:
        """The status of seed 003, without responses."""
        turn = self.speaking.so_far if self.speaking and not self.end else self.turn
        return turn_status(turn, self.since, self.end)


def _pin_request(given: TurnInput) -> PinRequest:
    return PinRequest(
        kind=given.kind,
        workflow=workflow.info().workflow_type,
        name=given.name,
        namespace=given.namespace,
        input=given.input,
        resources=given.resources,
        thread=given.thread,
    )
