"""Messages of people that have yet to join the conversation, and whether the run is paused."""

from ...conversation.contracts.continuation import InboxState
from ...conversation.contracts.control_messages import Pause, SteerRequest
from ...conversation.messages.message import Message


class Inbox:
    """What people said to a run, until the next model call takes it; and whether the run waits.

    A closed inbox belongs to a run that ends: what comes now would be read by nobody.
    """

    def __init__(self) -> None:
        self.pause: Pause | None = None
        self.is_closed = False
        self._messages: list[Message] = []

    def put(self, request: SteerRequest) -> None:
        """Adds the message of a person."""
        self._messages.append(Message(role="user", content=request.text, name=request.name))

    @property
    def is_empty(self) -> bool:
        """Whether no message waits."""
        return not self._messages

    @property
    def waiting(self) -> tuple[Message, ...]:
        """The messages that wait."""
        return tuple(self._messages)

    def drain(self) -> list[Message]:
        """Takes all messages out; the caller adds them to the conversation."""
        messages, self._messages = self._messages, []
        return messages

    @property
    def state(self) -> InboxState | None:
        """What a continued run needs of it."""
        if not (self.pause or self._messages):
            return None
        return InboxState(paused=self.pause is not None, pause=self.pause, waiting=self.waiting)

    def restore(self, state: InboxState | None) -> None:
        """Takes up the state of the run that this one continues, before what came to this one."""
        if state:
            self.pause = state.pause or (Pause(since="") if state.paused else None)
            self._messages = [*state.waiting, *self._messages]
