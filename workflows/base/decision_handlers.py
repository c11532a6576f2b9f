"""What the update ``approve`` does, and the signals between runs about people who are waited for."""

import asyncio
import contextlib

from pydantic import JsonValue, ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from ...conversation.contracts.decisions import (
    ApproveRequest,
    DecisionsState,
    PendingDecision,
    RememberedDecision,
    WaitingChild,
)
from ...conversation.contracts.replies import ReplyRequest
from ...conversation.errors import InvalidInput
from ...conversation.messages.person_decision import PersonDecision
from ...resources.base import JsonModel
from ..calls.child_workflows import ChildWorkflows
from ..state.cancellation import uncancelled
from ..state.decisions import NotWaiting
from ..state.errors import ActivityFailed
from ..state.run_state import RunState


class DecisionHandlers:
    """Handles people's decisions; ``parent`` is the id of the run above, if there is one.

    A run tells the run above whether a person is waited for, so that the root of a tree of runs knows. What is to be
    remembered goes up to the root, which sends it to all runs: so it reaches them in one order.
    """

    def __init__(self, run: RunState, children: ChildWorkflows, parent: str | None) -> None:
        self._run, self._children, self._parent = run, children, parent
        self._told = False
        self._telling: asyncio.Task[None] | None = None

    async def signal(self, name: str, value: JsonValue) -> None:
        """Handles a signal of the run above or below; what makes no sense is ignored."""
        with contextlib.suppress(ValidationError):
            if name == "child_waits":
                child = WaitingChild.model_validate(value)
                if self._children.is_open(child.run) or not child.waits:
                    self._run.decisions.child_waits(child.run, waits=child.waits)
            elif name == "remember":
                await self._remember_everywhere(RememberedDecision.model_validate(value))
            elif name == "remembered":
                await self._remember_below(RememberedDecision.model_validate(value))

    def validate(self, request: ApproveRequest) -> None:
        """Raises ValueError for a decision that is not acceptable, or for which nothing waits."""
        if problem := request.problem:
            raise ValueError(problem)
        try:
            asked = self._run.decisions.find(request.call)
        except NotWaiting as error:
            raise ValueError(str(error)) from None
        if asked.kind == "question":
            raise ValueError(f"{request.call} does not wait for a yes or no")

    async def approve(self, request: ApproveRequest) -> PersonDecision:
        """Takes a decision about a call; other arguments are checked first. Raises InvalidInput if it can't be."""
        decision = request.decision(workflow.now())
        try:
            if decision.arguments is not None:
                await self._run.decisions.check(request.call, decision)
            asked = self.decide(request.call, decision)
        except (NotWaiting, ActivityFailed) as error:
            raise InvalidInput(str(error)) from None
        if asked.rule and (decision.remember or asked.kind == "budget"):
            others = decision.for_others() if asked.kind != "budget" else decision
            remembered = RememberedDecision(rule=asked.rule, decision=others)
            self._run.decisions.remember(remembered.rule, remembered.decision)
            await self._remember_everywhere(remembered)
        return decision

    def validate_reply(self, request: ReplyRequest) -> None:
        """Raises ValueError for a reply that is not acceptable, or for which nothing waits."""
        if problem := request.problem:
            raise ValueError(problem)
        try:
            asked = self._run.decisions.find(self._question(request))
        except NotWaiting as error:
            raise ValueError(str(error)) from None
        if asked.kind != "question":
            raise ValueError(f"{asked.id} waits for a yes or no, not for a reply")
        if request.declines and not asked.asked_by:
            raise ValueError(f"{asked.speaker} is a member of the team: only what a server asks can be declined")

    async def reply(self, request: ReplyRequest) -> PersonDecision:
        """Takes a person's reply, which is checked first. Raises InvalidInput if it doesn't fit, or comes too late."""
        decision = PersonDecision(approved=not request.declines, at=workflow.now(), text=request.text)
        decision = decision.model_copy(update={"by": request.by} if request.by else {})
        try:
            id_ = self._question(request)
            if decision.approved:
                await self._run.decisions.check(id_, decision)
            self.decide(id_, decision)
        except NotWaiting as error:
            raise InvalidInput(str(error)) from None
        except ActivityFailed as failed:
            raise InvalidInput(failed.failure.message) from None
        return decision.to_remember()

    def _question(self, request: ReplyRequest) -> str:
        """The id of the question that a reply is for. Raises NotWaiting where that is not clear."""
        if request.to:
            return request.to
        questions = [each for each in self._run.decisions.pending if each.kind == "question"]
        if len(questions) == 1:
            return questions[0].id
        listed = ", ".join(f"{each.id} ({each.speaker})" for each in questions[:10]) or "nothing"
        raise NotWaiting(f"say which question the reply is for; waiting in this run: {listed}")

    def decide(self, id_: str, decision: PersonDecision) -> PendingDecision:
        """Takes a decision; what it is about. Raises NotWaiting."""
        asked = self._run.decisions.find(id_)
        self._run.decisions.decide(id_, decision)
        return asked

    async def _remember_everywhere(self, remembered: RememberedDecision) -> None:
        await (self._tell("remember", remembered) if self._parent else self._remember_below(remembered))

    async def _remember_below(self, remembered: RememberedDecision) -> None:
        self._run.decisions.remember(remembered.rule, remembered.decision)
        await self._children.signal_all("remembered", remembered)

    def restore(self, state: DecisionsState | None) -> None:
        """Takes up the state of the run that this one continues, of which the run above knows."""
        self._run.decisions.restore(state)
        self._told = bool(state and state.asked)

    def tell_parent(self) -> None:
        """Tells the run above whether a person is waited for, if that has changed."""
        if self._parent and self._waits != self._told and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell_parent())

    @property
    def _waits(self) -> bool:
        return self._run.decisions.are_awaited

    async def _tell_parent(self) -> None:
        while self._waits != self._told:
            self._told = self._waits
            await self._tell("child_waits", WaitingChild(run=workflow.info().workflow_id, waits=self._told))

    async def settle(self) -> None:
        """Waits until the run above has been told."""
        if self._telling:
            await uncancelled(self._telling)

    async def _tell(self, signal: str, value: JsonModel) -> None:
        with contextlib.suppress(ApplicationError):  # the run above may have ended
            await workflow.get_external_workflow_handle(self._parent or "").signal(signal, value)
