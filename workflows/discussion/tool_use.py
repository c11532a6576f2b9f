"""The use of a tool: by an activity, or in a child run of the agent or the team that the tool asks."""

import asyncio
from datetime import timedelta

from temporalio import workflow

from ...conversation.contracts.continuation import CallOutcome
from ...conversation.contracts.decisions import PendingDecision
from ...conversation.contracts.inputs import TurnInput
from ...conversation.contracts.plan import ApprovalPlan, DelegatePlan, ToolPlan
from ...conversation.contracts.questions import Answer
from ...conversation.contracts.tool_requests import UseToolRequest, UseToolResult
from ...conversation.errors import ToolFailed
from ...conversation.messages.message import TokenUsage, ToolCall
from ...conversation.messages.person_decision import PersonDecision
from ...conversation.messages.turn import TurnResult
from ...conversation.text import truncate
from ..calls import effects
from ..calls.child_workflows import ChildWorkflows
from ..calls.run_traces import tool_span
from ..state.constants import MAX_QUESTIONS
from ..state.errors import ActivityFailed, ContinueAsNew, NotAllowed
from ..state.run_state import RunState
from .server_questions import ServerQuestions


class ToolUse:
    """One use of a tool; ``usage`` is what it has cost until now: it counts once it has a result or an error.

    Where it ``continues``, a long run may continue as new while the call waits for a person.
    """

    def __init__(
        self,
        tool: ToolPlan,
        request: UseToolRequest,
        run: RunState,
        children: ChildWorkflows,
        *,
        continues: bool = False,
    ) -> None:
        self._tool, self._request, self._run, self._children = tool, request, run, children
        self._continues, self.usage = continues, TokenUsage()

    async def execute(self, call: ToolCall) -> CallOutcome:
        """The result, or a message for the model that says why there is none. Raises ActivityFailed if it is to."""
        after = self._request.thread.head
        try:
            used = await self.attempt(truncate(call.name, 64))
            return CallOutcome(message=used.message, after=after, head=used.head, ends=used.ends)
        except ContinueAsNew:
            self.usage = TokenUsage()  # the call is made, and counted, in the next run
            raise
        except NotAllowed as rejected:
            message = call.result_message(str(rejected)).model_copy(update={"decision": rejected.decision})
        except ActivityFailed as failed:
            if self._tool.on_error == "fail" or failed.failure.family == "MemoryError" or failed.failure.budget:
                raise
            fence = {"fence": workflow.uuid4().hex[:16]} if self._tool.untrusted else {}
            message = call.result_message(f"Error: {failed.failure.message}").model_copy(update=fence)
        return CallOutcome(message=message, after=after)

    async def attempt(self, name: str) -> UseToolResult:
        """The result. Raises NotAllowed, ActivityFailed, ActivityInterrupted or CancelledError if the run is to stop,
        and ContinueAsNew."""
        answered = TokenUsage(tool_calls=1)
        try:
            result = await self._use(name)
        except ActivityFailed:
            self.usage += answered
            raise
        self.usage += answered
        return result

    async def _use(self, name: str) -> UseToolResult:
        number, asked = self._left_open()
        request = self._request if asked else await self._allowed(name)
        while True:
            if not asked:
                result = await effects.use_tool(self._run, request, name, self._tool.timeout)
                if result.question is None:
                    return result
                number, asked = number + 1, self._questions.pending(result.question)
            if number > MAX_QUESTIONS:
                raise ActivityFailed.of(ToolFailed(f"{name} has asked more than {MAX_QUESTIONS} questions in one call"))
            answered = Answer(record=asked.record or "", number=number, decision=await self._questions.answer(asked))
            request, asked = self._request.model_copy(update={"answered": answered}), None

    async def _allowed(self, name: str) -> UseToolRequest:
        """The request with the decision that allows the call, and with the answer of whom the tool asks."""
        request = self._request
        if self._tool.approval:
            request = await self._approved(self._tool.approval, name)
        if self._tool.asks:
            request = request.model_copy(update={"answer": await self._answer(self._tool.asks, request)})
        return request

    @property
    def _questions(self) -> ServerQuestions:
        assert self._tool.questions
        thread, speaker = self._request.thread, self._request.speaker
        return ServerQuestions(self._tool.questions, self._run, thread, speaker, continues=self._continues)

    def _left_open(self) -> tuple[int, PendingDecision | None]:
        """The number of the question that the run before this one waited for, and what it waited for."""
        for number in range(1, MAX_QUESTIONS + 1) if self._tool.questions else ():
            if asked := self._run.decisions.known(self._request.question_id(number)):
                return number, asked
        return 0, None

    def _question(self, rule: ApprovalPlan, name: str, arguments: str) -> PendingDecision:
        now = workflow.now()
        return PendingDecision(
            id=self._request.decision_id,
            run=workflow.info().workflow_id,
            speaker=self._request.speaker.rpartition("/")[2],
            since=now,
            until=now + timedelta(seconds=rule.timeout) if rule.timeout else None,
            tool=name,
            arguments=arguments,
            rule=rule.rule,
        )

    async def _approved(self, rule: ApprovalPlan, name: str) -> UseToolRequest:
        """The request with the decision that allows the call, where it needs one. Raises NotAllowed."""
        request = self._request
        asked = self._run.decisions.known(request.decision_id)
        if asked is None:
            review = await effects.review(self._run, request, name)
            if not review.needed:
                return request
            asked = self._question(rule, name, review.arguments)

        async def check(changed: PersonDecision) -> None:
            await effects.review(self._run, request.model_copy(update={"decision": changed}), name)

        decisions = self._run.decisions
        decision = await decisions.wait(asked, check, proceeds=rule.proceeds, continues=self._continues)
        if not decision.approved:
            raise NotAllowed(decision)
        return request.model_copy(update={"decision": decision})

    async def _answer(self, asked: DelegatePlan, request: UseToolRequest) -> str:
        """The answer of whom the tool asks, in a conversation of its own."""
        with self._run.trace.inside(tool_span(self._run, self._tool.name)):
            thread = await effects.delegate(self._run, request, asked.name)
            named = {asked.kind: asked.name, "namespace": asked.namespace, "thread": thread}
            given = TurnInput.model_validate(named)
            result = await self._children.execute(asked.workflow, given, _place(self._request), thread.head)
        self.usage += result.usage
        return self._read(result)

    def _read(self, result: TurnResult) -> str:
        self._run.check_stop()
        task = asyncio.current_task()
        if task and task.cancelling():  # given up by the team around: the call of the child does not raise it
            raise asyncio.CancelledError
        if failure := result.failure or result.above:
            raise ActivityFailed(failure)
        return result.message


def _place(request: UseToolRequest) -> str:
    """The place of a call in its run: the id of the activity that has asked the model, and the number of the call."""
    asked = request.reply.split("/")[-2] if request.reply else "tool"
    return f"call-{asked}-{request.call + 1}"
