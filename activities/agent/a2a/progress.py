"""What is known of an agent's answer: a task that goes on, or a message."""

from collections.abc import Callable, Iterable

from a2a.types import Artifact, Part, Role, StreamResponse, Task, TaskState
from a2a.types import Message as A2AMessage

from ....conversation.errors import AgentFailed
from ....conversation.messages.message import RemoteTask
from ..bounded_http import MAX_BYTES
from .parts import text_of

OPEN = (TaskState.TASK_STATE_UNSPECIFIED, TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
"""States of a task after which more is to come by itself."""

LONGEST_ID = 1_000
"""Characters of an id that a server gives; a longer one is not kept."""

OVERHEAD = 100
"""Bytes of an artifact, or of a part of one, besides its content."""


class Progress:
    """The answer as it grows; ``on_text`` gets each new piece of its text."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self.task = ""
        self.context = ""
        self.state: TaskState = TaskState.TASK_STATE_UNSPECIFIED
        self._message: A2AMessage | None = None
        self._said = ""
        self._artifacts: dict[str, list[Part]] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will come by itself."""
        return self._message is not None or self.state not in OPEN

    @property
    def is_message(self) -> bool:
        """Whether the answer is a message, without a task."""
        return self._message is not None

    def place(self, agent: str) -> RemoteTask:
        """The place of the answer on its server."""
        state = TaskState.Name(self.state).removeprefix("TASK_STATE_").lower().replace("_", "-")
        known = RemoteTask(agent=agent, context=self.context or None)
        return known if not self.task else known.model_copy(update={"task": self.task, "state": state})

    @property
    def text(self) -> str:
        """The answer's text: the artifacts; without any, what the agent has said last."""
        if self._message is not None:
            return text_of(self._message.parts)
        made = "\n\n".join(filter(None, map(text_of, self._artifacts.values())))
        if self.state == TaskState.TASK_STATE_COMPLETED:
            return made or self._said
        return "\n\n".join(filter(None, (made, self._said)))

    @property
    def said(self) -> str:
        """What the agent has said last about its state."""
        return self._said

    def take(self, event: StreamResponse) -> None:
        """Takes what a server sends."""
        match event.WhichOneof("payload"):
            case "task":
                self.take_task(event.task)
            case "message":
                self._message = event.message
                self._known("", event.message.context_id)
            case "status_update":
                update = event.status_update
                self._known(update.task_id, update.context_id)
                self._status(update.status.state, update.status.message)
            case "artifact_update":
                self._known(event.artifact_update.task_id, event.artifact_update.context_id)
                self._artifact(event.artifact_update.artifact, append=event.artifact_update.append)

    def take_task(self, task: Task) -> None:
        """Takes a whole task."""
        self._known(task.id, task.context_id)
        for artifact in task.artifacts:
            self._artifact(artifact, append=False)
        own = [each for each in task.history if each.role == Role.ROLE_AGENT]
        has_said = task.status.HasField("message")
        self._status(task.status.state, task.status.message if has_said or not own else own[-1])

    def recall(self, task: str, context: str) -> None:
        """Takes the ids that an earlier attempt has noted."""
        self._known(task, context)

    def _known(self, task: str, context: str) -> None:
        self.task = self.task or task[:LONGEST_ID]
        self.context = context[:LONGEST_ID] or self.context

    def _status(self, state: TaskState, message: A2AMessage) -> None:
        self.state = state
        said = text_of(message.parts)
        if said and said != self._said:
            self._said = said
            self._on_text(f"{said}\n")

    def _artifact(self, artifact: Artifact, *, append: bool) -> None:
        key, text = artifact.artifact_id, "".join(part.text for part in artifact.parts)
        known = self._artifacts.setdefault(key, [])
        if not append:
            text = text.removeprefix("".join(part.text for part in known))
            known.clear()
            self._size -= self._sizes.pop(key, 0)
        added = _extend(known, artifact.parts) + (0 if key in self._sizes else OVERHEAD + len(key))
        self._sizes[key] = self._sizes.get(key, 0) + added
        self._size += added
        self._on_text(text)
        if self._size > MAX_BYTES:
            raise AgentFailed(f"the agent gives more than {MAX_BYTES:,} bytes")


def _extend(parts: list[Part], more: Iterable[Part]) -> int:
    """Adds the parts of a next chunk, and returns how many bytes they take.

    A text after a text continues it: so they stand in a task that was streamed.
    """
    size = 0
    for part in more:
        size += part.ByteSize()
        if parts and part.HasField("text") and parts[-1].HasField("text"):
            parts[-1] = Part(text=parts[-1].text + part.text)
        else:
            parts.append(part)
            size += OVERHEAD
    return size
