"""What is a team's run? A discussion whose next speaker a strategy decides."""

from ..conversation.contracts.continuation import State, TeamState
from ..conversation.contracts.control_messages import Steered
from ..conversation.contracts.plan import TeamPlan
from ..conversation.contracts.requests import Pinned
from ..conversation.messages.turn import Turn
from .base.turn_workflow import Member
from .discussion.discussion import Discussion


class Team(Member):
    """The base of all strategies."""

    async def speak(self, pinned: Pinned, state: State | None) -> Turn:
        assert isinstance(pinned.plan, TeamPlan)
        assert state is None or isinstance(state, TeamState)
        discussion = Discussion(pinned.plan, pinned.thread, self.stop, self.children, self.since, state)
        self.speaking = discussion
        await discussion.resume()
        await self.discuss(discussion)
        if said := self.stop.floor.take():
            await discussion.append(said)
        return discussion.result()

    def heard(self) -> Steered:
        return Steered(turn=self.speaking.so_far.turns + 2 if self.speaking else 1)

    async def discuss(self, team: Discussion) -> None:
        """Hears the members in the strategy's order until the discussion no longer goes on."""
        raise NotImplementedError
