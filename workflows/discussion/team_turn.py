"""The turn of a team: its strategy decides the order of the members until the discussion is over."""

from collections.abc import Awaitable, Callable

from ...conversation.contracts.continuation import State, TeamState
from ...conversation.contracts.plan import TeamPlan
from ...conversation.contracts.requests import Pinned
from ...conversation.messages.turn import TurnResult
from ..calls.child_workflows import ChildWorkflows
from ..calls.run_traces import in_team_span
from ..state.run_state import RunState
from .discussion import Discussion

Strategy = Callable[[Discussion], Awaitable[None]]
"""Runs the members of a team, in its order, until the discussion can no longer continue."""


class TeamTurn:
    """A team's discussion under a strategy."""

    def __init__(
        self,
        strategy: Strategy,
        pinned: Pinned,
        run: RunState,
        children: ChildWorkflows,
        state: State | None,
    ) -> None:
        assert isinstance(pinned.plan, TeamPlan)
        assert state is None or isinstance(state, TeamState)
        self._strategy, self._run, self._plan = strategy, run, pinned.plan
        self._since = run.started_at if state else None
        self._discussion = Discussion(pinned.plan, pinned.thread, run, children, state)

    @property
    def state(self) -> TeamState:
        """What a continued run needs to go on."""
        return self._discussion.state

    @property
    def so_far(self) -> TurnResult:
        """What was said until now."""
        return self._discussion.result.so_far

    @property
    def next_turn(self) -> int:
        """The turn in which a message that comes now is read at the latest."""
        return self._discussion.turns + 2

    async def execute(self) -> TurnResult:
        """Runs the discussion to its end; messages of people that nobody has read yet join the conversation."""
        return await in_team_span(self._run, self._plan, self._since, self._discuss)

    async def _discuss(self) -> TurnResult:
        await self._discussion.restore()
        await self._strategy(self._discussion)
        if messages := self._run.inbox.drain():
            await self._discussion.append(messages)
        return self._discussion.result.final()
