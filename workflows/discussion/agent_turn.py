"""What does one agent do in its turn? Asks its model, uses the tools it calls for, asks again (seed 004)."""

import asyncio
from collections.abc import Sequence

from ...conversation.contracts.continuation import AgentState
from ...conversation.contracts.panel_requests import Brief
from ...conversation.contracts.plan import AgentPlan, ToolPlan
from ...conversation.contracts.requests import Asked, AskRequest, Item, Used, UseRequest
from ...conversation.errors import MaxIterationsReached, OutputRejected
from ...conversation.failure import Failure
from ...conversation.messages.message import Message, Span, TokenUsage, ToolCall, cut, latest
from ...conversation.messages.turn import StopReason, Thread, Turn
from ..calls import effects
from ..calls.execute_activity import Failed, Interrupted
from ..state.cancellation import Stop, settle, uninterrupted
from ..state.continue_as_new import Rest, is_long, portions

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
        *,
        rests: bool = False,
        state: AgentState | None = None,
    ) -> None:
        state = state or AgentState(kind="agent", head=thread.head, asked=0)
        self.agent, self.thread, self.stop, self.number, self.of, self.brief = agent, thread, stop, number, of, brief
        self.head, self.asked, self.reply, self.ends = state.head, state.asked, state.reply, state.ends
        self.messages, self.usage, self.answer = [*state.messages], state.usage, state.answer
        self.rests, self.refused, self.pending = rests, state.refused, list[Item]()
        self.unanswered = [*state.reply.message.tool_calls][state.done :] if state.reply else []

    @property
    def state(self) -> AgentState:
        """What another run must know to carry the turn on; to be asked for when nothing is pending."""
        return AgentState(
            kind="agent",
            head=self.head,
            asked=self.asked,
            refused=self.refused,
            reply=self.reply,
            done=len(self.reply.message.tool_calls) - len(self.unanswered) if self.reply else 0,
            ends=self.ends,
            messages=latest(self.messages),
            usage=self.usage,
            answer=self.answer,
        )

    @property
    def so_far(self) -> Turn:
        """What has been said in the turn until now."""
        return Turn(head=self.head, messages=latest(self.messages), usage=self.usage, answer=self.answer or None)

    async def take(self) -> Turn:
        """Takes the turn to its end, whatever that is; everything said is on the conversation afterwards."""
        try:
            await self._converse()
        except (Interrupted, asyncio.CancelledError):
            return await self._end(self.stop.reason or "canceled")
        except Failed as failed:
            return await self._end("failed", failed.failure)
        return await self._end("completed")

    async def _converse(self) -> None:
        """Asks and uses tools until nothing is called for, or the agent has ended its team."""
        while self.unanswered or self.asked < self.agent.max_iterations:
            self.stop.check()
            reply = self.reply or await self._ask()
            if reply.wrong:
                self._refuse(reply.wrong)
            elif not reply.message.tool_calls:
                return
            await self._use_tools(reply)
            if self.ends:
                return
            self.reply = None
            await self._rest()
        asked = f"agent {self.agent.name} has asked its model {self.agent.max_iterations} times in one turn"
        raise Failed.by(MaxIterationsReached(f"{asked} and has no final answer: maxIterations bounds it"))

    def _refuse(self, wrong: str) -> None:
        """Asks the agent to mend its answer; raises Failed when it was asked often enough."""
        self.refused += 1
        if self.refused > REPAIRS:
            raise Failed.by(
                OutputRejected(f"agent {self.agent.name} was asked {self.refused} times; its answer {wrong}")
            )
        again = Message(role="user", content=f"Your answer {wrong}\nGive it again, as JSON that fits the schema.")
        self.messages.append(again)
        self.pending.append(again)

    async def _ask(self) -> Asked:
        await self.stop.ready()
        self.pending += [] if self.brief else self.stop.floor.take()  # in a panel, the brief tells of it
        models = self.agent.models
        reply = await effects.first_answer(models, lambda place: effects.ask_model(self._request(place), models))
        self.head, self.pending, self.reply = reply.head, [], reply
        self.asked += 1
        self.unanswered = list(reply.message.tool_calls)
        self.messages.append(reply.message)
        self.usage += (reply.message.usage or TokenUsage()) + TokenUsage(model_calls=1)
        return reply

    def _request(self, fallback: int) -> AskRequest:
        return AskRequest(
            thread=self.thread.model_copy(update={"head": self.head}),
            speaker=self.agent.speaker,
            begun=self.thread.head.depth,
            pending=tuple(self.pending),
            fallback=fallback,
            turn=self.number,
            turns=self.of,
            window=self.agent.window,
            brief=self.brief,
        )

    async def _use_tools(self, reply: Asked) -> None:
        """Carries out the calls of a reply that are not done yet, one after the other or all at once."""
        at_once = len(self.unanswered) if self.agent.parallel_tool_calls else 1
        while self.unanswered:
            self.stop.check()
            first = len(reply.message.tool_calls) - len(self.unanswered)
            await self._use_batch(reply, [*enumerate(self.unanswered[:at_once], first)])
            if len(portions(tuple(self.pending))) > 1:
                await self._join()
            if self.unanswered:
                await self._rest()

    async def _use_batch(self, reply: Asked, batch: Sequence[tuple[int, ToolCall]]) -> None:
        after = self.head
        outcomes = await settle(self._use(reply, index, call) for index, call in batch)
        for (_, call), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Used):
                if outcome.ends:
                    self.ends, self.answer = True, self.answer or outcome.message.content or None
                self._keep(call, outcome.message, Span(after=after, to=outcome.head))
            elif isinstance(outcome, Message):
                self._keep(call, outcome, outcome)
        if errors := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
            raise errors[0]

    async def _rest(self) -> None:
        """Lets a long run go on in a new one from here, if it is this turn's alone."""
        if self.rests and is_long():
            await self._join()
            raise Rest

    async def _join(self) -> None:
        """Joins what is pending to the conversation, however the run is to end."""
        if self.pending:
            items, self.pending = tuple(self.pending), []
            self.head = await uninterrupted(asyncio.create_task(effects.append(self.head, items)))

    async def _use(self, reply: Asked, index: int, call: ToolCall) -> Used | Message:
        tool = next((tool for tool in self.agent.tools if tool.name == call.name), ToolPlan(name=call.name))
        thread = self.thread.model_copy(update={"head": self.head})
        request = UseRequest(thread=thread, speaker=self.agent.speaker, reply=reply.head.id, call=index)
        self.usage += TokenUsage(tool_calls=1)
        try:
            return await effects.use_tool(request, cut(call.name, 64), tool.timeout)
        except Failed as failed:
            if tool.on_error == "fail" or failed.failure.family == "MemoryError":
                raise
            return call.answer(f"Error: {failed.failure.message}")

    def _keep(self, call: ToolCall, message: Message, item: Item) -> None:
        """Joins a tool's answer to the conversation: at once if nothing came between, else with the next effect."""
        self.unanswered.remove(call)
        self.messages.append(message)
        if isinstance(item, Span) and item.after == self.head and not self.pending:
            self.head = item.to
        else:
            self.pending.append(item)

    async def _end(self, reason: StopReason, failure: Failure | None = None) -> Turn:
        self.pending += [] if self.brief else self.stop.floor.take()
        for call in [*self.unanswered]:
            refusal = call.answer("Not carried out: the turn ended first.")
            self._keep(call, refusal, refusal)
        try:
            await self._join()
        except Failed as failed:
            reason, failure = "failed", failure or failed.failure
        if failure:
            failure = failure.model_copy(update={"member": self.agent.name, "turn": self.number})
        end = {"ended": self.ends and reason == "completed", "stop_reason": reason, "failure": failure}
        return self.so_far.model_copy(update=end)
