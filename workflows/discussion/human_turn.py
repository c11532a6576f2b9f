"""The turn of a member that is a person: the run waits for the reply, which joins the conversation."""

import asyncio
from datetime import timedelta

from temporalio import workflow

from ...conversation.contracts.decisions import PendingDecision, decision_id
from ...conversation.contracts.member_plans import HumanMember
from ...conversation.contracts.replies import AskPersonRequest, CheckReplyRequest
from ...conversation.errors import InvalidInput, ReplyOverdue
from ...conversation.messages.message import Message
from ...conversation.messages.person_decision import PersonDecision
from ...conversation.messages.turn import TurnResult
from ..calls import effects, people
from ..state.cancellation import uncancelled
from ..state.decisions import accept
from ..state.errors import ActivityFailed
from .member_turn import MemberTurn, TeamContext


class HumanTurn:
    """Asks the person, at the cost of a durable timer if there is a limit of time, and else of nothing."""

    def __init__(self, member: HumanMember, team: TeamContext, turn: MemberTurn) -> None:
        self._member, self._team, self._turn = member, team, turn

    async def execute(self) -> TurnResult:
        """The reply as the message of the turn; no message, if there is none in time and the turn is skipped."""
        member, turn, run = self._member, self._turn, self._team.run
        asked = run.decisions.waiting_for(self._id) or await self._ask()
        check = self._check if member.checked else accept
        decision = await run.decisions.wait(asked, check, continues=turn.index is not None)
        if decision.text is not None:
            return await self._said(decision.text, decision)
        if member.skips:
            return TurnResult(head=turn.thread.head)
        raise ActivityFailed.of(ReplyOverdue(f"{turn.name} has not replied within {member.timeout:g} s"))

    @property
    def _id(self) -> str:
        turn = self._turn
        return decision_id(workflow.info().workflow_id, turn.thread.head.id, turn.name, str(turn.number))

    @property
    def _team_id(self) -> str:
        return f"Team/{self._member.namespace}/{self._team.name}"

    async def _ask(self) -> PendingDecision:
        member, turn, now = self._member, self._turn, workflow.now()
        place = {"thread": turn.thread, "team": self._team_id, "member": member.name, "turn": turn.number}
        request = AskPersonRequest.model_validate(place)
        request = request.model_copy(update={"brief": turn.brief}) if turn.brief else request
        read = await people.ask_person(self._team.run, request)
        return PendingDecision(
            id=self._id,
            kind="question",
            run=workflow.info().workflow_id,
            speaker=turn.name,
            since=now,
            until=now + timedelta(seconds=member.timeout) if member.timeout else None,
            question=read.question,
        )

    async def _check(self, reply: PersonDecision) -> None:
        """Raises ActivityFailed for a reply that does not fit the member's schema."""
        thread, text = self._turn.thread, reply.text or ""
        request = CheckReplyRequest(thread=thread, text=text, team=self._team_id, member=self._member.name)
        checked = await people.check_reply(self._team.run, request)
        if checked.wrong:
            raise ActivityFailed.of(InvalidInput(f"the reply {checked.wrong}"))

    async def _said(self, text: str, decision: PersonDecision) -> TurnResult:
        """Adds the reply to the conversation, after what people said meanwhile, even while the run is cancelled."""
        run, turn = self._team.run, self._turn
        own = Message(role="assistant", content=text, name=turn.name, decision=decision.to_remember())
        before = [] if turn.brief else run.inbox.drain()
        head = await uncancelled(asyncio.create_task(effects.append(run, turn.thread.head, (*before, own))))
        return TurnResult(head=head, messages=(*before, own))
