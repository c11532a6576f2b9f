"""The turn of an agent: call its model, execute the tool calls of the answer, repeat (ARK: agent execution)."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta

from temporalio import workflow

from ...contracts import requests
from ...contracts.decisions import Answer, CheckReplyRequest, PendingDecision, Question, QuestionsPlan
from ...contracts.errors import (
    Failure,
    InvalidInput,
    MaxIterationsReached,
    OutputRejected,
    QuotaReached,
    ReplyOverdue,
    ToolFailed,
)
from ...contracts.inputs import AgentState, CallOutcome, TurnInput
from ...contracts.message import Message, PersonDecision, RowRange, TokenUsage, ToolCall, latest_within
from ...contracts.plan import ActivityPlan, AgentPlan, ApprovalPlan, DelegatePlan, ToolPlan, WorkflowPlan
from ...contracts.requests import ReviewResult, UseToolRequest, UseToolResult
from ...contracts.text import truncate
from ...contracts.trace import OpenSpan
from ...contracts.turn import StopReason, Thread, TurnResult
from ..calls import effects, traces
from ..calls.children import ChildWorkflows
from ..calls.effects import portions
from ..calls.traces import tool_span
from ..state.constants import (
    LEAVE_UNREAD,
    LEAVE_UNREAD_IN_TEAMS,
    MAX_CONCURRENT_CALLS,
    MAX_OUTPUT_RETRIES,
    MAX_QUESTIONS,
)
from ..state.decisions import accept
from ..state.run_state import RunState
from ..state.stopping import (
    ActivityFailed,
    ActivityInterrupted,
    ContinueAsNew,
    NotAllowed,
    at_end,
    gather_outcomes,
    is_canceled,
    should_continue_as_new,
    uncancelled,
)
from .member_turn import MemberTurn, TeamContext


class ServerQuestions:
    """Forwards a server's questions, in a call of ``speaker``, an agent or a tool (an id), to a person.

    A long run continues as new while the question is pending.
    """

    def __init__(self, plan: QuestionsPlan, run: RunState, thread: Thread, speaker: str) -> None:
        self._plan = plan
        self._run = run
        self._thread = thread
        self._speaker = speaker

    def pending(self, question: Question) -> PendingDecision:
        """The pending decision for a question; the restored one if the run has continued as new meanwhile."""
        known = self._run.decisions.known(question.id)
        if known:
            return known
        now = workflow.now()
        limit = self._plan.timeout
        return PendingDecision(
            id=question.id,
            kind="question",
            run=workflow.info().workflow_id,
            speaker=self._speaker.rpartition("/")[2],
            since=now,
            until=now + timedelta(seconds=limit) if limit else None,
            question=question.text,
            asked_by=self._plan.server,
            reply_schema=question.reply_schema,
            record=question.record,
            authorizes=question.authorizes,
            approvers=self._plan.approvers,
        ).without_defaults

    async def answer(self, pending: PendingDecision) -> PersonDecision:
        """Waits for the answer. Raises ActivityFailed if there is none in time, and as ``Decisions.wait`` does."""

        async def check(reply: PersonDecision) -> None:
            request = CheckReplyRequest(thread=self._thread, text=reply.text or "", reply_schema=pending.reply_schema)
            if wrong := (await effects.check_reply(self._run, request)).wrong:
                raise ActivityFailed.of(InvalidInput(f"the reply {wrong}"))

        checks = accept if pending.reply_schema is None else check
        decision = await self._run.decisions.wait(pending, checks, continues=True)
        if decision.how == "timeout" and not self._plan.skips:
            text = f"no answer to {self._plan.server} within {self._plan.timeout:g} s"
            raise ActivityFailed.of(ReplyOverdue(text))
        return decision

    async def message(self, question: Question) -> Message:
        """The answer as a message of the conversation."""
        decision = await self.answer(self.pending(question))
        text = _answer_text(decision)
        return Message(role="user", content=text, name=decision.by, decision=decision.to_remember()).without_defaults


def _answer_text(decision: PersonDecision) -> str:
    """The answer as an agent reads it."""
    if decision.how == "timeout":
        return "There was no answer in time. Continue without an answer."
    text = decision.text or ""
    return text if decision.approved else f"I decline to answer: {text}".removesuffix(": ")


async def answer_of(agent: AgentPlan, run: RunState, turn: MemberTurn, question: Question | None) -> Message | None:
    """A person's answer to the question of an agent in its turn; None without a question, or if it may not ask."""
    if question is None or agent.questions is None:
        return None
    return await ServerQuestions(agent.questions, run, turn.thread, agent.speaker).message(question)


NOT_EXECUTED = "Not executed: the turn ended first."
"""The result of a call whose request was not sent."""

NOT_ANSWERED = "Not answered: the run was told to end before anybody had spoken."
"""The result of the call of a team in which nobody spoke any more."""

INTERRUPTED = "Interrupted: the turn ended first, and whether this call was executed is unknown."

NOT_TRANSFERRED = "Not executed: one answer transfers the conversation once, and its first transfer counts."

WITHOUT_RESULT = "Executed, but its result could not be read or stored."
"""The result of a call of an application's activity or workflow that has completed."""


class ToolUse:
    """One tool call; ``usage`` is its token usage so far: the call counts once it has a result or an error.

    A long run continues as new while the call waits for a person.
    """

    def __init__(self, tool: ToolPlan, request: UseToolRequest, run: RunState, children: ChildWorkflows) -> None:
        self._tool = tool
        self._request = request.giving_up(tool.on_error != "fail")  # the failure is reported to the model
        self._run = run
        self._children = children
        self._is_sent = False
        self._is_answered = False
        self.usage = TokenUsage()

    async def execute(self, call: ToolCall) -> CallOutcome:
        """The result, or an error message for the model. Raises ActivityFailed if the failure is to fail the turn."""
        after = self._request.thread.head
        try:
            used = await self.attempt(truncate(call.name, 64))
            return CallOutcome(message=used.message, after=after, head=used.head, ends=used.ends)
        except ContinueAsNew:
            self.usage = TokenUsage()  # the call is executed, and counted, in the next run
            raise
        except NotAllowed as rejected:
            message = call.result_message(str(rejected), decision=rejected.decision)
        except ActivityFailed as failed:
            failure = failed.failure
            is_of_run = failure.family == "MemoryError" or failure.budget or failure.type == QuotaReached.__name__
            if self._tool.on_error == "fail" or is_of_run:
                raise
            message = self._error(call, failure)
        return CallOutcome(message=message, after=after)

    def unanswered(self, call: ToolCall, error: BaseException) -> Message:
        """The text in the conversation for a call that failed the turn, or that was interrupted by its end."""
        if self._is_answered:
            return call.result_message(WITHOUT_RESULT)
        if isinstance(error, ActivityFailed):
            return self._error(call, error.failure)
        return call.result_message(INTERRUPTED if self._is_sent else NOT_EXECUTED)

    def _error(self, call: ToolCall, failure: Failure) -> Message:
        fence = workflow.uuid4().hex[:16] if self._tool.untrusted else None
        return call.result_message(f"Error: {failure.message}", fence=fence)

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
        number, pending = self._left_open()
        self._is_sent = pending is not None
        request = self._request if pending else await self._allowed(name)
        while True:
            if not pending:
                result = await self._call(request, name)
                if result.question is None:
                    return result
                number = number + 1
                pending = self._questions.pending(result.question)
            if number > MAX_QUESTIONS:
                raise ActivityFailed.of(ToolFailed(f"{name} asked more than {MAX_QUESTIONS} questions in one call"))
            answered = Answer(
                record=pending.record or "", number=number, decision=await self._questions.answer(pending)
            )
            request = self._request.after_question(answered)
            pending = None

    async def _call(self, request: UseToolRequest, name: str) -> UseToolResult:
        try:
            result = await effects.use_tool(self._run, request, name, self._tool)
        except ActivityInterrupted as interrupted:
            self._is_sent = self._is_sent or interrupted.activity is not None
            raise
        self._is_sent = True
        return result

    async def _allowed(self, name: str) -> UseToolRequest:
        """The request with the approval of the call, and with the answer of whom the run itself calls for the tool."""
        request = self._request
        if self._tool.approval:
            request = await self._approved(self._tool.approval, name)
        if self._tool.asks:
            request = request.with_answer(await self._answer(self._tool.asks, request))
        if called := self._tool.activity or self._tool.workflow:
            request = request.with_answer(await self._result(called, request, name))
        if self._tool.by_client:
            request = await self._executed_by_client(request, name)
        return request

    @property
    def _questions(self) -> ServerQuestions:
        assert self._tool.questions
        thread = self._request.thread
        speaker = self._request.speaker
        return ServerQuestions(self._tool.questions, self._run, thread, speaker)

    def _left_open(self) -> tuple[int, PendingDecision | None]:
        """The number of the question for which the previous run waited, and its pending decision."""
        for number in range(1, MAX_QUESTIONS + 1) if self._tool.questions else ():
            if pending := self._run.decisions.known(self._request.question_id(number)):
                return number, pending
        return 0, None

    def _question(self, rule: ApprovalPlan, name: str, review: ReviewResult) -> PendingDecision:
        now = workflow.now()
        return PendingDecision(
            id=self._request.decision_id,
            run=workflow.info().workflow_id,
            speaker=self._request.speaker.rpartition("/")[2],
            since=now,
            until=now + timedelta(seconds=rule.timeout) if rule.timeout else None,
            tool=name,
            arguments=review.arguments,
            rule=rule.rule,
            approvers=review.approvers,
        )

    async def _approved(self, rule: ApprovalPlan, name: str) -> UseToolRequest:
        """The request with the approval of the call, if it needs one. Raises NotAllowed."""
        request = self._request
        pending = self._run.decisions.known(request.decision_id)
        if pending is None:
            review = await effects.review(self._run, request, name)
            if not review.needed:
                return request
            pending = self._question(rule, name, review)

        async def check(changed: PersonDecision) -> None:
            await effects.review(self._run, request.allowed_by(changed), name)

        decisions = self._run.decisions
        decision = await decisions.wait(pending, check, proceeds=rule.proceeds, continues=True)
        if not decision.approved:
            raise NotAllowed(decision)
        return request.allowed_by(decision)

    async def _executed_by_client(self, request: UseToolRequest, name: str) -> UseToolRequest:
        """The request with the result that the run's client gives, for which the call waits without a limit."""
        pending = self._run.decisions.known(request.decision_id)
        if pending is None:
            checked = await effects.check_arguments(self._run, request, name)
            pending = PendingDecision(
                id=request.decision_id,
                kind="client_tool",
                run=workflow.info().workflow_id,
                speaker=request.speaker.rpartition("/")[2],
                since=workflow.now(),
                tool=name,
                arguments=json.dumps(checked.arguments[0], ensure_ascii=False),
            ).without_defaults
        self._is_sent = True
        result = await self._run.decisions.wait(pending, continues=True)
        return request.with_answer(result.text or "").allowed_by(result.to_remember())

    async def _answer(self, delegate: DelegatePlan, request: UseToolRequest) -> str:
        """The answer of the agent or team that the tool delegates to, in a separate conversation."""
        with self._run.trace.inside(tool_span(self._run, self._tool.name)):
            thread = await effects.delegate(self._run, request, delegate.name)
            fields = {delegate.kind: delegate.name, "namespace": delegate.namespace, "thread": thread}
            turn_input = TurnInput.model_validate(fields)
            self._is_sent = True
            result = await self._children.execute(delegate.workflow, turn_input, _place(self._request), thread.head)
        self.usage += result.usage
        return self._read(result)

    async def _result(self, called: ActivityPlan | WorkflowPlan, request: UseToolRequest, name: str) -> str:
        """The result of the application's activity or workflow that the tool calls."""
        with self._run.trace.inside(tool_span(self._run, self._tool.name)):
            checked = await effects.check_arguments(self._run, request, name)
            if checked.recorded is not None:
                self._is_answered = True
                return checked.recorded
            try:
                if isinstance(called, WorkflowPlan):
                    result = await self._children.execute_application(
                        called,
                        checked.arguments,
                        self._tool,
                        _place(request),
                        f"{request.speaker.rpartition('/')[2]} uses {name}",
                    )
                else:
                    result = await effects.call_application(
                        self._run, request, name, self._tool, called, checked.arguments
                    )
            except ActivityInterrupted as interrupted:
                self._is_sent = interrupted.activity is not None
                raise
        self._is_answered = True
        return effects.result_text(result, name)

    def _read(self, result: TurnResult) -> str:
        self._run.stop.checkpoint()
        if is_canceled():  # canceled by the enclosing team, for which the child's result does not raise
            raise asyncio.CancelledError
        if failure := result.failure or result.above:
            raise ActivityFailed(failure)
        if self._run.stop.is_requested and not result.turns:
            return NOT_ANSWERED
        return result.message


def _place(request: UseToolRequest) -> str:
    """The place of a call in its run: the id of the activity that called the model, and the number of the call."""
    agent = request.reply.split("/")[-2] if request.reply else "tool"
    return f"call-{agent}-{request.call + 1}"


class AgentTurn:
    """One turn of an agent. A long run continues as new between two steps: no other member speaks in the run."""

    next_turn = None  # a lone agent has no later turn in which a message would be read

    def __init__(self, agent: AgentPlan, team: TeamContext, turn: MemberTurn) -> None:
        state = turn.state or AgentState(kind="agent", head=turn.thread.head, model_calls=0)
        self.agent = agent
        self.run = team.run
        self.turn = turn
        self.head = state.head
        self.messages = [*state.messages]
        self.cut = state.cut
        self.usage = state.usage
        self.model_calls = state.model_calls
        self.rejected = state.rejected
        self.reply = state.reply
        calls = state.reply.message.tool_calls if state.reply else ()
        self.open_calls = {number: call for number, call in enumerate(calls) if number >= state.done}
        self.outcomes = dict(state.outcomes)
        self._unanswered: dict[int, Message] = {}
        self.pending = [*state.pending]
        self.ends_team = state.ends
        self.handoff = state.handoff
        self.answer = state.answer
        self._children = team.children
        self._before_failure: AgentState | None = None
        self._span = traces.agent_span(team.run, agent, turn.number, state.span)

    @property
    def state(self) -> AgentState:
        """The state from which a continued run resumes the turn, or from which a retry resumes one that failed."""
        return self._before_failure or self._state(self._span.open if self.run.trace.is_on else None)

    def _keep_state(self) -> None:
        """Keeps the state before the failed or interrupted call: what follows only ends the turn.

        A model that has not followed its output schema gets all its attempts again.
        """
        if self._before_failure is None:
            self.rejected = 0
            self._before_failure = self._state(span=None)
            self.run.inbox.keep()

    def _state(self, span: OpenSpan | None) -> AgentState:
        so_far = self.so_far
        return AgentState(
            kind="agent",
            head=self.head,
            model_calls=self.model_calls,
            rejected=self.rejected,
            reply=self.reply,
            done=len(self.reply.message.tool_calls) - len(self.open_calls) if self.reply else 0,
            ends=self.ends_team,
            pending=tuple(self.pending),
            messages=so_far.messages,
            cut=so_far.cut,
            usage=self.usage,
            answer=self.answer,
            outcomes={index: outcome for index, outcome in self.outcomes.items() if index in self.open_calls},
            handoff=self.handoff,
            span=span,
        ).without_defaults

    @property
    def so_far(self) -> TurnResult:
        """The result of the turn so far."""
        messages = latest_within(self.messages)
        cut = self.cut or len(messages) < len(self.messages)
        return TurnResult(head=self.head, messages=messages, cut=cut, usage=self.usage, answer=self.answer or None)

    async def execute(self) -> TurnResult:
        """Runs the turn to its end, including a failure; afterwards all its messages are in the conversation."""
        # A model that is called without an agent has no span besides that of its call.
        with contextlib.nullcontext() if self.agent.kind == "model" else self.run.trace.inside(self._span):
            reason: StopReason = "completed"
            failure: Failure | None = None
            try:
                while self.open_calls or self.model_calls < self.agent.max_iterations:
                    if self.reply is None:
                        await self._read_inbox()
                        ask = effects.execute_agent if self.agent.engine else effects.ask_model
                        self._add_reply(await ask(self.run, self._request(), self.agent))
                    if await self._is_over():
                        break
                else:
                    calls = f"{self.model_calls} model calls in one turn without a final answer"
                    raise ActivityFailed.of(
                        MaxIterationsReached(f"agent {self.agent.name} reached maxIterations: {calls}")
                    )
            except (ActivityInterrupted, asyncio.CancelledError):
                reason = self.run.stop.interruption
                self._keep_state()
            except ActivityFailed as failed:
                reason = "failed"
                failure = failed.failure
                self.usage += failed.usage
                self._keep_state()
            result = await self._end(reason, failure)
            self._span.finish(result.stop_reason, result.failure)
        return result

    async def _read_inbox(self) -> None:
        """Waits while the run is paused, and adds people's messages to the next request."""
        await self.run.ready(continues=True)
        if not self.turn.brief:  # a brief has the messages already
            self.pending += self.run.inbox.drain()
        if len(portions(tuple(self.pending))) > 1:
            await self._append_pending()

    def _add_reply(self, reply: requests.AskModelResult) -> None:
        self.reply = reply
        self.head = reply.head
        self.pending = []
        self.model_calls += 1
        self.open_calls = dict(enumerate(reply.message.tool_calls))
        self.outcomes = {}
        self._unanswered = {}
        self.messages += [*reply.earlier, reply.message]
        self.usage += reply.usage

    async def _is_over(self) -> bool:
        """Handles the reply; whether it ends the turn: it calls no tool, or a tool has ended the team."""
        reply = self.reply
        assert reply
        if reply.wrong:
            message: Message | None = self._rejection(reply.wrong)
        else:
            message = await answer_of(self.agent, self.run, self.turn, reply.question)
        if message:
            self.messages.append(message)
            self.pending.append(message)
        elif not reply.message.tool_calls:
            return True
        await self._use_tools(reply)
        if self.ends_team or self.handoff is not None:
            return True
        self.reply = None
        self._continue_as_new_if_long()
        return False

    def _rejection(self, wrong: str) -> Message:
        """The message that requests a corrected answer; raises ActivityFailed after MAX_OUTPUT_RETRIES."""
        self.rejected += 1
        if self.rejected > MAX_OUTPUT_RETRIES:
            name = self.agent.name
            times = self.rejected
            text = f"agent {name} has no valid answer after {times} attempts: the answer {wrong}"
            raise ActivityFailed.of(OutputRejected(text))
        return Message(role="user", content=f"Your answer {wrong}\nGive it again, as JSON that fits the schema.")

    def _request(self) -> requests.AskModelRequest:
        return requests.AskModelRequest(
            thread=self.turn.thread.at(self.head),
            speaker=self.agent.speaker,
            begun=self.turn.thread.head.depth,
            pending=tuple(self.pending),
            turn=self.turn.number,
            turns=self.turn.of,
            window=self.agent.window,
            brief=self.turn.brief,
            member=self.agent.handoffs.place if self.agent.handoffs else None,
        )

    async def _use_tools(self, reply: requests.AskModelResult) -> None:
        """Executes the open tool calls of a reply, sequentially or concurrently."""
        while self.open_calls:
            await self._use_batch(reply, self._next_batch())
            if len(portions(tuple(self.pending))) > 1:
                await self._append_pending()
            if self.open_calls:
                self._continue_as_new_if_long()

    def _next_batch(self) -> list[tuple[int, ToolCall]]:
        """The next calls to execute concurrently. Consecutive calls of the client's tools wait for it together."""
        groups = itertools.groupby(self.open_calls.items(), lambda item: self.agent.tool(item[1].name).by_client)
        by_client, calls = next(groups)
        width = MAX_CONCURRENT_CALLS if self.agent.parallel_tool_calls else 1
        return [*calls][: self.agent.client_calls if by_client else width]

    async def _use_batch(self, reply: requests.AskModelResult, batch: Sequence[tuple[int, ToolCall]]) -> None:
        """Executes calls concurrently. A long run continues as new, with the outcomes, while one waits for a person."""
        outcomes = await gather_outcomes(self._use_tool(reply, index, call) for index, call in batch)
        done = {
            index: outcome
            for (index, _), outcome in zip(batch, outcomes, strict=True)
            if isinstance(outcome, CallOutcome)
        }
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if errors and all(isinstance(error, ContinueAsNew) for error in errors):
            self.outcomes = done
            raise ContinueAsNew
        failed = [error for error in errors if not isinstance(error, ContinueAsNew)]
        if failed:
            self.outcomes = {**done, **self._interrupted(batch)}
            self._keep_state()
        for index, outcome in done.items():
            self._add_result(index, outcome)
        if failed:
            raise failed[0]

    def _interrupted(self, batch: Sequence[tuple[int, ToolCall]]) -> dict[int, CallOutcome]:
        """The calls that were executed, or of which that is unknown: a retry does not make them again."""
        unknown = {index: self._unanswered[index] for index, _ in batch if index in self._unanswered}
        return {
            index: CallOutcome(message=message, after=self.head)
            for index, message in unknown.items()
            if message.content in (INTERRUPTED, WITHOUT_RESULT)
            and not self.agent.tool(self.open_calls[index].name).asks
        }

    async def _use_tool(self, reply: requests.AskModelResult, index: int, call: ToolCall) -> CallOutcome:
        if known := self.outcomes.get(index):
            return known
        thread = self.turn.thread.at(self.head)
        earlier = reply.message.tool_calls[:index]
        if call.name in self._transfers and any(other.name in self._transfers for other in earlier):
            return CallOutcome(message=call.result_message(NOT_TRANSFERRED), after=thread.head)
        tool = self.agent.tool(call.name)
        request = UseToolRequest(
            thread=thread,
            speaker=self.agent.speaker,
            reply=reply.head.id,
            call=index,
            member=self.agent.handoffs.place if self.agent.handoffs else None,
        )
        if tool.reads_run:
            request = request.in_turn(self.turn.number, self.run.session.values)
        use = ToolUse(tool, request, self.run, self._children)

        def charge() -> None:
            self.usage += use.usage

        with at_end(charge):
            try:
                outcome = await use.execute(call)
            except (ActivityFailed, ActivityInterrupted, asyncio.CancelledError) as error:
                self._unanswered[index] = use.unanswered(call, error)
                raise
        self.outcomes[index] = outcome  # of a fork, while other calls of the same answer are open
        return outcome

    @property
    def _transfers(self) -> Mapping[str, int]:
        """The tools by which it can transfer the conversation, with the indexes of the receiving members."""
        return self.agent.handoffs.tools if self.agent.handoffs else {}

    def _add_result(self, index: int, outcome: CallOutcome) -> None:
        """Adds a tool's result to the conversation: at once if it directly follows, or with the next activity."""
        if outcome.message.handoff:
            self.handoff = self._transfers[self.open_calls[index].name]
        if outcome.ends:
            self.ends_team = True
            self.answer = self.answer or outcome.message.content or None
        del self.open_calls[index]
        self.messages.append(outcome.message)
        if isinstance(item := outcome.item, RowRange) and item.after == self.head and not self.pending:
            self.head = item.to
        else:
            self.pending.append(item)

    async def _append_pending(self) -> None:
        """Appends the pending items to the conversation, even during cancellation."""
        if self.pending:
            items = tuple(self.pending)
            self.pending = []
            self.head = await uncancelled(asyncio.create_task(effects.append(self.run, self.head, items)))

    def _continue_as_new_if_long(self) -> None:
        if should_continue_as_new():
            raise ContinueAsNew

    async def _end(self, reason: StopReason, failure: Failure | None) -> TurnResult:
        if not self.turn.brief:
            patch = LEAVE_UNREAD if self.run.kind == "agent" else LEAVE_UNREAD_IN_TEAMS
            # A turn that failed is retried with these messages.
            self.pending += self.run.read_at_end(patch) if reason == "completed" else self.run.inbox.drain()
        for index, call in [*self.open_calls.items()]:
            message = self._unanswered.get(index) or call.result_message(NOT_EXECUTED)
            self._add_result(index, self.outcomes.get(index) or CallOutcome(message=message, after=self.head))
        try:
            await self._append_pending()
        except ActivityFailed as failed:
            reason = "failed"
            failure = failure or failed.failure
        if failure is None:
            result = self.so_far.stopped(reason, ended=self.ends_team and reason == "completed")
            return result.handed_to(self.handoff)
        failure = failure.in_turn(self.agent.name, self.turn.number)
        return self.so_far.ended_by(failure, self.agent.speaker) if failure.budget else self.so_far.failed(failure)
