"""What do people say to a run while it goes on? Words that are yet to join the conversation, and that it is to wait."""

from ...conversation.contracts.continuation import Said
from ...conversation.contracts.control_messages import SteerRequest
from ...conversation.messages.message import Message


class Floor:
    """What was said to a run, until somebody is about to speak in it who hears it."""

    def __init__(self) -> None:
        self.paused = False
        self._waiting: list[Message] = []

    def say(self, request: SteerRequest) -> None:
        """A person has said something."""
        self._waiting.append(Message(role="user", content=request.text, name=request.name))

    def take(self) -> list[Message]:
        """What is waiting; whoever takes it puts it into the conversation."""
        said, self._waiting = self._waiting, []
        return said

    @property
    def state(self) -> Said | None:
        """What another run must know of it."""
        if not (self.paused or self._waiting):
            return None
        return Said(paused=self.paused, waiting=tuple(self._waiting))

    def resume(self, state: Said | None) -> None:
        """Takes up what was said to the run that goes on in this one."""
        if state:
            self.paused, self._waiting = state.paused, [*state.waiting, *self._waiting]
