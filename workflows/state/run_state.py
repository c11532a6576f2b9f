"""The state that all parts of a run share: stop request, inbox, decisions, session, and where activities run."""

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import Priority

from ...contracts.control_messages import Pause, SteerRequest
from ...contracts.decisions import PendingDecision, shown
from ...contracts.inputs import InboxState, QueryInput, TurnInput
from ...contracts.message import Message, latest_within
from ...contracts.requests import TaskQueues
from ...contracts.status import Status
from ...contracts.text import truncate
from ...contracts.turn import TurnResult
from ...resources.base import JsonObject
from .constants import MAX_CONCURRENT_ACTIVITIES
from .decisions import Decisions, wait_begins, wait_ends
from .run_trace import RunTrace
from .stopping import StopState


class Inbox:
    """What people said to a run, until the next model call takes it; and whether the run waits.

    A closed inbox belongs to a run that ends: no member would read later messages.
    """

    def __init__(self) -> None:
        self.pause: Pause | None = None
        self.is_closed = False
        self._messages: list[Message] = []

    def put(self, request: SteerRequest) -> None:
        """Adds the message of a person."""
        self._messages.append(Message(role="user", content=request.text, name=request.name))

    @property
    def waiting(self) -> tuple[Message, ...]:
        """The messages that wait."""
        return tuple(self._messages)

    def drain(self) -> list[Message]:
        """Takes all messages out; the caller adds them to the conversation."""
        messages = self._messages
        self._messages = []
        return messages

    @property
    def state(self) -> InboxState | None:
        """The part of it that a continued run needs."""
        if not (self.pause or self._messages):
            return None
        return InboxState(pause=self.pause, waiting=self.waiting)

    def restore(self, state: InboxState | None) -> None:
        """Restores the state of the previous run; its messages come before those of this one."""
        if state:
            self.pause = state.pause
            self._messages = [*state.waiting, *self._messages]


class SessionState:
    """Named JSON values."""

    def __init__(self) -> None:
        self.values: JsonObject = {}

    def update(self, changes: JsonObject) -> JsonObject:
        """Changes some values, removes those that are changed to null, and returns all."""
        merged = {**self.values, **changes}
        self.values = {name: value for name, value in merged.items() if value is not None}
        return self.values


SHOWN_CHARACTERS = 8_000
"""Characters of a conversation that the details show."""

SHOWN_DECISIONS = 20
"""Decisions, and runs, that the details show."""


class CurrentDetails:
    """What Temporal's UI shows of a run at the moment."""

    def __init__(self) -> None:
        self._text = ""
        self._pause = ""
        self._question = ""
        self._waits = ""

    def show_question(self, question: str) -> None:
        """Shows the question of the run above its messages."""
        self._question = f"> {' '.join(question.split())}\n\n" if question else ""
        self._set(self._text)

    def show_turn(self, name: str, turn: TurnResult, max_turns: int | None = None) -> None:
        """Shows the messages of a team or an agent so far."""
        count = f"{turn.turns} of {max_turns}" if max_turns else f"{turn.turns}"
        end = f" · {turn.stop_reason}" if turn.stop_reason != "completed" else ""
        last = turn.messages[-1].round if turn.messages else None
        place = f"round {last}" if last else f"turn {count}"
        title = f"### {name} · {place}{end} · {turn.usage.total_tokens} tokens"
        failure = [f"**{turn.failure.type}** {turn.failure.message}"] if turn.failure else []
        said = [_as_markdown(message) for message in latest_within(turn.messages, SHOWN_CHARACTERS)]
        self._set("\n\n".join((title, *said, *failure)))

    def show_status(self, status: Status) -> None:
        """Shows the status of a query so far."""
        title = f"### {status.token_usage.total_tokens} tokens"
        targets = (
            f"- **{each.target.type}/{each.target.name}** {each.status} {each.error or ''}" for each in status.responses
        )
        self._set("\n".join((title, *targets, "", truncate(status.message, SHOWN_CHARACTERS))))

    def show_pause(self, pause: Pause | None) -> None:
        """Shows above everything else that the run is paused, until it is resumed."""
        by = f" by {pause.by}" if pause and pause.by else ""
        self._pause = f"**Paused{by} since {pause.since}**\n\n" if pause else ""
        self._set(self._text)

    def show_decisions(self, pending: Sequence[PendingDecision], runs: Sequence[str]) -> None:
        """Shows for which decisions the run waits, and which of its child runs do."""
        own = (_waiting_line(each) for each in pending[:SHOWN_DECISIONS])
        below = (f"- **waits for a person** in the run `{run}`" for run in runs[:SHOWN_DECISIONS])
        self._waits = "".join(f"{line}\n" for line in (*own, *below)) + ("\n" if pending or runs else "")
        self._set(self._text)

    def _set(self, text: str) -> None:
        self._text = text
        workflow.set_current_details(self._pause + self._waits + self._question + text)


def _waiting_line(pending: PendingDecision) -> str:
    if pending.kind == "question":
        return f"- **waits for {pending.speaker}** `{pending.id}`: {truncate(pending.question or '', 500)}"
    arguments = truncate(pending.arguments or "", 500)
    if pending.kind == "budget":
        return f"- **waits for approval** `{pending.id}`: {pending.question}; approval grants `{arguments}`"
    return f"- **waits for approval** `{pending.id}`: {pending.speaker} calls `{pending.tool}` with `{arguments}`"


def _as_markdown(message: Message) -> str:
    place = f"round {message.round} · " if message.round else ""
    speaker = f"{place}**{message.name or message.role}**" + (f" ({message.model})" if message.model else "")
    calls = "".join(f"\n- calls `{call.name}` with `{truncate(call.arguments, 200)}`" for call in message.tool_calls)
    return f"{speaker}: {truncate(message.content, 2_000)}{calls}"


class RunState:
    """Made once for each run, and handed to whatever acts for it.

    ``task_queues`` and the beginning of the ``question`` are known as soon as the run is pinned; ``started_at`` is when
    the first run of the chain began.
    """

    def __init__(self) -> None:
        self.stop = StopState()
        self.inbox = Inbox()
        self.session = SessionState()
        self.details = CurrentDetails()
        self.task_queues = TaskQueues()
        self.trace = RunTrace()
        self.decisions = Decisions(self.stop, self.trace)
        self.activity_slots = asyncio.Semaphore(MAX_CONCURRENT_ACTIVITIES)
        self.started_at = workflow.info().start_time
        self.question = ""

    def begin(self, given: QueryInput | TurnInput) -> None:
        """Applies the input of the run, before any signal or update."""
        self.session.update(given.session)
        if isinstance(given, TurnInput):
            self.stop.restore(given.stop)
            self.inbox.pause = given.pause

    async def ready(self) -> None:
        """Waits while the run is paused; raises ActivityInterrupted if it is to stop now."""
        if self.inbox.pause and not self.stop.is_requested:
            await self._resumed()
        self.stop.checkpoint()

    async def _resumed(self) -> None:
        since = workflow.now()
        wait_begins("pause")
        try:
            with self.trace.inside(self.trace.new_wait("pause")):
                self.trace.report()
                await self.stop.wait(lambda: not self.inbox.pause)
        finally:
            wait_ends("pause", since, "stopped" if self.inbox.pause else "resumed")

    def with_requests(self, status: Status) -> Status:
        """The status of an open run with what people have requested: a pause, a session, messages that wait."""
        decisions = self.decisions
        return status.with_requests(
            self.inbox.pause, self.session.values, self.inbox.waiting, shown(decisions.pending), decisions.waiting_below
        )

    @property
    def priority(self) -> Priority:
        """The priority of the run's activities and children; what it leaves open is inherited from the run.

        A run without a tenant shares fairly with others under the end of its run id, which its children inherit.
        """
        info = workflow.info()
        own = None if info.priority.fairness_key else info.first_execution_run_id[-8:]
        return Priority(priority_key=self.task_queues.priority, fairness_key=self.task_queues.tenant or own)
