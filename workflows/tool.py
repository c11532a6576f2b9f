"""The workflow ``tool``: one tool that a query is put to, with the question as its arguments."""

import asyncio

from pydantic import JsonValue
from temporalio import workflow

from ..conversation.contracts.continuation import State
from ..conversation.contracts.plan import ToolTarget
from ..conversation.contracts.requests import Pinned, UseRequest
from ..conversation.messages.message import TokenUsage
from ..conversation.messages.turn import Turn
from .base.turn_workflow import Member
from .calls import effects
from .calls.execute_activity import Failed, Interrupted


@workflow.defn(name="tool")
class Tool(Member):
    """Uses one tool once; what it gives is the answer."""

    @workflow.run
    async def run(self, *given: JsonValue) -> Turn:
        return await self.conduct()

    async def speak(self, pinned: Pinned, state: State | None) -> Turn:
        assert isinstance(pinned.plan, ToolTarget)
        plan, thread = pinned.plan, pinned.thread
        turn = Turn(head=thread.head, usage=TokenUsage(tool_calls=1), note=self.stop.note)
        request = UseRequest(thread=thread, speaker=f"Tool/{plan.namespace}/{plan.name}")
        try:
            used = await effects.use_tool(request, plan.name, plan.timeout)
        except (Interrupted, asyncio.CancelledError):
            return turn.model_copy(update={"stop_reason": self.stop.reason or "canceled", "note": self.stop.note})
        except Failed as failed:
            return turn.model_copy(update={"stop_reason": "failed", "failure": failed.failure})
        return turn.model_copy(update={"head": used.head, "messages": (used.message,), "note": self.stop.note})
