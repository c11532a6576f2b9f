"""The transcript of a panel: what its speakers read of it, and what each of them adds to the conversation."""

from temporalio import workflow

from ...conversation.contracts.member_plans import TeamMember
from ...conversation.contracts.panel_requests import SpeakerBrief, SpeakerRole
from ...conversation.contracts.plan import MemberPlan, PanelPlan
from ...conversation.contracts.requests import Bookmark
from ...conversation.messages.message import Head, Message, PanelMessageKind, Quote
from ...conversation.messages.turn import TurnResult
from ..discussion.discussion import Discussion


class PanelTranscript:
    """The part of a team's conversation that its panel has written, after the head ``begun``."""

    def __init__(self, team: Discussion, plan: PanelPlan, begun: Head) -> None:
        self._team, self._plan, self.begun = team, plan, begun

    def brief(self, round_number: int, part: SpeakerRole, index: int | None = None) -> SpeakerBrief:
        """What a speaker reads in place of the conversation: the member at ``index``, or another part."""
        brief = SpeakerBrief(team=self._team.plan.id, part=part, seat=index, round=round_number, begun=self.begun.depth)
        hidden = part == "synthesizer" and not self._plan.visibility.client
        values = self._team.run.session.values
        more = {"session": values} if values else {}
        return brief.model_copy(update={**more, **({"hidden": True} if hidden else {})})

    async def add(
        self,
        turn: TurnResult,
        speaker: MemberPlan,
        name: str,
        part: PanelMessageKind,
        round_number: int,
        text: str | None = None,
    ) -> TurnResult:
        """Adds the result of a turn, or ``text`` in its place, to the conversation; returns the turn as it is there.

        A result that is a row of the journal already is added by reference.
        """
        if text is None and not isinstance(speaker, TeamMember) and turn.answer is None:
            item: Quote | Message = Quote(row=turn.head.id, name=name, part=part, round=round_number)
        else:
            content = turn.message if text is None else text
            item = Message(role="assistant", content=content, name=name, part=part, round=round_number)
        await self.append(item)
        marked = {"name": name, "part": part, "round": round_number}
        last = Message(role="assistant", content=turn.message if text is None else text).model_copy(update=marked)
        own = () if isinstance(speaker, TeamMember) else turn.messages[:-1]
        return turn.model_copy(update={"head": self._team.result.so_far.head, "messages": (*own, last)})

    async def append(self, *items: Quote | Message) -> None:
        """Adds items to the conversation, and moves the bookmark under which a session shares the transcript."""
        await self._team.append(items, self._bookmark())

    def _bookmark(self) -> Bookmark | None:
        shared, run = self._plan.contributions, workflow.info().workflow_id
        if shared is None:
            return None
        session = shared.session or self._team.thread.session(run)
        return Bookmark(session=session, key=shared.key, owner=f"{run}@{self.begun.id}", begun=self.begun.depth)
