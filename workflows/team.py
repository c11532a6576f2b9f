"""What is a team's run? A discussion whose next speaker a strategy decides."""

from conversation.carried import State, TeamState
from conversation.plan import TeamPlan
from conversation.requests import Pinned
from conversation.turn import Turn
from conversation.wishes import Steered
from workflows.discussion import Discussion
from workflows.member import Member


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
