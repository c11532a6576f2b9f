"""What does one agent do in its turn? Asks its model, uses the tools it calls for, asks again (seed 004)."""

import asyncio

from conversation.briefs import Brief
from conversation.errors import Failure, MaxIterationsReached, OutputRejected
from conversation.message import Message, Span, TokenUsage, ToolCall, cut, latest
from conversation.plan import AgentPlan, ToolPlan
from conversation.requests import Asked, AskRequest, Item, Used, UseRequest
from conversation.turn import StopReason, Thread, Turn
from workflows import effects
from workflows.effects import Failed, Interrupted
from workflows.stopping import Stop, settle, uninterrupted

REPAIRS = 2
"""How often an agent is asked again for an answer that has the wrong form."""


class AgentTurn:
    """One agent's turn in a thread, the ``number``-th of ``of`` in its discussion, or on a panel's ``brief``."""

    def __init__(
        self,
        agent: AgentPlan,
        thread: Thread,
        stop: Stop,
        number: int = 1,
        of: int | None = None,
        brief: Brief | None = None,
    ) -> None:
        self.agent, self.thread, self.stop, self.number, self.of = agent, thread, stop, number, of
        self.brief, self.head = brief, thread.head
        self.pending: list[Item] = []
        self.unanswered: list[ToolCall] = []
        self.messages: list[Message] = []
        self.usage = TokenUsage()
        self.answer: str | None = None

    @property
    def so_far(self) -> Turn:
        """What has been said in the turn until now."""
        turn = Turn(head=self.head, messages=latest(self.messages), usage=self.usage)
        return turn.model_copy(update={"answer": self.answer}) if self.answer else turn

    async def take(self) -> Turn:
        """Takes the turn to its end, whatever that is; everything said is on the conversation afterwards."""
        try:
            ended = await self._converse()
        except (Interrupted, asyncio.CancelledError):
            return await self._end(self.stop.reason or "canceled")
        except Failed as failed:
            return await self._end("failed", failed.failure)
        return await self._end("completed", ended=ended)

    async def _converse(self) -> bool:
        """Whether the agent has ended its team."""
        refused = 0
        for _ in range(self.agent.max_iterations):
            self.stop.check()
            reply = await self._ask()
            if reply.wrong:
                refused += 1
                self._refuse(reply.wrong, refused)
            elif not reply.message.tool_calls:
                return False
            elif await self._use_tools(reply):
                return True
        asked = f"agent {self.agent.name} has asked its model {self.agent.max_iterations} times in one turn"
        raise Failed.by(MaxIterationsReached(f"{asked} and has no final answer: maxIterations bounds it"))

    def _refuse(self, wrong: str, times: int) -> None:
        """Asks the agent to mend its answer; raises Failed when it was asked often enough."""
        if times > REPAIRS:
            raise Failed.by(OutputRejected(f"agent {self.agent.name} was asked {times} times; its answer {wrong}"))
        again = Message(role="user", content=f"Your answer {wrong}\nGive it again, as JSON that fits the schema.")
        self.messages.append(again)
        self.pending.append(again)

    async def _ask(self) -> Asked:
        models = self.agent.models
        reply = await effects.first_answer(models, lambda place: effects.ask_model(self._request(place), models))
        self.head, self.pending = reply.head, []
        self.unanswered = list(reply.message.tool_calls)
        self.messages.append(reply.message)
        self.usage += (reply.message.usage or TokenUsage()) + TokenUsage(model_calls=1)
        return reply

    def _request(self, fallback: int) -> AskRequest:
        request = AskRequest(
            thread=self.thread.model_copy(update={"head": self.head}),
            speaker=self.agent.speaker,
            begun=self.thread.head.depth,
            pending=tuple(self.pending),
            fallback=fallback,
            turn=self.number,
            turns=self.of,
            window=self.agent.window,
        )
        return request.model_copy(update={"brief": self.brief}) if self.brief else request

    async def _use_tools(self, reply: Asked) -> bool:
        """Carries out the calls of a reply, one after the other or all at once; whether one of them ends the turn."""
        calls = [*enumerate(reply.message.tool_calls)]
        batches = [calls] if self.agent.parallel_tool_calls else [[call] for call in calls]
        ends = False
        for batch in batches:
            self.stop.check()
            after = self.head
            outcomes = await settle(self._use(reply, index, call) for index, call in batch)
            for (_, call), outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Used):
                    if outcome.ends:
                        ends, self.answer = True, self.answer or outcome.message.content or None
                    self._keep(call, outcome.message, Span(after=after, to=outcome.head))
                elif isinstance(outcome, Message):
                    self._keep(call, outcome, outcome)
            if errors := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
                raise errors[0]
        return ends

    async def _use(self, reply: Asked, index: int, call: ToolCall) -> Used | Message:
        tool = next((tool for tool in self.agent.tools if tool.name == call.name), ToolPlan(name=call.name))
        request = UseRequest(
            thread=self.thread.model_copy(update={"head": self.head}),
            speaker=self.agent.speaker,
            reply=reply.head.id,
            call=index,
        )
        self.usage += TokenUsage(tool_calls=1)
        try:
            return await effects.use_tool(request, cut(call.name, 64), tool.timeout)
        except Failed as failed:
            if tool.on_error == "fail" or failed.failure.family == "MemoryError":
                raise
            return _answer(call, f"Error: {failed.failure.message}")

    def _keep(self, call: ToolCall, message: Message, item: Item) -> None:
        """Joins a tool's answer to the conversation: at once if nothing came between, else with the next effect."""
        self.unanswered.remove(call)
        self.messages.append(message)
        if isinstance(item, Span) and item.after == self.head and not self.pending:
            self.head = item.to
        else:
            self.pending.append(item)

    async def _end(self, reason: StopReason, failure: Failure | None = None, *, ended: bool = False) -> Turn:
        for call in [*self.unanswered]:
            refusal = _answer(call, "Not carried out: the turn ended first.")
            self._keep(call, refusal, refusal)
        if self.pending:
            try:
                tail = asyncio.create_task(effects.append(self.head, tuple(self.pending)))
                self.head = await uninterrupted(tail)
            except Failed as failed:
                reason, failure = "failed", failure or failed.failure
        where = {"member": self.agent.name, "turn": self.number}
        failure = failure.model_copy(update=where) if failure else None
        return self.so_far.model_copy(update={"ended": ended, "stop_reason": reason, "failure": failure})


def _answer(call: ToolCall, text: str) -> Message:
    return Message(role="tool", content=text, name=call.name, tool_call_id=call.id)
