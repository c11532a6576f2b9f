"""The conversation that a query goes on with: its question is put there, and what it has added is kept at the end."""

import asyncio
from collections.abc import Iterable, Mapping

from temporalio import workflow

from ..conversation.contracts.conversation_plan import ConversationPlan
from ..conversation.contracts.memory_requests import RecallRequest, RecallResult, RememberRequest
from ..conversation.contracts.plan import QueryPlan, TargetPlan
from ..conversation.contracts.requests import ConversationItem, Pinned
from ..conversation.contracts.status import Status
from ..conversation.messages.message import Head, Message, Span
from ..conversation.messages.turn import Thread, TurnResult
from ..conversation.text import truncate
from .calls import conversations
from .state.cancellation import uncancelled
from .state.errors import ActivityFailed
from .state.run_state import RunState

MAX_ERROR_BYTES = 1_000
"""Bytes of an error that a conversation keeps as the answer of the target that has failed."""


class QueryMemory:
    """The conversation of a query; without a plan for one, nothing is read and nothing is kept."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.recalled: RecallResult | None = None
        self._plan: ConversationPlan | None = None
        self._lost: str | None = None

    def begin(self, pinned: Pinned) -> None:
        """Takes up the plan; in a conversation of the journal, the question has its place already."""
        assert isinstance(pinned.plan, QueryPlan)
        self._plan = pinned.plan.conversation
        if self._plan and not self._plan.remote:
            self.recalled = RecallResult(thread=pinned.thread, before=pinned.before or Head())

    def restore(self, plan: QueryPlan, recalled: RecallResult | None) -> None:
        """Takes up what the run before this one has read."""
        self._plan, self.recalled = plan.conversation, recalled

    async def recall(self, thread: Thread) -> Thread:
        """The thread after what was said before. Raises ActivityFailed if that can't be read, and has to be."""
        if self._plan and not self.recalled:
            try:
                self.recalled = await conversations.recall(
                    self._run, RecallRequest(thread=thread, conversation=self._plan)
                )
            except ActivityFailed as failed:
                if self._plan.on_error == "fail":
                    raise
                notice = f"what was said before could not be read: {failed.failure.message}"
                self.recalled = RecallResult(thread=thread, notice=notice)
        return self.recalled.thread if self.recalled else thread

    @property
    def question(self) -> Head:
        """The place of the question in the conversation; the empty one where it was not put there."""
        return self.recalled.thread.head if self.recalled else Head()

    async def remember(self, items: Iterable[ConversationItem], catalog: str) -> None:
        """Adds what was said to the conversation, even while the run is being cancelled."""
        if not (self._plan and self.recalled):
            return
        asked = Span(after=self.recalled.before, to=self.question)
        request = RememberRequest(
            conversation=self._plan,
            catalog=catalog,
            before=self.recalled.before,
            items=(asked, *items),
            known=self.recalled.known,
        )
        try:
            await uncancelled(asyncio.create_task(conversations.remember(self._run, request)))
        except ActivityFailed as failed:
            self._lost = f"what was said is not in the conversation: {failed.failure.message}"
            workflow.logger.warning("%s", self._lost)

    def in_status(self, status: Status) -> Status:
        """The status with the conversation, and with what went wrong without failing the query."""
        if not self._plan:
            return status
        own = (each for each in (self.recalled and self.recalled.notice, self._lost) if each)
        notices = (*(status.notices or ()), *own)
        return status.model_copy(update={"conversation_id": self._plan.id, "notices": notices or None})


def said_by_targets(
    targets: Iterable[TargetPlan], answers: Mapping[int, TurnResult], question: Head
) -> Iterable[ConversationItem]:
    """What each target has added after the question, in the order of the targets, with their errors as answers.

    What a tool answers is no part of a conversation. (ARK: queries, memory)
    """
    for index, target in enumerate(targets):
        turn = answers.get(index)
        if turn is None or target.type == "tool":
            continue
        if turn.head != question:
            yield Span(after=question, to=turn.head)
        if error := turn.failure.message if turn.failure else "canceled" if turn.stop_reason == "canceled" else None:
            yield error_message(error, target.name)


def error_message(error: str, name: str | None = None) -> Message:
    """An error as the answer that a conversation keeps."""
    return Message(role="assistant", content=f"Error: {truncate(error, MAX_ERROR_BYTES)}", name=name)
