"""The kinds of members, and how a function, a nested team or a person takes a turn."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from temporalio import workflow

from ...contracts.decisions import AskPersonRequest, CheckReplyRequest, PendingDecision
from ...contracts.errors import InvalidInput, ReplyOverdue
from ...contracts.inputs import TurnInput
from ...contracts.message import Message, PersonDecision, TokenUsage, latest_within
from ...contracts.panel import BriefRequest, PerformRequest, SpeakerBrief
from ...contracts.plan import ActivityMember, AgentPlan, HumanMember, TeamMember
from ...contracts.requests import Pinned
from ...contracts.turn import Thread, TurnResult
from ..calls import effects
from ..state.constants import CANCEL_FUNCTIONS, LEAVE_UNREAD_IN_TEAMS
from ..state.decisions import accept
from ..state.stopping import ActivityFailed, is_canceled, uncancelled
from .agent_turn import AgentTurn
from .member_turn import MemberTurn, TeamContext


class FunctionTurn:
    """Calls a registered function: with the brief in a panel, and otherwise with a briefing of the conversation.

    ``begun`` is what there is of the turn if the call fails: the messages of people that the function was to read.
    """

    def __init__(self, member: ActivityMember, team: TeamContext, turn: MemberTurn) -> None:
        self._member = member
        self._team = team
        self._turn = turn
        self.begun = TurnResult(head=turn.thread.head, turns=0)

    async def execute(self) -> TurnResult:
        """The function's result as the message of the turn."""
        team = self._team
        turn = self._turn
        function = self._member.function
        if turn.brief:
            request = PerformRequest(thread=turn.thread, brief=turn.brief, function=function, name=turn.name)
        else:
            team_id = f"Team/{self._member.namespace}/{team.name}"
            session = team.run.session.values
            request = PerformRequest(
                thread=await self._with_inbox(),
                brief=SpeakerBrief(team=team_id, round=1, begun=0, session=session).without_defaults,
                function=function,
                name=turn.name,
                turn=turn.number,
            )
        performed = await effects.perform(team.run, request)
        if performed.coerced and turn.name not in team.warned:
            team.warned.add(turn.name)
            text = "team %s: %s returned neither a text nor {text}: converted with str()"
            workflow.logger.warning(text, team.name, turn.name)
        usage = TokenUsage(tool_calls=1)
        return TurnResult(head=performed.head, messages=(performed.message,), usage=usage)

    async def _with_inbox(self) -> Thread:
        """The conversation with the messages of people that wait."""
        thread = self._turn.thread
        run = self._team.run
        requests = run.inbox.take()
        if not requests:
            return thread
        self.begun = self.begun.with_unread(requests)
        messages = tuple(request.message for request in requests)
        head = await uncancelled(asyncio.create_task(effects.append(run, thread.head, messages)))
        self.begun = self.begun.at(head)
        run.stop.checkpoint()
        if is_canceled() and workflow.patched(CANCEL_FUNCTIONS):
            raise asyncio.CancelledError
        return thread.at(head)


class NestedTeamTurn:
    """Runs the team at the turn's place in the conversation, or on a brief in a separate conversation."""

    def __init__(self, member: TeamMember, team: TeamContext, turn: MemberTurn) -> None:
        self._member = member
        self._team = team
        self._turn = turn

    async def execute(self) -> TurnResult:
        """The messages of the team, as far as they are part of the conversation."""
        member = self._member
        turn = self._turn
        thread = turn.thread
        place = f"turn-{turn.number}"
        if brief := turn.brief:
            thread = await effects.brief(self._team.run, BriefRequest(thread=thread, brief=brief), turn.name)
            place = f"round-{brief.round}/{brief.part if brief.member_index is None else brief.member_index + 1}"
        turn_input = TurnInput(team=member.name, namespace=member.namespace, thread=thread)
        result = await self._team.children.execute(member.strategy, turn_input, place, turn.thread.head)
        if turn.brief or member.joins == "conversation":
            return result
        return await self._joined(result)

    async def _joined(self, result: TurnResult) -> TurnResult:
        """The turn of a panel, of which at most the result joins the conversation."""
        head = self._turn.thread.head
        if result.failure:
            return result.at(head)
        if self._member.joins == "nothing" or not result.message:
            return result.saying(head)
        message = Message(
            role="assistant", content=result.message, name=self._member.name, finish_reason=result.finish_reason
        )
        task = asyncio.create_task(effects.append(self._team.run, head, (message,)))
        return result.saying(await uncancelled(task), message)


class AgentRun:
    """Lets an agent or a model take its turn in a run of its own, for which its team has ``pinned`` the plan."""

    def __init__(self, pinned: Pinned, team: TeamContext, turn: MemberTurn) -> None:
        self._pinned = pinned
        self._team = team
        self._turn = turn

    async def execute(self) -> TurnResult:
        """The result of the agent's turn."""
        member = self._pinned.plan
        assert isinstance(member, AgentPlan)
        turn = self._turn
        turn_input = TurnInput(
            agent=member.name if member.kind == "agent" else None,
            model=member.name if member.kind == "model" else None,
            namespace=member.namespace,
            thread=turn.thread,
            pinned=self._pinned,
            turn=turn.number,
            turns=turn.of,
        )
        return await self._team.children.execute(member.kind, turn_input, f"turn-{turn.number}", turn.thread.head)


class HumanTurn:
    """Asks the person and waits for the reply; a time limit costs one durable timer."""

    def __init__(self, member: HumanMember, team: TeamContext, turn: MemberTurn) -> None:
        self._member = member
        self._team = team
        self._turn = turn

    async def execute(self) -> TurnResult:
        """The reply as the message of the turn; no message if the turn is skipped after its timeout."""
        member = self._member
        turn = self._turn
        run = self._team.run
        pending = run.decisions.known(self._request.decision_id(self._run_id)) or await self._ask()
        check = self._check if member.checked else accept
        decision = await run.decisions.wait(pending, check, continues=True)
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
        member = self._member
        turn = self._turn
        return AskPersonRequest(
            thread=turn.thread,
            team=self._team_id,
            member=member.name,
            turn=turn.number,
            brief=turn.brief,
            waiting=latest_within(self._team.run.inbox.waiting),
        )

    async def _ask(self) -> PendingDecision:
        member = self._member
        request = self._request
        now = workflow.now()
        composed = await effects.ask_person(self._team.run, request)
        return PendingDecision(
            id=request.decision_id(self._run_id),
            kind="question",
            run=self._run_id,
            speaker=self._turn.name,
            since=now,
            until=now + timedelta(seconds=member.timeout) if member.timeout else None,
            question=composed.question,
            output_schema=composed.output_schema,
            approvers=composed.approvers,
        )

    async def _check(self, reply: PersonDecision) -> None:
        """Raises ActivityFailed for a reply that does not fit the member's schema."""
        thread = self._turn.thread
        text = reply.text or ""
        request = CheckReplyRequest(thread=thread, text=text, team=self._team_id, member=self._member.name)
        checked = await effects.check_reply(self._team.run, request)
        if checked.wrong:
            raise ActivityFailed.of(InvalidInput(f"the reply {checked.wrong}"))

    async def _said(self, text: str, decision: PersonDecision) -> TurnResult:
        """Appends the reply to the conversation, after people's other messages, even during cancellation.

        In a child run, the next speaker reads these.

        In a panel, the reply joins the transcript like every contribution.
        """
        run = self._team.run
        turn = self._turn
        reply = Message(role="assistant", content=text, name=turn.name, decision=decision.to_remember())
        if turn.brief:
            return TurnResult(head=turn.thread.head, messages=(reply,))
        messages = (*run.read_at_end(LEAVE_UNREAD_IN_TEAMS), reply)
        head = await uncancelled(asyncio.create_task(effects.append(run, turn.thread.head, messages)))
        return TurnResult(head=head, messages=messages)


class RunningMember(Protocol):
    """A turn of a member. It may raise ContinueAsNew while it waits, and between its steps."""

    async def execute(self) -> TurnResult:
        """Runs the turn to its end."""


MEMBER_KINDS: dict[str, Callable[[Any, TeamContext, MemberTurn], RunningMember]] = {
    "agent": AgentTurn,
    "model": AgentTurn,
    "team": NestedTeamTurn,
    "activity": FunctionTurn,
    "human": HumanTurn,
}
"""The class that takes the turn, by ``kind`` of MemberPlan."""
