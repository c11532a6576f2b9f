"""The turn of an agent: ask its model, carry out the tool calls of the answer, ask again (ARK: agent execution)."""

import asyncio
from collections.abc import Sequence

from temporalio import workflow

from ...conversation.contracts import requests
from ...conversation.contracts.continuation import AgentState, CallOutcome
from ...conversation.contracts.plan import AgentPlan
from ...conversation.contracts.tool_requests import UseToolRequest
from ...conversation.errors import MaxIterationsReached, OutputRejected
from ...conversation.failure import Failure
from ...conversation.messages.message import Message, Span, TokenUsage, ToolCall, latest_within
from ...conversation.messages.turn import StopReason, TurnResult
from ..calls import effects, remote_agents, run_traces
from ..calls.portions import portions
from ..state.cancellation import gather_outcomes, uncancelled
from ..state.constants import KEPT_OUTCOMES, MAX_OUTPUT_RETRIES, PENDING_IN_PORTIONS
from ..state.continue_as_new import should_continue_as_new
from ..state.errors import ActivityFailed, ActivityInterrupted, ContinueAsNew
from .member_turn import MemberTurn, TeamContext
from .server_questions import answer_of
from .tool_use import ToolUse


class AgentTurn:
    """One turn of an agent. Between two of its steps a long run may continue as new, if no other member speaks."""

    next_turn = None  # a lone agent has no later turn in which a message would be read

    def __init__(self, agent: AgentPlan, team: TeamContext, turn: MemberTurn) -> None:
        state = turn.state or AgentState(kind="agent", head=turn.thread.head, asked=0)
        self.agent, self.run, self.turn, self._children = agent, team.run, turn, team.children
        self.head, self.asked, self.reply, self.ends_team = state.head, state.asked, state.reply, state.ends
        self.messages, self.cut, self.usage = [*state.messages], state.cut, state.usage
        self.rejected, self.pending = state.refused, list[requests.ConversationItem]()
        self.answer, self.outcomes, self._is_alone = state.answer, dict(state.outcomes), turn.index is not None
        self.open_calls = [*state.reply.message.tool_calls][state.done :] if state.reply else []
        self._span = run_traces.agent_span(team.run, agent, turn.number, state.span)

    @property
    def state(self) -> AgentState:
        """What a continued run needs to go on with the turn; complete when nothing is pending."""
        return AgentState(
            **{"kind": "agent", "head": self.head, "asked": self.asked, "refused": self.rejected, "reply": self.reply},
            done=len(self.reply.message.tool_calls) - len(self.open_calls) if self.reply else 0,
            **{"ends": self.ends_team, "outcomes": self.outcomes},
            **{"messages": self.so_far.messages, "cut": self.so_far.cut, "usage": self.usage, "answer": self.answer},
            **({"span": self._span.open} if self.run.trace.is_on else {}),
        )

    @property
    def so_far(self) -> TurnResult:
        """What was said in the turn until now."""
        messages = latest_within(self.messages)
        cut = self.cut or len(messages) < len(self.messages)
        return TurnResult(head=self.head, messages=messages, cut=cut, usage=self.usage, answer=self.answer or None)

    async def execute(self) -> TurnResult:
        """Takes the turn to its end, whatever that is; all that was said is in the conversation afterwards."""
        return await run_traces.in_agent_span(self.run, self.agent, self._span, self._execute)

    async def _execute(self) -> TurnResult:
        try:
            while self.open_calls or self.asked < self.agent.max_iterations:
                self.run.check_stop()
                if await self._is_over(self.reply or await self._ask_model()):
                    break
            else:
                times = f"{self.asked} times in one turn and has no final answer: maxIterations bounds it"
                raise ActivityFailed.of(MaxIterationsReached(f"agent {self.agent.name} has asked its model {times}"))
        except (ActivityInterrupted, asyncio.CancelledError):
            return await self._end(self.run.stop.reason or "canceled")
        except ActivityFailed as failed:
            return await self._end("failed", failed.failure)
        return await self._end("completed")

    async def _is_over(self, reply: requests.AskModelResult) -> bool:
        """Does what a reply calls for; whether it was the last one: no tool was called, or one has ended the team."""
        wrong, asked = reply.wrong, reply.question
        if said := self._rejection(wrong) if wrong else await answer_of(self.agent, self.run, self.turn, asked):
            self.messages, self.pending = [*self.messages, said], [*self.pending, said]
        elif not reply.message.tool_calls:
            return True
        await self._use_tools(reply)
        if not self.ends_team:
            self.reply = None
            await self._continue_as_new_if_long()
        return self.ends_team

    def _rejection(self, wrong: str) -> Message:
        """What asks the agent to correct its answer; raises ActivityFailed when it was asked often enough."""
        self.rejected += 1
        if self.rejected > MAX_OUTPUT_RETRIES:
            name, times = self.agent.name, self.rejected
            raise ActivityFailed.of(OutputRejected(f"agent {name} was asked {times} times; its answer {wrong}"))
        return Message(role="user", content=f"Your answer {wrong}\nGive it again, as JSON that fits the schema.")

    async def _ask_model(self) -> requests.AskModelResult:
        await self.run.ready()
        self.pending += [] if self.turn.brief else self.run.inbox.drain()  # a brief holds them already
        if len(portions(tuple(self.pending))) > 1 and workflow.patched(PENDING_IN_PORTIONS):
            await self._append_pending()
        reply = await remote_agents.ask_agent(self.run, self._request(), self.agent)
        self.head, self.pending, self.reply, self.asked = reply.head, [], reply, self.asked + 1
        self.open_calls, self.outcomes = list(reply.message.tool_calls), {}
        self.messages += [*reply.earlier, reply.message]
        self.usage += (reply.message.usage or TokenUsage()) + TokenUsage(model_calls=1)
        self.usage += reply.summaries or TokenUsage()
        return reply

    def _request(self) -> requests.AskModelRequest:
        return requests.AskModelRequest(
            thread=self.turn.thread.model_copy(update={"head": self.head}),
            speaker=self.agent.speaker,
            begun=self.turn.thread.head.depth,
            pending=tuple(self.pending),
            turn=self.turn.number,
            turns=self.turn.of,
            window=self.agent.window,
            brief=self.turn.brief,
        )

    async def _use_tools(self, reply: requests.AskModelResult) -> None:
        """Carries out the tool calls of a reply that are still open, one after the other or all at once."""
        width = len(self.open_calls) if self.agent.parallel_tool_calls else 1
        while self.open_calls:
            self.run.check_stop()
            first = len(reply.message.tool_calls) - len(self.open_calls)
            await self._use_batch(reply, [*enumerate(self.open_calls[:width], first)])
            if len(portions(tuple(self.pending))) > 1:
                await self._append_pending()
            if self.open_calls:
                await self._continue_as_new_if_long()

    async def _use_batch(self, reply: requests.AskModelResult, batch: Sequence[tuple[int, ToolCall]]) -> None:
        """Carries out some calls. A long run continues as new while one waits for a person, with the outcomes."""
        outcomes = await gather_outcomes(self._use_tool(reply, index, call) for index, call in batch)
        done = {index: each for (index, _), each in zip(batch, outcomes, strict=True) if isinstance(each, CallOutcome)}
        errors = [each for each in outcomes if isinstance(each, BaseException)]
        if errors and all(isinstance(each, ContinueAsNew) for each in errors):
            self.outcomes = done
            await self._append_pending()
            raise ContinueAsNew
        for index, outcome in done.items():
            self._add_result(reply.message.tool_calls[index], outcome)
        if failed := [each for each in errors if not isinstance(each, ContinueAsNew)]:
            raise failed[0]

    async def _use_tool(self, reply: requests.AskModelResult, index: int, call: ToolCall) -> CallOutcome:
        if known := self.outcomes.get(index):
            return known
        thread = self.turn.thread.model_copy(update={"head": self.head})
        request = UseToolRequest(thread=thread, speaker=self.agent.speaker, reply=reply.head.id, call=index)
        use = ToolUse(self.agent.tool(call.name), request, self.run, self._children, continues=self._is_alone)
        try:
            return await use.execute(call)
        finally:
            self.usage += use.usage

    def _add_result(self, call: ToolCall, outcome: CallOutcome) -> None:
        """Adds a tool's result to the conversation: at once if it directly follows, else with the next activity."""
        if outcome.ends:
            self.ends_team, self.answer = True, self.answer or outcome.message.content or None
        self.open_calls.remove(call)
        self.messages.append(outcome.message)
        if isinstance(item := outcome.item, Span) and item.after == self.head and not self.pending:
            self.head = item.to
        else:
            self.pending.append(item)

    async def _append_pending(self) -> None:
        """Writes what is pending to the conversation, even while the run is being cancelled."""
        if self.pending:
            items, self.pending = tuple(self.pending), []
            self.head = await uncancelled(asyncio.create_task(effects.append(self.run, self.head, items)))

    async def _continue_as_new_if_long(self) -> None:
        if self._is_alone and should_continue_as_new():
            await self._append_pending()
            raise ContinueAsNew

    async def _end(self, reason: StopReason, failure: Failure | None = None) -> TurnResult:
        self.pending += [] if self.turn.brief else self.run.inbox.drain()
        kept = self.outcomes if self.outcomes and workflow.patched(KEPT_OUTCOMES) else {}
        for index, call in enumerate(self.reply.message.tool_calls if self.reply else ()):
            if call in self.open_calls:
                refusal = call.result_message("Not carried out: the turn ended first.")
                self._add_result(call, kept.get(index) or CallOutcome(message=refusal, after=self.head))
        try:
            await self._append_pending()
        except ActivityFailed as failed:
            reason, failure = "failed", failure or failed.failure
        if failure:
            failure = failure.model_copy(update={"member": self.agent.name, "turn": self.turn.number})
        end = {"ended": self.ends_team and reason == "completed", "stop_reason": reason, "failure": failure}
        if failure and failure.budget:
            return self.so_far.ended_by(failure, self.agent.speaker)
        return self.so_far.model_copy(update=end)
