"""Tasks of the A2A protocol: what the events of a run say about it, as every replica of the gateway reads them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime

from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct, Value
from pydantic import JsonValue

from ...contracts.message import PersonDecision
from ...contracts.status import Status
from ...contracts.text import is_cut_from
from ...resources.base import JsonObject
from ...resources.content import ContentPart
from ..history.events import (
    Event,
    MessageEvent,
    RunEndedEvent,
    RunResetEvent,
    SteeredEvent,
    TextDeltaEvent,
    TextRetractedEvent,
    WaitEndedEvent,
    WaitStartedEvent,
)
from ..runs.runs import NotServedError
from .run import Run

CONTEXT = "a2a.context"
"""The memo entry of a run with the id of its context, as the client knows it."""

MESSAGE = "a2a.message"
"""The memo entry with the id of the client's message that has started it."""

TARGET = "a2a.target"
"""The memo entry with the id of the served team or agent."""

DECISIONS = ("approval", "budget", "question")
"""The kinds of waits that a message of the client can end."""

ANSWER = "answer"
"""The id of the artifact with the answer."""

TERMINAL = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
INTERRUPTED = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})

Update = TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class TaskView:
    """The task of a run as its events up to ``cursor`` say, and what follows.

    All readers of the same events have the same task, with the same ids of messages. So a reader of another replica
    takes the task as it is, and goes on after the cursor: no update is lost or received twice.
    """

    def __init__(self, run: Run, question: Message, *, needs_worker: bool = True) -> None:
        self.run = run
        self._needs_worker = needs_worker
        self.cursor: str | None = None
        self.state: TaskState = TaskState.TASK_STATE_SUBMITTED
        self.pending: dict[str, WaitStartedEvent] = {}
        self._context = context_of(run)
        self._is_agent = str(run.memo.get(TARGET, "")).startswith("agent/")
        self._at: datetime | None = None
        self._history: list[tuple[datetime | None, Message]] = [(None, question)]
        self._steered: set[tuple[str, str]] = set()
        """The messages that people have sent into the run: their authors and texts."""
        self._early: set[tuple[str, str]] = set()
        """Messages of people that a run below has read before the run above has told of their sending."""
        self._ended: Status | None = None
        self._streamed: str | None = None

    @classmethod
    async def read(cls, run: Run, until: str | None = None, *, needs_worker: bool = True) -> "TaskView":
        """The task of a run as it is now or, with ``until``, as it was at that cursor.

        Unless it ``needs_worker``, no worker is asked, and what is decided already may seem to wait still.
        """
        later: set[str] = set()
        if until:
            async with aclosing(run.events(until, wait=False, live=False)) as events:
                later = {event.id async for event in events}
        view = cls(run, await question_of(run), needs_worker=needs_worker)
        async with aclosing(run.events(wait=False, live=False)) as events:
            async for event in events:
                if event.id not in later:
                    await view.apply(event)
        if until:
            view.cursor = until
        elif view.pending and needs_worker:
            await view._drop_decided()
        return view

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended."""
        return self.state in TERMINAL

    @property
    def is_settled(self) -> bool:
        """Whether the task has ended, or waits for the client."""
        return self.is_terminal or self.state in INTERRUPTED

    @property
    def task(self) -> Task:
        """The task as it is."""
        return Task(
            id=self.run.id,
            context_id=self._context,
            status=self._status(),
            history=[message for _, message in self._history],
            artifacts=self._artifacts(),
        )

    async def follow(self, *, live: bool) -> AsyncGenerator[Update, None]:
        """The updates after the cursor, to the end of the task; with ``live`` also of text that is being written."""
        async with aclosing(self.events(live=live)) as events:
            async for _, updates in events:
                for update in updates:
                    yield update

    async def events(self, *, live: bool = False) -> AsyncGenerator[tuple[Event, Sequence[Update]], None]:
        """The same, with the events that bring the updates."""
        async with aclosing(self.run.events(self.cursor, live=live)) as events:
            async for event in events:
                yield event, await self.apply(event)

    async def apply(self, event: Event) -> Sequence[Update]:
        """Takes an event, and returns the updates that clients receive for it."""
        self.cursor = event.cursor
        if self.state == TaskState.TASK_STATE_SUBMITTED:
            self.state = TaskState.TASK_STATE_WORKING
            self._at = event.at
        match event:
            case MessageEvent() if not self._has(event):
                return self._say(event)
            case SteeredEvent():
                self._steer(event)
            case WaitStartedEvent(kind=kind, wait=wait) if kind in DECISIONS:
                self.pending[wait] = event
                return self._changed(event.at)
            case WaitEndedEvent(wait=wait) if self.pending.pop(wait, None):
                return self._changed(event.at)
            case TextDeltaEvent(tool=None) if self._is_agent and event.run == self.run.id:
                return [self._text_update(event)]
            case TextRetractedEvent(tool=None) if self._is_agent and event.run == self.run.id:
                self._streamed = ""
                return [self._artifact_update("", append=False)]
            case RunResetEvent(since=since):
                self._history = [(at, message) for at, message in self._history if at is None or at <= since]
                self.pending = {wait: started for wait, started in self.pending.items() if started.at <= since}
                return self._changed(event.at)
            case RunEndedEvent() if event.run == self.run.id:
                return await self._end(event)
        return []

    def _say(self, event: MessageEvent) -> Sequence[Update]:
        """Adds a message to the history."""
        if event.from_person:
            self._early.add((event.name, event.text))
        message = self._said(event)
        self._history.append((event.at, message))
        said = self._status_update(TaskStatus(state=TaskState.TASK_STATE_WORKING, message=message, timestamp=event.at))
        return [said, self._status_update(self._status())] if self.pending else [said]

    def _steer(self, event: SteeredEvent) -> None:
        """Adds what a person has sent into the run to the history, unless it has it already."""
        sent = event.by, event.text
        if sent in self._early:
            self._early.remove(sent)
            return
        self._steered.add(sent)
        message = self._message(event.id, Role.ROLE_USER, [Part(text=event.text)], {"name": event.by})
        self._history.append((event.at, message))

    def take(self, wait: str, decision: PersonDecision) -> None:
        """Takes note of the decision for a wait before the events say so. While people are missing it waits on."""
        if not decision.missing:
            self.pending.pop(wait, None)
            self._set_state()

    async def _drop_decided(self) -> None:
        """Drops what was decided already: the events say so only when the waiting call goes on."""
        try:
            waits = {wait: started.run for wait, started in self.pending.items()}
            waiting = {each.id for each in await self.run.undecided(waits)}
        except NotServedError:
            return  # then the events are all that is known
        self.pending = {wait: started for wait, started in self.pending.items() if wait in waiting}
        self._set_state()

    def _set_state(self) -> None:
        if not self.pending:
            self.state = TaskState.TASK_STATE_WORKING
        elif all(wait.authorizes for wait in self.pending.values()):
            self.state = TaskState.TASK_STATE_AUTH_REQUIRED
        else:  # a client has to answer something, even if it also has to authorize something
            self.state = TaskState.TASK_STATE_INPUT_REQUIRED

    def _changed(self, at: datetime) -> Sequence[Update]:
        self._set_state()
        self._at = at
        return [self._status_update(self._status())]

    async def _end(self, event: RunEndedEvent) -> Sequence[Update]:
        stored = None if self._needs_worker else await self.run.stored_status()
        ended = stored or await self.run.result()
        self._ended = ended
        self.pending.clear()
        self._at = event.at
        match event.phase:
            case "Failed":
                self.state = TaskState.TASK_STATE_FAILED
            case "Canceled":
                self.state = TaskState.TASK_STATE_CANCELED
            case _:
                self.state = TaskState.TASK_STATE_COMPLETED
        updates: list[Update] = []
        if self._artifacts():
            streamed = self._streamed or ""
            if streamed and (ended.message.startswith(streamed) or is_cut_from(ended.message, streamed)):
                rest = ended.message.removeprefix(streamed) if ended.message.startswith(streamed) else ""
                updates.append(self._artifact_update(rest, append=True, last=True))
            else:
                updates.append(self._artifact_update(ended.message, append=False, last=True))
        return [*updates, self._status_update(self._status())]

    def _status(self) -> TaskStatus:
        status = TaskStatus(state=self.state, timestamp=self._at)
        if self.pending:
            status.message.CopyFrom(self._request())
        elif self._ended and self.state != TaskState.TASK_STATE_COMPLETED:
            text = self._ended.error or self._ended.note or self._ended.message
            if text:
                status.message.CopyFrom(self._message("end", Role.ROLE_AGENT, [Part(text=text)]))
        return status

    def _status_update(self, status: TaskStatus) -> TaskStatusUpdateEvent:
        return TaskStatusUpdateEvent(task_id=self.run.id, context_id=self._context, status=status)

    def _request(self) -> Message:
        """What the client is asked: in words, and as data with the ids by which it answers."""
        asked: list[JsonValue] = []
        texts: list[str] = []
        for wait in self.pending.values():
            details = {"id": wait.wait, "kind": wait.kind, "speaker": wait.speaker, "tool": wait.tool}
            if wait.kind == "question":
                details["question"] = wait.text
                texts.append(wait.text or "")
            else:
                details["arguments"] = wait.text
                what = f"call {wait.tool}" if wait.tool else "exceed the budget"
                shown = f" with {wait.text}" if wait.text else ""
                texts.append(
                    f"{wait.speaker} asks to {what}{shown}. Reply 'approve {wait.wait}' or 'reject {wait.wait} REASON'."
                )
            asked.append({name: value for name, value in details.items() if value is not None})
        data = Part(data=to_value({"pending": asked}), media_type="application/json")
        return self._message(f"ask-{'-'.join(self.pending)}", Role.ROLE_AGENT, [Part(text="\n\n".join(texts)), data])

    def _has(self, event: MessageEvent) -> bool:
        """Whether the history has a message since a person has sent it: it is read later."""
        return event.from_person and (event.name, event.text) in self._steered

    def _said(self, event: MessageEvent) -> Message:
        about: JsonObject = {"speaker": event.name, "round": event.round, "part": event.part, "run": event.run}
        role = Role.ROLE_USER if event.from_person else Role.ROLE_AGENT
        return self._message(event.id, role, [Part(text=event.text)], about)

    def _message(self, id_: str, role: Role, parts: Sequence[Part], about: JsonObject | None = None) -> Message:
        given = {name: value for name, value in (about or {}).items() if value is not None}
        return Message(
            message_id=f"{self.run.id}/{id_}",
            task_id=self.run.id,
            context_id=self._context,
            role=role,
            parts=parts,
            metadata=ParseDict({"baton": given}, Struct()) if given else None,
        )

    def _artifacts(self) -> list[Artifact]:
        if self._ended is None or self.state != TaskState.TASK_STATE_COMPLETED or not self._ended.message:
            return []
        return [self._artifact(self._ended.message)]

    def _artifact(self, text: str) -> Artifact:
        is_json = self._ended is not None and self._ended.value is not None
        part = Part(text=text, media_type="application/json" if is_json else "text/plain")
        return Artifact(artifact_id=ANSWER, name=ANSWER, parts=[part])

    def _artifact_update(self, text: str, *, append: bool, last: bool = False) -> TaskArtifactUpdateEvent:
        return TaskArtifactUpdateEvent(
            task_id=self.run.id,
            context_id=self._context,
            artifact=self._artifact(text),
            append=append,
            last_chunk=last,
        )

    def _text_update(self, event: TextDeltaEvent) -> Update:
        """The next piece of an agent's answer; the first one of a call replaces what was said before a tool call."""
        is_first = event.offset == 0
        self._streamed = event.text if is_first else (self._streamed or "") + event.text
        return self._artifact_update(event.text, append=not is_first)


def context_of(run: Run) -> str:
    """The id of the context of a run, as its client knows it."""
    return str(run.memo.get(CONTEXT) or run.id)


async def question_of(run: Run) -> Message:
    """The client's message that has started a run, as it is in the run's input."""
    spec = await run.spec()
    parts = _parts_of(spec.messages[-1].content if spec.messages else spec.text) if spec else []
    return Message(
        message_id=str(run.memo.get(MESSAGE) or f"{run.id}/question"),
        task_id=run.id,
        context_id=context_of(run),
        role=Role.ROLE_USER,
        parts=parts,
    )


def _parts_of(question: str | Sequence[ContentPart]) -> list[Part]:
    """The parts of a question."""
    if isinstance(question, str):
        return [Part(text=question)]
    parts = []
    for part in question:
        name = part.name or ""
        if part.url:
            parts.append(Part(url=part.url, filename=name, media_type=part.media_type or ""))
        elif part.data:
            parts.append(Part(raw=part.data.content, filename=name, media_type=part.data.media_type))
        else:
            parts.append(Part(text=part.shown))
    return parts


def to_value(value: JsonValue) -> Value:
    """A JSON value of protobuf."""
    return ParseDict(value, Value())  # type: ignore[arg-type]  # its stub knows objects only
