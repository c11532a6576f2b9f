"""The messages to a child workflow: sent one after the other, so that none overtakes another."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from temporalio import workflow
from temporalio.workflow import ChildWorkflowHandle

from ...conversation.contracts.control_messages import SteerRequest
from ...conversation.messages.turn import TurnResult
from ..state.cancellation import uncancelled

Child = ChildWorkflowHandle[object, TurnResult]


@dataclass(eq=False)
class ChildMessage:
    """A signal that is sent to one or more children; ``open`` counts those that may still get it, ``got`` who has."""

    signal: str
    value: object
    open: int = 0
    got: int = 0


@dataclass(eq=False)
class ChildMailbox:
    """Sends messages to a running child, in the order in which they were put."""

    child: Child
    _waiting: deque[ChildMessage] = field(default_factory=deque)
    _sent: list[ChildMessage] = field(default_factory=list)
    _sender: "asyncio.Task[None] | None" = None

    @property
    def is_sending(self) -> bool:
        """Whether a message is on its way."""
        return self._sender is not None and not self._sender.done()

    def put(self, message: ChildMessage) -> None:
        """Adds a message, and begins to send if nothing is on its way."""
        message.open += 1
        self._waiting.append(message)
        if not self.is_sending:
            self._sender = asyncio.create_task(self._send())

    async def wait_until_sent(self) -> None:
        """Waits until all messages so far were sent, or the child has ended."""
        if self._sender:
            await uncancelled(self._sender)

    async def send_now(self, message: ChildMessage) -> None:
        """Sends a message without waiting for those before it, as runs from before the patch do."""
        message.open += 1
        await self._deliver(message)

    async def close(self, result: TurnResult | None) -> list[SteerRequest]:
        """The people's messages that no child has read; without a result nothing that this child has read is kept."""
        await self.wait_until_sent()
        for message in self._waiting:
            message.open -= 1
        unread = [SteerRequest(text=each.content, name=each.name or "user") for each in result.unread] if result else []
        for message in self._sent:
            if result is None or message.value in unread:
                message.got -= 1
        sent = [each.value for each in self._sent]
        lost = [each.value for each in (*self._sent, *self._waiting) if not each.open and not each.got]
        direct = [each for each in unread if each not in sent]  # which a client has sent to the child itself
        return [value for value in (*lost, *direct) if isinstance(value, SteerRequest)]

    async def _send(self) -> None:
        while self._waiting and await self._deliver(self._waiting[0]):
            self._waiting.popleft()

    async def _deliver(self, message: ChildMessage) -> bool:
        try:
            await self.child.signal(message.signal, message.value)
        except Exception:
            workflow.logger.debug("the child run %s has ended already", self.child.id)
            return False
        message.open, message.got = message.open - 1, message.got + 1
        self._sent.append(message)
        return True
