"""The turn of a member that is a person: the run waits for the reply, which joins the conversation."""

import asyncio
from datetime import timedelta

from temporalio import workflow

from ...conversation.contracts.decisions import PendingDecision
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
        asked = run.decisions.known(self._request.decision_id(self._run_id)) or await self._ask()
        check = self._check if member.checked else accept
        decision = await run.decisions.wait(asked, check, continues=turn.index is not None)
        if decision.text is not None:
            return await self._said(decision.text, decision)
        if member.skips:
            return TurnResult(head=turn.thread.head)
        raise ActivityFailed.of(ReplyOverdue(f"{turn.name} has not replied within {member.timeout:g} s"))

    @property
    def _team_id(self) -> str:
        return f"Team/{self._member.namespace}/{self._team.name}"

    @property
    def _run_id(self) -> str:
        return workflow.info().workflow_id

    @property
    def _request(self) -> AskPersonRequest:
        member, turn = self._member, self._turn
        request = AskPersonRequest(thread=turn.thread, team=self._team_id, member=member.name, turn=turn.number)
        return request.model_copy(update={"brief": turn.brief}) if turn.brief else request

    async def _ask(self) -> PendingDecision:
        member, request, now = self._member, self._request, workflow.now()
        read = await people.ask_person(self._team.run, request)
        return PendingDecision(
            id=request.decision_id(self._run_id),
            kind="question",
            run=self._run_id,
            speaker=self._turn.name,
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
        """Adds the reply to the conversation, after what people said meanwhile, even while the run is cancelled.

        In a panel, the reply joins the transcript as every contribution does.
        """
        run, turn = self._team.run, self._turn
        own = Message(role="assistant", content=text, name=turn.name, decision=decision.to_remember())
        if turn.brief:
            return TurnResult(head=turn.thread.head, messages=(own,))
        said = (*run.inbox.drain(), own)
        head = await uncancelled(asyncio.create_task(effects.append(run, turn.thread.head, said)))
        return TurnResult(head=head, messages=said)
